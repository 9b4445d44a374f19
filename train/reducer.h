/* Gradient reduction as a run wants it: which compressor, how the flat range is cut, what its buckets mean for the update. */
#ifndef TANDEM_REDUCER_H
#define TANDEM_REDUCER_H

#include "comm/bucket.h"
#include "model/gpt.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/tuner.h"

struct reducer {
    struct bucket_engine *engine;
    struct tuner tuner;
    struct flat_matrix *matrix;    /* [table.params] */
    struct optimizer_range *range; /* [engine->buckets] */
    double *norm_squared;          /* [engine->buckets] of a bucket's newest mean gradient */
    const struct options *options;
    int64_t updates; /* steps that have updated weights */
};

/* -1 with a message for options that do not fit. Not collective. reducer_free accepts what reducer_create has left. */
int reducer_create(struct reducer *reducer, const struct options *options, struct comm *comm,
                   const struct gpt *gpt, struct error *e);
void reducer_free(struct reducer *reducer);

/* The first step that is compressed, from 0: --compress-start, or where that is -1 a tenth of --steps. */
int64_t reducer_start_step(const struct options *options);

/* The global gradient norm, from what the step's reductions have brought. Where a compressor leaves units out, each unit
 * counts with the norm of its newest mean gradient: the sum it was sent as, divided by the gradients in it. */
double reducer_gradient_norm(struct reducer *reducer, const struct gpt *gpt);

/* After the step was accepted: updates the weights. Where dropped units wait (--covap-dropped catch-up, accumulate), they are
 * not touched, and one that comes with the gradients of n steps makes n steps at once (optimizer_update). */
void reducer_update(struct reducer *reducer, struct optimizer *optimizer, struct gpt *gpt, double lr,
                    double norm);

/* Shows what must survive to a checkpoint, but for the tuner's state. */
void reducer_visit(struct reducer *reducer, kept_take *take, void *context);

/* Cuts anew for `step`, as the state of its tuner says: after that has been loaded, before reducer_visit loads the rest. */
void reducer_replan(struct reducer *reducer, int64_t step);

/* Lets the tuner look at the finished step; cuts anew when it has decided. Collective. */
void reducer_tune(struct reducer *reducer, int64_t step);

/* The interval in force at a step; NaN for methods without one. */
double reducer_interval(const struct reducer *reducer, int64_t step);

#endif
