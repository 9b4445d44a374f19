/* Medians, Student's t against a table, a paired difference worked out by hand, and what becomes which verdict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "train/statistics.h"

static void assert_close(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) fail_msg("found %.10g, expected %.10g", found, expected);
}

static void test_medians(void **state) {
    (void)state;
    const double values[] = {5, 1, 4, 2}, infinite[] = {INFINITY, 3, INFINITY};
    assert_close(statistics_median(values, 4), 3, 0);
    assert_close(statistics_median(values, 3), 4, 0);
    assert_close(statistics_median(values, 1), 5, 0);
    assert_true(isnan(statistics_median(values, 0)));
    assert_true(isinf(statistics_median(infinite, 3)) && isinf(statistics_median(infinite, 2)));
}

/* Steps that take turns, 1 ms three times and then 9 ms, count with 3 ms; one that was disturbed does not count. */
static void test_medians_over_windows(void **state) {
    (void)state;
    double values[42];
    for (int i = 0; i < 42; i++) values[i] = i % 4 == 3 ? 9 : 1;
    values[20] = 1000;
    assert_close(statistics_windowed_median(values, 42, 4), 3, 1e-12);
    assert_close(statistics_windowed_median(values, 42, 1), 1, 0);
    assert_close(statistics_windowed_median(values, 3, 100), 1, 1e-12);
    assert_close(statistics_windowed_median(values, 4, 100), 3, 1e-12);
}

static void test_samples_leave_out_what_is_not_known(void **state) {
    (void)state;
    const double values[] = {2, NAN, 4, 9}, unknown[] = {NAN, NAN};
    struct sample s = statistics_sample(values, 4);
    assert_int_equal(s.count, 3);
    assert_close(s.mean, 5, 1e-15);
    assert_close(s.sd, sqrt(13), 1e-14);
    s = statistics_sample(values, 1);
    assert_close(s.mean, 2, 0);
    assert_true(isnan(s.sd));
    s = statistics_sample(unknown, 2);
    assert_true(s.count == 0 && isnan(s.mean) && isnan(s.sd));
}

/* Table values as printed in every textbook; the first ones have closed forms: tan(pi (p - 1/2)), and for two degrees
 * (2p - 1) sqrt(2 / (4 p (1 - p))). */
static void test_quantiles(void **state) {
    (void)state;
    static const struct {
        double p, freedom, t;
    } rows[] = {
        {0.95, 1, 6.31375},   {0.95, 2, 2.91999},  {0.95, 3, 2.35336},   {0.95, 4, 2.13185},
        {0.95, 5, 2.01505},   {0.95, 9, 1.83311},  {0.95, 10, 1.81246},  {0.95, 30, 1.69726},
        {0.95, 120, 1.65765}, {0.90, 4, 1.53321},  {0.99, 4, 3.74695},   {0.975, 1, 12.7062},
        {0.975, 10, 2.22814}, {0.995, 1, 63.6567}, {0.995, 30, 2.75000}, {0.95, 1e6, 1.64485},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_close(student_t_quantile(rows[i].p, rows[i].freedom), rows[i].t, 1e-4);
    for (double p = 0.01; p < 1; p += 0.07) {
        assert_close(student_t_quantile(p, 1), tan(M_PI * (p - 0.5)), 1e-9);
        assert_close(student_t_quantile(p, 2), (2 * p - 1) * sqrt(2 / (4 * p * (1 - p))), 1e-9);
        assert_close(student_t_cdf(student_t_quantile(p, 7), 7), p, 1e-12);
        assert_close(student_t_quantile(1 - p, 7), -student_t_quantile(p, 7), 1e-9);
    }
    assert_close(student_t_cdf(0, 3), 0.5, 1e-15);
}

/* Differences 0.01, 0.03, 0.02, 0.00, 0.04: mean 0.02, sd sqrt(0.00025) = 0.0158114, half width 2.13185 sd / sqrt(5). */
static void test_paired_difference(void **state) {
    (void)state;
    const double method[] = {1.51, 1.63, 1.42, 1.70, 1.59}, reference[] = {1.50, 1.60, 1.40, 1.70, 1.55};
    const double half = 2.13185 * 0.0158113883 / sqrt(5);
    struct paired_difference d = statistics_pair(method, reference, 5);
    assert_int_equal(d.sample.count, 5);
    assert_close(d.sample.mean, 0.02, 1e-12);
    assert_close(d.sample.sd, 0.0158113883, 1e-9);
    assert_close(d.lower, 0.02 - half, 1e-6);
    assert_close(d.upper, 0.02 + half, 1e-6);
    d = statistics_pair(method, method, 5);
    assert_true(d.sample.mean == 0 && d.lower == 0 && d.upper == 0);
    d = statistics_pair(method, reference, 1);
    assert_true(isnan(d.lower) && isnan(d.upper));
    const double diverged[] = {1.51, NAN, 1.42, 1.70, NAN};
    assert_int_equal(statistics_pair(diverged, reference, 5).sample.count, 3);
}

static void check_verdict(double lower, double mean, double upper, enum verdict expected) {
    const struct paired_difference d = {{5, mean, 1}, lower, upper};
    assert_int_equal(statistics_verdict(&d, 0.01), expected);
}

static void test_verdicts(void **state) {
    (void)state;
    check_verdict(-0.005, 0, 0.005, VERDICT_PRESERVED);
    check_verdict(0.001, 0.004, 0.007, VERDICT_PRESERVED); /* higher for sure, but by less than the margin */
    check_verdict(-0.5, -0.4, -0.3, VERDICT_PRESERVED);    /* better */
    check_verdict(-0.005, 0.005, 0.015, VERDICT_NOT_SHOWN);
    check_verdict(0.001, 0.009, 0.017,
                  VERDICT_NOT_SHOWN); /* higher for sure; by more than the margin or less is open */
    check_verdict(-0.01, 0.02, 0.05, VERDICT_NOT_SHOWN);
    check_verdict(0.005, 0.02, 0.035, VERDICT_WORSE);
    check_verdict(0.02, 0.03, 0.04, VERDICT_WORSE);
    check_verdict(NAN, 0.03, NAN, VERDICT_NOT_SHOWN); /* one pair */
    check_verdict(NAN, NAN, NAN, VERDICT_NOT_SHOWN);  /* none */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_medians),
        cmocka_unit_test(test_medians_over_windows),
        cmocka_unit_test(test_samples_leave_out_what_is_not_known),
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_paired_difference),
        cmocka_unit_test(test_verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
