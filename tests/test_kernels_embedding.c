/* Token and position embeddings against plain loops. */
#include "tests/kernel_test.h"

/* B, T, C, V, rows of wpe */
static const int64_t sizes[][5] = {
    {1, 1, 1, 1, 1}, {2, 3, 5, 7, 4}, {3, 17, 65, 5, 17}, {2, 65, 130, 300, 70}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void check_forward(const int64_t *size, struct dropout drop) {
    const int64_t b = size[0], t = size[1], c = size[2], v = size[3], p = size[4];
    const float *wte = random_floats(v * c, 1), *wpe = random_floats(p * c, 1);
    const float *mask = dropout_mask(drop, b * t, c);
    const int32_t *tokens = random_indices(b * t, (int32_t)v);
    double *want = host_doubles(b * t * c);
    for (int64_t i = 0; i < b * t * c; i++) {
        const int64_t row = i / c, j = i % c;
        want[i] = mask[i] * ((double)wte[tokens[row] * c + j] + wpe[row % t * c + j]);
    }
    struct tensor x = device_tensor(NULL, b, t, c);
    dev->embedding_forward(NULL, x, index_tensor(tokens, b, t), device_tensor(wte, v, c),
                           device_tensor(wpe, p, c), drop);
    assert_tensor_close("x", x, want, 1e-6);
}

static void test_forward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        check_forward(sizes[s], no_dropout);
        check_forward(sizes[s], (struct dropout){.rate = 0.1f, .key = 3, .first_row = 5});
    }
}

static void check_backward(const int64_t *size, int beta_wte, int beta_wpe) {
    const int64_t b = size[0], t = size[1], c = size[2], v = size[3], p = size[4];
    const float *dx = random_floats(b * t * c, 1), *old = random_floats((v + p) * c, 1);
    const int32_t *tokens = random_indices(b * t, (int32_t)v);
    double *want_wte = host_doubles(v * c), *want_wpe = host_doubles(p * c);
    for (int64_t i = 0; i < v * c && beta_wte; i++) want_wte[i] = old[i];
    for (int64_t i = 0; i < p * c && beta_wpe; i++) want_wpe[i] = old[i];
    for (int64_t i = 0; i < b * t * c; i++) {
        want_wte[tokens[i / c] * c + i % c] += dx[i];
        want_wpe[i / c % t * c + i % c] += dx[i];
    }
    struct tensor dwte = device_tensor(beta_wte ? old : NULL, v, c);
    struct tensor dwpe = device_tensor(beta_wpe ? old : NULL, p, c);
    dev->embedding_backward(NULL, dwte, dwpe, device_tensor(dx, b, t, c), index_tensor(tokens, b, t),
                            beta_wte, beta_wpe);
    assert_tensor_close("dwte", dwte, want_wte, 1e-5);
    assert_tensor_close("dwpe", dwpe, want_wpe, 1e-5);
}

static void test_backward(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int beta = 0; beta < 4; beta++) check_backward(sizes[s], beta & 1, beta >> 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_forward, release_all),
        cmocka_unit_test_teardown(test_backward, release_all),
    };
    return cmocka_run_group_tests_name("kernels_embedding", tests, open_device, NULL);
}
