/* Learning rate as a function of the step: linear warm-up, then one of a table of shapes. */
#ifndef TANDEM_LR_SCHEDULE_H
#define TANDEM_LR_SCHEDULE_H

#include "kernels/base.h"

struct lr_schedule {
    const char *shape; /* cosine, linear, constant or wsd: a row of the table */
    double lr, min_lr;
    int64_t warmup, steps;
};

/* The rate of `step`, counted from 0. Warm-up: lr (step + 1) / (warmup + 1). After it, with f going from 0 to 1 at the
 * last step: cosine min + (lr - min) (1 + cos(pi f)) / 2; linear lr + (min - lr) f; constant lr; wsd (warm-up, stable,
 * decay): lr, then linear to min over the last fifth of all steps. */
double lr_schedule_rate(const struct lr_schedule *schedule, int64_t step);

#endif
