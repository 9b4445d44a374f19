/* ranks: 1 2 3 4
 * What every compressor promises: comm/compress.h. Each test runs for each row of the table. */
#include "tests/compress_test.h"

static const int64_t cuts[][3] = {
    {5000, 3000, 8}, {1500, 1500, 4}, {1 << 30, 1 << 30, 5}, {300, 1, 2}}; /* and steps */
enum { CUTS = sizeof cuts / sizeof *cuts, STEPS = 8 };

/* Runs steps and leaves the hash of each result. */
static void run(const char *method, const int64_t cut[3], bool overlap, double hash[STEPS]) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    const struct bucket_plan plan = plan_of(method, cut[0], cut[1], overlap);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    for (int64_t step = 0; step < cut[2]; step++) {
        fill_gradient(gradient, step);
        assert_true(reduce_step(engine, step, true).finite);
        hash[step] = hash_of(gradient, TOTAL);
        assert_same_on_all_ranks(method, hash[step]);
        for (int64_t i = GAP; i < GAP_END; i++) assert_true(gradient[i] == 0.0f);
    }
    bucket_engine_free(engine);
    free(gradient);
}

static void same_bits(const char *method) {
    for (int i = 0; i < CUTS; i++) {
        double with[STEPS], without[STEPS];
        run(method, cuts[i], true, with);
        run(method, cuts[i], false, without);
        for (int64_t step = 0; step < cuts[i][2]; step++)
            if (with[step] != without[step])
                fail_msg("%s, step %ld: overlap changes the result", method, (long)step);
    }
}

static void test_same_bits_on_all_ranks_and_with_overlap(void **state) {
    (void)state;
    for_each_method(same_bits);
}

/* Over all steps: gradients in = results out + residuals. */
static void conserves(const char *method, const int64_t cut[3]) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    double *in = memory_alloc_zeroed(sizeof *in * TOTAL), *out = memory_alloc_zeroed(sizeof *out * TOTAL);
    const struct bucket_plan plan = plan_of(method, cut[0], cut[1], true);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    for (int64_t step = 0; step < cut[2]; step++) {
        fill_gradient(gradient, step);
        for (int64_t i = 0; i < TOTAL; i++) in[i] += gradient[i];
        reduce_step(engine, step, true);
        for (int64_t i = 0; i < TOTAL; i++) out[i] += gradient[i];
    }
    for (int64_t i = 0; i < TOTAL; i++) in[i] -= residual_at(engine, i);
    comm_reduce(comm, in, TOTAL, REDUCE_SUM);
    for (int64_t i = 0; i < TOTAL; i++)
        if (!(fabs(in[i] - out[i]) < 2e-4))
            fail_msg("%s: element %ld: %g in, %g out", method, (long)i, in[i], out[i]);
    bucket_engine_free(engine);
    free(gradient);
    free(in);
    free(out);
}

static void conserves_if_lossless(const char *method) {
    for (int i = 0; i < CUTS; i++)
        if (compressor_find(method)->lossless) conserves(method, cuts[i]);
}

static void test_nothing_is_lost(void **state) {
    (void)state;
    for_each_method(conserves_if_lossless);
}

/* Before start_step a method's results are those of none, to the bit (of bf16 and fp16: their own), and nothing is held back. */
static void begins_dense(const char *method) {
    enum { START = 3 };
    float *gradient = memory_alloc(sizeof *gradient * TOTAL), *dense = memory_alloc(sizeof *dense * TOTAL);
    const struct compressor_method *m = compressor_find(method);
    struct bucket_plan plan = plan_of(method, 5000, 3000, true);
    plan.compress.start_step = START;
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    plan = plan_of(m->wire == DTYPE_F32 ? "none" : method, 5000, 3000, true);
    struct bucket_engine *reference = engine_with(comm, tensor_of(dense, DTYPE_F32, TOTAL), &plan);
    bool same = true;
    for (int64_t step = 0; step < START && !m->starts_itself; step++) {
        fill_gradient(gradient, step);
        fill_gradient(dense, step);
        reduce_step(engine, step, true);
        reduce_step(reference, step, true);
        same = same && memcmp(gradient, dense, sizeof *dense * TOTAL) == 0;
        for (int64_t i = 0; i < TOTAL; i++) same = same && residual_at(engine, i) == 0;
    }
    if (!same) fail_msg("%s: the first steps are not dense", method);
    bucket_engine_free(engine);
    bucket_engine_free(reference);
    free(gradient);
    free(dense);
}

static void test_first_steps_are_dense(void **state) {
    (void)state;
    for_each_method(begins_dense);
}

/* One rank's NaN, which ranks agree to forget: what is kept stays as it was, to the bit. */
static void forgets(const char *method) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    const struct bucket_plan plan = plan_of(method, 5000, 3000, true);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    const struct arena *keep = &engine->compressor->keep;
    char *before = memory_alloc(keep->size + 1);
    for (int64_t step = 0; step < 12; step++) {
        const bool bad = step % 4 == 1;
        fill_gradient(gradient, step);
        if (bad && comm->rank == comm->size - 1) gradient[9000] = step == 1 ? NAN : INFINITY;
        memcpy(before, keep->base, keep->size);
        double finite = reduce_step(engine, step, !bad).finite;
        for (int64_t i = 0; i < TOTAL; i++) finite = finite && isfinite(gradient[i]);
        comm_reduce(comm, &finite, 1, REDUCE_MIN);
        assert_true(finite == !bad);
        if (bad) assert_memory_equal(before, keep->base, keep->size);
        for (int64_t i = 0; i < TOTAL; i++) assert_true(isfinite(residual_at(engine, i)));
    }
    bucket_engine_free(engine);
    free(gradient);
    free(before);
}

