/* What holds for the CPU device beyond its operations: memory, threads that change no bit, NaN that does not
 * get lost, and its own exp. */
#include <omp.h>

#include "kernels/cpu/vector_math.h"
#include "tests/kernel_test.h"

static void test_open(void **state) {
    (void)state;
    struct error e;
    char text[128];
    assert_int_equal(device_cpu.open(0, &e), -1);
    assert_non_null(strstr(e.text, "at least 1 thread"));
    assert_int_equal(device_cpu.open(2, &e), 0);
    device_cpu.describe(text, sizeof text);
    assert_non_null(strstr(text, "cpu: 2 threads, oneDNN"));
}

static void test_memory(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5000001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char *memory = device_cpu.memory_alloc(sizes[s]);
        assert_int_equal((uintptr_t)memory % (sizes[s] < 2 << 20 ? 4096 : 2 << 20), 0);
        for (size_t i = 0; i < sizes[s]; i++) assert_int_equal(memory[i], 0);
        memset(memory, 1, sizes[s]);
        device_cpu.memory_free(memory, sizes[s]);
    }
    device_cpu.memory_free(NULL, 5);
}

static void test_fill_zero(void **state) {
    (void)state;
    enum { N = 700001 };
    float *x = random_floats(N, 1);
    device_cpu.fill_zero(NULL, tensor_of(x, DTYPE_F32, N - 1));
    for (int64_t i = 0; i < N - 1; i++) assert_true(x[i] == 0.0f);
    assert_true(x[N - 1] != 0.0f);
}

static void test_exp(void **state) {
    (void)state;
    for (double x = -86.89; x < 88.7; x += 0.00137) {
        const double want = exp((double)(float)x);
        assert_true(fabs(vector_exp((float)x) - want) <= 2.5e-7 * want);
    }
    assert_true(vector_exp(0.0f) == 1.0f);
    assert_true(vector_exp(-INFINITY) == 0.0f && vector_exp(-1e30f) == 0.0f);
    assert_true(isinf(vector_exp(INFINITY)) && isinf(vector_exp(89.0f)) && isinf(vector_exp(1e30f)));
    assert_true(isnan(vector_exp(NAN)));
}

/* Results of operations one after the other, so that two runs of a sequence can be compared. */
struct record {
    float *values;
    int64_t count;
};

static void keep(struct record *r, struct tensor t) {
    memcpy(r->values + r->count, t.data, (size_t)tensor_count(t) * sizeof(float));
    r->count += tensor_count(t);
}

enum { B = 3, T = 130, H = 2, C = 70, V = 131, N = B * T };

static void run_norms(struct record *r, struct tensor x, struct tensor w, struct dropout drop) {
    struct tensor y = device_tensor(NULL, N, C), sum = device_tensor(NULL, N, C);
    struct tensor stats = device_tensor(NULL, N, 2), dw = device_tensor(NULL, C), db = device_tensor(NULL, C);
    dev->layernorm_forward(NULL, y, stats, x, w, w);
    keep(r, y);
    dev->residual_layernorm_forward(NULL, sum, y, stats, x, y, w, w, drop);
    keep(r, y);
    keep(r, stats);
    dev->layernorm_backward(NULL, sum, dw, db, y, x, stats, w, 0.0f);
    keep(r, sum);
    keep(r, dw);
    keep(r, db);
    dev->bias_backward(NULL, db, x, 1.0f);
    dev->gelu_backward(NULL, y, dw, x, 0.0f);
    keep(r, y);
    keep(r, dw);
    keep(r, db);
    dev->residual_add(NULL, y, y, x, drop);
    dev->dropout_apply(NULL, sum, y, drop);
    keep(r, y);
    keep(r, sum);
}

static void run_attention(struct record *r, struct tensor x, struct dropout drop) {
    struct tensor qkv = device_tensor(random_floats(N * 3 * C, 1), B, T, 3 * C),
                  lse = device_tensor(NULL, B, H, T);
    struct tensor out = device_tensor(NULL, B, T, C), dqkv = device_tensor(NULL, B, T, 3 * C);
    dev->attention_forward(NULL, out, lse, qkv, drop);
    dev->attention_backward(NULL, dqkv, x, out, lse, qkv, drop);
    keep(r, out);
    keep(r, lse);
    keep(r, dqkv);
}

static void run_ends(struct record *r, struct tensor x, struct dropout drop) {
    struct tensor tokens = index_tensor(random_indices(N, V), B, T),
                  targets = index_tensor(random_indices(N, V), N);
    struct tensor wte = device_tensor(random_floats(V * C, 1), V, C),
                  wpe = device_tensor(random_floats(T * C, 1), T, C);
    struct tensor loss = device_tensor(NULL, N), correct = device_tensor(NULL, N);
    struct tensor logits = device_tensor(random_floats(N * V, 3), N, V);
    dev->embedding_backward(NULL, wte, wpe, x, tokens, 0.0f, 1.0f);
    dev->embedding_forward(NULL, x, tokens, wte, wpe, drop);
    dev->cross_entropy(NULL, loss, correct, logits, targets, 0.5f);
    keep(r, x);
    keep(r, loss);
    keep(r, correct);
    keep(r, logits);
}

