/* Loss and accuracy on fixed validation windows, split over ranks. */
#ifndef TANDEM_EVALUATE_H
#define TANDEM_EVALUATE_H

#include "comm/comm.h"
#include "data/loader.h"
#include "model/gpt.h"
#include "train/metrics.h"

/* Evaluates `windows` validation windows (0 or more than there are: all), spread evenly over the split, in micro-batches
 * of `sequences`. Every window is seen once, by one rank, so the result is that of one rank to rounding. Collective. */
struct eval_record evaluate(struct gpt *gpt, const struct loader *validation, struct comm *comm,
                            int64_t windows, int64_t sequences, int64_t step);

#endif
