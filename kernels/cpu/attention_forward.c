/* Causal attention, forward (Dao et al. 2022). One task is a tile of queries of one head; it walks over the
 * tiles of keys up to its diagonal and keeps, per query, the running maximum, the running sum and the
 * unnormalised output. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

#include <string.h>

struct attention_shape attention_shape_of(struct tensor qkv, struct tensor lse, struct tensor out) {
    CHECK(qkv.ndim == 3 && lse.ndim == 3 && out.ndim == 3, "attention takes (B,T,3C), (B,H,T), (B,T,C)");
    struct attention_shape a = {.sequences = out.dim[0],
                                .positions = out.dim[1],
                                .channels = out.dim[2],
                                .heads = lse.dim[1],
                                .width = out.dim[2] / lse.dim[1]};
    a.scale = 1.0f / sqrtf((float)a.width);
    cpu_matrix(qkv, a.sequences * a.positions, 3 * a.channels);
    cpu_matrix(lse, a.sequences * a.heads, a.positions);
    CHECK(a.width * a.heads == a.channels && a.width <= HEAD_WIDTH_MAX,
          "%lld channels in %lld heads: a head has a whole number of channels, at most %d",
          (long long)a.channels, (long long)a.heads, HEAD_WIDTH_MAX);
    return a;
}

struct running_softmax {
    float maximum[TILE], sum[TILE];
};

/* One row of scores becomes exp(score - maximum), 0 past `visible`. Returns what the output so far shrinks
 * by. Always a whole tile: a constant length costs less than the exponentials it saves. */
static float softmax_row(struct running_softmax *run, int64_t i, float *row, int64_t visible) {
    float maximum = run->maximum[i], sum = 0.0f;
    for (int64_t j = visible; j < TILE; j++) row[j] = -INFINITY;
#pragma omp simd reduction(max : maximum)
    for (int64_t j = 0; j < TILE; j++) maximum = row[j] > maximum ? row[j] : maximum;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < TILE; j++) {
        row[j] = vector_exp(row[j] - maximum);
        sum += row[j];
    }
    const float shrink = vector_exp(run->maximum[i] - maximum);
    run->maximum[i] = maximum;
    run->sum[i] = run->sum[i] * shrink + sum;
    return shrink;
}

static void drop_probabilities(float *row, const struct dropout *drop, int64_t global_row,
                               int64_t first_key) {
    float mask[TILE];
    cpu_dropout_mask(mask, drop, global_row, first_key, TILE);
    for (int64_t j = 0; j < TILE; j++) row[j] *= mask[j];
}

static void query_tile(const struct attention_shape *a, float *out, float *lse, float *qkv,
                       const struct dropout *drop, int64_t sequence, int64_t head, int64_t first_query) {
    const int64_t queries = min_i64(TILE, a->positions - first_query), width = a->width;
    const int64_t head_row = (sequence * a->heads + head) * a->positions + first_query;
    const struct strided q = head_part_rows(a, qkv, 0, sequence, head, first_query);
    float scores[TILE * TILE], sums[TILE * HEAD_WIDTH_MAX];
    struct running_softmax run = {.sum = {0}};
    for (int64_t i = 0; i < queries; i++) run.maximum[i] = -INFINITY;

    for (int64_t first_key = 0; first_key < first_query + queries; first_key += TILE) {
        const int64_t keys = min_i64(TILE, first_query + queries - first_key);
        const struct strided k = head_part_rows(a, qkv, 1, sequence, head, first_key);
        const struct strided v = head_part_rows(a, qkv, 2, sequence, head, first_key);
        cpu_sgemm((struct strided){scores, TILE}, queries, keys, width, a->scale, q, false, k, true, 0.0f);
        for (int64_t i = 0; i < queries; i++) {
            const int64_t visible = visible_keys(first_query + i, first_key, keys);
            const float shrink = softmax_row(&run, i, scores + i * TILE, visible);
            if (drop->rate != 0.0f) drop_probabilities(scores + i * TILE, drop, head_row + i, first_key);
            if (first_key > 0)
                for (int64_t c = 0; c < width; c++) sums[i * width + c] *= shrink;
        }
        cpu_sgemm((struct strided){sums, width}, queries, width, keys, 1.0f, (struct strided){scores, TILE},
                  false, v, false, first_key > 0 ? 1.0f : 0.0f);
    }

    const struct strided o = head_rows(a, out, sequence, head, first_query);
    for (int64_t i = 0; i < queries; i++) {
        const float inverse = 1.0f / run.sum[i];
        for (int64_t c = 0; c < width; c++) o.data[i * o.stride + c] = sums[i * width + c] * inverse;
        lse[head_row + i] = run.maximum[i] + logf(run.sum[i]);
    }
}

void cpu_attention_forward(struct stream *s, struct tensor out, struct tensor lse, struct tensor qkv,
                           struct dropout drop) {
    (void)s;
    struct wide wide = {0};
    out = wide_write(&wide, out), qkv = wide_read(&wide, qkv);
    const struct attention_shape a = attention_shape_of(qkv, lse, out);
    float *output = tensor_f32(out), *logs = tensor_f32(lse), *input = tensor_f32(qkv);
    const int64_t tiles = blocks_of(a.positions, TILE);
    /* Tiles of one head follow each other, so that its keys and values stay in the cache; long ones go first.
     */
#pragma omp parallel for schedule(dynamic) collapse(3)
    for (int64_t sequence = 0; sequence < a.sequences; sequence++)
        for (int64_t head = 0; head < a.heads; head++)
            for (int64_t tile = tiles - 1; tile >= 0; tile--)
                query_tile(&a, output, logs, input, &drop, sequence, head, tile * TILE);
    wide_finish(&wide);
}
