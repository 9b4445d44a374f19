/* Selection, signs, quantisation and orthogonalisation against plain loops. */
#include "tests/kernel_test.h"

static struct tensor device_ints(int64_t count) {
    return tensor_of(own(dev->memory_alloc((size_t)count * 4 + 4), (size_t)count * 4 + 4), DTYPE_I32, count);
}

static struct tensor device_floats(int64_t count, const float *values) {
    struct tensor t =
        tensor_of(own(dev->memory_alloc((size_t)count * 4 + 4), (size_t)count * 4 + 4), DTYPE_F32, count);
    if (values) dev->copy_in(NULL, t, values);
    return t;
}

enum pattern { NORMAL, EQUAL, ZEROS, FEW_VALUES, PERIODIC, RISING, PATTERNS };

static void fill(float *x, int64_t count, enum pattern pattern) {
    for (int64_t i = 0; i < count; i++) {
        const struct philox p = philox_draw(5, (uint64_t)i, 0);
        const float noise = (float)((double)p.word[0] + p.word[1] + p.word[2] - p.word[3] * 3.0) * 1e-9f;
        switch (pattern) {
        case NORMAL:
            x[i] = noise;
            break;
        case EQUAL:
            x[i] = i % 2 ? 1.5f : -1.5f;
            break;
        case ZEROS:
            x[i] = i % 2 ? 0.0f : -0.0f;
            break;
        case FEW_VALUES:
            x[i] = (float)(p.word[0] % 5) - 2.0f;
            break;
        case PERIODIC:
            x[i] = i % 64 == 0 ? 100.0f * noise : 1e-20f * noise;
            break;
        default:
            x[i] = (float)i * 1e-30f;
        }
    }
}

struct element {
    float value;
    int32_t index;
};

