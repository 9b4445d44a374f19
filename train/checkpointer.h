/* Saves checkpoints of a run while it goes on: the state is copied between two steps, and threads of all ranks write it beside
 * the following ones. At a later step the ranks agree that all files are whole, then rank 0 makes them the newest checkpoint
 * and removes the oldest. No message is sent by these threads. */
#ifndef TANDEM_CHECKPOINTER_H
#define TANDEM_CHECKPOINTER_H

#include "train/checkpoint.h"
#include "train/snapshot.h"
#include "train/writer.h"

enum checkpointer_phase { CHECKPOINTER_IDLE, CHECKPOINTER_FILES, CHECKPOINTER_PUBLISH };

struct checkpointer {
    struct trainer *trainer;
    enum checkpointer_phase phase; /* the same on all ranks */
    int64_t step;                  /* of the one under way, or the newest */
    struct snapshot snapshot;
    struct writer writer;
    /* on rank 0: */
    struct file_sum config, index;
    struct cJSON *manifest;
    int64_t *kept; /* [count] steps of this run's checkpoints in the order in which they were written */
    int count;
};

/* resumed: the step of the checkpoint in the run folder from which the run goes on: those up to it are this run's; or -1. */
void checkpointer_create(struct checkpointer *checkpointer, struct trainer *trainer, int64_t resumed);
void checkpointer_free(struct checkpointer *checkpointer);

/* Begins to save the state after `step` steps; first finishes one under way. Nothing is done for a step already saved. -1 with
 * a message, on all ranks, if it cannot, the earlier checkpoints untouched. Collective. */
int checkpointer_begin(struct checkpointer *checkpointer, int64_t step, struct error *e);

/* Whether this rank's part of the phase is over: its vote. Once all ranks say so, advance: the next phase. -1 with a message on
 * all ranks if anything could not be written. Collective but for ready. */
bool checkpointer_ready(struct checkpointer *checkpointer);
int checkpointer_advance(struct checkpointer *checkpointer, struct error *e);

/* Waits until nothing is under way. Ends the job if nothing more is written for --timeout seconds. Collective. */
int checkpointer_finish(struct checkpointer *checkpointer, struct error *e);

#endif
