/* The overlap engine. The flat gradient range lies in ready order: what the backward pass finishes first comes first.
 * It is cut into buckets; as soon as the last gradient of a bucket is written its all-reduce begins, while the backward
 * pass goes on. With overlap off the same reductions run in the same order after the backward pass, with the same bits. */
#ifndef TANDEM_BUCKET_H
#define TANDEM_BUCKET_H

#include "comm/comm.h"

struct bucket {
    int64_t offset, count; /* elements of the flat range */
    double ready, start,
        end; /* clock_seconds(): gradient complete, reduction begun and done; of the newest step */
    struct work work;
};

struct bucket_engine {
    struct comm *comm;
    struct tensor gradient; /* flat, fp32 */
    struct bucket *bucket;  /* [buckets] */
    int buckets;
    bool overlap;
    /* of this step: */
    bool in_step;
    int64_t ready;       /* elements [0, ready) are final */
    int complete, begun; /* buckets whose gradients are final; whose reductions have been started */
};

/* What one step's reductions cost, on this rank. */
struct bucket_stats {
    double comm_ms;      /* time in which at least one reduction was under way */
    double exposed_ms;   /* what the caller had to wait for them in bucket_engine_finish */
    int64_t bytes_sent;  /* by this rank */
    int64_t bytes_dense; /* what uncompressed reductions send: 2 (p-1)/p x 4 x elements */
};

/* Cuts `gradient` into buckets of bucket_elements, the first of first_elements (a small one starts the link early).
 * Not collective. bucket_engine_free accepts NULL. */
struct bucket_engine *bucket_engine_create(struct comm *comm, struct tensor gradient, int64_t bucket_elements,
                                           int64_t first_elements, bool overlap);
void bucket_engine_free(struct bucket_engine *engine);

/* A step: begin, then mark_ready with a growing count as elements [0, ready) become final, then finish, after which the
 * whole range holds the sum over ranks. All ranks must do the same. One rank: no messages, all times 0. */
void bucket_engine_begin(struct bucket_engine *engine);
void bucket_engine_mark_ready(struct bucket_engine *engine, int64_t ready);
void bucket_engine_finish(struct bucket_engine *engine, struct bucket_stats *stats);

#endif
