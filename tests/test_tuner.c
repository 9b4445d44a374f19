/* --interval auto: the decision and its hysteresis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/engine.h"
#include "train/tuner.h"

static void test_interval_is_the_ratio_rounded_up(void **state) {
    (void)state;
    assert_int_equal(tuner_decide(0, 100, 0), 1);
    assert_int_equal(tuner_decide(99, 100, 0), 1);
    assert_int_equal(tuner_decide(100, 100, 0), 1);
    assert_int_equal(tuner_decide(101, 100, 0), 2);
    assert_int_equal(tuner_decide(399, 100, 0), 4);
    assert_int_equal(tuner_decide(1e9, 1, 0), 64);
    assert_int_equal(tuner_decide(5, 0, 0), 1);
}

static void test_small_changes_do_not_move_it(void **state) {
    (void)state;
    assert_int_equal(tuner_decide(205, 100, 2), 2); /* within a tenth of the edge */
    assert_int_equal(tuner_decide(225, 100, 2), 3);
    assert_int_equal(tuner_decide(95, 100, 2), 2);
    assert_int_equal(tuner_decide(80, 100, 2), 1);
    assert_int_equal(tuner_decide(50, 100, 1), 1);
}

/* Feeds an engine with made-up bucket times: what two ranks of a slow link would have measured. */
static void observe(struct tuner *t, struct bucket_engine *engine, int64_t step, double seconds_each,
                    double window_ms, bool *decided) {
    double at = 1000.0;
    for (int i = 0; i < engine->buckets; i++) {
        engine->bucket[i].ready = 1000.0 + 1e-3 * window_ms * i / (engine->buckets - 1);
        engine->bucket[i].start = at;
        engine->bucket[i].end = at += seconds_each;
    }
    *decided = tuner_observe(t, engine, engine->comm, step);
}

static void test_measures_decides_and_measures_again(void **state) {
    (void)state;
    struct comm *comm;
    struct error e;
    const struct comm_options options = {.timeout_s = 60};
    assert_int_equal(comm_open(&comm, "self", &options, &e), 0);
    struct bucket_engine *engine =
        engine_dense(comm, tensor_of(NULL, DTYPE_F32, 1000000), 250000, 250000, true);
    struct tuner t = tuner_create(true, 1, 20);
    bool decided;
    int64_t decisions[2] = {-1, -1}, count = 0;
    for (int64_t step = 0; step < 45; step++) {
        const double each = step < 20 ? 0.070 : 0.140; /* four buckets: 280 ms, then 560 */
        if (step < TUNER_WARMUP) assert_int_equal(tuner_interval(&t, step), 1);
        const bool measuring = t.measuring;
        if (measuring) assert_int_equal(tuner_interval(&t, step), 1);
        observe(&t, engine, step, each, 100.0, &decided);
        if (decided && measuring) decisions[count++] = t.interval;
    }
    assert_int_equal(count, 2);
    assert_int_equal(decisions[0], 3);
    assert_int_equal(decisions[1], 6);
    assert_int_equal(tuner_interval(&t, 44), 6);
    assert_true(t.units > 0 && t.units % 6 == 0);
    bucket_engine_free(engine);
    comm_close(comm);
}

static void test_a_fixed_interval_stays(void **state) {
    (void)state;
    struct tuner t = tuner_create(false, 5, 10);
    for (int64_t step = 0; step < 30; step++) {
        assert_int_equal(tuner_interval(&t, step), 5);
        assert_false(tuner_observe(&t, NULL, NULL, step));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interval_is_the_ratio_rounded_up),
        cmocka_unit_test(test_small_changes_do_not_move_it),
        cmocka_unit_test(test_measures_decides_and_measures_again),
        cmocka_unit_test(test_a_fixed_interval_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
