/* Loss and accuracy on fixed validation windows, split over replicas. */
#ifndef TANDEM_EVALUATE_H
#define TANDEM_EVALUATE_H

#include "comm/mesh.h"
#include "data/loader.h"
#include "train/metrics.h"
#include "train/pipeline.h"

/* Evaluates `windows` validation windows (0 or more than there are: all), spread evenly over the split. Every window is seen
 * once, by one replica, so the result is that of one rank to rounding. Collective. */
struct eval_record evaluate(struct pipeline *pipeline, const struct loader *validation,
                            const struct mesh *mesh, int64_t windows, int64_t step);

#endif