static void run_updates(struct record *r, struct tensor p, struct tensor g) {
    float *second_moment = random_floats(N * C, 1);
    for (int64_t i = 0; i < N * C; i++) second_moment[i] = fabsf(second_moment[i]);
    struct tensor m = device_tensor(random_floats(N * C, 1), N, C), v = device_tensor(second_moment, N, C);
    double squares;
    dev->axpy(NULL, m, 1.1f, g);
    dev->adamw(NULL, p, g, m, v, (struct adamw_step){1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f, 3, 1});
    dev->sgd(NULL, p, g, m, (struct sgd_step){1e-3f, 0.9f, 0.1f, 1.0f});
    keep(r, p);
    keep(r, m);
    dev->sum_squares(NULL, &squares, g);
    memcpy(r->values + r->count, &squares, sizeof squares);
    r->count += 2;
}

static struct record run_all(int threads) {
    const struct dropout drop = {.rate = 0.1f, .key = 4, .first_row = 9};
    struct record r = {.values = host_floats(N * (20 * C + 2 * V) + 5000)};
    random_position = 0;
    omp_set_num_threads(threads);
    struct tensor x = device_tensor(random_floats(N * C, 1), B, T, C),
                  w = device_tensor(random_floats(C, 1), C);
    run_norms(&r, x, w, drop);
    run_attention(&r, x, drop);
    run_ends(&r, x, drop);
    run_updates(&r, x, device_tensor(random_floats(N * C, 1), N, C));
    return r;
}

static void test_threads_change_no_bit(void **state) {
    (void)state;
    const struct record one = run_all(1);
    for (int threads = 2; threads <= 3; threads++) {
        const struct record more = run_all(threads);
        assert_int_equal(one.count, more.count);
        assert_same_bits("threads", one.values, more.values, one.count);
    }
    omp_set_num_threads(2);
}

static bool has_nan(struct tensor t) {
    const float *x = t.data;
    for (int64_t i = 0; i < tensor_count(t); i++)
        if (isnan(x[i])) return true;
    return false;
}

/* One NaN among the inputs of each operation shows in each of its outputs that depends on it. */
static void test_nan_shows(void **state) {
    (void)state;
    enum { R = 3, K = 40 };
    const int32_t zeros[R] = {0};
    float *bad = random_floats(R * 3 * K, 1);
    bad[K + 7] = NAN;
    const float *good = random_floats(R * 3 * K, 1);
    struct tensor x = device_tensor(bad, R, K), y = device_tensor(good, R, K), v = device_tensor(good, K);
    struct tensor stats = device_tensor(good, R, 2), dw = device_tensor(good, K), db = device_tensor(good, K);

    dev->linear_gelu_forward(NULL, y, device_tensor(good, R, K), x,
                             device_tensor(random_floats(K * K, 1), K, K), v);
    assert_true(has_nan(y));
    dev->layernorm_forward(NULL, y, stats, x, v, v);
    assert_true(has_nan(y) && has_nan(stats));
    y = device_tensor(good, R, K);
    dev->gelu_backward(NULL, y, db, x, 0.0f);
    assert_true(has_nan(y) && has_nan(db));
    y = device_tensor(good, R, K);
    dev->layernorm_backward(NULL, y, dw, db, x, device_tensor(good, R, K), device_tensor(good, R, 2), v,
                            0.0f);
    assert_true(has_nan(y) && has_nan(dw) && has_nan(db));

    struct tensor loss = device_tensor(good, R), correct = device_tensor(good, R),
                  logits = device_tensor(bad, R, K);
    dev->cross_entropy(NULL, loss, correct, logits, index_tensor(zeros, R), 1.0f);
    assert_true(has_nan(loss) && has_nan(logits));

    struct tensor qkv = device_tensor(bad, 1, R, 3 * K), out = device_tensor(good, 1, R, K);
    struct tensor lse = device_tensor(good, 1, 1, R), dqkv = device_tensor(good, 1, R, 3 * K);
    dev->attention_forward(NULL, out, lse, qkv, no_dropout);
    assert_true(has_nan(out) && has_nan(lse));
    dev->attention_backward(NULL, dqkv, device_tensor(good, 1, R, K), out, lse, qkv, no_dropout);
    assert_true(has_nan(dqkv));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_memory),
        cmocka_unit_test_teardown(test_fill_zero, release_all),
        cmocka_unit_test(test_exp),
        cmocka_unit_test_teardown(test_threads_change_no_bit, release_all),
        cmocka_unit_test_teardown(test_nan_shows, release_all),
    };
    dev = &device_cpu;
    return cmocka_run_group_tests_name("kernels_cpu", tests, NULL, NULL);
}
