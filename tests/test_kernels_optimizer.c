/* Updates and sums over all elements against plain loops in double. */
#include "tests/kernel_test.h"

static const int64_t counts[] = {1, 3, 17, 65, 4097, 20011};
enum { COUNTS = sizeof counts / sizeof *counts };

static void test_adamw(void **state) {
    (void)state;
    for (int s = 0; s < COUNTS; s++) {
        const int64_t n = counts[s];
        float *start = random_floats(n, 1), *zeros = host_floats(n);
        memset(zeros, 0, (size_t)n * sizeof *zeros);
        double *p = widened(start, n), *m = host_doubles(n), *v = host_doubles(n);
        struct tensor dp = device_tensor(start, n), dm = device_tensor(zeros, n),
                      dv = device_tensor(zeros, n);
        struct adamw_step step = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f};
        step.grad_scale = 0.5f;
        for (step.step = 1; step.step <= 4; step.step++) {
            const float *g = random_floats(n, 1);
            dev->adamw(NULL, dp, device_tensor(g, n), dm, dv, step);
            for (int64_t i = 0; i < n; i++) {
                const double d = step.grad_scale * g[i];
                m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * d;
                v[i] = step.beta2 * v[i] + (1.0 - step.beta2) * d * d;
                const double mean = m[i] / (1.0 - pow(step.beta1, step.step));
                const double square = v[i] / (1.0 - pow(step.beta2, step.step));
                p[i] -= step.lr * (mean / (sqrt(square) + step.eps) + step.decay * p[i]);
            }
        }
        assert_tensor_close("p", dp, p, 1e-6);
        assert_tensor_close("m", dm, m, 1e-6);
        assert_tensor_close("v", dv, v, 1e-6);
    }
}

static void test_sgd(void **state) {
    (void)state;
    for (int s = 0; s < COUNTS; s++) {
        const int64_t n = counts[s];
        const float *start = random_floats(n, 1), *old = random_floats(n, 1);
        double *p = widened(start, n), *m = widened(old, n);
        struct tensor dp = device_tensor(start, n), dm = device_tensor(old, n);
        const struct sgd_step step = {.lr = 0.1f, .momentum = 0.9f, .decay = 0.01f, .grad_scale = 2.0f};
        for (int repeat = 0; repeat < 3; repeat++) {
            const float *g = random_floats(n, 1);
            dev->sgd(NULL, dp, device_tensor(g, n), dm, step);
            for (int64_t i = 0; i < n; i++) {
                m[i] = step.momentum * m[i] + step.grad_scale * g[i] + step.decay * p[i];
                p[i] -= step.lr * m[i];
            }
        }
        assert_tensor_close("p", dp, p, 1e-6);
        assert_tensor_close("m", dm, m, 1e-6);
    }
}

static void test_axpy(void **state) {
    (void)state;
    for (int s = 0; s < COUNTS; s++) {
        const int64_t n = counts[s];
        const float *x = random_floats(n, 1), *old = random_floats(n, 1);
        double *want = widened(old, n);
        for (int64_t i = 0; i < n; i++) want[i] += 0.3f * (double)x[i];
        struct tensor y = device_tensor(old, n);
        dev->axpy(NULL, y, 0.3f, device_tensor(x, n));
        assert_tensor_close("y", y, want, 1e-6);
    }
}

static void test_sum_squares(void **state) {
    (void)state;
    for (int s = 0; s < COUNTS; s++) {
        const float *x = random_floats(counts[s], 3);
        double want = 0.0, got = NAN;
        for (int64_t i = 0; i < counts[s]; i++) want += (double)x[i] * x[i];
        dev->sum_squares(NULL, &got, device_tensor(x, counts[s]));
        assert_true(fabs(got - want) <= 1e-13 * want);
    }
}

/* Squares that no float holds, and a non-finite element that must show. */
static void test_sum_squares_range(void **state) {
    (void)state;
    float x[40] = {[3] = 1e30f, [38] = 1e-30f};
    double got = NAN;
    dev->sum_squares(NULL, &got, device_tensor(x, 40));
    assert_true(fabs(got - (double)1e30f * 1e30f) < 1e48);
    x[20] = NAN;
    dev->sum_squares(NULL, &got, device_tensor(x, 40));
    assert_true(isnan(got));
    x[20] = INFINITY;
    dev->sum_squares(NULL, &got, device_tensor(x, 40));
    assert_true(isinf(got));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_adamw, release_all),
        cmocka_unit_test_teardown(test_sgd, release_all),
        cmocka_unit_test_teardown(test_axpy, release_all),
        cmocka_unit_test_teardown(test_sum_squares, release_all),
        cmocka_unit_test_teardown(test_sum_squares_range, release_all),
    };
    return cmocka_run_group_tests_name("kernels_optimizer", tests, open_device, NULL);
}
