/* Products, linear layers and GELU against plain loops in double. */
#include "tests/kernel_test.h"

/* Also rows of 2 and 4 KiB, which the CPU back end treats apart. */
static const int64_t sizes[][3] = {{1, 1, 1},     {3, 5, 1},    {17, 3, 5},   {63, 65, 17}, {65, 17, 130},
                                   {130, 64, 63}, {5, 512, 33}, {1024, 7, 5}, {3, 1024, 2}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void linear(const struct oracle *o, double *const *in, double *out) {
    for (int64_t i = 0; i < o->rows; i++)
        for (int64_t j = 0; j < o->columns; j++) {
            double sum = in[2][j];
            for (int64_t k = 0; k < o->inner; k++) sum += in[0][i * o->inner + k] * in[1][k * o->columns + j];
            out[i * o->columns + j] = sum;
        }
}

static double gelu_of(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void biased_gelu(const struct oracle *o, double *const *in, double *out) {
    for (int64_t i = 0; i < o->rows * o->columns; i++) out[i] = gelu_of(in[0][i] + in[1][i % o->columns]);
}

static void linear_gelu(const struct oracle *o, double *const *in, double *out) {
    linear(o, in, out);
    for (int64_t i = 0; i < o->rows * o->columns; i++) out[i] = gelu_of(out[i]);
}

static double product_element(const float *a, bool ta, const float *b, bool tb, const int64_t *mnk, int64_t i,
                              int64_t j) {
    const int64_t m = mnk[0], n = mnk[1], k = mnk[2];
    double sum = 0.0;
    for (int64_t l = 0; l < k; l++)
        sum += (double)(ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
    return sum;
}

static void test_matmul(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int variant = 0; variant < 8; variant++) {
            const bool ta = variant & 1, tb = variant & 2, accumulate = variant & 4;
            const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            const float *a = random_floats(m * k, 1), *b = random_floats(k * n, 1);
            const float *old = random_floats(m * n, 1);
            struct tensor c = device_tensor(accumulate ? old : NULL, m, n);
            dev->matmul(NULL, c, ta ? device_tensor(a, k, m) : device_tensor(a, m, k), ta,
                        tb ? device_tensor(b, n, k) : device_tensor(b, k, n), tb, accumulate ? 1.0f : 0.0f);
            double *want = host_doubles(m * n);
            for (int64_t i = 0; i < m * n; i++)
                want[i] = product_element(a, ta, b, tb, sizes[s], i / n, i % n) + (accumulate ? old[i] : 0);
            assert_tensor_close("matmul", c, want, 1e-5);
        }
}

static void test_linear_forward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s][0], i = sizes[s][1], o = sizes[s][2];
        const float *x = random_floats(n * i, 1), *w = random_floats(i * o, 1), *b = random_floats(o, 3);
        double *in[] = {widened(x, n * i), widened(w, i * o), widened(b, o)}, *want = host_doubles(n * o);
        struct tensor dx = device_tensor(x, n, i), dw = device_tensor(w, i, o), db = device_tensor(b, o);
        struct tensor y = device_tensor(NULL, n, o), pre = device_tensor(NULL, n, o);
        struct oracle oracle = {.forward = linear, .rows = n, .inner = i, .columns = o};

        linear(&oracle, in, want);
        dev->linear_forward(NULL, y, dx, dw, db);
        assert_tensor_close("linear", y, want, 1e-5);

        y = device_tensor(NULL, n, o);
        dev->linear_gelu_forward(NULL, y, pre, dx, dw, db);
        assert_tensor_close("pre", pre, want, 1e-5);
        linear_gelu(&oracle, in, want);
        assert_tensor_close("gelu", y, want, 1e-5);
    }
}

static void test_gelu_backward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int beta = 0; beta < 2; beta++) {
            const int64_t n = sizes[s][0], c = sizes[s][1];
            const float *pre = random_floats(n * c, 8), *dy = random_floats(n * c, 1);
            const float *old = random_floats(c, 1);
            double *in[] = {widened(pre, n * c), host_doubles(c)};
            struct oracle oracle = {.forward = biased_gelu, .rows = n, .columns = c};
            struct tensor gradient = device_tensor(dy, n, c), dbias = device_tensor(beta ? old : NULL, c);
            dev->gelu_backward(NULL, gradient, dbias, device_tensor(pre, n, c), beta);
            assert_gradient("gelu dpre", &oracle, in, 0, n * c, dy, n * c, host_of(gradient), NULL, 2e-6);
            assert_gradient("gelu dbias", &oracle, in, 1, c, dy, n * c, host_of(dbias), beta ? old : NULL,
                            2e-5);
        }
}

static void test_gelu_far_out(void **state) {
    (void)state;
    const float x[] = {-1e30f, -1e13f, -20.0f, 0.0f, 20.0f, 1e13f, 1e30f};
    const double slope[] = {0, 0, 0, 0.5, 1, 1, 1};
    const float ones[] = {1, 1, 1, 1, 1, 1, 1}, zero = 0;
    struct tensor dy = device_tensor(ones, 1, 7), y = device_tensor(NULL, 7, 1);
    dev->gelu_backward(NULL, dy, device_tensor(NULL, 7), device_tensor(x, 1, 7), 0.0f);
    assert_tensor_close("slope", dy, slope, 1e-6);

    double want[7];
    for (int i = 0; i < 7; i++) want[i] = x[i] > 0 ? x[i] : 0;
    dev->linear_gelu_forward(NULL, y, device_tensor(NULL, 7, 1), device_tensor(x, 7, 1),
                             device_tensor(ones, 1, 1), device_tensor(&zero, 1));
    assert_tensor_close("gelu", y, want, 1e-6);
}

static void test_bias_backward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int beta = 0; beta < 2; beta++) {
            const int64_t n = sizes[s][0], c = sizes[s][1];
            const float *dy = random_floats(n * c, 1), *old = random_floats(c, 1);
            struct tensor dbias = device_tensor(beta ? old : NULL, c);
            double *want = host_doubles(c);
            for (int64_t i = 0; i < n * c; i++) want[i % c] += dy[i];
            for (int64_t j = 0; j < c && beta; j++) want[j] += old[j];
            dev->bias_backward(NULL, dbias, device_tensor(dy, n, c), beta);
            assert_tensor_close("dbias", dbias, want, 1e-5);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_matmul, release_all),
        cmocka_unit_test_teardown(test_linear_forward, release_all),
        cmocka_unit_test_teardown(test_gelu_backward, release_all),
        cmocka_unit_test_teardown(test_gelu_far_out, release_all),
        cmocka_unit_test_teardown(test_bias_backward, release_all),
    };
    return cmocka_run_group_tests_name("kernels_linear", tests, open_device, NULL);
}
