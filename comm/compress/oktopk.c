/* Ok-topk (Li & Hoefler 2022): top-k whose volume does not grow with the number of ranks p. The bucket is split into p
 * regions, one for each rank:
 *
 *     round 0   each rank sends its elements above a threshold, each to the rank of its region, which sums them
 *     round 1   each rank sends the largest sums of its region to all: the gradient
 *
 * In both rounds there is room for C = ceil(1.25 k / p) pairs a region, k = max(1, density * n): 4 C (p-1) words are sent,
 * less than 6 k for k >= 4 p. Of more elements the largest go; what finds no room stays in the residual, and so does what
 * was sent but is not in the gradient.
 *
 * Every 32 steps the threshold is estimated anew, as the k-th largest magnitude; in between it rises while the room is full,
 * as residuals grow. The regions are chosen anew as well: they cut the gradient's elements into p parts of equal number.
 * The original reuses a threshold for round 1 too; with a fixed room nothing would be saved by sending fewer, so each rank
 * fills it with the largest. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "comm/compress/feedback.h"

static const double spare = 1.25;
static const float step_up = 1.025f; /* of a threshold that too many reach */
enum { PERIOD = 32 };

/* What is known of a bucket, by its offset / WHOLE_BELOW; another cut of the range does not fit and starts anew. A record is
 * of so many words, and from EDGES on p + 1 more: where regions begin and end. */
enum record { OFFSET, COUNT, THRESHOLD, EDGES };

struct oktopk {
    struct feedback feedback;
    struct tensor record, next_record; /* int32 [records, EDGES + p + 1], in keep and in scratch */
};

static int64_t room_of(const struct compressor *c, int64_t count) {
    const double k = (double)density_count(c->options.density, count);
    const int64_t room = (int64_t)(spare * k / c->size);
    return room + ((double)room * c->size < spare * k);
}

static void oktopk_layout(struct compressor *c) {
    struct oktopk *s = c->state;
    const int64_t records = feedback_most_buckets(c) + 1, width = EDGES + c->size + 1;
    const int64_t pairs =
        (int64_t)(spare * (c->options.density * (double)c->elements + (double)records)) / c->size;
    /* Of C pairs each: mine and all of round 0, all and mine of round 1. */
    feedback_layout(c, 2 * (3 * c->size + 1) * (pairs + 2 * records));
    s->record = arena_take(&c->keep, DTYPE_I32, records, width);
    s->next_record = arena_take(&c->scratch, DTYPE_I32, records, width);
}

static int32_t *record_of(const struct tensor records, const struct bucket_view *b) {
    return tensor_i32(tensor_slice(records, b->offset / WHOLE_BELOW, 1));
}

static int32_t *next_of(const struct compressor *c, const struct bucket_view *b) {
    return record_of(((const struct oktopk *)c->state)->next_record, b);
}

static void copy_record(const struct compressor *c, int32_t *to, const int32_t *from) {
    memcpy(to, from, sizeof *to * (size_t)(EDGES + c->size + 1));
}

/* Elements of region r of the bucket. */
static struct tensor region(const struct compressor *c, const struct bucket_view *b, struct tensor bucket,
                            int r) {
    const int32_t *edge = next_of(c, b) + EDGES;
    return tensor_slice(bucket, edge[r], edge[r + 1] - edge[r]);
}

/* What to go by in this step, in the next record. Returns whether it is to be estimated anew. */
static bool recall(struct compressor *c, const struct bucket_view *b, int64_t step) {
    int32_t *next = next_of(c, b);
    copy_record(c, next, record_of(((const struct oktopk *)c->state)->record, b));
    const int32_t offset = (int32_t)(b->offset % INT32_MAX), count = (int32_t)b->count;
    if (next[OFFSET] == offset && next[COUNT] == count) return step % PERIOD == 0;
    next[OFFSET] = offset;
    next[COUNT] = count;
    for (int r = 0; r <= c->size; r++) next[EDGES + r] = (int32_t)(b->count * r / c->size);
    return true;
}

/* Elements of a region that reach the threshold; if they fill the room, its largest. They stay in x. */
static bool select_region(struct compressor *c, struct pairs sent, struct tensor x, float threshold) {
    const int64_t room = tensor_count(sent.index);
    c->device->select_above(NULL, sent.index, sent.value, x, threshold);
    if (tensor_i32(sent.index)[room - 1] < 0) return false;
    c->device->select_largest(NULL, sent.index, sent.value, x);
    c->device->scatter_add(NULL, x, sent.index, sent.value);
    return true;
}

static bool send_to_owners(struct compressor *c, const struct bucket_view *b, int64_t step,
                           struct payload *p) {
    const struct tensor error = feedback_add(c, b);
    const int64_t room = room_of(c, b->count), row = 2 * room;
    int32_t *next = next_of(c, b);
    float threshold;
    bool crowded = false;
    if (recall(c, b, step))
        c->device->kth_magnitude(NULL, &threshold, error, density_count(c->options.density, b->count));
    else
        memcpy(&threshold, &next[THRESHOLD], sizeof threshold);
    threshold = fmaxf(threshold, FLT_TRUE_MIN); /* zeros need not be sent */
    int32_t *words = tensor_i32(feedback_words(c, row * (3 * c->size + 1)));
    *p = (struct payload){.how = SEND_EXCHANGE,
                          .mine = tensor_of(words, DTYPE_I32, c->size, row),
                          .all = tensor_of(words + row * c->size, DTYPE_I32, c->size, row)};
    for (int r = 0; r < c->size; r++) {
        const struct pairs sent = pairs_of(payload_row(p->mine, r));
        crowded |= select_region(c, sent, region(c, b, error, r), threshold);
    }
    threshold *= crowded ? step_up : 1.0f;
    memcpy(&next[THRESHOLD], &threshold, sizeof threshold);
    return true;
}

