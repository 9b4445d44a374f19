/* Dropout: the documented draw, its statistics, and that it does not see how rows are split over calls. */
#include "tests/kernel_test.h"

static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {17, 63}, {5, 257}, {65, 130}};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const float rates[] = {0.0f, 0.1f, 0.5f};

static void test_apply(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int r = 0; r < 3; r++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const struct dropout drop = {
                    .rate = rates[r], .key = 0x123456789abcdefu, .first_row = 1ll << 33};
                const int64_t n = sizes[s][0], c = sizes[s][1];
                const float *x = random_floats(n * c, 1), *mask = dropout_mask(drop, n, c);
                double *want = widened(x, n * c);
                for (int64_t i = 0; i < n * c; i++) want[i] *= mask[i];
                struct tensor from = device_tensor(x, n, c), y = in_place ? from : device_tensor(NULL, n, c);
                dev->dropout_apply(NULL, y, from, drop);
                assert_tensor_close("y", y, want, 1e-7);
            }
}

static void test_residual_add(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int r = 0; r < 3; r++) {
            const struct dropout drop = {.rate = rates[r], .key = 5, .first_row = 6};
            const int64_t n = sizes[s][0], c = sizes[s][1];
            const float *old = random_floats(n * c, 1), *delta = random_floats(n * c, 1);
            const float *mask = dropout_mask(drop, n, c);
            double *want = widened(old, n * c);
            for (int64_t i = 0; i < n * c; i++) want[i] += (double)delta[i] * mask[i];
            struct tensor y = device_tensor(old, n, c);
            dev->residual_add(NULL, y, y, device_tensor(delta, n, c), drop);
            assert_tensor_close("y", y, want, 1e-6);
        }
}

/* A share of kept elements within 5 standard deviations of 1 - rate; other keys keep others. */
static void test_statistics(void **state) {
    (void)state;
    enum { N = 300, C = 301 };
    float *ones = host_floats(N * C);
    for (int64_t i = 0; i < N * C; i++) ones[i] = 1.0f;
    struct tensor x = device_tensor(ones, N, C), y = device_tensor(NULL, N, C), z = device_tensor(NULL, N, C);
    for (int r = 1; r < 3; r++) {
        dev->dropout_apply(NULL, y, x, (struct dropout){.rate = rates[r], .key = 1});
        dev->dropout_apply(NULL, z, x, (struct dropout){.rate = rates[r], .key = 2});
        const float *first = host_of(y), *second = host_of(z);
        const double share = 1.0 - rates[r], deviation = sqrt(share * rates[r] / (N * C));
        double kept = 0.0, both = 0.0;
        for (int64_t i = 0; i < N * C; i++) {
            kept += first[i] != 0.0f;
            both += first[i] != 0.0f && second[i] != 0.0f;
        }
        assert_true(fabs(kept / (N * C) - share) < 5 * deviation);
        assert_true(fabs(both / (N * C) - share * share) < 5 * deviation);
    }
}

static void test_split_rows(void **state) {
    (void)state;
    enum { N = 67, C = 130, CUT = 23 };
    const float *x = random_floats(N * C, 1);
    struct dropout drop = {.rate = 0.2f, .key = 77, .first_row = 100};
    struct tensor from = device_tensor(x, N, C), whole = device_tensor(NULL, N, C),
                  parts = device_tensor(NULL, N, C);
    dev->dropout_apply(NULL, whole, from, drop);
    dev->dropout_apply(NULL, tensor_slice(parts, 0, CUT), tensor_slice(from, 0, CUT), drop);
    drop.first_row += CUT;
    dev->dropout_apply(NULL, tensor_slice(parts, CUT, N - CUT), tensor_slice(from, CUT, N - CUT), drop);
    assert_same_bits("parts", host_of(whole), host_of(parts), N * C);
}

/* The mask of attention depends on the global (sequence, head, query): one sequence alone gives the same. */
static void test_split_attention(void **state) {
    (void)state;
    enum { B = 3, T = 70, H = 2, C = 10 };
    struct dropout drop = {.rate = 0.2f, .key = 78, .first_row = 0};
    struct tensor qkv = device_tensor(random_floats(B * T * 3 * C, 1), B, T, 3 * C);
    struct tensor whole = device_tensor(NULL, B, T, C), parts = device_tensor(NULL, B, T, C);
    struct tensor lse = device_tensor(NULL, B, H, T);
    dev->attention_forward(NULL, whole, lse, qkv, drop);
    for (int64_t b = 0; b < B; b++) {
        drop.first_row = b * H * T;
        dev->attention_forward(NULL, tensor_slice(parts, b, 1), tensor_slice(lse, b, 1),
                               tensor_slice(qkv, b, 1), drop);
    }
    assert_same_bits("out", host_of(whole), host_of(parts), B * T * C);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_apply, release_all),
        cmocka_unit_test_teardown(test_residual_add, release_all),
        cmocka_unit_test_teardown(test_statistics, release_all),
        cmocka_unit_test_teardown(test_split_rows, release_all),
        cmocka_unit_test_teardown(test_split_attention, release_all),
    };
    return cmocka_run_group_tests_name("kernels_dropout", tests, open_device, NULL);
}
