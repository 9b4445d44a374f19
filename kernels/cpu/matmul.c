/* Matrix products, through oneDNN, and the layers that are a product and a pass over its rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

void cpu_sgemm(struct strided c, int64_t m, int64_t n, int64_t k, float alpha, struct strided a,
               bool transpose_a, struct strided b, bool transpose_b, float beta) {
    dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha,
                                      a.data, a.stride, b.data, b.stride, beta, c.data, c.stride);
    CHECK(status == dnnl_success, "dnnl_sgemm of %lld x %lld x %lld failed with status %d", (long long)m,
          (long long)n, (long long)k, (int)status);
}

/* In a product that sums over rows (a transposed), the library packs operands column by column. Rows of exactly 2 or 4 KiB
 * then fall into so few cache sets that it runs at half its rate; a copy with rows a cache line longer does not. */
enum { PADDING = 16 };

static bool rows_collide(struct strided x) {
    return x.stride == 512 || x.stride == 1024;
}

static int64_t padded_count(struct strided x, int64_t rows) {
    return rows_collide(x) ? rows * (x.stride + PADDING) : 0;
}

/* The same matrix, in `room` where its rows would collide. */
static struct strided padded(struct strided x, int64_t rows, float *room) {
    if (!rows_collide(x)) return x;
    const int64_t columns = x.stride;
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        memcpy(room + i * (columns + PADDING), x.data + i * columns, (size_t)columns * sizeof(float));
    return (struct strided){room, columns + PADDING};
}

void cpu_matmul(struct stream *s, struct tensor c, struct tensor a, bool transpose_a, struct tensor b,
                bool transpose_b, float beta) {
    (void)s;
    struct wide wide = {0};
    c = beta == 0.0f ? wide_write(&wide, c) : wide_update(&wide, c);
    a = wide_read(&wide, a), b = wide_read(&wide, b);
    int64_t m = tensor_rows(c), n = tensor_columns(c);
    int64_t k = transpose_a ? tensor_rows(a) : tensor_columns(a);
    struct strided left = {cpu_matrix(a, m, k), tensor_columns(a)},
                   right = {cpu_matrix(b, k, n), tensor_columns(b)};
    if (transpose_a && !transpose_b && (rows_collide(left) || rows_collide(right))) {
        float *room = cpu_scratch(padded_count(left, k) + padded_count(right, k));
        right = padded(right, k, room + padded_count(left, k));
        left = padded(left, k, room);
    }
    cpu_sgemm((struct strided){tensor_f32(c), n}, m, n, k, 1.0f, left, transpose_a, right, transpose_b, beta);
    wide_finish(&wide);
}

void cpu_linear_forward(struct stream *s, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias) {
    struct wide wide = {0};
    y = wide_write(&wide, y), bias = wide_read(&wide, bias);
    cpu_matmul(s, y, x, false, w, false, 0.0f);
    const int64_t rows = tensor_rows(y), columns = tensor_columns(y);
    float *out = tensor_f32(y);
    const float *shift = cpu_matrix(bias, 1, columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) out[i * columns + j] += shift[j];
    wide_finish(&wide);
}

void cpu_linear_gelu_forward(struct stream *s, struct tensor y, struct tensor pre, struct tensor x,
                             struct tensor w, struct tensor bias) {
    struct wide wide = {0};
    y = wide_write(&wide, y), pre = wide_write(&wide, pre), bias = wide_read(&wide, bias);
    cpu_matmul(s, pre, x, false, w, false, 0.0f);
    const int64_t rows = tensor_rows(pre), columns = tensor_columns(pre);
    float *out = cpu_matrix(y, rows, columns), *before = tensor_f32(pre);
    const float *shift = cpu_matrix(bias, 1, columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++) {
        float *restrict out_row = out + i * columns, *restrict pre_row = before + i * columns;
        for (int64_t j = 0; j < columns; j++) {
            float v = pre_row[j] + shift[j];
            pre_row[j] = v;
            out_row[j] = gelu(v);
        }
    }
    wide_finish(&wide);
}
