/* The learning rate: end points, monotony and warm-up of every shape, at every small size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "train/lr_schedule.h"

static const char *const shapes[] = {"cosine", "linear", "constant", "wsd"};
enum { SHAPES = 4 };
static const double LR = 0.5, MIN_LR = 0.125;

static bool close_to(double a, double b) {
    return fabs(a - b) <= 1e-12;
}

/* The header's formulas, written out. */
static double expected_rate(const char *shape, int64_t warmup, int64_t steps, int64_t step) {
    if (step < warmup) return LR * (double)(step + 1) / (double)(warmup + 1);
    if (strcmp(shape, "constant") == 0) return LR;
    int64_t first = warmup, last = steps - 1;
    if (strcmp(shape, "wsd") == 0 && first < steps * 4 / 5) first = steps * 4 / 5;
    if (step >= last) return MIN_LR;
    if (step <= first) return LR;
    const double f = (double)(step - first) / (double)(last - first);
    if (strcmp(shape, "cosine") == 0) return MIN_LR + (LR - MIN_LR) * (1 + cos(M_PI * f)) / 2;
    return LR + (MIN_LR - LR) * f;
}

static void test_every_shape_at_every_small_size(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        for (int64_t steps = 1; steps <= 40; steps++)
            for (int64_t warmup = 0; warmup <= steps + 2; warmup++) {
                const struct lr_schedule s = {shapes[i], LR, MIN_LR, warmup, steps};
                double before = 0;
                for (int64_t step = 0; step < steps; step++) {
                    const double rate = lr_schedule_rate(&s, step),
                                 want = expected_rate(shapes[i], warmup, steps, step);
                    if (!close_to(rate, want))
                        fail_msg("%s, step %d of %d, warm-up %d: %g, expected %g", shapes[i], (int)step,
                                 (int)steps, (int)warmup, rate, want);
                    assert_true(step < warmup ? rate > before && rate < LR
                                              : step == warmup || rate <= before);
                    assert_true(rate > 0 && rate <= LR);
                    before = rate;
                }
            }
}

static void test_end_points(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        const struct lr_schedule s = {shapes[i], LR, MIN_LR, 10, 1000};
        assert_true(close_to(lr_schedule_rate(&s, 0), LR / 11));
        assert_true(close_to(lr_schedule_rate(&s, 10), LR));
        assert_true(close_to(lr_schedule_rate(&s, 999), strcmp(shapes[i], "constant") == 0 ? LR : MIN_LR));
    }
}

static void test_wsd_stays_until_its_last_fifth(void **state) {
    (void)state;
    const struct lr_schedule s = {"wsd", LR, MIN_LR, 10, 1000};
    assert_true(lr_schedule_rate(&s, 800) == LR);
    assert_true(lr_schedule_rate(&s, 801) < LR);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape_at_every_small_size),
        cmocka_unit_test(test_end_points),
        cmocka_unit_test(test_wsd_stays_until_its_last_fifth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
