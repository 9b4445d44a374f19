/* Runs a stage's part of a pipeline: any list of actions (train/schedule.h), for training or evaluation. One stage is the
 * simplest pipeline: forward, backward, forward, ...
 *
 * Receives are begun as early as there is room for what they bring, sends when their content is there; only the compute action
 * that needs a message, or the memory of one, waits for it. Micro-batches are added up in their order. */
#ifndef TANDEM_PIPELINE_H
#define TANDEM_PIPELINE_H

#include "comm/comm.h"
#include "model/gpt.h"
#include "train/schedule.h"

struct pipeline_station;
struct pipeline {
    struct comm *comm; /* of its ranks; a rank in it is a stage */
    struct gpt *gpt;
    struct schedule schedule;         /* of a training step */
    int64_t micro_batch;              /* sequences */
    struct pipeline_station *station; /* [chunks] */
};

/* What to do. */
struct pipeline_job {
    struct gpt_batch share; /* all micro-batches together, in order; the last may be shorter */
    float scale;            /* of the loss, for training */
    /* Gradients [0, elements) of this stage are final, for training; called in the backward pass of the last micro-batch. */
    void (*ready)(void *context, int64_t elements);
    void *context;
};

/* What it came to on this stage. */
struct pipeline_result {
    struct gpt_loss sums; /* 0 on stages without the head */
    double forward_ms, backward_ms;
    double bubble_ms; /* waiting for messages */
};

struct pipeline_options {
    const char *schedule;      /* a name that schedule_create knows */
    int chunks, micro_batches; /* of a stage; of a training step */
    int64_t micro_batch;       /* sequences */
};

/* Cuts the model over the ranks of comm and makes *gpt, this stage's part, which is the caller's to free. -1 with a message,
 * the same on all stages, where the schedule cannot have these sizes or the model has too few parts; then neither has been
 * made. Not collective. pipeline_free accepts a pipeline of zeros. */
int pipeline_create(struct pipeline *pipeline, struct gpt *gpt, const struct gpt_config *config,
                    const struct device *device, struct comm *comm, const struct pipeline_options *options,
                    struct error *e);
void pipeline_free(struct pipeline *pipeline);

/* The schedule, and what each stage holds, for people. Not collective. */
void pipeline_print(const struct pipeline *pipeline, FILE *out);

/* The forward and backward passes of a training step of as many micro-batches as the schedule has. Collective over the stages. */
struct pipeline_result pipeline_train(struct pipeline *pipeline, const struct pipeline_job *job);

/* Loss of any number of micro-batches, at least one. Collective over the stages. */
struct pipeline_result pipeline_evaluate(struct pipeline *pipeline, const struct gpt_batch *share);

#endif
