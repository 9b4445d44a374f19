/* ranks: 1 2 3 4
 * What each method that leaves something out sends: how many bytes, and the right ones. */
#include "tests/compress_test.h"

/* Bytes all ranks together send for a payload of n words. */
static double sum_bytes(int64_t n) {
    return 2.0 * (comm->size - 1) * 4 * (double)n;
}

static double rows_bytes(int64_t n) {
    return (double)comm->size * (comm->size - 1) * 4 * (double)n;
}

static int64_t up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static double share(double density, int64_t n) {
    const double k = floor(density * (double)n);
    return k < 1 ? 1 : k;
}

/* Signs and a scale for each parameter's piece. */
static int64_t sign_words(int64_t offset, int64_t count) {
    int64_t words = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        const struct flat_matrix *m = &parameters[i];
        const int64_t first = offset > m->offset ? offset : m->offset;
        const int64_t end = m->offset + m->rows * m->columns,
                      last = offset + count < end ? offset + count : end;
        if (last > first) words += 1 + up(last - first, 32);
    }
    return words;
}

/* Rank 2: thin factors where they are half as long, the parameter itself elsewhere; a bucket without such is sent whole. */
static double powersgd_bytes(const struct bucket_view *b) {
    int64_t words = 0;
    bool any = false;
    for (int i = 0; i < PARAMETERS; i++) {
        const struct flat_matrix *m = &parameters[i];
        if (m->offset < b->offset || m->offset >= b->offset + b->count) continue;
        const bool low = 4 * (m->rows + m->columns) <= m->rows * m->columns;
        words += low ? 2 * (m->rows + m->columns) : m->rows * m->columns;
        any |= low;
    }
    return sum_bytes(any ? words : b->count);
}

/* dgc: five spans in three steps are 0, 1 and 3. */
static double dgc_bytes(int64_t n, int64_t step, int64_t start) {
    static const double span[] = {0, 1, 3};
    const double density = step < start ? 0.25 * pow(0.05 / 0.25, span[step] / 4.0) : 0.05;
    const double sent = share(density, n);
    return sent * comm->size >= (double)n ? sum_bytes(n) : rows_bytes(2 * (int64_t)sent);
}

/* start: 0, or 3 dense steps. */
static double expected_bytes(const char *method, const struct bucket_view *b, int64_t step, int64_t start) {
    const int64_t n = b->count;
    const double k = share(0.05, n), p = comm->size;
    if (strcmp(method, "bf16") == 0 || strcmp(method, "fp16") == 0) return sum_bytes(n) / 2;
    if (strcmp(method, "dgc") == 0 && n >= 1024) return dgc_bytes(n, step, start);
    if (step < start) return sum_bytes(n);
    if (strcmp(method, "powersgd") == 0) return powersgd_bytes(b);
    if (strcmp(method, "accumulate") == 0) return (step + 1) % 3 ? 0.0 : sum_bytes(n);
    if (strcmp(method, "covap") == 0) return (b->unit + step + 1) % 3 ? 0.0 : sum_bytes(n);
    if (strcmp(method, "none") == 0 || n < 1024) return sum_bytes(n);
    if (strcmp(method, "topk") == 0) return rows_bytes(2 * (int64_t)k);
    if (strcmp(method, "randomk") == 0) return sum_bytes((int64_t)k);
    if (strcmp(method, "efsignsgd") == 0) return rows_bytes(sign_words(b->offset, n));
    if (strcmp(method, "qsgd") == 0) return rows_bytes(33 * up(n, 128));
    assert_string_equal(method, "oktopk");
    return 2 * rows_bytes(2 * (int64_t)ceil(1.25 * k / p));
}

/* Makes a step, which must send that share of the bytes of fp32. */
static void check_step(struct bucket_engine *engine, float *gradient, const char *method, int64_t step,
                       int64_t start, double width) {
    double expected = 0.0, sent;
    fill_gradient(gradient, step);
    sent = (double)reduce_step(engine, step, true).bytes_sent;
    comm_reduce(comm, &sent, 1, REDUCE_SUM);
    for (int b = 0; b < engine->buckets; b++)
        expected += width * expected_bytes(method, &engine->bucket[b].view, step, start);
    if (sent != expected) fail_msg("%s, step %ld: %g bytes, not %g", method, (long)step, sent, expected);
}

static void counts_bytes_from(const char *method, int64_t start) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    struct bucket_plan plan = plan_of(method, 4000, 700, true);
    plan.compress.start_step = start;
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    for (int64_t step = 0; step < 5; step++) {
        check_step(engine, gradient, method, step, start, 1.0);
    }
    bucket_engine_free(engine);
    free(gradient);
}

static void counts_bytes(const char *method) {
    counts_bytes_from(method, 0);
    counts_bytes_from(method, 3);
}

static void test_bytes_sent(void **state) {
    (void)state;
    for_each_method(counts_bytes);
}

