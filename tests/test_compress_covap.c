/* ranks: 1 2 3 4
 * COVAP's rule and schedule, and methods with fewer bits on the wire. */
#include "tests/compress_test.h"

/* Five equal units, with the golden example's gradient; its steps count from 1. */
enum { UNITS = 5, UNIT = 4, INTERVAL = 3 };

static double golden_gradient(int rank, int unit, int64_t s) {
    return (rank + 1) + 10.0 * unit + 0.5 * (double)s;
}

static struct bucket_engine *golden_engine(float *gradient) {
    struct bucket_plan plan = plan_of("covap", UNIT, UNIT, true);
    plan.matrix = NULL;
    plan.matrices = 0;
    plan.compress.interval = INTERVAL;
    plan.compress.ef_initial = 0.5;
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, UNITS * UNIT), &plan);
    assert_int_equal(engine->units, UNITS);
    return engine;
}

static void golden_step(struct bucket_engine *engine, float *gradient, int64_t s) {
    for (int i = 0; i < UNITS * UNIT; i++) gradient[i] = (float)golden_gradient(comm->rank, i / UNIT, s);
    reduce_step(engine, s - 1, true);
}

static void test_golden_vector(void **state) {
    (void)state;
    static const double mean[6][UNITS] = {{0, 0, 22, 0, 0},     {0, 24.5, 0, 0, 84.5},
                                          {6.5, 0, 0, 81.5, 0}, {0, 0, 57.75, 0, 0},
                                          {0, 34, 0, 0, 109},   {10.25, 0, 0, 85.25, 0}};
    static const double residual[2][UNITS] = {{0, 14, 35.75, 0, 44}, {0, 15, 37.25, 0, 45}};
    float gradient[UNITS * UNIT];
    if (comm->size != 2) return; /* its averages are those of two ranks; the next test is for any number */
    struct bucket_engine *engine = golden_engine(gradient);
    for (int64_t s = 1; s <= 6; s++) {
        golden_step(engine, gradient, s);
        for (int i = 0; i < UNITS * UNIT; i++) assert_true(gradient[i] / 2 == (float)mean[s - 1][i / UNIT]);
    }
    for (int i = 0; i < UNITS * UNIT; i++)
        assert_true(residual_at(engine, i) == residual[comm->rank][i / UNIT]);
    bucket_engine_free(engine);
}

static void test_rule_in_double_precision(void **state) {
    (void)state;
    float gradient[UNITS * UNIT];
    double held[8][UNITS] = {{0}};
    struct bucket_engine *engine = golden_engine(gradient);
    for (int64_t s = 1; s <= 20; s++) {
        golden_step(engine, gradient, s);
        for (int u = 0; u < UNITS; u++) {
            double expected = 0.0;
            const bool sent = (u + s) % INTERVAL == 0;
            for (int r = 0; r < comm->size; r++) {
                const double g = golden_gradient(r, u, s);
                if (sent) expected += g + held[r][u];
                held[r][u] = sent ? 0.0 : 0.5 * held[r][u] + g;
            }
            for (int i = 0; i < UNIT; i++) {
                assert_true(fabs(gradient[u * UNIT + i] - expected) < 1e-4);
                assert_true(fabs(residual_at(engine, u * UNIT + i) - held[comm->rank][u]) < 1e-4);
            }
        }
    }
    bucket_engine_free(engine);
}

/* Also with units that are parts of a bucket or several buckets. */
static void test_each_unit_is_sent_once_in_an_interval(void **state) {
    (void)state;
    static const int64_t plans[][2] = {{4000, 4000}, {300, 19000}, {20011, 20011}, {5000, 100}};
    float *gradient = memory_alloc_zeroed(sizeof *gradient * TOTAL);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        for (int64_t interval = 1; interval <= 5; interval += 2) {
            struct bucket_plan plan = plan_of("covap", plans[i][0], plans[i][1], true);
            plan.compress.interval = interval;
            struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
            int *times = memory_alloc_zeroed(sizeof *times * (size_t)engine->buckets);
            int64_t sent_elements = 0;
            for (int64_t step = 0; step < interval; step++) {
                reduce_step(engine, step, true);
                for (int b = 0; b < engine->buckets; b++) {
                    const struct bucket_view *v = &engine->bucket[b].view;
                    times[b] += engine->bucket[b].sent;
                    if (engine->bucket[b].sent) sent_elements += v->count;
                    assert_true(engine->bucket[b].sent == (v->gradients > 0));
                    assert_true(v->gradients <= interval);
                }
            }
            for (int b = 0; b < engine->buckets; b++) assert_int_equal(times[b], 1);
            assert_int_equal(sent_elements, TOTAL);
            free(times);
            bucket_engine_free(engine);
        }
    free(gradient);
}

