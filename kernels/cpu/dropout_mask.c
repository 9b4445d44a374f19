/* The masks of dropout: Philox4x32-10 (kernels/philox.h), four counters side by side. Each 64-bit lane holds
 * a 32-bit word of one counter in its low half, as the widening multiplication wants it; the high halves are
 * never looked at. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { DRAWS = 4, COLUMNS = 2 * 4 * DRAWS }; /* of one vector; of one step */
typedef uint64_t lanes __attribute__((vector_size(8 * DRAWS)));
typedef uint32_t words __attribute__((vector_size(8 * DRAWS)));

/* Products of the low halves of a and of the 32-bit b. Compilers do not find the instruction by themselves. A
 * macro, because without AVX there is no settled way to pass such vectors to a function. */
#ifdef __AVX2__
#include <immintrin.h>
#define MULTIPLY(a, b) ((lanes)_mm256_mul_epu32((__m256i)(a), _mm256_set1_epi64x(b)))
#else
#define MULTIPLY(a, b) (((a)&0xffffffff) * (b))
#endif

/* The words of 2 DRAWS draws in column order; two vectors at a time hide the multiplications' latency. */
static inline void draw_words(words out[4], uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    const lanes zero = {0};
    lanes k0 = zero + key, k1 = zero + (key >> 32), c0[2], c1[2], c2[2], c3[2];
    for (int v = 0; v < 2; v++) {
        c0[v] = zero + counter_low, c1[v] = c0[v] >> 32;
        c2[v] = (lanes){0, 1, 2, 3} + (counter_high + v * DRAWS), c3[v] = c2[v] >> 32;
    }
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < 2; v++) {
            const lanes p0 = MULTIPLY(c0[v], 0xD2511F53u), p1 = MULTIPLY(c2[v], 0xCD9E8D57u);
            c0[v] = p1 >> 32 ^ c1[v] ^ k0;
            c2[v] = p0 >> 32 ^ c3[v] ^ k1;
            c1[v] = p1, c3[v] = p0;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int v = 0; v < 2; v++) {
        const lanes first = (c0[v] & 0xffffffff) | c1[v] << 32, second = (c2[v] & 0xffffffff) | c3[v] << 32;
        out[2 * v] = (words)__builtin_shuffle(first, second, (lanes){0, 4, 1, 5});
        out[2 * v + 1] = (words)__builtin_shuffle(first, second, (lanes){2, 6, 3, 7});
    }
}

void cpu_random_words(uint32_t out[32], uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    words drawn[4];
    draw_words(drawn, key, counter_low, counter_high);
    memcpy(out, drawn, sizeof drawn);
}

void cpu_dropout_mask(float *mask, const struct dropout *drop, int64_t row, int64_t first_column,
                      int64_t count) {
    const uint32_t threshold = (uint32_t)((double)drop->rate * 4294967296.0);
    const float scale = 1.0f / (1.0f - drop->rate);
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof scale);
    for (int64_t j = 0; j < count; j += COLUMNS) {
        words keep[4];
        draw_words(keep, drop->key, (uint64_t)(drop->first_row + row), (uint64_t)(first_column + j) / 4);
        for (int i = 0; i < 4; i++) keep[i] = (words)(keep[i] >= threshold) & scale_bits;
        memcpy(mask + j, keep, (size_t)min_i64(COLUMNS, count - j) * sizeof *mask);
    }
}
