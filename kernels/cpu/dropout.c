/* Dropout and residual sums: passes over rows. An output may be an input, element for element: `omp simd`
 * says so to the compiler, which would otherwise run such calls one element at a time. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/wide.h"

#include <string.h>

enum { STRIP = 256 }; /* columns whose mask is made at a time */

void cpu_dropout_row(float *y, const float *x, int64_t columns, const struct dropout *drop, int64_t row) {
    for (int64_t first = 0; first < columns; first += STRIP) {
        const int64_t count = min_i64(STRIP, columns - first);
        float mask[STRIP];
        cpu_dropout_mask(mask, drop, row, first, count);
#pragma omp simd
        for (int64_t j = 0; j < count; j++) y[first + j] = x[first + j] * mask[j];
    }
}

void cpu_residual_row(float *sum, const float *x, const float *delta, int64_t columns,
                      const struct dropout *drop, int64_t row) {
    if (drop->rate == 0.0f) {
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) sum[j] = x[j] + delta[j];
        return;
    }
    for (int64_t first = 0; first < columns; first += STRIP) {
        const int64_t count = min_i64(STRIP, columns - first);
        float mask[STRIP];
        cpu_dropout_mask(mask, drop, row, first, count);
#pragma omp simd
        for (int64_t j = 0; j < count; j++) sum[first + j] = x[first + j] + delta[first + j] * mask[j];
    }
}

void cpu_dropout_apply(struct stream *s, struct tensor y, struct tensor x, struct dropout drop) {
    (void)s;
    struct wide wide = {0};
    y = wide_write(&wide, y), x = wide_read(&wide, x);
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    float *out = cpu_matrix(y, rows, columns);
    const float *in = tensor_f32(x);
    if (drop.rate == 0.0f && out == in) return;
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        if (drop.rate == 0.0f)
            memcpy(out + i * columns, in + i * columns, (size_t)columns * sizeof *out);
        else
            cpu_dropout_row(out + i * columns, in + i * columns, columns, &drop, i);
    wide_finish(&wide);
}

void cpu_residual_add(struct stream *s, struct tensor sum, struct tensor x, struct tensor delta,
                      struct dropout drop) {
    (void)s;
    struct wide wide = {0};
    delta = wide_read(&wide, delta);
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    float *out = cpu_matrix(sum, rows, columns);
    const float *in = tensor_f32(x), *added = cpu_matrix(delta, rows, columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        cpu_residual_row(out + i * columns, in + i * columns, added + i * columns, columns, &drop, i);
    wide_finish(&wide);
}
