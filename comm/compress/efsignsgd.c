/* EF-SignSGD (Karimireddy et al. 2019): of the error p only signs travel, 32 to a word, and one scale, the mean of |p|, for
 * each parameter's piece of the bucket; zero counts as positive:
 *
 *     sent = mean(|p|) sign(p),   gradient = sum over ranks of what they sent,   residual = p - own part.
 *
 * Per element that is 1/32 of fp32, but signs with different scales cannot be summed on the way: each rank receives those
 * of all others, (p-1) n / 32 words, and decodes them all. */
#include "comm/compress/feedback.h"

/* The parts of a bucket that share a scale: a parameter's elements in it. Gaps between parameters belong to none. */
struct piece {
    int matrix;            /* the next to look at */
    int64_t offset, count; /* in the bucket */
    int64_t word;          /* of its scale, in the payload; its signs follow */
};

static int64_t piece_words(int64_t count) {
    return 1 + (count + 31) / 32;
}

/* The piece behind *piece; start from zeros. Without parameters the bucket is one piece. */
static bool next_piece(const struct compressor *c, const struct bucket_view *b, struct piece *piece) {
    if (piece->count > 0) piece->word += piece_words(piece->count);
    if (c->matrices == 0 && piece->matrix++ == 0) {
        piece->count = b->count;
        return true;
    }
    while (piece->matrix < c->matrices) {
        const struct flat_matrix *m = &c->matrix[piece->matrix++];
        const int64_t first = m->offset > b->offset ? m->offset : b->offset;
        const int64_t end = m->offset + m->rows * m->columns, last = b->offset + b->count;
        piece->offset = first - b->offset;
        piece->count = (end < last ? end : last) - first;
        if (piece->count > 0) return true;
    }
    piece->count = 0;
    return false;
}

static struct tensor scale_in(struct tensor payload, const struct piece *piece) {
    return tensor_of(tensor_i32(payload) + piece->word, DTYPE_F32, 1);
}

static struct tensor signs_in(struct tensor payload, const struct piece *piece) {
    return tensor_slice(payload, piece->word + 1, piece_words(piece->count) - 1);
}

static void add_signs(struct compressor *c, struct tensor to, struct tensor payload,
                      const struct piece *piece, float factor) {
    float scale;
    c->device->copy_out(NULL, &scale, scale_in(payload, piece));
    c->device->sign_add(NULL, tensor_slice(to, piece->offset, piece->count), factor * scale,
                        signs_in(payload, piece));
}

static void efsignsgd_layout(struct compressor *c) {
    /* A piece begins where a bucket or a parameter does; it needs a scale and rounds up. */
    const int64_t pieces = feedback_most_buckets(c) + c->matrices;
    feedback_layout(c, (c->elements / 32 + 2 * pieces) * (1 + c->size));
}

static bool efsignsgd_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                               struct payload *p) {
    (void)step, (void)round;
    if (b->count < WHOLE_BELOW) return feedback_send_whole(c, b, p);
    const struct tensor error = feedback_add(c, b);
    struct piece end = {0};
    while (next_piece(c, b, &end)) {
    }
    *p = feedback_gather(c, end.word);
    for (struct piece i = {0}; next_piece(c, b, &i);) {
        const struct tensor part = tensor_slice(error, i.offset, i.count);
        double sum;
        c->device->sum_magnitudes(NULL, &sum, part);
        const float scale = (float)(sum / (double)i.count);
        c->device->copy_in(NULL, scale_in(p->mine, &i), &scale);
        c->device->sign_pack(NULL, signs_in(p->mine, &i), part);
        add_signs(c, error, p->mine, &i, -1.0f);
    }
    return true;
}

static void efsignsgd_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                                 const struct payload *p) {
    (void)step, (void)round;
    if (feedback_sent_whole(b, p)) return;
    c->device->fill_zero(NULL, b->gradient);
    for (struct piece i = {0}; next_piece(c, b, &i);)
        for (int r = 0; r < c->size; r++) add_signs(c, b->gradient, payload_row(p->all, r), &i, 1.0f);
}

const struct compressor_method compress_efsignsgd = {
    .name = "efsignsgd",
    .help = "signs and a scale for each parameter, the rest kept in a residual",
    .lossless = true,
    .rounds = 1,
    .state_bytes = sizeof(struct feedback),
    .layout = efsignsgd_layout,
    .residual = feedback_residual,
    .visit = feedback_visit,
    .compress = efsignsgd_compress,
    .decompress = efsignsgd_decompress,
    .commit = feedback_commit,
};
