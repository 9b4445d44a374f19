/* What the files of the CPU device share. Private to kernels/cpu.
 *
 * Threads come from OpenMP. A loop over rows is cut where its data says, never where the thread count says:
 * sums over rows are made per block of ROW_BLOCK rows and combined in the order of the blocks. */
#ifndef TANDEM_CPU_H
#define TANDEM_CPU_H

#include "kernels/device.h"

#define OP(name, arguments) void cpu_##name arguments;
#include "kernels/ops.def"
#undef OP

enum {
    ROW_BLOCK = 64,          /* rows of one partial sum */
    PARALLEL_MINIMUM = 8192, /* elements below which waking the threads costs more than it gives */
};

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

/* The elements of t, checked to be fp32 and to number rows * columns. */
float *cpu_matrix(struct tensor t, int64_t rows, int64_t columns);

/* Memory for one operation's partial sums; kept and grown, so the next call of anyone overwrites it. Call it
 * outside parallel regions. */
float *cpu_scratch(int64_t count);

/* d (columns) = beta * d + sum over blocks of partial (blocks, stride), in the order of the blocks. */
void cpu_combine_blocks(float *d, float beta, const float *partial, int64_t blocks, int64_t stride,
                        int64_t columns);

/* c (M,N) = alpha * op(a) op(b) + beta * c, with the distance between rows of each. All threads, or the
 * calling one within a parallel region. */
struct strided {
    float *data;
    int64_t stride;
};
void cpu_sgemm(struct strided c, int64_t m, int64_t n, int64_t k, float alpha, struct strided a,
               bool transpose_a, struct strided b, bool transpose_b, float beta);

/* mask (count) = 0 or 1/(1 - rate) for columns first_column.. of the tensor's row `row`; first_column is a
 * multiple of 4, rate not 0. */
void cpu_dropout_mask(float *mask, const struct dropout *drop, int64_t row, int64_t first_column,
                      int64_t count);

/* The words of the eight Philox draws with counters (counter_low, counter_high) .. (counter_low, counter_high + 7). */
void cpu_random_words(uint32_t out[32], uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* One row: y = dropout(x), and sum = x + dropout(delta). Each output may be an input. */
void cpu_dropout_row(float *y, const float *x, int64_t columns, const struct dropout *drop, int64_t row);
void cpu_residual_row(float *sum, const float *x, const float *delta, int64_t columns,
                      const struct dropout *drop, int64_t row);

#endif
