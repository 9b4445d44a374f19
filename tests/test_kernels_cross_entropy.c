/* Cross-entropy, its gradient and the accuracy against plain loops in double. */
#include "tests/kernel_test.h"

static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {17, 63}, {65, 130}, {5, 1003}, {70, 256}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void cross_entropy(const struct oracle *o, double *const *in, double *out) {
    for (int64_t i = 0; i < o->rows; i++) {
        const double *x = in[0] + i * o->columns;
        double maximum = -INFINITY, sum = 0.0;
        for (int64_t j = 0; j < o->columns; j++) maximum = fmax(maximum, x[j]);
        for (int64_t j = 0; j < o->columns; j++) sum += exp(x[j] - maximum);
        out[i] = maximum + log(sum) - x[o->index[i]];
    }
}

static double is_correct(const float *x, int64_t columns, int64_t target) {
    int64_t best = 0;
    for (int64_t j = 1; j < columns; j++)
        if (x[j] > x[best]) best = j;
    return best == target;
}

static void check_size(int64_t n, int64_t v, double range, double loss_tolerance) {
    const float *x = random_floats(n * v, range), scale = 0.125f;
    const int32_t *targets = random_indices(n, (int32_t)v);
    struct oracle o = {.forward = cross_entropy, .rows = n, .columns = v, .index = targets};
    double *in[] = {widened(x, n * v)}, *want = host_doubles(n), *want_correct = host_doubles(n);
    cross_entropy(&o, in, want);
    for (int64_t i = 0; i < n; i++) want_correct[i] = is_correct(x + i * v, v, targets[i]);

    struct tensor logits = device_tensor(x, n, v), target = index_tensor(targets, n);
    for (int pass = 0; pass < 2; pass++) { /* first the loss alone: the logits must stay */
        struct tensor loss = device_tensor(NULL, n), correct = device_tensor(NULL, n);
        dev->cross_entropy(NULL, loss, correct, logits, target, pass ? scale : 0.0f);
        assert_tensor_close("loss", loss, want, loss_tolerance);
        assert_tensor_close("correct", correct, want_correct, 0);
        if (pass == 0) assert_same_bits("logits", host_of(logits), x, n * v);
    }
    float *cotangent = host_floats(n);
    for (int64_t i = 0; i < n; i++) cotangent[i] = scale;
    assert_gradient("dlogits", &o, in, 0, n * v, cotangent, n, host_of(logits), NULL, 1e-6);
}

static void test_sizes(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) check_size(sizes[s][0], sizes[s][1], 4.0, 1e-6);
}

static void test_large_logits(void **state) {
    (void)state;
    check_size(17, 130, 1e4, 1e-6);
}

static void test_ties_go_to_the_first(void **state) {
    (void)state;
    const float logits[] = {1, 2, 2, 0, 1, 2, 2, 0, -0.0f, 0, -1, -2};
    const int32_t targets[] = {1, 2, 0};
    const double want[] = {1, 0, 1};
    struct tensor loss = device_tensor(NULL, 3), correct = device_tensor(NULL, 3);
    dev->cross_entropy(NULL, loss, correct, device_tensor(logits, 3, 4), index_tensor(targets, 3), 0.0f);
    assert_tensor_close("correct", correct, want, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_sizes, release_all),
        cmocka_unit_test_teardown(test_large_logits, release_all),
        cmocka_unit_test_teardown(test_ties_go_to_the_first, release_all),
    };
    return cmocka_run_group_tests_name("kernels_cross_entropy", tests, open_device, NULL);
}
