/* Random-k with error feedback (Stich et al. 2018): k = max(1, density * n) elements of each bucket, one drawn out of each
 * of k equal blocks, so that none comes twice. All ranks draw the same (seed, step and place decide), so only values travel,
 * and a sum is enough: 2 k (p-1)/p words. */
#include "comm/compress/feedback.h"
#include "kernels/philox.h"

static void randomk_layout(struct compressor *c) {
    const int64_t pairs = (int64_t)(c->options.density * (double)c->elements) + feedback_most_buckets(c);
    feedback_layout(c, 2 * pairs);
}

static bool randomk_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                             struct payload *p) {
    (void)round;
    if (b->count < WHOLE_BELOW) return feedback_send_whole(c, b, p);
    const struct tensor error = feedback_add(c, b);
    const uint64_t key = philox_key(c->options.seed, "randomk", (uint64_t)step, (uint64_t)b->offset);
    const struct pairs mine = pairs_of(feedback_words(c, 2 * density_count(c->options.density, b->count)));
    c->device->select_random(NULL, mine.index, b->count, key);
    c->device->gather_at(NULL, mine.value, error, mine.index);
    c->device->clear_at(NULL, error, mine.index, (struct tensor){0});
    *p = (struct payload){.how = SEND_SUM, .mine = mine.value, .all = mine.index};
    return true;
}

static void randomk_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                               const struct payload *p) {
    (void)step, (void)round;
    if (feedback_sent_whole(b, p)) return;
    c->device->fill_zero(NULL, b->gradient);
    c->device->scatter_add(NULL, b->gradient, p->all, p->mine);
}

const struct compressor_method compress_randomk = {
    .name = "randomk",
    .help = "a random choice of elements, the same on all ranks, the rest kept in a residual",
    .lossless = true,
    .rounds = 1,
    .state_bytes = sizeof(struct feedback),
    .check = density_check,
    .layout = randomk_layout,
    .residual = feedback_residual,
    .visit = feedback_visit,
    .compress = randomk_compress,
    .decompress = randomk_decompress,
    .commit = feedback_commit,
};
