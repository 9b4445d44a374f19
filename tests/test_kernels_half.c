/* Every operation that takes bf16 and fp16, against itself in fp32 on the same, rounded inputs: a 16-bit result is one rounding
 * away, an fp32 one the same sum. */
#include "kernels/half.h"
#include "tests/kernel_test.h"

static const struct format {
    enum dtype dtype;
    double epsilon, smallest; /* half a unit in the last place of 1; half the smallest number */
} formats[] = {{DTYPE_BF16, 0x1p-8, 0x1p-134}, {DTYPE_F16, 0x1p-11, 0x1p-25}};
static const struct format *format; /* of the test under way */

static const int64_t sizes[][3] = {{1, 1, 1},     {3, 5, 1},    {17, 3, 5},
                                   {65, 17, 130}, {5, 512, 33}, {3, 130, 1024}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static uint16_t rounded(float x) {
    return format->dtype == DTYPE_BF16 ? half_to_bf16(x) : half_to_fp16(x);
}

static float widened_half(uint16_t x) {
    return format->dtype == DTYPE_BF16 ? half_from_bf16(x) : half_from_fp16(x);
}

/* The same numbers twice, for the same operation twice: in fp32 and in 16 bits. */
struct twins {
    struct tensor in[2];
};

static struct twins twins_of(float *values, struct tensor shape) {
    const int64_t count = tensor_count(shape);
    uint16_t *half = own(memory_alloc((size_t)count * sizeof *half), 0);
    float *wide = host_floats(count);
    for (int64_t i = 0; i < count; i++) {
        half[i] = rounded(values ? values[i] : NAN);
        wide[i] = widened_half(half[i]);
    }
    struct twins t = {{tensor_make(NULL, DTYPE_F32, shape.ndim, shape.dim),
                       tensor_make(NULL, format->dtype, shape.ndim, shape.dim)}};
    for (int k = 0; k < 2; k++) {
        const size_t bytes = (size_t)count * dtype_table[t.in[k].dtype].size;
        t.in[k].data = own(dev->memory_alloc(bytes), bytes);
        dev->copy_in(NULL, t.in[k], k ? (const void *)half : wide);
    }
    return t;
}

/* random_twins(scale, dims...), and empty_twins(dims...): NaN, to be overwritten. */
#define random_twins(scale, ...)                                                            \
    twins_of(random_floats(tensor_count(tensor_of(NULL, DTYPE_F32, __VA_ARGS__)), (scale)), \
             tensor_of(NULL, DTYPE_F32, __VA_ARGS__))
#define empty_twins(...) twins_of(NULL, tensor_of(NULL, DTYPE_F32, __VA_ARGS__))

static void assert_one_rounding(const char *what, struct twins t) {
    const int64_t count = tensor_count(t.in[0]);
    const float *want = host_of(t.in[0]);
    uint16_t *got = own(memory_alloc((size_t)count * sizeof *got), 0);
    dev->copy_out(NULL, got, t.in[1]);
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)widened_half(got[i]) - (double)want[i]);
        const double allowed = 1.001 * format->epsilon * fabs((double)want[i]) + format->smallest + 1e-7;
        if (!(error <= allowed))
            fail_msg("%s in %s: element %lld of %lld is %.9g, in fp32 %.9g", what,
                     dtype_table[format->dtype].name, (long long)i, (long long)count, widened_half(got[i]),
                     want[i]);
    }
}

/* fp32 results: got[0] of the fp32 call, got[1] of the other. */
static void assert_same_sums(const char *what, const struct tensor got[2]) {
    assert_tensor_close(what, got[1], widened(host_of(got[0]), tensor_count(got[0])), 1e-5);
}

static void fill_twice(struct tensor out[2], const float *values, struct tensor shape) {
    for (int k = 0; k < 2; k++) out[k] = place_tensor(values, shape);
}
#define results(out, values, ...) fill_twice((out), (values), tensor_of(NULL, DTYPE_F32, __VA_ARGS__))

static void for_each_size(void (*check)(int64_t n, int64_t i, int64_t o)) {
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int s = 0; s < SIZES; s++) {
            format = &formats[f];
            check(sizes[s][0], sizes[s][1], sizes[s][2]);
        }
}

