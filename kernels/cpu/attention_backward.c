/* Causal attention, backward (Dao et al. 2022): probabilities p are made again from the scores and lse. One
 * task is one head of one sequence. With m the dropout mask and delta (per query) = sum(dout * out): dv = (p
 * m)^T dout,  dscore = p (m (dout v^T) - delta),  dq = scale dscore k,  dk = scale dscore^T q. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

struct backward_task {
    const struct attention_shape *a;
    const struct dropout *drop;
    float *dqkv, *dout, *out, *lse, *qkv;
    float *delta; /* (B,H,T) */
    int64_t sequence, head;
};

static void fill_delta(const struct backward_task *t) {
    const struct attention_shape *a = t->a;
    const struct strided o = head_rows(a, t->out, t->sequence, t->head, 0);
    const struct strided d = head_rows(a, t->dout, t->sequence, t->head, 0);
    float *delta = t->delta + (t->sequence * a->heads + t->head) * a->positions;
    for (int64_t i = 0; i < a->positions; i++) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < a->width; c++) sum += o.data[i * o.stride + c] * d.data[i * d.stride + c];
        delta[i] = sum;
    }
}

/* One row of a tile: scores become p m, and dp = dout v^T becomes dscore; both 0 past `visible`. */
static void score_gradient_row(float *restrict row, float *restrict dp, int64_t visible, float lse,
                               float delta, const float *restrict mask) {
    for (int64_t j = visible; j < TILE; j++) row[j] = -INFINITY, dp[j] = 0.0f;
    for (int64_t j = 0; j < TILE; j++) {
        const float p = vector_exp(row[j] - lse);
        row[j] = mask ? p * mask[j] : p;
        dp[j] = p * ((mask ? mask[j] * dp[j] : dp[j]) - delta);
    }
}

/* Adds what the tile (first_query, first_key) of scores gives to dq, dk, dv. The first tile that reaches a
 * row overwrites it: for dk and dv that on the diagonal, for dq the one at key 0. */
static void score_tile(const struct backward_task *t, int64_t first_query, int64_t first_key) {
    const struct attention_shape *a = t->a;
    const int64_t queries = min_i64(TILE, a->positions - first_query), width = a->width;
    const int64_t keys = min_i64(TILE, a->positions - first_key);
    const int64_t head_row = (t->sequence * a->heads + t->head) * a->positions + first_query;
    const struct strided q = head_part_rows(a, t->qkv, 0, t->sequence, t->head, first_query);
    const struct strided k = head_part_rows(a, t->qkv, 1, t->sequence, t->head, first_key);
    const struct strided v = head_part_rows(a, t->qkv, 2, t->sequence, t->head, first_key);
    const struct strided dq = head_part_rows(a, t->dqkv, 0, t->sequence, t->head, first_query);
    const struct strided dk = head_part_rows(a, t->dqkv, 1, t->sequence, t->head, first_key);
    const struct strided dv = head_part_rows(a, t->dqkv, 2, t->sequence, t->head, first_key);
    const struct strided d = head_rows(a, t->dout, t->sequence, t->head, first_query);
    float scores[TILE * TILE], gradients[TILE * TILE], mask[TILE];
    const struct strided p = {scores, TILE}, ds = {gradients, TILE};

    cpu_sgemm(p, queries, keys, width, a->scale, q, false, k, true, 0.0f);
    cpu_sgemm(ds, queries, keys, width, 1.0f, d, false, v, true, 0.0f);
    for (int64_t i = 0; i < queries; i++) {
        const int64_t visible = visible_keys(first_query + i, first_key, keys);
        if (t->drop->rate != 0.0f) cpu_dropout_mask(mask, t->drop, head_row + i, first_key, TILE);
        score_gradient_row(scores + i * TILE, gradients + i * TILE, visible, t->lse[head_row + i],
                           t->delta[head_row + i], t->drop->rate != 0.0f ? mask : NULL);
    }
    const float beta_key = first_query > first_key ? 1.0f : 0.0f, beta_query = first_key > 0 ? 1.0f : 0.0f;
    cpu_sgemm(dv, keys, width, queries, 1.0f, p, true, d, false, beta_key);
    cpu_sgemm(dk, keys, width, queries, a->scale, ds, true, q, false, beta_key);
    cpu_sgemm(dq, queries, width, keys, a->scale, ds, false, k, false, beta_query);
}

void cpu_attention_backward(struct stream *s, struct tensor dqkv, struct tensor dout, struct tensor out,
                            struct tensor lse, struct tensor qkv, struct dropout drop) {
    (void)s;
    struct wide wide = {0};
    dqkv = wide_write(&wide, dqkv), dout = wide_read(&wide, dout);
    out = wide_read(&wide, out), qkv = wide_read(&wide, qkv);
    const struct attention_shape a = attention_shape_of(qkv, lse, out);
    const int64_t rows = a.sequences * a.positions;
    const struct backward_task all = {.a = &a,
                                      .drop = &drop,
                                      .dqkv = cpu_matrix(dqkv, rows, 3 * a.channels),
                                      .dout = cpu_matrix(dout, rows, a.channels),
                                      .out = tensor_f32(out),
                                      .lse = tensor_f32(lse),
                                      .qkv = tensor_f32(qkv),
                                      .delta = cpu_scratch(rows * a.heads)};
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t sequence = 0; sequence < a.sequences; sequence++)
        for (int64_t head = 0; head < a.heads; head++) {
            struct backward_task task = all;
            task.sequence = sequence, task.head = head;
            fill_delta(&task);
            for (int64_t first_key = 0; first_key < a.positions; first_key += TILE)
                for (int64_t first_query = first_key; first_query < a.positions; first_query += TILE)
                    score_tile(&task, first_query, first_key);
        }
    wide_finish(&wide);
}
