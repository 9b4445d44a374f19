/* Gradient reduction as a run wants it: which compressor, how the flat range is cut, what its buckets mean for the update.
 *
 * A stage of a pipeline reduces its own gradients over the replicas. A tied token embedding, which the first and the last
 * stage hold, is first added over these two, then reduced over the replicas by both, by a bucket engine of its own: so both
 * cut, compress and keep the same numbers in the same way, and the copies stay equal to the bit. */
#ifndef TANDEM_REDUCER_H
#define TANDEM_REDUCER_H

#include "comm/bucket.h"
#include "comm/mesh.h"
#include "model/gpt.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/tuner.h"

struct reducer {
    const struct mesh *mesh;
    const struct gpt *gpt;
    struct bucket_engine *engine; /* of [0, own) */
    struct bucket_engine
        *shared; /* of [own, elements): the embedding that another stage holds, too; NULL: there is none */
    int64_t own; /* elements of the flat range */
    struct tuner tuner;
    struct flat_matrix *matrix;    /* [table.params] */
    struct optimizer_range *range; /* [buckets of both engines] */
    double *norm_squared;          /* [buckets of both] of a bucket's newest mean gradient */
    double *all_norms;             /* [all_buckets] norm_squared of all stages in turn, for checkpoints */
    int all_buckets, first_bucket; /* first_bucket: where this stage's begin */
    int64_t cut_elements;          /* of a bucket, added over the stages: other cuts have another one */
    const struct options *options;
    int64_t updates;  /* steps that have updated weights */
    float loss_scale; /* of the step under way */
};

/* -1 with a message for options that do not fit. Not collective. reducer_free accepts what reducer_create has left. gpt and
 * mesh must outlive it. */
int reducer_create(struct reducer *reducer, const struct options *options, const struct mesh *mesh,
                   const struct gpt *gpt, struct error *e);
void reducer_free(struct reducer *reducer);

/* The first step that is compressed, from 0: --compress-start, or where that is -1 a tenth of --steps. */
int64_t reducer_start_step(const struct options *options);

/* A step: begin, then mark_ready with a growing count as gradients [0, elements) become final, which divides them by the
 * loss scale and begins their reduction, then finish, after which they are the sums over all replicas; it fills the
 * record's fields and says whether every gradient of this rank was finite. Then commit, and update if it was accepted.
 * Collective over the replicas and the stages that share an embedding. */
void reducer_begin(struct reducer *reducer, double loss_scale);
void reducer_mark_ready(struct reducer *reducer, int64_t elements);
bool reducer_finish(struct reducer *reducer, struct step_record *record);
void reducer_commit(struct reducer *reducer, bool accepted);

/* The global gradient norm, from what the step's reductions have brought, the same on all stages. Where a compressor leaves
 * units out, each unit counts with the norm of its newest mean gradient: the sum it was sent as, divided by the gradients in it.
 * What it waits for other stages is added to *bubble_ms. Collective over the pipeline. */
double reducer_gradient_norm(struct reducer *reducer, double *bubble_ms);

/* After the step was accepted: updates the weights. Where dropped units wait (--covap-dropped catch-up, accumulate), they are
 * not touched, and one that comes with the gradients of n steps makes n steps at once (optimizer_update). */
void reducer_update(struct reducer *reducer, struct optimizer *optimizer, struct gpt *gpt, double lr,
                    double norm);

/* Shows the numbers that must survive to a checkpoint, but for those of the tuner and the compressors. The norms are those of the
 * buckets of all stages: gather brings them together before, scatter takes them apart after they have been loaded. Gather is
 * collective over the pipeline. */
void reducer_gather_norms(struct reducer *reducer);
void reducer_scatter_norms(struct reducer *reducer);
void reducer_visit(struct reducer *reducer, kept_take *take, void *context);

/* Cuts anew for `step`, as the state of its tuner says: after that has been loaded, before reducer_visit loads the rest. */
void reducer_replan(struct reducer *reducer, int64_t step);

/* Lets the tuner look at the finished step; cuts anew when it has decided. Collective over world. */
void reducer_tune(struct reducer *reducer, int64_t step);

/* The interval in force at a step; NaN for methods without one. */
double reducer_interval(const struct reducer *reducer, int64_t step);

#endif
