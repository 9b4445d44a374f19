#include "comm/compress/feedback.h"

int64_t feedback_most_buckets(const struct compressor *c) {
    return c->elements / WHOLE_BELOW;
}

void feedback_layout(struct compressor *c, int64_t words) {
    struct feedback *f = c->state;
    f->residual = arena_take(&c->keep, DTYPE_F32, c->elements);
    f->error = arena_take(&c->scratch, DTYPE_F32, c->elements);
    f->words = arena_take(&c->scratch, DTYPE_I32, words);
}

struct tensor feedback_residual(const struct compressor *c) {
    return ((const struct feedback *)c->state)->residual;
}

void feedback_visit(struct compressor *c, kept_take *take, void *context) {
    take(context, &(struct kept){.name = "residual", .share = SHARE_SUM, .tensor = feedback_residual(c)});
}

static struct tensor residual_of(const struct compressor *c, const struct bucket_view *b) {
    return tensor_slice(feedback_residual(c), b->offset, b->count);
}

struct tensor feedback_error(const struct compressor *c, const struct bucket_view *b) {
    return tensor_slice(((const struct feedback *)c->state)->error, b->offset, b->count);
}

void feedback_release(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    (void)b, (void)step, (void)accepted;
    ((struct feedback *)c->state)->used = 0;
}

void feedback_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    feedback_release(c, b, step, accepted);
    if (accepted) c->device->cast(NULL, residual_of(c, b), feedback_error(c, b), 1.0f);
}

struct tensor feedback_add(struct compressor *c, const struct bucket_view *b) {
    const struct tensor error = feedback_error(c, b);
    c->device->scale_add(NULL, error, 1.0f, residual_of(c, b), b->gradient);
    return error;
}

bool feedback_send_whole(struct compressor *c, const struct bucket_view *b, struct payload *p) {
    c->device->axpy(NULL, b->gradient, 1.0f, residual_of(c, b));
    c->device->fill_zero(NULL, feedback_error(c, b));
    *p = (struct payload){.how = SEND_SUM, .mine = b->gradient};
    return true;
}

bool feedback_sent_whole(const struct bucket_view *b, const struct payload *p) {
    return p->mine.data == b->gradient.data;
}

struct tensor feedback_words(struct compressor *c, int64_t words) {
    struct feedback *f = c->state;
    const struct tensor taken = tensor_slice(f->words, f->used, words);
    f->used += words;
    return taken;
}

struct pairs pairs_of(struct tensor words) {
    const int64_t k = tensor_count(words) / 2;
    return (struct pairs){.index = tensor_of(words.data, DTYPE_I32, k),
                          .value = tensor_of(tensor_i32(words) + k, DTYPE_F32, k)};
}

struct tensor payload_row(struct tensor all, int r) {
    const int64_t n = tensor_columns(all);
    return tensor_of(tensor_i32(all) + r * n, DTYPE_I32, n);
}

struct payload feedback_gather(struct compressor *c, int64_t n) {
    const struct tensor words = feedback_words(c, n * (1 + c->size));
    return (struct payload){.how = SEND_GATHER,
                            .mine = tensor_slice(words, 0, n),
                            .all = tensor_of(tensor_i32(words) + n, DTYPE_I32, c->size, n)};
}

int64_t density_count(double density, int64_t n) {
    const int64_t k = (int64_t)(density * (double)n);
    return k < 1 ? 1 : k;
}

int density_check(const struct compress_options *o, struct error *e) {
    if (o->density > 0.0 && o->density <= 1.0) return 0;
    return error_set(e, "found density %g for compressor '%s', expected more than 0 and at most 1",
                     o->density, o->method);
}

void pairs_add_up(struct compressor *c, const struct bucket_view *b, const struct payload *p) {
    c->device->fill_zero(NULL, b->gradient);
    for (int r = 0; r < c->size; r++) {
        const struct pairs sent = pairs_of(payload_row(p->all, r));
        c->device->scatter_add(NULL, b->gradient, sent.index, sent.value);
    }
}
