/* The dynamic loss scale: what halves it, what doubles it, when no scale helps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "train/loss_scale.h"

static struct options options_of(const char *precision, const char *loss_scale) {
    return (struct options){.precision = precision,
                            .loss_scale = loss_scale,
                            .initial_loss_scale = 65536,
                            .loss_scale_window = 3};
}

static struct loss_scale created(const char *precision, const char *text) {
    const struct options o = options_of(precision, text);
    struct loss_scale s;
    struct error e;
    assert_int_equal(loss_scale_create(&s, &o, &e), 0);
    return s;
}

static void test_option(void **state) {
    (void)state;
    assert_true(created("fp16", "auto").dynamic && created("fp16", "auto").scale == 65536);
    assert_true(!created("bf16", "auto").dynamic && created("bf16", "auto").scale == 1);
    assert_true(!created("fp32", "auto").dynamic && created("fp32", "auto").scale == 1);
    assert_true(created("bf16", "dynamic").dynamic && created("bf16", "dynamic").scale == 65536);
    assert_true(!created("fp16", "1024").dynamic && created("fp16", "1024").scale == 1024);
    assert_true(!created("fp16", "off").dynamic && created("fp16", "off").scale == 1);
}

static void test_mistakes(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "on", "1000", "0", "-2", "0.5", "inf", "nan", "8589934592", "4x"};
    struct loss_scale s;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct options o = options_of("fp16", wrong[i]);
        struct error e;
        assert_int_equal(loss_scale_create(&s, &o, &e), -1);
        assert_non_null(strstr(e.text, "--loss-scale"));
        assert_non_null(strstr(e.text, "power of two"));
    }
    struct options o = options_of("fp16", "auto");
    o.initial_loss_scale = 1000;
    struct error e;
    assert_int_equal(loss_scale_create(&s, &o, &e), -1);
    assert_non_null(strstr(e.text, "--initial-loss-scale"));
}

static void test_grows_after_a_window_of_good_steps(void **state) {
    (void)state;
    struct loss_scale s = created("fp16", "dynamic");
    for (int i = 0; i < 6; i++) {
        assert_true(s.scale == (i < 3 ? 65536 : 131072));
        assert_int_equal(loss_scale_judge(&s, true, true), STEP_ACCEPTED);
    }
    assert_true(s.scale == 262144);
    /* A bad step begins the window anew. */
    loss_scale_judge(&s, true, true);
    loss_scale_judge(&s, true, true);
    assert_int_equal(loss_scale_judge(&s, false, true), STEP_SKIPPED);
    assert_true(s.scale == 131072);
    loss_scale_judge(&s, true, true);
    loss_scale_judge(&s, true, true);
    assert_true(s.scale == 131072);
    loss_scale_judge(&s, true, true);
    assert_true(s.scale == 262144);
    for (int i = 0; i < 1000; i++) loss_scale_judge(&s, true, true);
    assert_true(s.scale == 0x1p32);
}

static void test_halves_down_to_one_and_then_gives_up(void **state) {
    (void)state;
    struct loss_scale s = created("fp16", "dynamic");
    for (double scale = 65536; scale > 1; scale /= 2) {
        assert_true(s.scale == scale);
        assert_int_equal(loss_scale_judge(&s, false, true), STEP_SKIPPED);
    }
    assert_true(s.scale == 1);
    assert_int_equal(loss_scale_judge(&s, false, true), STEP_DIVERGED);
}

static void test_a_loss_that_stays_lost_ends_the_run(void **state) {
    (void)state;
    struct loss_scale s = created("fp16", "dynamic");
    for (int i = 0; i < 4; i++) assert_int_equal(loss_scale_judge(&s, false, false), STEP_SKIPPED);
    assert_int_equal(loss_scale_judge(&s, true, true),
                     STEP_ACCEPTED); /* one good loss forgives the bad ones */
    for (int i = 0; i < 4; i++) assert_int_equal(loss_scale_judge(&s, false, false), STEP_SKIPPED);
    assert_int_equal(loss_scale_judge(&s, false, false), STEP_DIVERGED);
}

static void test_a_fixed_scale_does_not_skip(void **state) {
    (void)state;
    static const char *const fixed[] = {"off", "1024"};
    for (int i = 0; i < 2; i++) {
        struct loss_scale s = created("fp16", fixed[i]);
        const double scale = s.scale;
        for (int k = 0; k < 10; k++) assert_int_equal(loss_scale_judge(&s, true, true), STEP_ACCEPTED);
        assert_int_equal(loss_scale_judge(&s, false, true), STEP_DIVERGED);
        assert_true(s.scale == scale);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_option),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_grows_after_a_window_of_good_steps),
        cmocka_unit_test(test_halves_down_to_one_and_then_gives_up),
        cmocka_unit_test(test_a_loss_that_stays_lost_ends_the_run),
        cmocka_unit_test(test_a_fixed_scale_does_not_skip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
