/* --resume: goes on from a checkpoint, bit for bit as if the run had not stopped where ranks, stages and chunks are as many
 * as they were. With others each replica takes an equal share of what was held back in all, whose sum is what counts (comm/compress.h);
 * state that means nothing to other ranks starts anew, with a line that says so. */
#ifndef TANDEM_RESUME_H
#define TANDEM_RESUME_H

#include "train/checkpoint.h"
#include "train/trainer.h"

struct resume {
    int64_t step;                     /* made so far; 0 in a new run */
    char checkpoint[CHECKPOINT_PATH]; /* "": a new run */
    bool same_run;                    /* it is one of the run folder, whose metrics go on */
};

/* Finds the checkpoint that --resume names, checks that it is whole and that the run may go on from it, and loads it. -1 with a
 * message on all ranks if not. Collective. */
int resume_training(struct resume *resume, struct trainer *trainer, struct error *e);

#endif