static void test_interval_one_is_dense(void **state) {
    (void)state;
    float *a = memory_alloc(sizeof *a * TOTAL), *b = memory_alloc(sizeof *b * TOTAL);
    struct bucket_plan plan = plan_of("covap", 4000, 1000, true);
    plan.compress.interval = 1;
    struct bucket_engine *covap = engine_with(comm, tensor_of(a, DTYPE_F32, TOTAL), &plan);
    struct bucket_engine *none = engine_dense(comm, tensor_of(b, DTYPE_F32, TOTAL), 4000, 1000, true);
    for (int64_t step = 0; step < 5; step++) {
        fill_gradient(a, step);
        fill_gradient(b, step);
        const struct bucket_stats sa = reduce_step(covap, step, true), sb = reduce_step(none, step, true);
        assert_memory_equal(a, b, sizeof *a * TOTAL);
        assert_int_equal(sa.bytes_sent, sb.bytes_sent);
    }
    bucket_engine_free(covap);
    bucket_engine_free(none);
    free(a);
    free(b);
}

/* Steps count from 0 here, from 1 in the formula. */
static void test_coefficient_ramp(void **state) {
    (void)state;
    const struct compress_options o = {.ef_initial = 0.5, .ef_increment = 0.1, .ef_period = 50};
    static const struct {
        int64_t step;
        double k;
    } expected[] = {{0, 0.5},   {48, 0.5},  {49, 0.6},  {98, 0.6},  {99, 0.7},
                    {198, 0.8}, {199, 0.9}, {248, 0.9}, {249, 1.0}, {100000, 1.0}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(fabs(covap_coefficient(&o, expected[i].step) - expected[i].k) < 1e-12);
    assert_true(covap_coefficient(&o, 100000) == 1.0);
    const struct compress_options lossless = {.ef_initial = 1.0, .ef_period = 1};
    assert_true(covap_coefficient(&lossless, 0) == 1.0);
}

/* Every method keeps by place, so buckets and interval may change at any step. */
static void replans(const char *method) {
    static const int64_t sizes[][2] = {{4000, 1000}, {9000, 9000}, {1500, 1500}, {20011, 20011}};
    if (!compressor_find(method)->lossless) return;
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    double *balance = memory_alloc_zeroed(sizeof *balance * TOTAL);
    struct bucket_plan plan = plan_of(method, 4000, 1000, true);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    for (int64_t step = 0; step < 12; step++) {
        if (step % 3 == 2) {
            plan.bucket_elements = sizes[step / 3][0];
            plan.first_elements = sizes[step / 3][1];
            plan.compress.interval = 1 + step / 3;
            bucket_engine_replan(engine, &plan);
        }
        fill_gradient(gradient, step);
        for (int64_t i = 0; i < TOTAL; i++) balance[i] += gradient[i];
        reduce_step(engine, step, true);
        for (int64_t i = 0; comm->rank == 0 && i < TOTAL; i++) balance[i] -= gradient[i];
    }
    for (int64_t i = 0; i < TOTAL; i++) balance[i] -= residual_at(engine, i);
    comm_reduce(comm, balance, TOTAL, REDUCE_SUM);
    for (int64_t i = 0; i < TOTAL; i++)
        if (!(fabs(balance[i]) < 2e-4)) fail_msg("%s: element %ld: %g lost", method, (long)i, balance[i]);
    bucket_engine_free(engine);
    free(gradient);
    free(balance);
}

static void test_cutting_anew_loses_nothing(void **state) {
    (void)state;
    for_each_method(replans);
}

/* Each rank's number is rounded, then their sum: half a unit in the last place of 8 or 11 bits, twice. */
static void check_half(const char *method, double epsilon, double smallest) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    const struct bucket_plan plan = plan_of(method, 4000, 1000, true);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    fill_gradient(gradient, 0);
    for (int64_t i = 0; i < TOTAL; i += 3) gradient[i] *= 1e-5f;
    gradient[0] = 15.5f; /* times 4 ranks and 1024: still an fp16 */
    const struct bucket_stats stats = reduce_step(engine, 0, true);
    for (int64_t i = 0; i < TOTAL; i++) {
        double sum = 0.0, magnitudes = 0.0;
        for (int r = 0; r < comm->size; r++) {
            float g = random_gradient(r, 0, i);
            if (i % 3 == 0) g *= 1e-5f;
            if (i == 0) g = 15.5f;
            sum += g;
            magnitudes += fabs(g);
        }
        assert_true(fabs(gradient[i] - sum) <= 2.0 * epsilon * magnitudes + comm->size * smallest);
    }
    double bytes = (double)stats.bytes_sent;
    comm_reduce(comm, &bytes, 1, REDUCE_SUM);
    assert_true(bytes == 2.0 * (comm->size - 1) * 2 * TOTAL);
    bucket_engine_free(engine);
    free(gradient);
}

static void test_half_precision_on_the_wire(void **state) {
    (void)state;
    check_half("bf16", 0x1p-8, 0.0);
    check_half("fp16", 0x1p-11, 0x1p-25 / 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_vector),
        cmocka_unit_test(test_rule_in_double_precision),
        cmocka_unit_test(test_each_unit_is_sent_once_in_an_interval),
        cmocka_unit_test(test_interval_one_is_dense),
        cmocka_unit_test(test_coefficient_ramp),
        cmocka_unit_test(test_cutting_anew_loses_nothing),
        cmocka_unit_test(test_half_precision_on_the_wire),
    };
    return run_on_ranks(tests, sizeof tests / sizeof *tests);
}
