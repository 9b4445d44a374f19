/* Pipeline schedules as data: for each stage a list of actions, in the order in which the stage does them.
 *
 * p stages, v chunks a stage, m micro-batches. The model is cut into p v chunks; model chunk k lies on stage k mod p as its
 * local chunk k / p, so that for v > 1 activations run around the ring of stages v times.
 *
 *     generator (train/schedule/NAME.c): compute actions only
 *     lowering: adds each message to both lists at once, right after the action that makes its content
 *     check: simulates the lists, also with messages that block
 *
 * What the executor of a list must keep:
 *   - compute actions run in list order;
 *   - a send is begun at its place and does not block; its buffer stays as it is until the message has left;
 *   - a receive is begun at its place or ahead of it, in list order among the receives from the same peer, and is waited for
 *     before the compute action that needs it: the one with its chunk and micro-batch.
 * Then nothing deadlocks: there is one order of all actions of all stages in which every action comes after what it waits for
 * (the check runs it, with sends and receives that block). Messages from one stage to another are begun in the same order at
 * both ends, so they match by order; tags are not needed. The buffer of a receive is in use from its beginning until the
 * compute action that needs it. */
#ifndef TANDEM_SCHEDULE_H
#define TANDEM_SCHEDULE_H

#include <stdio.h>

#include "kernels/base.h"

enum action_kind {
    ACTION_FORWARD,
    ACTION_BACKWARD,       /* gradients of input and weights together */
    ACTION_BACKWARD_INPUT, /* gradient of the chunk's input only; the chunk's BACKWARD_WEIGHT follows later */
    ACTION_BACKWARD_WEIGHT, /* gradient of the weights only */
    ACTION_SEND_FORWARD,    /* the chunk's output, to the stage of the next model chunk */
    ACTION_RECEIVE_FORWARD, /* the chunk's input, from the stage of the model chunk before */
    ACTION_SEND_BACKWARD,   /* the gradient of the chunk's input, to the stage of the model chunk before */
    ACTION_RECEIVE_BACKWARD /* the gradient of the chunk's output, from the stage of the next model chunk */
};

/* chunk: local, 0..v-1, of the stage whose list has the action; model chunk = chunk * stages + stage. */
struct action {
    enum action_kind kind;
    int chunk;
    int micro_batch;
};

struct schedule {
    const char *name;
    int stages, chunks, micro_batches;
    struct action **list; /* list[stage][i], i < count[stage] */
    int *count;
};

/* Generates, lowers and checks the schedule `name`: a row of the table in schedule.c. Free with schedule_free. -1 with a
 * message if there is no such schedule or it cannot have these sizes; then there is nothing to free. */
int schedule_create(struct schedule *s, const char *name, int stages, int chunks, int micro_batches,
                    struct error *e);
void schedule_free(struct schedule *s);

/* The kind in words, for messages: "send forward". */
const char *schedule_action_name(enum action_kind kind);

/* Whether the stage does the backward pass in two parts. */
bool schedule_splits_backward(const struct schedule *s, int stage);

/* The stage at the other end of a message (a send or a receive) of `stage`. */
int schedule_peer(const struct schedule *s, int stage, const struct action *a);

/* What an action takes, in any unit of time, for one chunk and one micro-batch. BACKWARD takes input and weight together. */
struct schedule_costs {
    double forward, backward_input, backward_weight;
    double message; /* from the beginning of a send until the content is there */
};

/* The share of all stages' time in which they idle, by the schedule's formula for messages that take no time; NAN where
 * it has none. */
double schedule_bubble_formula(const struct schedule *s, const struct schedule_costs *costs);

enum message_mode {
    MESSAGES_ASYNCHRONOUS, /* as an executor has them: only the compute action that needs a message waits for it */
    MESSAGES_BLOCKING /* a send and its receive wait for each other, and both stages while it is under way */
};

/* What a simulation saw. */
struct simulation {
    double makespan;     /* until the last stage is done */
    double bubble_share; /* 1 - busy / (stages * makespan), busy: the sum of all compute actions */
    int *
        peak_activations; /* of each stage: most micro-batches x chunks between forward and (weight) backward */
    double **start, **end; /* of each action, as list */
};

/* Runs the lists in order, from time 0. -1 with a message that names the actions at which no stage can go on. Free with
 * simulation_free unless -1. Every action must be one that its stage can have: in range, no message beyond the model's ends. */
int schedule_simulate(const struct schedule *s, const struct schedule_costs *costs, enum message_mode mode,
                      struct simulation *result, struct error *e);
void simulation_free(struct simulation *result);

/* Whether the lists are a training step: every forward and backward pass and every message exactly once; each after what it
 * needs; the weight gradients of a chunk in the order of the micro-batches, so that their sum is the same to the bit in every
 * schedule; no deadlock even when messages block. -1 with a message that names the first action that is wrong. */
int schedule_check(const struct schedule *s, struct error *e);

/* A grid, one row a stage, one cell a unit of time, at most 100 columns wide; beneath it what letters mean, the bubble by
 * simulation and by formula, and each stage's peak of activations. */
void schedule_print(const struct schedule *s, const struct schedule_costs *costs, FILE *out);

#endif