/* The largest sums of this rank's region, which lie in the gradient. */
static bool send_sums(struct compressor *c, const struct bucket_view *b, struct payload *p) {
    const int64_t row = tensor_columns(p->mine);
    int32_t *words = tensor_i32(p->all) + c->size * row;
    *p = (struct payload){.how = SEND_GATHER,
                          .mine = tensor_of(words + c->size * row, DTYPE_I32, row),
                          .all = tensor_of(words, DTYPE_I32, c->size, row)};
    select_region(c, pairs_of(p->mine), region(c, b, b->gradient, c->rank), FLT_TRUE_MIN);
    return true;
}

static bool oktopk_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                            struct payload *p) {
    if (round == 1) return !feedback_sent_whole(b, p) && send_sums(c, b, p);
    return b->count < WHOLE_BELOW ? feedback_send_whole(c, b, p) : send_to_owners(c, b, step, p);
}

static void scatter_rows(struct compressor *c, const struct bucket_view *b, const struct payload *p,
                         int round) {
    c->device->fill_zero(NULL, b->gradient);
    for (int r = 0; r < c->size; r++) {
        const struct pairs sent = pairs_of(payload_row(p->all, r));
        c->device->scatter_add(NULL, region(c, b, b->gradient, round == 0 ? c->rank : r), sent.index,
                               sent.value);
    }
}

/* The error loses what this rank sent and the gradient holds. */
static void take_out(struct compressor *c, const struct bucket_view *b, const struct payload *p) {
    const int64_t row = tensor_columns(p->all);
    int32_t *sent = tensor_i32(p->all) - 2 * c->size * row; /* mine of round 0 */
    for (int r = 0; r < c->size; r++) {
        const struct pairs pairs = pairs_of(tensor_of(sent + r * row, DTYPE_I32, row));
        c->device->clear_at(NULL, region(c, b, feedback_error(c, b), r), pairs.index,
                            region(c, b, b->gradient, r));
    }
}

static int64_t present(struct pairs sent) {
    int64_t count = 0;
    for (int64_t i = 0; i < tensor_count(sent.index); i++) count += tensor_f32(sent.value)[i] != 0.0f;
    return count;
}

/* Regions that would have held equally many of the gradient's elements. The rows come in ascending order. */
static void balance(const struct compressor *c, const struct bucket_view *b, const struct payload *p) {
    int32_t *edge = next_of(c, b) + EDGES, new_edge[c->size + 1];
    int64_t total = 0, seen = 0;
    for (int r = 0; r < c->size; r++) total += present(pairs_of(payload_row(p->all, r)));
    int next = 1;
    for (int r = 0; r < c->size; r++) {
        const struct pairs sent = pairs_of(payload_row(p->all, r));
        for (int64_t i = 0; i < tensor_count(sent.index); i++) {
            if (tensor_f32(sent.value)[i] == 0.0f) continue;
            for (; next < c->size && seen >= total * next / c->size; next++)
                new_edge[next] = edge[r] + tensor_i32(sent.index)[i];
            seen++;
        }
    }
    if (next == c->size) memcpy(edge + 1, new_edge + 1, sizeof *edge * (size_t)(c->size - 1));
}

static bool estimated(const struct compressor *c, const struct bucket_view *b, int64_t step) {
    const int32_t *old = record_of(((const struct oktopk *)c->state)->record, b);
    return step % PERIOD == 0 || memcmp(old, next_of(c, b), sizeof *old * 2) != 0;
}

static void oktopk_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                              const struct payload *p) {
    if (feedback_sent_whole(b, p)) return;
    scatter_rows(c, b, p, round);
    if (round == 0) return;
    take_out(c, b, p);
    if (estimated(c, b, step)) balance(c, b, p);
}

static void oktopk_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    feedback_commit(c, b, step, accepted);
    if (accepted && b->count >= WHOLE_BELOW)
        copy_record(c, record_of(((const struct oktopk *)c->state)->record, b), next_of(c, b));
}

static void oktopk_visit(struct compressor *c, kept_take *take, void *context) {
    const struct oktopk *s = c->state;
    feedback_visit(c, take, context);
    take(context, &(struct kept){.name = "record", .share = SHARE_RANK, .tensor = s->record});
}

const struct compressor_method compress_oktopk = {
    .name = "oktopk",
    .help = "about the largest elements of the sum over ranks, the rest kept in a residual",
    .lossless = true,
    .rounds = 2,
    .state_bytes = sizeof(struct oktopk),
    .check = density_check,
    .layout = oktopk_layout,
    .residual = feedback_residual,
    .visit = oktopk_visit,
    .compress = oktopk_compress,
    .decompress = oktopk_decompress,
    .commit = oktopk_commit,
};
