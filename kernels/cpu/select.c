/* Which elements are the largest. Magnitudes are compared as bits, which order like the values. Never a sort: a threshold
 * that keeps somewhat more than k elements is guessed from a sample, one pass collects what reaches it, and a radix select
 * finds the k-th largest among those. Where the guess was too high, everything is collected: the result is always exact. */
#include "kernels/bits.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { BLOCK = 1 << 14, GROUP = 16, SAMPLE = 4096 };

/* Elements that may be among the largest, by ascending index. In cpu_scratch. */
struct candidates {
    int32_t *index;
    uint32_t *magnitude;
    int64_t count;
};

static inline uint32_t magnitude_of(float x) {
    return bits_from_float(x) & 0x7fffffff;
}

static inline bool group_reaches(const float *x, uint32_t least) {
    uint32_t any = 0;
    for (int j = 0; j < GROUP; j++) any |= magnitude_of(x[j]) >= least;
    return any;
}

/* The k-th largest of m; *equal: how many of those equal to it are among the k largest. Eleven, ten and ten bits at a time. */
static uint32_t radix_select(const uint32_t *m, int64_t count, int64_t k, int64_t *equal) {
    static const int shift[3] = {20, 10, 0}, width[3] = {11, 10, 10};
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        int64_t histogram[1 << 11] = {0};
        const uint32_t digits = (1u << width[pass]) - 1;
        for (int64_t i = 0; i < count; i++)
            if ((m[i] & mask) == prefix) histogram[m[i] >> shift[pass] & digits]++;
        uint32_t digit = digits;
        while (histogram[digit] < k) k -= histogram[digit--];
        prefix |= digit << shift[pass];
        mask |= digits << shift[pass];
    }
    *equal = k;
    return prefix;
}

/* A magnitude that, by a sample, somewhat more than k elements reach; not 0, as zeros may be many. */
static uint32_t guess_threshold(const float *x, int64_t count, int64_t k) {
    uint32_t sample[SAMPLE];
    const int64_t samples = min_i64(SAMPLE, count / 16);
    const int64_t wanted = (int64_t)(1.5 * (double)k * (double)samples / (double)count) + 16;
    int64_t equal;
    if (wanted >= samples) return 1;
    for (int64_t i = 0; i < samples; i++) {
        /* Places spread evenly, in step with no row length. */
        const uint64_t spread = (uint64_t)i * 0x9E3779B97F4A7C15u >> 32;
        sample[i] = magnitude_of(x[spread * (uint64_t)count >> 32]);
    }
    const uint32_t guess = radix_select(sample, samples, wanted, &equal);
    return guess > 0 ? guess : 1;
}

static int64_t collect_block(int32_t *index, uint32_t *magnitude, const float *x, int64_t first, int64_t end,
                             uint32_t least) {
    int64_t found = 0;
    for (int64_t i = first; i < end; i += GROUP) {
        const int64_t last = min_i64(end, i + GROUP);
        if (last - i == GROUP && !group_reaches(x + i, least)) continue;
        for (int64_t j = i; j < last; j++) {
            index[found] = (int32_t)j;
            magnitude[found] = magnitude_of(x[j]);
            found += magnitude[found] >= least;
        }
    }
    return found;
}

static struct candidates collect(const float *x, int64_t count, uint32_t least) {
    const int64_t blocks = blocks_of(count, BLOCK);
    float *memory = cpu_scratch(2 * count + blocks);
    struct candidates c = {(int32_t *)memory, (uint32_t *)memory + count, 0};
    int32_t *found = (int32_t *)memory + 2 * count;
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t b = 0; b < blocks; b++)
        found[b] = (int32_t)collect_block(c.index + b * BLOCK, c.magnitude + b * BLOCK, x, b * BLOCK,
                                          min_i64(count, (b + 1) * BLOCK), least);
    for (int64_t b = 0; b < blocks; c.count += found[b++]) {
        memmove(c.index + c.count, c.index + b * BLOCK, (size_t)found[b] * sizeof *c.index);
        memmove(c.magnitude + c.count, c.magnitude + b * BLOCK, (size_t)found[b] * sizeof *c.magnitude);
    }
    return c;
}

/* At least k elements, all of the k largest among them. */
static struct candidates collect_largest(const float *x, int64_t count, int64_t k) {
    CHECK(k >= 0 && k <= count && count <= INT32_MAX, "the %lld largest of %lld elements", (long long)k,
          (long long)count);
    const struct candidates likely = collect(x, count, guess_threshold(x, count, k));
    return likely.count >= k ? likely : collect(x, count, 0);
}

void cpu_select_largest(struct stream *s, struct tensor index, struct tensor value, struct tensor x) {
    (void)s;
    const int64_t k = tensor_count(index);
    int32_t *at = tensor_i32(index);
    float *taken = cpu_matrix(value, k, 1), *data = tensor_f32(x);
    if (k == 0) return;
    const struct candidates c = collect_largest(data, tensor_count(x), k);
    int64_t equal, found = 0;
    const uint32_t least = radix_select(c.magnitude, c.count, k, &equal);
    for (int64_t i = 0; found < k; i++) {
        if (c.magnitude[i] < least || (c.magnitude[i] == least && equal-- <= 0)) continue;
        at[found] = c.index[i];
        taken[found++] = data[c.index[i]];
        data[c.index[i]] = 0.0f;
    }
}

void cpu_kth_magnitude(struct stream *s, float *result, struct tensor x, int64_t k) {
    (void)s;
    const struct candidates c = collect_largest(tensor_f32(x), tensor_count(x), k);
    int64_t equal;
    *result = float_from_bits(radix_select(c.magnitude, c.count, k, &equal));
}

void cpu_select_above(struct stream *s, struct tensor index, struct tensor value, struct tensor x,
                      float threshold) {
    (void)s;
    const int64_t count = tensor_count(x), room = tensor_count(index);
    const uint32_t least = magnitude_of(threshold);
    const float *data = tensor_f32(x);
    int32_t *at = tensor_i32(index);
    float *taken = cpu_matrix(value, room, 1);
    int64_t found = 0;
    for (int64_t i = 0; i < count && found < room; i += GROUP) {
        const int64_t last = min_i64(count, i + GROUP);
        if (last - i == GROUP && !group_reaches(data + i, least)) continue;
        for (int64_t j = i; j < last && found < room; j++) {
            at[found] = (int32_t)j;
            taken[found] = data[j];
            found += magnitude_of(data[j]) >= least;
        }
    }
    for (; found < room; found++) {
        at[found] = -1;
        taken[found] = 0.0f;
    }
}
