/* The statistics of measurements and comparisons: medians, means, Student's t and the bounds of a paired difference. NaN: not known. */
#ifndef TANDEM_STATISTICS_H
#define TANDEM_STATISTICS_H

#include "kernels/base.h"

/* The middle value, or the mean of the two middle ones. NaN for none. */
double statistics_median(const double *values, int64_t count);

/* The median over all windows of `window` consecutive values of the window's mean. For times of steps that take turns, such
 * as one step with communication and three without: over windows of a whole turn each step counts with its share. */
double statistics_windowed_median(const double *values, int64_t count, int64_t window);

struct sample {
    int count;
    double mean, sd; /* sd with count - 1 in the denominator; NaN for fewer than 2 values */
};

/* Of the values that are not NaN. */
struct sample statistics_sample(const double *values, int count);

/* P(T <= t) of Student's t distribution with `freedom` degrees of freedom, and the t at which it is p (0 < p < 1). */
double student_t_cdf(double t, double freedom);
double student_t_quantile(double p, double freedom);

/* The differences value[i] - reference[i] of the pairs in which both are known, and the two one-sided 95 % confidence bounds
 * of their mean: mean -+ t(0.95, pairs - 1) sd / sqrt(pairs). NaN bounds for fewer than 2 pairs. */
struct paired_difference {
    struct sample sample;
    double lower, upper;
};
struct paired_difference statistics_pair(const double *value, const double *reference, int count);

enum verdict { VERDICT_PRESERVED, VERDICT_WORSE, VERDICT_NOT_SHOWN };

/* Of a loss, where more is worse. preserved: upper < margin. worse: lower > 0 and mean > margin. Else not shown. */
enum verdict statistics_verdict(const struct paired_difference *difference, double margin);

#endif
