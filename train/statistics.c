#include "train/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sort_and_take_median(double *values, int64_t count) {
    if (count < 1) return NAN;
    qsort(values, (size_t)count, sizeof *values, by_value);
    const double low = values[(count - 1) / 2], high = values[count / 2];
    return low == high ? low : 0.5 * (low + high); /* also for infinity */
}

double statistics_median(const double *values, int64_t count) {
    return statistics_windowed_median(values, count, 1);
}

double statistics_windowed_median(const double *values, int64_t count, int64_t window) {
    if (count < 1) return NAN;
    if (window > count) window = count;
    const int64_t windows = count - window + 1;
    double *means = memory_alloc_zeroed(sizeof *means * (size_t)windows);
    for (int64_t i = 0; i < windows; i++) {
        for (int64_t k = 0; k < window; k++) means[i] += values[i + k];
        means[i] /= (double)window;
    }
    const double middle = sort_and_take_median(means, windows);
    free(means);
    return middle;
}

struct sample statistics_sample(const double *values, int count) {
    struct sample s = {0};
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++)
        if (!isnan(values[i])) sum += values[i], s.count++;
    s.mean = s.count ? sum / s.count : NAN;
    for (int i = 0; i < count; i++)
        if (!isnan(values[i])) squares += (values[i] - s.mean) * (values[i] - s.mean);
    s.sd = s.count > 1 ? sqrt(squares / (s.count - 1)) : NAN;
    return s;
}

/* The continued fraction of the incomplete beta function (DLMF 8.17.22), evaluated from the front by Lentz's method; it
 * converges fast where x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x) {
    enum { MOST_TERMS = 10000 };
    double c = 1, d = 1 / (1 - (a + b) * x / (a + 1)), value = d;
    for (int m = 1; m < MOST_TERMS; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / (1 + even * d);
        c = 1 + even / c;
        value *= c * d;
        d = 1 / (1 + odd * d);
        c = 1 + odd / c;
        value *= c * d;
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return value;
}

/* The regularised incomplete beta function I_x(a, b). */
static double incomplete_beta(double a, double b, double x) {
    if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
    if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a;
    return front * beta_fraction(a, b, x);
}

double student_t_cdf(double t, double freedom) {
    const double outside = incomplete_beta(0.5 * freedom, 0.5, freedom / (freedom + t * t));
    return t > 0 ? 1 - 0.5 * outside : 0.5 * outside;
}

double student_t_quantile(double p, double freedom) {
    if (p < 0.5) return -student_t_quantile(1 - p, freedom);
    double low = 0, high = 1;
    while (student_t_cdf(high, freedom) < p) high *= 2;
    for (int i = 0; i < 100; i++) {
        const double middle = 0.5 * (low + high);
        *(student_t_cdf(middle, freedom) < p ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

struct paired_difference statistics_pair(const double *value, const double *reference, int count) {
    double *difference = memory_alloc(sizeof *difference * (size_t)count);
    for (int i = 0; i < count; i++) difference[i] = value[i] - reference[i];
    const struct sample s = statistics_sample(difference, count);
    free(difference);
    const double half = s.count > 1 ? student_t_quantile(0.95, s.count - 1) * s.sd / sqrt(s.count) : NAN;
    return (struct paired_difference){s, s.mean - half, s.mean + half};
}

enum verdict statistics_verdict(const struct paired_difference *d, double margin) {
    if (d->upper < margin) return VERDICT_PRESERVED;
    if (d->lower > 0 && d->sample.mean > margin) return VERDICT_WORSE;
    return VERDICT_NOT_SHOWN;
}
