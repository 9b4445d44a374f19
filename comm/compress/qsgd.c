/* QSGD (Alistarh et al. 2017): magnitudes as multiples of norm / levels, rounded up or down at random so that the mean is
 * right; nothing is kept. Groups of 128 elements share a norm; an element takes a byte, so 33 words a group. What comes
 * out cannot be summed on the way: each rank receives all groups, which from 8 ranks on is more than the dense sum takes. */
#include "comm/compress/feedback.h"
#include "kernels/philox.h"

enum { GROUP = 128, GROUP_WORDS = 33 };

static int64_t words_of(int64_t elements) {
    return (elements + GROUP - 1) / GROUP * GROUP_WORDS;
}

static void qsgd_layout(struct compressor *c) {
    struct feedback *f = c->state;
    const int64_t groups = c->elements / GROUP + feedback_most_buckets(c);
    f->words = arena_take(&c->scratch, DTYPE_I32, groups * GROUP_WORDS * (1 + c->size));
}

static bool qsgd_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                          struct payload *p) {
    (void)round;
    *p = (struct payload){.how = SEND_SUM, .mine = b->gradient};
    if (b->count < WHOLE_BELOW) return true;
    *p = feedback_gather(c, words_of(b->count));
    const uint64_t key = philox_key(c->options.seed, "qsgd", (uint64_t)step, (uint64_t)c->rank);
    c->device->quantize(NULL, p->mine, b->gradient, c->options.levels, key, b->offset);
    return true;
}

static void qsgd_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                            const struct payload *p) {
    (void)step, (void)round;
    if (feedback_sent_whole(b, p)) return;
    c->device->fill_zero(NULL, b->gradient);
    for (int r = 0; r < c->size; r++)
        c->device->dequantize_add(NULL, b->gradient, payload_row(p->all, r), c->options.levels);
}

static int qsgd_check(const struct compress_options *o, struct error *e) {
    if (o->levels >= 1 && o->levels <= 127) return 0;
    return error_set(e, "found %lld levels for compressor 'qsgd', expected 1 to 127", (long long)o->levels);
}

const struct compressor_method compress_qsgd = {
    .name = "qsgd",
    .help = "every gradient in 8 bits, rounded at random without bias",
    .rounds = 1,
    .state_bytes = sizeof(struct feedback), /* only its words are used */
    .check = qsgd_check,
    .layout = qsgd_layout,
    .compress = qsgd_compress,
    .decompress = qsgd_decompress,
    .commit = feedback_release,
};