static void test_a_forgotten_step_leaves_no_trace(void **state) {
    (void)state;
    for_each_method(forgets);
}

/* Least squares: rank r minimises sum_i curvature_i (x_i - target_ri)^2 / 2, all together the mean of those; plain descent. */
enum { UNKNOWNS = 3000 };
static const struct flat_matrix unknowns[] = {{0, 50, 40}, {2000, 1, 1000}};

static double curvature(int64_t i) {
    return 0.5 + (double)(i * 37 % 100) / 100.0;
}

static double target(int rank, int64_t i) {
    return 3.0 * random_gradient(rank, 99, i) + (double)(i % 7) - 3.0;
}

static double distance(const float *x) {
    double sum = 0.0;
    for (int64_t i = 0; i < UNKNOWNS; i++) {
        double mean = 0.0;
        for (int r = 0; r < comm->size; r++) mean += target(r, i) / comm->size;
        sum += (x[i] - mean) * (x[i] - mean);
    }
    return sqrt(sum);
}

static void converges(const char *method) {
    float x[UNKNOWNS] = {0}, gradient[UNKNOWNS];
    double *targets = memory_alloc(sizeof *targets * UNKNOWNS);
    struct bucket_plan plan = plan_of(method, 3000, 3000, false);
    plan.matrix = unknowns;
    plan.matrices = 2;
    plan.compress.density = 0.2;
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, UNKNOWNS), &plan);
    const double start = distance(x);
    for (int64_t i = 0; i < UNKNOWNS; i++) targets[i] = target(comm->rank, i);
    for (int64_t step = 0; step < 130; step++) {
        for (int64_t i = 0; i < UNKNOWNS; i++) gradient[i] = (float)(curvature(i) * (x[i] - targets[i]));
        reduce_step(engine, step, true);
        for (int64_t i = 0; i < UNKNOWNS; i++) x[i] -= 0.08f / (float)comm->size * gradient[i];
    }
    const double end = distance(x);
    if (!(end < 0.05 * start)) fail_msg("%s: %g from the optimum, at first %g", method, end, start);
    bucket_engine_free(engine);
    free(targets);
}

static void test_each_method_converges(void **state) {
    (void)state;
    for_each_method(converges);
}

/* Ranges of few elements, without parameters, then gradients of zeros: nothing but zeros and what was held back comes. */
static void stays_finite(const char *method) {
    static const int64_t sizes[] = {1, 2, 1024, 1025, 3001};
    float gradient[3001];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int first = 0; first < 2; first++) {
            struct bucket_plan plan = plan_of(method, 2000, 2000, true);
            plan.matrix = NULL;
            plan.matrices = 0;
            struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, sizes[i]), &plan);
            for (int64_t step = 0; step < 5; step++) {
                for (int64_t j = 0; j < sizes[i]; j++)
                    gradient[j] = first && step < 2 ? random_gradient(comm->rank, step, j) : 0.0f;
                reduce_step(engine, step, true);
                assert_same_on_all_ranks(method, hash_of(gradient, sizes[i]));
                for (int64_t j = 0; j < sizes[i]; j++)
                    assert_true(first ? isfinite(gradient[j]) : gradient[j] == 0.0f);
            }
            bucket_engine_free(engine);
        }
}

static void test_small_ranges_and_zeros(void **state) {
    (void)state;
    for_each_method(stays_finite);
}

static void test_options_that_do_not_fit(void **state) {
    (void)state;
    static const struct compress_options bad[] = {
        {.method = "topk", .density = 0.0},
        {.method = "topk", .density = 1.5},
        {.method = "randomk", .density = -1},
        {.method = "oktopk", .density = NAN},
        {.method = "dgc", .density = 0.1, .momentum = 1.0},
        {.method = "powersgd", .rank = 0},
        {.method = "qsgd", .levels = 128},
        {.method = "qsgd", .levels = 0},
        {.method = "zip"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error e = {{0}};
        assert_null(compressor_create(&bad[i], comm, &device_cpu, 100, NULL, 0, &e));
        assert_non_null(strstr(e.text, "expected"));
        assert_non_null(strstr(e.text, bad[i].method));
    }
    assert_null(compressor_find("zip"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_on_all_ranks_and_with_overlap),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_first_steps_are_dense),
        cmocka_unit_test(test_a_forgotten_step_leaves_no_trace),
        cmocka_unit_test(test_each_method_converges),
        cmocka_unit_test(test_small_ranges_and_zeros),
        cmocka_unit_test(test_options_that_do_not_fit),
    };
    return run_on_ranks(tests, sizeof tests / sizeof *tests);
}
