/* Where the flat range is cut into buckets: plain arithmetic, the same on every rank. */
#ifndef TANDEM_PLAN_H
#define TANDEM_PLAN_H

#include "comm/bucket.h"

struct cut {
    int64_t offset, count;
    int unit;
};

/* Cuts [0, total) and returns how many pieces; *cuts is the caller's to free, *units how many units they form.
 *
 * First buckets: of plan->first_elements, then plan->bucket_elements each; for a method that wants whole matrices, each
 * closed by the first parameter that reaches its size. For a method that counts in units, a bucket of n elements, M being
 * the median, is cut into c = min(trunc(n / M - 0.3) + 1, interval) equal units (COVAP's tensor sharding; c = 1 if that is
 * less), and a unit into pieces of at most PLAN_PIECE elements, each sent as soon as it is ready, so that a large unit is
 * not exposed as a whole. For other methods a bucket is a unit. */
enum { PLAN_PIECE = 1 << 20 };
int plan_cut(const struct bucket_plan *plan, const struct compressor_method *method, int64_t total,
             struct cut **cuts, int *units);

#endif
