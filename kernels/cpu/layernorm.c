/* Layer norm, alone and behind a residual sum. One row stays in the first cache from its first pass to its
 * last. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/wide.h"

#include <math.h>
#include <string.h>

static void normalize_row(float *restrict y, float *restrict stats, const float *restrict x, const float *w,
                          const float *b, int64_t columns) {
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; j++) sum += x[j];
    const float mean = sum / (float)columns;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < columns; j++) squares += (x[j] - mean) * (x[j] - mean);
    const float rstd = 1.0f / sqrtf(squares / (float)columns + 1e-5f);
    for (int64_t j = 0; j < columns; j++) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
    stats[0] = mean;
    stats[1] = rstd;
}

void cpu_layernorm_forward(struct stream *s, struct tensor y, struct tensor stats, struct tensor x,
                           struct tensor w, struct tensor b) {
    (void)s;
    struct wide wide = {0};
    y = wide_write(&wide, y);
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    const float *in = tensor_f32(x), *weight = cpu_matrix(w, 1, columns), *shift = cpu_matrix(b, 1, columns);
    float *out = cpu_matrix(y, rows, columns), *kept = cpu_matrix(stats, rows, 2);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        normalize_row(out + i * columns, kept + 2 * i, in + i * columns, weight, shift, columns);
    wide_finish(&wide);
}

void cpu_residual_layernorm_forward(struct stream *s, struct tensor sum, struct tensor y, struct tensor stats,
                                    struct tensor x, struct tensor delta, struct tensor w, struct tensor b,
                                    struct dropout drop) {
    (void)s;
    struct wide wide = {0};
    y = wide_write(&wide, y), delta = wide_read(&wide, delta);
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    const float *in = tensor_f32(x), *added = cpu_matrix(delta, rows, columns);
    const float *weight = cpu_matrix(w, 1, columns), *shift = cpu_matrix(b, 1, columns);
    float *total = cpu_matrix(sum, rows, columns), *out = cpu_matrix(y, rows, columns);
    float *kept = cpu_matrix(stats, rows, 2);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++) {
        float *row = total + i * columns;
        cpu_residual_row(row, in + i * columns, added + i * columns, columns, &drop, i);
        normalize_row(out + i * columns, kept + 2 * i, row, weight, shift, columns);
    }
    wide_finish(&wide);
}

/* With n = (x - mean) rstd and g = dy w:  dx += rstd (g - mean(g) - n mean(g n)),  dw += dy n,  db += dy. */
static void backward_row(float *restrict dx, float *restrict dw, float *restrict db, const float *restrict dy,
                         const float *restrict x, const float *stats, const float *restrict w,
                         int64_t columns) {
    const float mean = stats[0], rstd = stats[1];
    float sum = 0.0f, sum_n = 0.0f;
#pragma omp simd reduction(+ : sum, sum_n)
    for (int64_t j = 0; j < columns; j++) {
        const float n = (x[j] - mean) * rstd, g = dy[j] * w[j];
        sum += g;
        sum_n += g * n;
        dw[j] += dy[j] * n;
        db[j] += dy[j];
    }
    const float mean_g = sum / (float)columns, mean_gn = sum_n / (float)columns;
    for (int64_t j = 0; j < columns; j++) {
        const float n = (x[j] - mean) * rstd;
        dx[j] += rstd * (dy[j] * w[j] - mean_g - n * mean_gn);
    }
}

void cpu_layernorm_backward(struct stream *s, struct tensor dx, struct tensor dw, struct tensor db,
                            struct tensor dy, struct tensor x, struct tensor stats, struct tensor w,
                            float beta) {
    (void)s;
    struct wide wide = {0};
    dy = wide_read(&wide, dy);
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x), blocks = blocks_of(rows, ROW_BLOCK);
    const float *in = tensor_f32(x), *gradient = cpu_matrix(dy, rows, columns);
    const float *kept = cpu_matrix(stats, rows, 2), *weight = cpu_matrix(w, 1, columns);
    float *out = cpu_matrix(dx, rows, columns), *partial = cpu_scratch(blocks * 2 * columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < blocks; block++) {
        float *sums = partial + block * 2 * columns;
        memset(sums, 0, (size_t)(2 * columns) * sizeof *sums);
        for (int64_t i = block * ROW_BLOCK; i < min_i64(rows, (block + 1) * ROW_BLOCK); i++)
            backward_row(out + i * columns, sums, sums + columns, gradient + i * columns, in + i * columns,
                         kept + 2 * i, weight, columns);
    }
    cpu_combine_blocks(cpu_matrix(dw, 1, columns), beta, partial, blocks, 2 * columns, columns);
    cpu_combine_blocks(cpu_matrix(db, 1, columns), beta, partial + columns, blocks, 2 * columns, columns);
    wide_finish(&wide);
}