/* Methods that send sums can send them in bf16 as well. */
static void test_sums_in_fewer_bits(void **state) {
    (void)state;
    static const char *const methods[] = {"covap", "randomk", "powersgd"};
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        struct bucket_plan plan = plan_of(methods[i], 4000, 700, true);
        plan.compress.wire = DTYPE_BF16;
        struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
        for (int64_t step = 0; step < 5; step++) {
            check_step(engine, gradient, methods[i], step, 0, 0.5);
            assert_same_on_all_ranks(methods[i], hash_of(gradient, TOTAL));
        }
        bucket_engine_free(engine);
    }
    free(gradient);
}

static struct bucket_engine *engine_of(float *gradient, const char *method, double density) {
    struct bucket_plan plan = plan_of(method, 1 << 20, 1 << 20, true);
    plan.compress.density = density;
    return engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
}

static int by_magnitude(const void *a, const void *b) {
    const float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return (x < y) - (x > y);
}

/* Of a rank's first gradient all elements larger than its k-th largest go, so what is left is not larger. */
static void test_topk_sends_the_largest(void **state) {
    (void)state;
    float *gradient = memory_alloc(sizeof *gradient * TOTAL), *sorted = memory_alloc(sizeof *sorted * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, "topk", 0.01);
    const int64_t k = (int64_t)(0.01 * TOTAL);
    fill_gradient(gradient, 0);
    memcpy(sorted, gradient, sizeof *sorted * TOTAL);
    qsort(sorted, TOTAL, sizeof *sorted, by_magnitude);
    reduce_step(engine, 0, true);
    int64_t sent = 0;
    for (int64_t i = 0; i < TOTAL; i++) {
        const float g = random_gradient(comm->rank, 0, i);
        const float left = (float)residual_at(engine, i);
        assert_true(left == 0.0f || left == g);
        assert_true(fabsf(left) <= fabsf(sorted[k - 1]));
        sent += left != g;
    }
    assert_int_equal(sent, k);
    bucket_engine_free(engine);
    free(gradient);
    free(sorted);
}

static void sends_all(const char *method) {
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, method, 1.0);
    for (int64_t step = 0; step < 2; step++) {
        fill_gradient(gradient, step);
        reduce_step(engine, step, true);
        for (int64_t i = 0; i < TOTAL; i++) {
            float sum = 0.0f;
            for (int r = 0; r < comm->size; r++) sum += random_gradient(r, step, i);
            assert_true(fabsf(gradient[i] - sum) < 1e-5f);
            assert_true(residual_at(engine, i) == 0.0);
        }
    }
    bucket_engine_free(engine);
    free(gradient);
}

static void test_density_one_is_everything(void **state) {
    (void)state;
    sends_all("topk");
    sends_all("randomk");
}

/* Sums over ranks that all have in common come first, and never more than 6 k words a rank go out. */
static void test_oktopk_finds_the_largest_sums(void **state) {
    (void)state;
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, "oktopk", 0.02);
    const int64_t k = (int64_t)(0.02 * TOTAL);
    for (int64_t step = 0; step < 70; step++) {
        for (int64_t i = 0; i < TOTAL; i++) {
            gradient[i] = 1e-3f * random_gradient(comm->rank, step, i);
            if (i % 61 == 5) gradient[i] = i < 10000 ? -1.0f : 1.0f; /* fewer than k */
        }
        const struct bucket_stats stats = reduce_step(engine, step, true);
        assert_true(stats.bytes_sent < 4 * 6 * k);
        int64_t found = 0, large = 0, other = 0;
        for (int64_t i = 0; i < TOTAL; i++) {
            large += i % 61 == 5;
            found += i % 61 == 5 && fabsf(gradient[i]) > 0.9f * (float)comm->size;
            other += i % 61 != 5 && gradient[i] != 0.0f;
        }
        assert_true(found >= large * 9 / 10);
        assert_true(other <= k + k / 2);
    }
    bucket_engine_free(engine);
    free(gradient);
}

/* A sum over ranks of rank 2 is reproduced at once, as one iteration of power finds its span. */
static void test_powersgd_is_exact_for_low_rank(void **state) {
    (void)state;
    enum { ROWS = 96, COLUMNS = 64 };
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, "powersgd", 0.05);
    for (int64_t step = 3; step < 6; step++) {
        memset(gradient, 0, sizeof *gradient * TOTAL);
        const double factor = comm->rank + 1.0, all = comm->size * (comm->size + 1) / 2.0;
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            gradient[i] =
                (float)(factor * (sin(row) * cos(3 * column) + 0.2 * cos(5 * row + 1) * sin(column)));
        }
        reduce_step(engine, step, true);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            const double sum = all * (sin(row) * cos(3 * column) + 0.2 * cos(5 * row + 1) * sin(column));
            assert_true(fabs(gradient[i] - sum) < 1e-4);
            assert_true(fabs(residual_at(engine, i)) < 1e-4);
        }
        for (int i = ROWS * COLUMNS; i < TOTAL; i++)
            assert_true(gradient[i] == 0.0f); /* zeros stay zeros, not NaN */
    }
    bucket_engine_free(engine);
    free(gradient);
}

