/* GELU, backward; its forward pass belongs to the layer in front of it (matmul.c). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

#include <string.h>

void cpu_gelu_backward(struct stream *s, struct tensor dy, struct tensor dbias, struct tensor pre,
                       float beta) {
    (void)s;
    struct wide wide = {0};
    dy = wide_update(&wide, dy), pre = wide_read(&wide, pre);
    const int64_t rows = tensor_rows(dy), columns = tensor_columns(dy), blocks = blocks_of(rows, ROW_BLOCK);
    float *gradient = tensor_f32(dy);
    const float *before = cpu_matrix(pre, rows, columns);
    float *partial = cpu_scratch(blocks * columns);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < blocks; block++) {
        float *restrict sum = partial + block * columns;
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t i = block * ROW_BLOCK; i < min_i64(rows, (block + 1) * ROW_BLOCK); i++) {
            float *restrict row = gradient + i * columns;
            const float *restrict x = before + i * columns;
            for (int64_t j = 0; j < columns; j++) {
                row[j] *= gelu_derivative(x[j]);
                sum[j] += row[j];
            }
        }
    }
    cpu_combine_blocks(cpu_matrix(dbias, 1, columns), beta, partial, blocks, columns, columns);
    wide_finish(&wide);
}
