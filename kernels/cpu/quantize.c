/* Few bits per element: signs, and stochastically rounded levels. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { WORD_BITS = 32, GROUP = 128, GROUP_WORDS = 1 + GROUP / 4 };

void cpu_sign_pack(struct stream *s, struct tensor words, struct tensor x) {
    (void)s;
    const int64_t count = tensor_count(x), whole = count / WORD_BITS;
    uint32_t *word = (uint32_t *)tensor_i32(words);
    const float *data = tensor_f32(x);
    CHECK(tensor_count(words) == blocks_of(count, WORD_BITS), "%lld words for the signs of %lld elements",
          (long long)tensor_count(words), (long long)count);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t w = 0; w < whole; w++) {
        uint32_t bits = 0;
        for (uint32_t j = 0; j < WORD_BITS; j++) bits |= (uint32_t)(data[w * WORD_BITS + j] < 0.0f) << j;
        word[w] = bits;
    }
    if (whole * WORD_BITS == count) return;
    word[whole] = 0;
    for (int64_t i = whole * WORD_BITS; i < count; i++)
        word[whole] |= (uint32_t)(data[i] < 0.0f) << i % WORD_BITS;
}

/* scale with its sign turned where the lowest bit is set. */
static inline float signed_scale(float scale, uint32_t bits) {
    uint32_t pattern;
    memcpy(&pattern, &scale, sizeof pattern);
    pattern ^= bits << 31;
    memcpy(&scale, &pattern, sizeof pattern);
    return scale;
}

void cpu_sign_add(struct stream *s, struct tensor y, float scale, struct tensor words) {
    (void)s;
    const int64_t count = tensor_count(y), whole = count / WORD_BITS;
    const uint32_t *word = (const uint32_t *)tensor_i32(words);
    float *data = tensor_f32(y);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t w = 0; w < whole; w++)
        for (uint32_t j = 0; j < WORD_BITS; j++) data[w * WORD_BITS + j] += signed_scale(scale, word[w] >> j);
    for (int64_t i = whole * WORD_BITS; i < count; i++)
        data[i] += signed_scale(scale, word[whole] >> i % WORD_BITS);
}

static float norm_of(const float *x) {
    double sum[8] = {0}, total = 0.0;
    for (int i = 0; i < GROUP; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += (double)x[i + k] * x[i + k];
    for (int k = 0; k < 8; k++) total += sum[k];
    return (float)sqrt(total);
}

/* A norm that was rounded down could lift the largest element over the highest level: hence the minimum. */
static void quantize_group(int32_t *words, const float *x, float levels, uint64_t key, uint64_t counter) {
    uint32_t draw[GROUP];
    int8_t level[GROUP];
    for (uint64_t j = 0; j < GROUP; j += 32) cpu_random_words(draw + j, key, counter, j / 4);
    const float norm = norm_of(x), divisor = norm > 0.0f ? norm : 1.0f;
    for (int j = 0; j < GROUP; j++) {
        const float u = (float)(int32_t)(draw[j] >> 8) * 0x1p-24f;
        const float lifted = fabsf(x[j]) / divisor * levels + u;
        const int32_t q = (int32_t)(lifted < levels ? lifted : levels);
        level[j] = (int8_t)(x[j] < 0.0f ? -q : q);
    }
    memcpy(words, &norm, sizeof norm);
    memcpy(words + 1, level, sizeof level);
}

static void check_groups(struct tensor words, int64_t count) {
    CHECK(tensor_count(words) == GROUP_WORDS * blocks_of(count, GROUP),
          "%lld words for the levels of %lld elements", (long long)tensor_count(words), (long long)count);
}

void cpu_quantize(struct stream *s, struct tensor words, struct tensor x, int64_t levels, uint64_t key,
                  int64_t first) {
    (void)s;
    const int64_t count = tensor_count(x);
    int32_t *out = tensor_i32(words);
    const float *data = tensor_f32(x);
    check_groups(words, count);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < count; i += GROUP) {
        float group[GROUP] = {0};
        memcpy(group, data + i, (size_t)min_i64(GROUP, count - i) * sizeof *group);
        quantize_group(out + i / GROUP * GROUP_WORDS, group, (float)levels, key, (uint64_t)(first + i));
    }
}

void cpu_dequantize_add(struct stream *s, struct tensor y, struct tensor words, int64_t levels) {
    (void)s;
    const int64_t count = tensor_count(y);
    const int32_t *in = tensor_i32(words);
    float *data = tensor_f32(y);
    check_groups(words, count);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < count; i += GROUP) {
        const int32_t *group = in + i / GROUP * GROUP_WORDS;
        const int8_t *level = (const int8_t *)(group + 1);
        const int64_t n = min_i64(GROUP, count - i);
        float norm;
        memcpy(&norm, group, sizeof norm);
        const float unit = norm / (float)levels;
        for (int64_t j = 0; j < n; j++) data[i + j] += unit * (float)level[j];
    }
}
