/* A rank's share of a training run: model, optimizer, data and communication, and one step of it. */
#ifndef TANDEM_TRAINER_H
#define TANDEM_TRAINER_H

#include "data/loader.h"
#include "train/loss_scale.h"
#include "train/lr_schedule.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/pipeline.h"
#include "train/reducer.h"
#include "train/threads.h"

struct trainer {
    const struct options *options;
    struct comm *comm; /* all ranks */
    struct mesh mesh;
    const struct device *device;
    struct thread_plan threads;
    struct loader train, validation;
    struct pipeline pipeline;
    struct gpt gpt; /* of this rank's stage */
    struct optimizer optimizer;
    struct reducer reducer;
    struct lr_schedule schedule;
    struct loss_scale loss_scale;
    int64_t share,
        micro_batch; /* sequences of the global batch that are this replica's; and of those at once */
    int32_t *tokens, *targets;    /* [share * context] */
    double step_started, data_ms; /* of the step under way */
    double peak_flops;            /* of this rank, measured */
};

/* Opens the data and makes the model; all ranks check their part and agree. -1 with a message on bad input. Collective. */
int trainer_create(struct trainer *trainer, const struct options *options, struct comm *comm,
                   struct error *e);
void trainer_free(struct trainer *trainer);

/* What is to be recorded about the run; valid while the trainer is. */
struct run_facts trainer_facts(const struct trainer *trainer);

/* What a rank wishes at the end of a step, and what all of them make of it. */
struct step_votes {
    bool stop;    /* stop after it; one rank is enough */
    bool save;    /* save a checkpoint after it; one rank is enough */
    bool written; /* the checkpoint under way has been written; all ranks are needed */
};

/* What one step came to. */
struct step_outcome {
    struct step_record record;
    struct step_votes agreed;
    enum step_verdict verdict; /* accepted, or something was not finite: then no weight has been touched */
};

/* Reads this replica's share of the global batch of a step (from 0) into tokens and targets. Not collective. */
void trainer_read_batch(struct trainer *trainer, int64_t step);

/* Step number `step` on the batch that lies in tokens and targets: micro-batches forward and backward, reduction
 * overlapped with the last one, clipping, update. Same outcome on all ranks. Collective. */
struct step_outcome trainer_step(struct trainer *trainer, int64_t step, struct step_votes votes);

/* Ends the job unless all ranks of a stage hold the same weights, bit for bit, and so do the two stages that share the token
 * embedding. Collective. */
void trainer_check_ranks(struct trainer *trainer, int64_t step);

/* Evaluates on --eval-batches validation batches. Collective. */
struct eval_record trainer_evaluate(struct trainer *trainer, int64_t step);

#endif
