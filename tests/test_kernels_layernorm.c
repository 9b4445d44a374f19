/* Layer norm, alone and behind a residual sum, against plain loops in double. */
#include "tests/kernel_test.h"

static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {5, 3}, {17, 63}, {65, 130}, {130, 65}, {64, 384}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void row_statistics(const double *x, int64_t columns, double *mean, double *rstd) {
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < columns; j++) sum += x[j];
    *mean = sum / columns;
    for (int64_t j = 0; j < columns; j++) squares += (x[j] - *mean) * (x[j] - *mean);
    *rstd = 1.0 / sqrt(squares / columns + 1e-5);
}

static void layernorm(const struct oracle *o, double *const *in, double *out) {
    for (int64_t i = 0; i < o->rows; i++) {
        const double *x = in[0] + i * o->columns;
        double mean, rstd;
        row_statistics(x, o->columns, &mean, &rstd);
        for (int64_t j = 0; j < o->columns; j++)
            out[i * o->columns + j] = (x[j] - mean) * rstd * in[1][j] + in[2][j];
    }
}

static void check_forward(struct tensor y, struct tensor stats, const struct oracle *o, double *const *in) {
    const int64_t n = o->rows;
    double *want = host_doubles(n * o->columns), *want_stats = host_doubles(2 * n);
    layernorm(o, in, want);
    assert_tensor_close("y", y, want, 1e-5);
    for (int64_t i = 0; i < n; i++)
        row_statistics(in[0] + i * o->columns, o->columns, &want_stats[2 * i], &want_stats[2 * i + 1]);
    assert_tensor_close("stats", stats, want_stats, 1e-5);
}

static void test_forward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s][0], c = sizes[s][1];
        const float *x = random_floats(n * c, 4), *w = random_floats(c, 2), *b = random_floats(c, 1);
        double *in[] = {widened(x, n * c), widened(w, c), widened(b, c)};
        struct oracle oracle = {.forward = layernorm, .rows = n, .columns = c};
        struct tensor y = device_tensor(NULL, n, c), stats = device_tensor(NULL, n, 2);
        dev->layernorm_forward(NULL, y, stats, device_tensor(x, n, c), device_tensor(w, c),
                               device_tensor(b, c));
        check_forward(y, stats, &oracle, in);
    }
}

static void test_residual_forward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int variant = 0; variant < 4; variant++) {
            const bool in_place = variant & 1;
            const struct dropout drop = {.rate = variant & 2 ? 0.25f : 0.0f, .key = 7, .first_row = 11};
            const int64_t n = sizes[s][0], c = sizes[s][1];
            const float *x = random_floats(n * c, 2), *delta = random_floats(n * c, 2);
            const float *w = random_floats(c, 2), *b = random_floats(c, 1), *mask = dropout_mask(drop, n, c);
            double *in[] = {widened(x, n * c), widened(w, c), widened(b, c)};
            for (int64_t i = 0; i < n * c; i++) in[0][i] += (double)delta[i] * mask[i];

            struct tensor from = device_tensor(x, n, c), sum = in_place ? from : device_tensor(NULL, n, c);
            struct tensor y = device_tensor(NULL, n, c), stats = device_tensor(NULL, n, 2);
            dev->residual_layernorm_forward(NULL, sum, y, stats, from, device_tensor(delta, n, c),
                                            device_tensor(w, c), device_tensor(b, c), drop);
            assert_tensor_close("sum", sum, in[0], 1e-6);
            check_forward(y, stats, &(struct oracle){.rows = n, .columns = c}, in);
        }
}

static void test_backward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int beta = 0; beta < 2; beta++) {
            const int64_t n = sizes[s][0], c = sizes[s][1];
            const float *x = random_floats(n * c, 2), *w = random_floats(c, 2), *b = random_floats(c, 1);
            const float *dy = random_floats(n * c, 1), *old = random_floats(n * c, 1);
            double *in[] = {widened(x, n * c), widened(w, c), widened(b, c)};
            struct oracle oracle = {.forward = layernorm, .rows = n, .columns = c};
            struct tensor input = device_tensor(x, n, c), weight = device_tensor(w, c);
            struct tensor y = device_tensor(NULL, n, c), stats = device_tensor(NULL, n, 2);
            dev->layernorm_forward(NULL, y, stats, input, weight, device_tensor(b, c));

            struct tensor dx = device_tensor(old, n, c);
            struct tensor dw = device_tensor(beta ? old : NULL, c), db = device_tensor(beta ? old : NULL, c);
            dev->layernorm_backward(NULL, dx, dw, db, device_tensor(dy, n, c), input, stats, weight, beta);
            const float *base = beta ? old : NULL;
            assert_gradient("dx", &oracle, in, 0, n * c, dy, n * c, host_of(dx), old, 2e-5);
            assert_gradient("dw", &oracle, in, 1, c, dy, n * c, host_of(dw), base, 2e-5);
            assert_gradient("db", &oracle, in, 2, c, dy, n * c, host_of(db), base, 2e-5);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_forward, release_all),
        cmocka_unit_test_teardown(test_residual_forward, release_all),
        cmocka_unit_test_teardown(test_backward, release_all),
    };
    return cmocka_run_group_tests_name("kernels_layernorm", tests, open_device, NULL);
}
