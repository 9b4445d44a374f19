/* Sums over rows and over everything, in an order that the data alone decides. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/wide.h"

#include <math.h>
#include <string.h>

void cpu_combine_blocks(float *d, float beta, const float *partial, int64_t blocks, int64_t stride,
                        int64_t columns) {
    enum { STRIP = 256 };
#pragma omp parallel for schedule(static) if (blocks * columns > PARALLEL_MINIMUM)
    for (int64_t first = 0; first < columns; first += STRIP) {
        const int64_t count = min_i64(STRIP, columns - first);
        float sum[STRIP] = {0};
        for (int64_t i = 0; i < blocks; i++)
            for (int64_t j = 0; j < count; j++) sum[j] += partial[i * stride + first + j];
        for (int64_t j = 0; j < count; j++)
            d[first + j] = beta == 0.0f ? sum[j] : beta * d[first + j] + sum[j];
    }
}

void cpu_bias_backward(struct stream *s, struct tensor dbias, struct tensor dy, float beta) {
    (void)s;
    struct wide wide = {0};
    dy = wide_read(&wide, dy);
    const int64_t rows = tensor_rows(dy), columns = tensor_columns(dy), blocks = blocks_of(rows, ROW_BLOCK);
    const float *gradient = tensor_f32(dy);
    float *partial = cpu_scratch(blocks * columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < blocks; block++) {
        float *restrict sum = partial + block * columns;
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t i = block * ROW_BLOCK; i < min_i64(rows, (block + 1) * ROW_BLOCK); i++)
            for (int64_t j = 0; j < columns; j++) sum[j] += gradient[i * columns + j];
    }
    cpu_combine_blocks(cpu_matrix(dbias, 1, columns), beta, partial, blocks, columns, columns);
    wide_finish(&wide);
}

/* Sixteen running sums hide the latency of the additions. */
#define BLOCK_SUM(name, expression)                     \
    static double name(const float *x, int64_t count) { \
        double sum[16] = {0}, total = 0.0;              \
        int64_t i = 0;                                  \
        for (; i + 16 <= count; i += 16)                \
            for (int k = 0; k < 16; k++) {              \
                const double v = x[i + k];              \
                sum[k] += expression;                   \
            }                                           \
        for (; i < count; i++) {                        \
            const double v = x[i];                      \
            total += expression;                        \
        }                                               \
        for (int k = 0; k < 16; k++) total += sum[k];   \
        return total;                                   \
    }
BLOCK_SUM(block_sum_squares, v *v)
BLOCK_SUM(block_sum_magnitudes, fabs(v))

static double sum_blocks(struct tensor x, double (*block_sum)(const float *x, int64_t count)) {
    enum { BLOCK = 1 << 14 };
    const int64_t count = tensor_count(x), blocks = blocks_of(count, BLOCK);
    const float *data = tensor_f32(x);
    double *partial = (double *)cpu_scratch(2 * blocks), total = 0.0;
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < blocks; block++)
        partial[block] = block_sum(data + block * BLOCK, min_i64(BLOCK, count - block * BLOCK));
    for (int64_t block = 0; block < blocks; block++) total += partial[block];
    return total;
}

void cpu_sum_squares(struct stream *s, double *result, struct tensor x) {
    (void)s;
    *result = sum_blocks(x, block_sum_squares);
}

void cpu_sum_magnitudes(struct stream *s, double *result, struct tensor x) {
    (void)s;
    *result = sum_blocks(x, block_sum_magnitudes);
}