static void test_signs_and_one_scale(void **state) {
    (void)state;
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, "efsignsgd", 0.05);
    fill_gradient(gradient, 0);
    gradient[3] = 0.0f;
    reduce_step(engine, 0, true);
    double scale[8] = {0};
    for (int r = 0; r < comm->size; r++)
        for (int i = 0; i < 6144; i++) scale[r] += i == 3 ? 0.0 : fabs(random_gradient(r, 0, i)) / 6144;
    for (int i = 0; i < 6144; i++) {
        double sum = 0.0;
        for (int r = 0; r < comm->size; r++) {
            const float g = i == 3 ? 0.0f : random_gradient(r, 0, i);
            sum += g < 0.0f ? -scale[r] : scale[r];
            if (r == comm->rank)
                assert_true(fabs(residual_at(engine, i) - (g - (g < 0.0f ? -scale[r] : scale[r]))) < 1e-5);
        }
        assert_true(fabs(gradient[i] - sum) < 1e-5);
    }
    bucket_engine_free(engine);
    free(gradient);
}

/* Momentum correction against the formulas in double precision, for the elements of this rank when it is alone, and the
 * masking: what was sent starts from nothing. */
static void test_dgc_accumulates_momentum_and_masks(void **state) {
    (void)state;
    if (comm->size > 1) return; /* what one rank sends can be seen in the result only when it is alone */
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    double *m = memory_alloc_zeroed(sizeof *m * TOTAL), *v = memory_alloc_zeroed(sizeof *v * TOTAL);
    struct bucket_engine *engine = engine_of(gradient, "dgc", 0.02);
    for (int64_t step = 5; step < 15; step++) {
        int64_t sent = 0;
        fill_gradient(gradient, step);
        reduce_step(engine, step, true);
        for (int64_t i = 0; i < TOTAL; i++) {
            m[i] = 0.5 * m[i] + random_gradient(0, step, i);
            v[i] += m[i];
            if (gradient[i] != 0.0f) {
                assert_true(fabs(gradient[i] - v[i]) < 1e-4);
                m[i] = v[i] = 0.0;
                sent++;
            }
            assert_true(fabs(residual_at(engine, i) - v[i]) < 1e-4);
        }
        assert_int_equal(sent, (int64_t)(0.02 * TOTAL));
    }
    bucket_engine_free(engine);
    free(gradient);
    free(m);
    free(v);
}

/* Mean over many draws: the sum over ranks; never further off than a level. */
static void test_qsgd_has_no_bias(void **state) {
    (void)state;
    enum { ELEMENTS = 2000, DRAWS = 300 };
    float gradient[ELEMENTS];
    double mean[ELEMENTS] = {0};
    struct bucket_plan plan = plan_of("qsgd", ELEMENTS, ELEMENTS, true);
    plan.compress.levels = 4;
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, ELEMENTS), &plan);
    for (int64_t draw = 0; draw < DRAWS; draw++) {
        for (int i = 0; i < ELEMENTS; i++)
            gradient[i] = i / 128 == 2 ? 0.0f : random_gradient(comm->rank, 0, i);
        reduce_step(engine, draw, true);
        for (int i = 0; i < ELEMENTS; i++) mean[i] += gradient[i] / (double)DRAWS;
    }
    for (int first = 0; first < ELEMENTS; first += 128) {
        double deviation = 0.0;
        const int end = first + 128 < ELEMENTS ? first + 128 : ELEMENTS;
        for (int r = 0; r < comm->size; r++) {
            double squares = 0.0;
            for (int i = first; i < end; i++)
                squares += first == 256 ? 0.0 : pow(random_gradient(r, 0, i), 2);
            deviation += squares / 16.0 / 4.0; /* of one draw: at most half a level, squared */
        }
        for (int i = first; i < end; i++) {
            double sum = 0.0;
            for (int r = 0; r < comm->size; r++) sum += first == 256 ? 0.0 : random_gradient(r, 0, i);
            assert_true(fabs(mean[i] - sum) <= 5.0 * sqrt(deviation / DRAWS) + 1e-6);
        }
    }
    bucket_engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_sent),
        cmocka_unit_test(test_sums_in_fewer_bits),
        cmocka_unit_test(test_topk_sends_the_largest),
        cmocka_unit_test(test_density_one_is_everything),
        cmocka_unit_test(test_oktopk_finds_the_largest_sums),
        cmocka_unit_test(test_powersgd_is_exact_for_low_rank),
        cmocka_unit_test(test_signs_and_one_scale),
        cmocka_unit_test(test_dgc_accumulates_momentum_and_masks),
        cmocka_unit_test(test_qsgd_has_no_bias),
    };
    return run_on_ranks(tests, sizeof tests / sizeof *tests);
}
