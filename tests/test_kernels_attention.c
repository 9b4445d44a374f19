/* Attention against plain loops in double: all of T x T at once, no tiles. */
#include "tests/kernel_test.h"

/* B, T, H, C/H */
static const int64_t sizes[][4] = {{1, 1, 1, 1},  {2, 3, 2, 5},    {1, 63, 1, 24}, {1, 64, 2, 8},
                                   {2, 65, 3, 5}, {1, 130, 1, 80}, {1, 5, 1, 256}, {3, 17, 2, 3}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static double score(const struct oracle *o, const double *qkv, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t c = o->columns, width = c / o->heads;
    const double *q = qkv + (b * o->positions + i) * 3 * c + h * width;
    const double *k = qkv + (b * o->positions + j) * 3 * c + c + h * width;
    double sum = 0.0;
    for (int64_t d = 0; d < width; d++) sum += q[d] * k[d];
    return sum / sqrt((double)width);
}

/* One query of one head; returns the log of its sum of exponentials. */
static double attend(const struct oracle *o, const double *qkv, int64_t b, int64_t h, int64_t i,
                     double *out) {
    const int64_t c = o->columns, width = c / o->heads, t = o->positions;
    double maximum = -INFINITY, sum = 0.0, p[256];
    for (int64_t j = 0; j <= i; j++) maximum = fmax(maximum, p[j] = score(o, qkv, b, h, i, j));
    for (int64_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - maximum);
    for (int64_t d = 0; d < width; d++) {
        double value = 0.0;
        for (int64_t j = 0; j <= i; j++) {
            const double keep = o->mask ? o->mask[((b * o->heads + h) * t + i) * t + j] : 1.0;
            value += keep * p[j] / sum * qkv[(b * t + j) * 3 * c + 2 * c + h * width + d];
        }
        out[(b * t + i) * c + h * width + d] = value;
    }
    return maximum + log(sum);
}

static void attention(const struct oracle *o, double *const *in, double *out) {
    for (int64_t b = 0; b < o->sequences; b++)
        for (int64_t h = 0; h < o->heads; h++)
            for (int64_t i = 0; i < o->positions; i++) attend(o, in[0], b, h, i, out);
}

static void check_size(const int64_t *size, struct dropout drop) {
    const int64_t b = size[0], t = size[1], h = size[2], c = h * size[3];
    const float *qkv = random_floats(b * t * 3 * c, 2), *dout = random_floats(b * t * c, 1);
    struct oracle o = {.forward = attention, .sequences = b, .positions = t, .heads = h, .columns = c};
    if (drop.rate > 0) o.mask = dropout_mask(drop, b * h * t, t);
    double *in[] = {widened(qkv, b * t * 3 * c)}, *want = host_doubles(b * t * c);
    double *want_lse = host_doubles(b * h * t);
    for (int64_t i = 0; i < b * h * t; i++)
        want_lse[i] = attend(&o, in[0], i / (h * t), i / t % h, i % t, want);

    struct tensor input = device_tensor(qkv, b, t, 3 * c), out = device_tensor(NULL, b, t, c);
    struct tensor lse = device_tensor(NULL, b, h, t), dqkv = device_tensor(NULL, b, t, 3 * c);
    dev->attention_forward(NULL, out, lse, input, drop);
    assert_tensor_close("out", out, want, 1e-5);
    assert_tensor_close("lse", lse, want_lse, 1e-5);
    dev->attention_backward(NULL, dqkv, device_tensor(dout, b, t, c), out, lse, input, drop);
    assert_gradient("dqkv", &o, in, 0, b * t * 3 * c, dout, b * t * c, host_of(dqkv), NULL, 3e-5);
}

static void test_attention(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) check_size(sizes[s], no_dropout);
}

static void test_dropout(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        check_size(sizes[s], (struct dropout){.rate = 0.3f, .key = 99, .first_row = 1000003});
}

/* Scores near 1e4 and -1e4: the softmax picks one key, and nothing overflows. */
static void test_large_scores(void **state) {
    (void)state;
    enum { T = 130, C = 4 };
    float *qkv = random_floats(T * 3 * C, 1);
    for (int64_t i = 0; i < T; i++)
        for (int64_t c = 0; c < 2 * C; c++) qkv[i * 3 * C + c] *= 100.0f;
    struct oracle o = {.forward = attention, .sequences = 1, .positions = T, .heads = 1, .columns = C};
    double *in[] = {widened(qkv, T * 3 * C)}, *want = host_doubles(T * C);
    attention(&o, in, want);
    struct tensor input = device_tensor(qkv, 1, T, 3 * C), out = device_tensor(NULL, 1, T, C);
    struct tensor lse = device_tensor(NULL, 1, 1, T), dqkv = device_tensor(NULL, 1, T, 3 * C);
    dev->attention_forward(NULL, out, lse, input, no_dropout);
    assert_tensor_close("out", out, want, 1e-2); /* fp32 scores of 1e4 are known to 1e-3 */
    dev->attention_backward(NULL, dqkv, device_tensor(qkv, 1, T, C), out, lse, input, no_dropout);
    const float *gradient = host_of(dqkv);
    for (int64_t i = 0; i < T * 3 * C; i++) assert_true(isfinite(gradient[i]));
}

/* A query sees no later position: changing them leaves its bits alone. */
static void test_causal(void **state) {
    (void)state;
    enum { T = 100, C = 6, CUT = 70 };
    float *qkv = random_floats(T * 3 * C, 1);
    struct tensor out = device_tensor(NULL, 1, T, C), lse = device_tensor(NULL, 1, 2, T);
    dev->attention_forward(NULL, out, lse, device_tensor(qkv, 1, T, 3 * C), no_dropout);
    const float *before = host_of(out);
    for (int64_t i = CUT * 3 * C; i < T * 3 * C; i++) qkv[i] += 10.0f;
    dev->attention_forward(NULL, out, lse, device_tensor(qkv, 1, T, 3 * C), no_dropout);
    assert_same_bits("past", before, host_of(out), CUT * C);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_attention, release_all),
        cmocka_unit_test_teardown(test_dropout, release_all),
        cmocka_unit_test_teardown(test_large_scores, release_all),
        cmocka_unit_test_teardown(test_causal, release_all),
    };
    return cmocka_run_group_tests_name("kernels_attention", tests, open_device, NULL);
}