static int by_magnitude_then_index(const void *a, const void *b) {
    const struct element *x = a, *y = b;
    const float mx = fabsf(x->value), my = fabsf(y->value);
    if (mx != my) return mx < my ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_index(const void *a, const void *b) {
    const struct element *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

static void check_largest(int64_t count, int64_t k, enum pattern pattern) {
    float *x = host_floats(count + 1), *after = host_floats(count + 1), *values = host_floats(k + 1), kth;
    int32_t *indices = own(memory_alloc((size_t)k * 4 + 4), 0);
    struct element *sorted = own(memory_alloc((size_t)count * sizeof *sorted + 1), 0);
    fill(x, count, pattern);
    for (int64_t i = 0; i < count; i++) sorted[i] = (struct element){x[i], (int32_t)i};
    qsort(sorted, (size_t)count, sizeof *sorted, by_magnitude_then_index);
    const struct tensor data = device_floats(count, x), index = device_ints(k),
                        value = device_floats(k, NULL);
    if (k > 0) {
        dev->kth_magnitude(NULL, &kth, data, k);
        assert_true(kth == fabsf(sorted[k - 1].value));
    }
    dev->select_largest(NULL, index, value, data);
    dev->copy_out(NULL, indices, index);
    dev->copy_out(NULL, values, value);
    dev->copy_out(NULL, after, data);
    qsort(sorted, (size_t)k, sizeof *sorted, by_index);
    for (int64_t i = 0; i < k; i++) {
        assert_int_equal(indices[i], sorted[i].index);
        assert_memory_equal(&values[i], &sorted[i].value, 4);
        x[indices[i]] = 0.0f;
    }
    assert_memory_equal(x, after, (size_t)count * 4);
}

static void test_select_largest(void **state) {
    static const int64_t sizes[][2] = {{1, 1},        {1, 0},         {17, 5},      {1000, 1000},
                                       {1000, 10},    {16384, 1},     {70001, 700}, {70001, 35000},
                                       {300007, 300}, {300007, 30000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (enum pattern p = 0; p < PATTERNS; p++) {
            check_largest(sizes[i][0], sizes[i][1], p);
            release_all(state);
        }
}

static void test_select_above(void **state) {
    (void)state;
    enum { COUNT = 5003, ROOM = 300 };
    static const float thresholds[] = {0.0f, 0.5f, 3.0f, 1e9f};
    float *x = host_floats(COUNT), values[ROOM];
    int32_t indices[ROOM];
    fill(x, COUNT, NORMAL);
    const struct tensor data = device_floats(COUNT, x), index = device_ints(ROOM),
                        value = device_floats(ROOM, NULL);
    for (size_t t = 0; t < sizeof thresholds / sizeof *thresholds; t++) {
        int64_t found = 0;
        dev->select_above(NULL, index, value, data, thresholds[t]);
        dev->copy_out(NULL, indices, index);
        dev->copy_out(NULL, values, value);
        for (int64_t i = 0; i < COUNT && found < ROOM; i++) {
            if (fabsf(x[i]) < thresholds[t]) continue;
            assert_int_equal(indices[found], i);
            assert_true(values[found++] == x[i]);
        }
        for (; found < ROOM; found++) assert_true(indices[found] == -1 && values[found] == 0.0f);
    }
}

/* One out of each block; over many keys every element comes, equally often. */
static void test_select_random(void **state) {
    (void)state;
    enum { ELEMENTS = 103, K = 10, DRAWS = 10300 };
    int32_t indices[K], times[ELEMENTS] = {0};
    const struct tensor index = device_ints(K);
    for (uint64_t key = 0; key < DRAWS; key++) {
        dev->select_random(NULL, index, ELEMENTS, philox_key(1, "test", key, 0));
        dev->copy_out(NULL, indices, index);
        for (int i = 0; i < K; i++) {
            assert_in_range(indices[i], i * ELEMENTS / K, (i + 1) * ELEMENTS / K - 1);
            times[indices[i]]++;
        }
    }
    for (int i = 0; i < ELEMENTS; i++) assert_in_range(times[i], 750, 1250); /* 1000 with a deviation of 30 */
}

static void test_elements_by_index(void **state) {
    (void)state;
    const int32_t at[4] = {3, -1, 0, 5};
    const float x[6] = {1, 2, 3, 4, 5, 6}, mask[6] = {0, 1, 1, 1, 1, 0}, add[4] = {10, 20, 30, 40};
    float got[6];
    const struct tensor index = device_ints(4), data = device_floats(6, x), value = device_floats(4, add);
    dev->copy_in(NULL, index, at);
    dev->scatter_add(NULL, data, index, value);
    dev->copy_out(NULL, got, data);
    assert_memory_equal(got, ((float[]){31, 2, 3, 14, 5, 46}), sizeof got);
    dev->gather_at(NULL, value, data, index);
    dev->copy_out(NULL, got, value);
    assert_memory_equal(got, ((float[]){14, 0, 31, 46}), 16);
    dev->clear_at(NULL, data, index, device_floats(6, mask));
    dev->copy_out(NULL, got, data);
    assert_memory_equal(got, ((float[]){31, 2, 3, 0, 5, 46}), sizeof got);
    dev->clear_at(NULL, data, index, (struct tensor){0});
    dev->copy_out(NULL, got, data);
    assert_memory_equal(got, ((float[]){0, 2, 3, 0, 5, 0}), sizeof got);
}

static void test_signs(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 31, 32, 33, 10007};
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        const int64_t count = counts[n], words = (count + 31) / 32;
        float *x = host_floats(count), *y = host_floats(count);
        uint32_t *bits = own(memory_alloc((size_t)words * 4), 0);
        double sum, expected = 0.0;
        fill(x, count, FEW_VALUES);
        x[0] = -0.0f;
        const struct tensor data = device_floats(count, x), word = device_ints(words);
        dev->sign_pack(NULL, word, data);
        dev->sum_magnitudes(NULL, &sum, data);
        dev->sign_add(NULL, data, 0.25f, word);
        dev->copy_out(NULL, bits, word);
        dev->copy_out(NULL, y, data);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(bits[i / 32] >> i % 32 & 1, x[i] < 0.0f);
            assert_true(y[i] == x[i] + (x[i] < 0.0f ? -0.25f : 0.25f));
            expected += fabsf(x[i]);
        }
        if (count % 32) assert_true(bits[words - 1] >> count % 32 == 0);
        assert_true(sum == expected);
    }
}

/* Each element is one of the two levels around it; elements of a group of zeros stay zeros; a lone element is exact. */
static void test_quantize(void **state) {
    (void)state;
    enum { COUNT = 1001, GROUPS = 8 };
    static const int64_t levels[] = {1, 4, 127};
    float x[COUNT], y[COUNT] = {0};
    fill(x, COUNT, NORMAL);
    for (int i = 128; i < 384; i++) x[i] = 0.0f;
    x[300] = 3.7f;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        const struct tensor data = device_floats(COUNT, x), words = device_ints(GROUPS * 33),
                            out = device_floats(COUNT, NULL);
        dev->quantize(NULL, words, data, levels[l], 9, 64);
        dev->dequantize_add(NULL, out, words, levels[l]);
        dev->copy_out(NULL, y, out);
        for (int i = 0; i < COUNT; i++) {
            double squares = 0.0;
            for (int j = i / 128 * 128; j < COUNT && j < (i / 128 + 1) * 128; j++)
                squares += (double)x[j] * x[j];
            const double level = sqrt(squares) / (double)levels[l], q = squares > 0.0 ? y[i] / level : 0.0;
            assert_true(fabs(y[i] - x[i]) <= level * 1.00001);
            assert_true(fabs(q - round(q)) < 1e-4 && q * x[i] >= 0.0);
        }
        assert_true(y[200] == 0.0f && y[300] == 3.7f);
    }
}

