/* The overlap engine. The flat gradient range lies in ready order: what the backward pass finishes first comes first.
 * It is cut into buckets; as soon as the last gradient of a bucket is written its reduction begins, while the backward
 * pass goes on. What a reduction sends is up to a compressor (comm/compress.h); the engine owns sending, byte counts and
 * overlap. With overlap off the same reductions run in the same order after the backward pass, with the same bits. */
#ifndef TANDEM_BUCKET_H
#define TANDEM_BUCKET_H

#include "comm/compress.h"

/* How the flat range is cut and reduced. */
struct bucket_plan {
    int64_t bucket_elements; /* of a bucket, at most; the last may be shorter */
    int64_t first_elements;  /* of the first one: small, so that the link starts early */
    bool overlap;
    const struct flat_matrix
        *matrix; /* [matrices] the parameters in the range; NULL: compressors see one long row */
    int matrices;
    struct compress_options compress;
};

struct bucket {
    struct bucket_view view; /* place in the range, unit */
    double ready, start,
        end;   /* clock_seconds(): gradient complete, reduction begun and done; of the newest step */
    bool sent; /* this step sent something for it */
    /* private to the engine: */
    int round;     /* rounds finished */
    bool complete; /* no round is left in this step */
    struct payload payload;
    struct work work;
};

struct bucket_engine {
    struct comm *comm;
    const struct device *device;
    struct tensor gradient; /* flat, fp32 */
    struct bucket_plan plan;
    struct compressor *compressor;
    struct arena wire; /* payloads in fewer bits */
    struct tensor wire_half;
    struct bucket *bucket; /* [buckets] */
    int buckets, units;
    int64_t step; /* counts from 0; bucket_engine_begin's argument */
    /* of this step: */
    bool in_step;
    bool finite;              /* every local gradient was, as far as it has been looked at */
    int64_t ready;            /* elements [0, ready) are final */
    int ready_buckets, begun; /* buckets whose gradients are final; whose reductions have been started */
    double compress_seconds;
    int64_t bytes_sent;
};

/* What one step's reductions cost, on this rank. */
struct bucket_stats {
    double comm_ms;      /* time in which at least one reduction was under way */
    double exposed_ms;   /* what the caller had to wait for them in bucket_engine_finish */
    double compress_ms;  /* spent in the compressor */
    int64_t bytes_sent;  /* by this rank */
    int64_t bytes_dense; /* what uncompressed reductions send: 2 (p-1)/p x 4 x elements */
    bool finite;         /* no gradient of this rank was found to be infinite or NaN */
};

/* Cuts `gradient` into buckets and makes the compressor. -1 with a message for options that do not fit. Not collective.
 * bucket_engine_free accepts NULL. */
int bucket_engine_create(struct bucket_engine **engine, struct comm *comm, const struct device *device,
                         struct tensor gradient, const struct bucket_plan *plan, struct error *e);
void bucket_engine_free(struct bucket_engine *engine);

/* Cuts anew between two steps; what the compressor keeps stays, as it is kept by place in the range. The method must be
 * the same. All ranks must do the same. */
void bucket_engine_replan(struct bucket_engine *engine, const struct bucket_plan *plan);

/* A step: begin, then mark_ready with a growing count as elements [0, ready) become final, then finish, after which the
 * range holds the sum over ranks as the compressor leaves it, then commit: accepted, or to be forgotten because some rank
 * found a gradient that is not finite. All ranks must do the same, with the same step. */
void bucket_engine_begin(struct bucket_engine *engine, int64_t step);
void bucket_engine_mark_ready(struct bucket_engine *engine, int64_t ready);
void bucket_engine_finish(struct bucket_engine *engine, struct bucket_stats *stats);
void bucket_engine_commit(struct bucket_engine *engine, bool accepted);

#endif
