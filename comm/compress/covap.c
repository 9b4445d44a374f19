/* COVAP (Meng, Sun, Li: arXiv 2311.04499): a coarse-grained filter over units of the gradient. Of interval I, unit u is reduced
 * in step s if (u + s) mod I == 0 (s counts from 1, as the paper's code does); the others stay in the residual r of each rank:
 *
 *     sent     y = sum over ranks (g + r),  r = 0        dropped  y = 0,  r = k(s) r + g
 *     k(s) = min(1, initial + increment * floor(s / period)): 1 loses nothing; less damps old gradients at the start
 *
 * Which units are sent follows from the step: no indices, no negotiation. What is kept changes only when the step is
 * accepted, so a step that is forgotten loses nothing: that is why a dropped unit's gradient is folded in at the end.
 *
 * `accumulate` is the plain competitor at the same volume: all units in every I-th step, nothing in between. */
#include <math.h>

#include "comm/compress.h"

struct covap {
    struct tensor residual; /* [elements] */
    bool used;        /* something has been folded in: until then there is nothing to add, not even a zero */
    int64_t interval; /* of the last step */
    int64_t since;    /* first step whose gradients can be held under this interval */
};

static void covap_layout(struct compressor *c) {
    struct covap *s = c->state;
    s->residual = arena_take(&c->keep, DTYPE_F32, c->elements);
}

static struct tensor covap_residual(const struct compressor *c) {
    return ((const struct covap *)c->state)->residual;
}

double covap_coefficient(const struct compress_options *o, int64_t step) {
    return fmin(1.0, o->ef_initial + o->ef_increment * floor((double)(step + 1) / (double)o->ef_period));
}

/* For accumulate, too. */
static void covap_visit(struct compressor *c, kept_take *take, void *context) {
    struct covap *s = c->state;
    const struct kept all[] = {
        {.name = "residual", .share = SHARE_SUM, .tensor = s->residual},
        {.name = "used", .type = NUMBER_FLAG, .number = &s->used, .count = 1},
        {.name = "interval", .type = NUMBER_WHOLE, .number = &s->interval, .count = 1},
        {.name = "since", .type = NUMBER_WHOLE, .number = &s->since, .count = 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take(context, &all[i]);
}

static bool covap_sends(const struct compressor *c, const struct bucket_view *b, int64_t step) {
    return (b->unit + step + 1) % c->options.interval == 0;
}

static bool accumulate_sends(const struct compressor *c, const struct bucket_view *b, int64_t step) {
    (void)b;
    return (step + 1) % c->options.interval == 0;
}

static struct tensor residual_of(const struct compressor *c, const struct bucket_view *b) {
    return tensor_slice(covap_residual(c), b->offset, b->count);
}

/* How many steps' gradients come together in a unit that is sent now. What an interval before this one has left over counts
 * as nothing: it is in the sum, only not in the number. */
static int64_t gradients_held(struct compressor *c, int64_t step) {
    struct covap *s = c->state;
    const int64_t most = step - s->since + 1, interval = c->options.interval;
    return most < 1 ? 1 : most < interval ? most : interval;
}

static bool send_or_hold(struct compressor *c, struct bucket_view *b, int64_t step, bool sends,
                         struct payload *p) {
    struct covap *s = c->state;
    if (s->interval != c->options.interval) {
        s->interval = c->options.interval;
        s->since = step;
    }
    b->gradients = sends ? gradients_held(c, step) : 0;
    if (!sends) return false;
    if (s->used) c->device->axpy(NULL, b->gradient, 1.0f, residual_of(c, b));
    *p = (struct payload){.how = SEND_SUM, .mine = b->gradient};
    return true;
}

static bool covap_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                           struct payload *p) {
    (void)round;
    return send_or_hold(c, b, step, covap_sends(c, b, step), p);
}

static bool accumulate_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                                struct payload *p) {
    (void)round;
    return send_or_hold(c, b, step, accumulate_sends(c, b, step), p);
}

static void fold(struct compressor *c, const struct bucket_view *b, bool sent, float keep, bool accepted) {
    struct covap *s = c->state;
    if (!accepted) return;
    if (!sent)
        c->device->residual_fold(NULL, residual_of(c, b), b->gradient, keep);
    else if (s->used)
        c->device->fill_zero(NULL, residual_of(c, b));
    s->used = s->used || !sent;
}

static void covap_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    fold(c, b, covap_sends(c, b, step), (float)covap_coefficient(&c->options, step), accepted);
}

static void accumulate_commit(struct compressor *c, const struct bucket_view *b, int64_t step,
                              bool accepted) {
    fold(c, b, accumulate_sends(c, b, step), 1.0f, accepted);
}

const struct compressor_method compress_covap = {
    .name = "covap",
    .help = "a part of the buckets in turn, the rest kept in a residual",
    .lossless = true,
    .units = true,
    .rounds = 1,
    .state_bytes = sizeof(struct covap),
    .layout = covap_layout,
    .residual = covap_residual,
    .visit = covap_visit,
    .compress = covap_compress,
    .commit = covap_commit,
};

const struct compressor_method compress_accumulate = {
    .name = "accumulate",
    .help = "everything in every interval-th step, no update in between",
    .lossless = true,
    .rounds = 1,
    .state_bytes = sizeof(struct covap),
    .layout = covap_layout,
    .residual = covap_residual,
    .visit = covap_visit,
    .compress = accumulate_compress,
    .commit = accumulate_commit,
};
