/* Gradient compression: a compressor says what to send, the bucket engine owns sending, byte counts and overlap.
 *
 * For each bucket, once its gradients are final, the engine calls compress(round 0), sends the payload, calls
 * decompress(round 0) when it has arrived, and goes on with round 1 ... rounds-1 in the same way. All calls are made by
 * the thread that computes, in an order that is the same on every rank. After the step the engine calls commit. Steps before start_step
 * are none of its business: the engine sends sums of gradients, and no method is called.
 *
 * The contract of every method. After the last decompress the bucket holds the same bits on every rank: the estimate of
 * the sum over ranks of the gradients. What is held back stays in the residual: with `lossless`,
 *     sum over ranks (gradient + residual) before = gradient after + sum over ranks (residual after), to rounding.
 * A method keeps what must survive from step to step in the arena `keep` and in numbers of its state, shows it to a
 * checkpoint with `visit`, and uses `scratch` for the rest; both are indexed by place in the flat range, never by bucket, so that buckets can be planned anew. */
#ifndef TANDEM_COMPRESS_H
#define TANDEM_COMPRESS_H

#include "comm/comm.h"
#include "kernels/device.h"

enum send {
    SEND_SUM,      /* mine[n] becomes its sum over ranks, in place: fp32, bf16 or fp16 */
    SEND_GATHER,   /* all[size][n]: mine[n] of every rank, in the order of ranks */
    SEND_EXCHANGE, /* all[size][n]: from every rank r its mine[me][n]; mine is [size][n] (all-to-all) */
};

struct payload {
    enum send how;
    struct tensor mine, all; /* all: unused for SEND_SUM; memory of the compressor's scratch */
};

/* One thing that must survive from step to step, and so goes into a checkpoint: a tensor, or numbers. */
enum share {
    SHARE_SAME, /* the same on all ranks, however many there are */
    SHARE_SUM,  /* fp32 [elements] by place in the flat range; what counts is its sum over ranks */
    SHARE_RANK, /* a rank's own, meaningless to another number of ranks */
};
enum number_type { NUMBER_FLAG, NUMBER_WHOLE, NUMBER_REAL }; /* bool, int64_t, double */
struct kept {
    const char *name;
    enum share share;
    struct tensor tensor; /* data NULL: numbers instead, which are SHARE_SAME */
    int matrix;           /* of a SHARE_SAME tensor: its parameter, an index of compressor.matrix */
    enum number_type type;
    void *number; /* [count] */
    int count;
};
typedef void kept_take(void *context, const struct kept *kept);

/* A parameter's place in the flat range and its shape as a matrix (one-dimensional: rows 1); for PowerSGD. */
struct flat_matrix {
    int64_t offset, rows, columns;
};

/* One bucket as a compressor sees it. */
struct bucket_view {
    int index;              /* in the plan, 0 = ready first */
    int unit;               /* what COVAP decides on; several buckets may share one */
    int64_t offset, count;  /* elements of the flat range */
    struct tensor gradient; /* fp32 [count], in place */
    int64_t
        gradients; /* set by compress: how many steps' gradients the result adds up, 0 for a dropped unit; preset to 1 */
};

struct compress_options {
    const char *method; /* a row of the table in compress.c */
    int64_t interval;   /* covap, accumulate: I >= 1 */
    double ef_initial,
        ef_increment; /* covap: k(s) = min(1, initial + increment * floor(s / period)); 1: lossless */
    int64_t ef_period;
    double density; /* topk, randomk, dgc, oktopk: share of the elements sent, in (0, 1] */
    int64_t rank;   /* powersgd */
    int64_t
        start_step; /* before it everything is sent, whatever the method; dgc: its density falls until then */
    int64_t levels; /* qsgd: of a magnitude above 0, 1 to 127 */
    double momentum; /* dgc: momentum correction, in [0, 1) */
    enum dtype wire; /* of SEND_SUM payloads: fp32, bf16, fp16 */
    uint64_t seed;
};

struct compressor {
    const struct compressor_method *method;
    struct compress_options options;
    const struct device *device;
    int rank, size;
    int64_t elements; /* of the flat range */
    const struct flat_matrix
        *matrix; /* [matrices], ascending offsets, covering the range but for gaps of zeros */
    int matrices;
    struct arena keep, scratch;
    void *state; /* the method's own struct, made by create */
};

struct compressor_method {
    const char *name, *help;
    bool dense;    /* sends every gradient every step, so that one that is not finite is seen by all ranks */
    bool lossless; /* the contract's sum holds (covap: while k = 1) */
    bool units;    /* buckets are cut into units (comm/plan.h) */
    bool whole_matrices; /* buckets must end where parameters end */
    bool starts_itself;  /* what it does before start_step is its own affair */
    enum dtype wire;     /* at least this: bf16 and fp16 are methods of their own; 0 = fp32 */
    int rounds;
    size_t state_bytes; /* of c->state: zeroed when made */
    /* Takes what it needs from c->keep and c->scratch; called twice, to count and to place. NULL: nothing. */
    void (*layout)(struct compressor *c);
    /* -1 with a message for options that make no sense. NULL: all do. */
    int (*check)(const struct compress_options *options, struct error *e);
    /* fp32 [elements]: what this rank holds back, by place in the flat range. NULL: nothing is held back. */
    struct tensor (*residual)(const struct compressor *c);
    /* Calls take for each thing the method keeps; what it writes there is what the next step goes on from. NULL: nothing. */
    void (*visit)(struct compressor *c, kept_take *take, void *context);
    /* step counts from 0. False: no (further) round for this bucket, nothing is sent and decompress is not called. *p is
     * still the payload of the round before. */
    bool (*compress)(struct compressor *c, struct bucket_view *b, int64_t step, int round, struct payload *p);
    /* NULL: what was sent is the gradient itself, in place. */
    void (*decompress)(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                       const struct payload *p);
    /* The step is over for this bucket: accepted, or to be forgotten (no gradient of it may change what is kept). */
    void (*commit)(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted);
};

/* Makes a compressor for a flat range of `elements`. NULL with a message for an unknown method or options that do not fit.
 * Not collective. matrix[] must outlive it. compressor_free accepts NULL. */
struct compressor *compressor_create(const struct compress_options *options, const struct comm *comm,
                                     const struct device *device, int64_t elements,
                                     const struct flat_matrix *matrix, int matrices, struct error *e);
void compressor_free(struct compressor *c);

/* Changes the options between two steps; the method stays, and what its memory was laid out for: density and rank. */
void compressor_set_options(struct compressor *c, const struct compress_options *options);

/* The names of all methods, separated by |, and the help of one. */
const char *compressor_names(void);
const struct compressor_method *compressor_find(const char *name);

/* COVAP's error-feedback coefficient at a step (comm/compress/covap.c). */
double covap_coefficient(const struct compress_options *options, int64_t step);

#endif