static void check_matmul(int64_t m, int64_t n, int64_t k) {
    for (int variant = 0; variant < 8; variant++) {
        const bool ta = variant & 1, tb = variant & 2;
        const float beta = variant & 4 ? 1.0f : 0.0f;
        const struct twins a = ta ? random_twins(1, k, m) : random_twins(1, m, k);
        const struct twins b = tb ? random_twins(1, n, k) : random_twins(1, k, n);
        const struct twins c = beta != 0.0f ? random_twins(1, m, n) : empty_twins(m, n);
        struct tensor sum[2];
        results(sum, beta != 0.0f ? random_floats(m * n, 1) : NULL, m, n);
        for (int h = 0; h < 2; h++) {
            dev->matmul(NULL, c.in[h], a.in[h], ta, b.in[h], tb, beta);
            dev->matmul(NULL, sum[h], a.in[h], ta, b.in[h], tb, beta);
        }
        assert_one_rounding("matmul", c);
        assert_same_sums("matmul into fp32", sum);
    }
}

static void check_linear(int64_t n, int64_t i, int64_t o) {
    const struct twins x = random_twins(1, n, i), w = random_twins(1, i, o), bias = random_twins(3, o);
    const struct twins y = empty_twins(n, o), pre = empty_twins(n, o), act = empty_twins(n, o);
    for (int h = 0; h < 2; h++) {
        dev->linear_forward(NULL, y.in[h], x.in[h], w.in[h], bias.in[h]);
        dev->linear_gelu_forward(NULL, act.in[h], pre.in[h], x.in[h], w.in[h], bias.in[h]);
    }
    assert_one_rounding("linear", y);
    assert_one_rounding("pre", pre);
    assert_one_rounding("gelu", act);
}

static void check_backward_sums(int64_t n, int64_t c, int64_t unused) {
    (void)unused;
    const float *old = random_floats(c, 1);
    for (int beta = 0; beta < 2; beta++) {
        const struct twins dy = random_twins(1, n, c), pre = random_twins(8, n, c);
        struct tensor bias[2], dpre_bias[2];
        results(bias, beta ? old : NULL, c);
        results(dpre_bias, beta ? old : NULL, c);
        for (int h = 0; h < 2; h++) {
            dev->bias_backward(NULL, bias[h], dy.in[h], (float)beta);
            dev->gelu_backward(NULL, dy.in[h], dpre_bias[h], pre.in[h], (float)beta);
        }
        assert_same_sums("bias", bias);
        assert_one_rounding("gelu backward", dy);
        assert_same_sums("gelu's bias", dpre_bias);
    }
}

static void check_layernorm(int64_t n, int64_t c, int64_t unused) {
    (void)unused;
    const struct dropout drops[] = {no_dropout, {.rate = 0.25f, .key = 7, .first_row = 11}};
    struct tensor x[2], w[2], b[2], sum[2], stats[2], dx[2], dw[2], db[2];
    results(x, random_floats(n * c, 4), n, c);
    results(w, random_floats(c, 2), c);
    results(b, random_floats(c, 1), c);
    for (int d = 0; d < 2; d++) {
        const struct twins y = empty_twins(n, c), z = empty_twins(n, c), delta = random_twins(2, n, c);
        const struct twins dy = random_twins(1, n, c);
        results(sum, NULL, n, c);
        results(stats, NULL, n, 2);
        results(dx, random_floats(n * c, 1), n, c);
        results(dw, NULL, c);
        results(db, NULL, c);
        for (int h = 0; h < 2; h++) {
            dev->layernorm_forward(NULL, z.in[h], stats[h], x[h], w[h], b[h]);
            dev->residual_layernorm_forward(NULL, sum[h], y.in[h], stats[h], x[h], delta.in[h], w[h], b[h],
                                            drops[d]);
            dev->layernorm_backward(NULL, dx[h], dw[h], db[h], dy.in[h], sum[h], stats[h], w[h], 0.0f);
        }
        assert_one_rounding("norm", z);
        assert_one_rounding("norm of the sum", y);
        assert_same_sums("sum", sum);
        assert_same_sums("stats", stats);
        assert_same_sums("dx", dx);
        assert_same_sums("dw", dw);
        assert_same_sums("db", db);
    }
}

/* With rate 0 a copy; also from fp32 into 16 bits, which is where gradients leave the residual stream. */
static void check_dropout(int64_t n, int64_t c, int64_t unused) {
    (void)unused;
    const struct dropout drops[] = {no_dropout, {.rate = 0.25f, .key = 7, .first_row = 11}};
    for (int d = 0; d < 2; d++) {
        const struct twins x = random_twins(1, n, c), y = empty_twins(n, c), from_wide = empty_twins(n, c);
        struct tensor stream[2], wide = device_tensor(random_floats(n * c, 1), n, c);
        results(stream, random_floats(n * c, 1), n, c);
        for (int h = 0; h < 2; h++) {
            dev->residual_add(NULL, stream[h], stream[h], x.in[h], drops[d]);
            dev->dropout_apply(NULL, y.in[h], x.in[h], drops[d]);
            dev->dropout_apply(NULL, from_wide.in[h], wide, drops[d]);
            dev->dropout_apply(NULL, x.in[h], x.in[h], drops[d]);
        }
        assert_same_sums("residual", stream);
        assert_one_rounding("dropout", y);
        assert_one_rounding("dropout from fp32", from_wide);
        assert_one_rounding("dropout in place", x);
    }
}

