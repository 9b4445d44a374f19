/* Top-k with error feedback (Aji & Heafield 2017; Stich et al. 2018): each rank sends the k = max(1, density * n) elements
 * of its bucket that are largest in magnitude, as pairs of index and value. The ranks choose differently, so the pairs
 * cannot be summed on the way: each rank receives all of them, 2 k (p-1) words, and adds them up in the order of ranks.
 * From a density of 1/p on that is more than the dense sum takes. */
#include "comm/compress/feedback.h"

static void topk_layout(struct compressor *c) {
    const int64_t pairs = (int64_t)(c->options.density * (double)c->elements) + feedback_most_buckets(c);
    feedback_layout(c, 2 * pairs * (1 + c->size));
}

static bool topk_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                          struct payload *p) {
    (void)step, (void)round;
    if (b->count < WHOLE_BELOW) return feedback_send_whole(c, b, p);
    const struct tensor error = feedback_add(c, b);
    *p = feedback_gather(c, 2 * density_count(c->options.density, b->count));
    const struct pairs mine = pairs_of(p->mine);
    c->device->select_largest(NULL, mine.index, mine.value, error);
    return true;
}

static void topk_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                            const struct payload *p) {
    (void)step, (void)round;
    if (!feedback_sent_whole(b, p)) pairs_add_up(c, b, p);
}

const struct compressor_method compress_topk = {
    .name = "topk",
    .help = "each rank's largest elements, the rest kept in a residual",
    .lossless = true,
    .rounds = 1,
    .state_bytes = sizeof(struct feedback),
    .check = density_check,
    .layout = topk_layout,
    .residual = feedback_residual,
    .visit = feedback_visit,
    .compress = topk_compress,
    .decompress = topk_decompress,
    .commit = feedback_commit,
};
