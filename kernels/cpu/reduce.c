/* Sums over rows and over everything, in an order that the data alone decides. */
#include "kernels/cpu/cpu.h"

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
}

/* Sixteen running sums hide the latency of the additions. */
static double block_sum_squares(const float *x, int64_t count) {
    double sum[16] = {0}, total = 0.0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += (double)x[i + k] * x[i + k];
    for (; i < count; i++) total += (double)x[i] * x[i];
    for (int k = 0; k < 16; k++) total += sum[k];
    return total;
}

void cpu_sum_squares(struct stream *s, double *result, struct tensor x) {
    (void)s;
    enum { BLOCK = 1 << 14 };
    const int64_t count = tensor_count(x), blocks = blocks_of(count, BLOCK);
    const float *data = tensor_f32(x);
    double *partial = (double *)cpu_scratch(2 * blocks);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < blocks; block++)
        partial[block] = block_sum_squares(data + block * BLOCK, min_i64(BLOCK, count - block * BLOCK));
    *result = 0.0;
    for (int64_t block = 0; block < blocks; block++) *result += partial[block];
}