static void check_cross_entropy(int64_t n, int64_t c, int64_t unused) {
    (void)unused;
    struct tensor loss[2], correct[2], targets = index_tensor(random_indices(n, (int32_t)c), n);
    for (int k = 0; k < 2; k++) {
        const struct twins logits = random_twins(6, n, c);
        results(loss, NULL, n);
        results(correct, NULL, n);
        for (int h = 0; h < 2; h++)
            dev->cross_entropy(NULL, loss[h], correct[h], logits.in[h], targets, k ? 1024.0f : 0.0f);
        assert_one_rounding("logits' gradient", logits);
        assert_same_sums("loss", loss);
        assert_same_sums("correct", correct);
    }
}

static void test_products(void **state) {
    (void)state;
    for_each_size(check_matmul);
    for_each_size(check_linear);
}

static void test_passes_over_rows(void **state) {
    (void)state;
    for_each_size(check_backward_sums);
    for_each_size(check_layernorm);
    for_each_size(check_dropout);
    for_each_size(check_cross_entropy);
}

static void check_attention(int64_t sequences, int64_t positions, int64_t heads, int64_t width) {
    const int64_t channels = heads * width;
    const struct dropout drops[] = {no_dropout, {.rate = 0.25f, .key = 7, .first_row = 11}};
    for (int d = 0; d < 2; d++) {
        const struct twins qkv = random_twins(2, sequences, positions, 3 * channels);
        const struct twins out = empty_twins(sequences, positions, channels);
        const struct twins dout = random_twins(1, sequences, positions, channels);
        const struct twins dqkv = empty_twins(sequences, positions, 3 * channels);
        struct tensor lse[2];
        results(lse, NULL, sequences, heads, positions);
        for (int h = 0; h < 2; h++) dev->attention_forward(NULL, out.in[h], lse[h], qkv.in[h], drops[d]);
        assert_one_rounding("attention", out);
        assert_same_sums("lse", lse);
        /* The backward pass reads what was kept: the same for both. */
        dev->cast(NULL, out.in[0], out.in[1], 1.0f);
        for (int h = 0; h < 2; h++)
            dev->attention_backward(NULL, dqkv.in[h], dout.in[h], out.in[h], lse[h], qkv.in[h], drops[d]);
        assert_one_rounding("attention backward", dqkv);
    }
}

static void test_attention(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {2, 7, 3, 5}, {1, 65, 2, 8}, {2, 130, 1, 33}};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            format = &formats[f];
            check_attention(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3]);
        }
}

/* A power of two scales in place and exactly. */
static void test_scaling_in_place(void **state) {
    (void)state;
    enum { COUNT = 20001 };
    const float *x = random_floats(COUNT, 1);
    struct tensor t = device_tensor(x, COUNT);
    dev->cast(NULL, t, t, 0x1p16f);
    dev->cast(NULL, t, t, 0x1p-16f);
    assert_same_bits("scaled and back", host_of(t), x, COUNT);
}

static void test_infinity_passes_through(void **state) {
    (void)state;
    format = &formats[1];
    float big[] = {60000.0f, 2.0f};
    const struct twins a = twins_of(big, tensor_of(NULL, DTYPE_F32, 2, 1)),
                       b = twins_of(big, tensor_of(NULL, DTYPE_F32, 1, 2));
    const struct twins c = empty_twins(2, 2);
    uint16_t got[4];
    dev->matmul(NULL, c.in[1], a.in[1], false, b.in[1], false, 0.0f);
    dev->copy_out(NULL, got, c.in[1]);
    assert_true(isinf(widened_half(got[0])) && isinf(widened_half(got[1])) && isinf(widened_half(got[2])));
    assert_true(widened_half(got[3]) == 4.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_products, release_all),
        cmocka_unit_test_teardown(test_passes_over_rows, release_all),
        cmocka_unit_test_teardown(test_attention, release_all),
        cmocka_unit_test_teardown(test_scaling_in_place, release_all),
        cmocka_unit_test_teardown(test_infinity_passes_through, release_all),
    };
    return cmocka_run_group_tests_name("kernels_half", tests, open_device, NULL);
}
