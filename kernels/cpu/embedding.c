/* Token and position embeddings. */
#include "kernels/cpu/cpu.h"

#include <string.h>

static const int32_t *checked_tokens(struct tensor tokens, int64_t vocabulary) {
    const int32_t *id = tensor_i32(tokens);
    for (int64_t i = 0; i < tensor_count(tokens); i++)
        CHECK(id[i] >= 0 && id[i] < vocabulary, "token %d is outside a vocabulary of %lld", id[i],
              (long long)vocabulary);
    return id;
}

void cpu_embedding_forward(struct stream *s, struct tensor x, struct tensor tokens, struct tensor wte,
                           struct tensor wpe, struct dropout drop) {
    (void)s;
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x), positions = tensor_columns(tokens);
    CHECK(tensor_count(tokens) == rows && tensor_rows(wpe) >= positions,
          "%lld tokens for %lld rows, %lld positions of at most %lld", (long long)tensor_count(tokens),
          (long long)rows, (long long)positions, (long long)tensor_rows(wpe));
    const int32_t *id = checked_tokens(tokens, tensor_rows(wte));
    const float *token = cpu_matrix(wte, tensor_rows(wte), columns);
    const float *position = cpu_matrix(wpe, tensor_rows(wpe), columns);
    float *out = tensor_f32(x);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++) {
        float *restrict row = out + i * columns;
        const float *a = token + id[i] * columns, *b = position + i % positions * columns;
        for (int64_t j = 0; j < columns; j++) row[j] = a[j] + b[j];
        if (drop.rate != 0.0f) cpu_dropout_row(row, row, columns, &drop, i);
    }
}

/* d = beta * d, where beta 0 does not read d. */
static void scale_matrix(float *d, int64_t rows, int64_t columns, float beta) {
    if (beta == 1.0f) return;
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            d[i * columns + j] = beta == 0.0f ? 0.0f : beta * d[i * columns + j];
}

/* Equal tokens add to the same row, so the work is cut along the channels, one cache line's worth at least.
 */
static void scatter_tokens(float *dwte, const float *dx, const int32_t *id, int64_t rows, int64_t columns) {
    enum { STRIP = 64 };
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t first = 0; first < columns; first += STRIP)
        for (int64_t i = 0; i < rows; i++) {
            float *restrict d = dwte + id[i] * columns + first;
            const float *restrict g = dx + i * columns + first;
            for (int64_t j = 0; j < min_i64(STRIP, columns - first); j++) d[j] += g[j];
        }
}

static void sum_positions(float *dwpe, const float *dx, int64_t sequences, int64_t positions,
                          int64_t columns) {
#pragma omp parallel for schedule(static) if (sequences * positions * columns > PARALLEL_MINIMUM)
    for (int64_t t = 0; t < positions; t++)
        for (int64_t i = 0; i < sequences; i++) {
            float *restrict d = dwpe + t * columns;
            const float *restrict g = dx + (i * positions + t) * columns;
            for (int64_t j = 0; j < columns; j++) d[j] += g[j];
        }
}

void cpu_embedding_backward(struct stream *s, struct tensor dwte, struct tensor dwpe, struct tensor dx,
                            struct tensor tokens, float beta_wte, float beta_wpe) {
    (void)s;
    const int64_t rows = tensor_rows(dx), columns = tensor_columns(dx), positions = tensor_columns(tokens);
    CHECK(tensor_count(tokens) == rows && tensor_rows(dwpe) >= positions,
          "%lld tokens for %lld rows, %lld positions of at most %lld", (long long)tensor_count(tokens),
          (long long)rows, (long long)positions, (long long)tensor_rows(dwpe));
    const int32_t *id = checked_tokens(tokens, tensor_rows(dwte));
    float *token = cpu_matrix(dwte, tensor_rows(dwte), columns);
    float *position = cpu_matrix(dwpe, tensor_rows(dwpe), columns);
    scale_matrix(token, tensor_rows(dwte), columns, beta_wte);
    scatter_tokens(token, tensor_f32(dx), id, rows, columns);
    scale_matrix(position, tensor_rows(dwpe), columns, beta_wpe);
    sum_positions(position, tensor_f32(dx), rows / positions, positions, columns);
}
