/* What a person sees of a run: a line now and then, and a table at the end. To stdout, from rank 0. */
#ifndef TANDEM_PROGRESS_H
#define TANDEM_PROGRESS_H

#include "comm/mesh.h"
#include "train/metrics.h"

struct progress {
    bool shown;           /* this rank speaks */
    int64_t first, steps; /* made before this run went on from them; planned in all */
    int64_t done;         /* recorded */
    int64_t room;         /* entries allocated of each of these: */
    double *step_ms, *exposed_ms, *comm_ms, *bubble_ms; /* [done] of every step, for medians */
    struct step_record last;
    int64_t bytes_sent, skipped; /* so far: bytes; steps */
    double started;
};

void progress_create(struct progress *progress, bool shown, int64_t first, int64_t steps);
void progress_free(struct progress *progress);

/* Takes a step in; prints its line if `show`. step counts from 0 and is shown from 1. */
void progress_step(struct progress *progress, int64_t step, const struct step_record *record, bool show);
void progress_eval(const struct progress *progress, const struct eval_record *record);

/* The median over the recorded steps, the first one (page faults, library start-up) left out if there are others. */
double progress_median_step_ms(const struct progress *progress);

void progress_summary(const struct progress *progress, const struct eval_record *last,
                      const struct mesh *mesh, const char *run_dir);

#endif