static void test_orthogonalize(void **state) {
    (void)state;
    enum { ROWS = 57, RANK = 4 };
    for (int kind = 0; kind < 5; kind++) {
        float p[ROWS * RANK], q[ROWS * RANK];
        fill(p, ROWS * RANK, NORMAL);
        for (int i = 0; i < ROWS; i++) {
            if (kind == 1) p[i * RANK + 2] = 0.0f;
            if (kind == 2) p[i * RANK + 3] = 2.0f * p[i * RANK] - p[i * RANK + 1];
            if (kind == 3) memset(&p[i * RANK], 0, sizeof *p * RANK);
            if (kind == 4) p[i * RANK + 1] *= 1e-30f, p[i * RANK + 2] *= 1e30f;
        }
        const struct tensor t = tensor_matrix(device_floats(ROWS * RANK, p), ROWS, RANK);
        dev->orthogonalize(NULL, t, 3);
        dev->copy_out(NULL, q, t);
        for (int a = 0; a < RANK; a++)
            for (int b = 0; b < RANK; b++) {
                double dot = 0.0;
                for (int i = 0; i < ROWS; i++) dot += (double)q[i * RANK + a] * q[i * RANK + b];
                assert_true(fabs(dot - (a == b)) < 1e-5);
            }
        for (int i = 0; kind < 3 && i < ROWS; i++) /* the first column keeps its direction */
            assert_true(fabs(q[i * RANK] * p[0] - q[0] * p[i * RANK]) < 1e-4);
    }
}

static void test_scale_add_and_copy(void **state) {
    (void)state;
    enum { COUNT = 20003 };
    float *x = host_floats(COUNT), *y = host_floats(COUNT), *got = host_floats(COUNT);
    fill(x, COUNT, NORMAL);
    fill(y, COUNT, FEW_VALUES);
    const struct tensor a = device_floats(COUNT, x), b = device_floats(COUNT, y),
                        out = device_floats(COUNT, NULL);
    dev->scale_add(NULL, out, 0.5f, a, b);
    dev->copy_out(NULL, got, out);
    for (int i = 0; i < COUNT; i++) assert_true(fabsf(got[i] - (0.5f * x[i] + y[i])) < 1e-6f);
    dev->cast(NULL, out, a, -2.0f);
    dev->copy_out(NULL, got, out);
    for (int i = 0; i < COUNT; i++) assert_true(got[i] == -2.0f * x[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_select_largest, release_all),
        cmocka_unit_test_teardown(test_select_above, release_all),
        cmocka_unit_test_teardown(test_select_random, release_all),
        cmocka_unit_test_teardown(test_elements_by_index, release_all),
        cmocka_unit_test_teardown(test_signs, release_all),
        cmocka_unit_test_teardown(test_quantize, release_all),
        cmocka_unit_test_teardown(test_orthogonalize, release_all),
        cmocka_unit_test_teardown(test_scale_add_and_copy, release_all),
    };
    return cmocka_run_group_tests(tests, open_device, NULL);
}
