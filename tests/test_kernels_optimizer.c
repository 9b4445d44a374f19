/* Updates and sums over all elements against plain loops in double. */
#include "kernels/philox.h"
#include "tests/kernel_test.h"

static const int64_t counts[] = {1, 3, 17, 65, 4097, 20011};
enum { COUNTS = sizeof counts / sizeof *counts };

/* Formula of kernels/ops.def. */
static void adamw_oracle(const struct adamw_step *step, double g, double *p, double *m, double *v) {
    const double n = (double)step->gradients, seen = (double)step->step;
    const double d = step->grad_scale * g / n, b1 = pow(step->beta1, n), b2 = pow(step->beta2, n);
    const double before = seen > n ? *m / (1.0 - pow(step->beta1, seen - n)) : 0.0;
    *m = b1 * *m + (1.0 - b1) * d;
    *v = b2 * *v + (1.0 - b2) * fmax(d * d / n, d * (n * d - (n - 1.0) * before));
    const double mean = *m / (1.0 - pow(step->beta1, seen)), square = *v / (1.0 - pow(step->beta2, seen));
    *p -= n * step->lr * (mean / (sqrt(square) + step->eps) + step->decay * *p);
}

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
        for (int call = 0; call < 6; call++) {
            const float *g = random_floats(n, 1);
            step.gradients = (s + call) % 3 == 0 ? 1 + call : 1;
            step.step += step.gradients;
            dev->adamw(NULL, dp, device_tensor(g, n), dm, dv, step);
            for (int64_t i = 0; i < n; i++) adamw_oracle(&step, g[i], &p[i], &m[i], &v[i]);
        }
        assert_tensor_close("p", dp, p, 1e-6);
        assert_tensor_close("m", dm, m, 1e-6);
        assert_tensor_close("v", dv, v, 1e-6);
    }
}

/* The weights that the same gradients lead to, each by itself (n = 1) or, after a start of single ones, added up by n. */
static struct tensor adamw_run(int64_t count, int64_t steps, int64_t n, double noise, double *second) {
    float *zeros = host_floats(count);
    memset(zeros, 0, (size_t)count * sizeof *zeros);
    struct tensor p = device_tensor(zeros, count), m = device_tensor(zeros, count),
                  v = device_tensor(zeros, count);
    struct adamw_step how = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};
    while (how.step < steps) {
        how.gradients = how.step < 20 ? 1 : n;
        how.step += how.gradients;
        float *sum = host_floats(count);
        for (int64_t i = 0; i < count; i++) {
            sum[i] = 0;
            for (int64_t s = how.step - how.gradients; s < how.step; s++) {
                const struct philox draw = philox_draw(5, (uint64_t)i, (uint64_t)s);
                sum[i] += (float)(0.1 + noise * ((draw.word[0] + (double)draw.word[1]) * 0x1p-32 - 1.0));
            }
        }
        dev->adamw(NULL, p, device_tensor(sum, count), m, v, how);
    }
    *second = 0;
    for (int64_t i = 0; i < count; i++)
        *second += tensor_f32(v)[i] / (1.0 - pow(0.99, (double)steps)) / (double)count;
    return p;
}

/* Steps made at once go as far and spread as wide as the steps themselves, whether gradients agree or are noise. */
static void test_adamw_steps_at_once(void **state) {
    (void)state;
    enum { COUNT = 4000, STEPS_MADE = 120 };
    static const double noises[] = {0.0, 0.1, 1.0, 5.0};
    for (size_t k = 0; k < sizeof noises / sizeof *noises; k++)
        for (int64_t n = 2; n <= 4; n += 2) {
            double second[2], mean[2] = {0}, spread[2] = {0};
            for (int at_once = 0; at_once < 2; at_once++) {
                const struct tensor p =
                    adamw_run(COUNT, STEPS_MADE, at_once ? n : 1, noises[k], &second[at_once]);
                for (int64_t i = 0; i < COUNT; i++) mean[at_once] += tensor_f32(p)[i] / COUNT;
                for (int64_t i = 0; i < COUNT; i++)
                    spread[at_once] += pow(tensor_f32(p)[i] - mean[at_once], 2) / COUNT;
            }
            const bool same =
                fabs(second[1] / second[0] - 1) < 0.2 && fabs(mean[1] / mean[0] - 1) < 0.1 &&
                fabs(sqrt(spread[1]) - sqrt(spread[0])) < 0.15 * sqrt(spread[0]) + 0.02 * fabs(mean[0]);
            if (!same)
                fail_msg("noise %g, %ld at once: v %g and %g, mean %g and %g, spread %g and %g", noises[k],
                         (long)n, second[1], second[0], mean[1], mean[0], sqrt(spread[1]), sqrt(spread[0]));
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
        cmocka_unit_test_teardown(test_adamw_steps_at_once, release_all),
        cmocka_unit_test_teardown(test_sgd, release_all),
        cmocka_unit_test_teardown(test_axpy, release_all),
        cmocka_unit_test_teardown(test_sum_squares, release_all),
        cmocka_unit_test_teardown(test_sum_squares_range, release_all),
    };
    return cmocka_run_group_tests_name("kernels_optimizer", tests, open_device, NULL);
}
