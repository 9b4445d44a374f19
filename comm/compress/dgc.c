/* Deep gradient compression (Lin et al. 2018): top-k of accumulated momentum instead of gradients,
 *
 *     m = momentum * m + g,   v = v + m,   send the k largest of v,   m = v = 0 where it was sent (masking).
 *
 * The share that is sent falls from 1/4 to `density` in five equal spans of the steps before start_step, each lower by the
 * same factor: 0.25, 0.063, 0.016, 0.004, 0.001 for a density of 0.001. While pairs would take more than a dense sum
 * (k p >= n), and for short buckets, v is sent whole and m is left: that is SGD with momentum.
 *
 * Momentum correction stands in for the momentum of SGD, which must then be 0; before AdamW it is one more momentum. Left
 * out: local clipping, and sending one-dimensional parameters dense (buckets are cut without regard to parameters). */
#include <math.h>

#include "comm/compress/feedback.h"

static const double first_density = 0.25;
enum { SPANS = 5 };

struct dgc {
    struct feedback feedback; /* the residual is v */
    struct tensor momentum, next_momentum;
};

static double density_at(const struct compress_options *o, int64_t step) {
    if (step >= o->start_step || o->density >= first_density) return o->density;
    const double span = (double)(step * SPANS / o->start_step);
    return first_density * pow(o->density / first_density, span / (SPANS - 1));
}

static bool sends_whole(const struct compressor *c, int64_t k, int64_t n) {
    return n < WHOLE_BELOW || k == n || (c->size > 1 && k * c->size >= n);
}

static void dgc_layout(struct compressor *c) {
    struct dgc *s = c->state;
    const double most = fmax(c->options.density, first_density), useful = c->size > 1 ? 1.0 / c->size : 1.0;
    const int64_t pairs = (int64_t)(fmin(most, useful) * (double)c->elements) + feedback_most_buckets(c);
    feedback_layout(c, 2 * pairs * (1 + c->size));
    s->momentum = arena_take(&c->keep, DTYPE_F32, c->elements);
    s->next_momentum = arena_take(&c->scratch, DTYPE_F32, c->elements);
}

/* g = m = momentum * m + g, for what goes on like a gradient. */
static struct tensor correct(struct compressor *c, const struct bucket_view *b) {
    struct dgc *s = c->state;
    const struct tensor old = tensor_slice(s->momentum, b->offset, b->count);
    const struct tensor new = tensor_slice(s->next_momentum, b->offset, b->count);
    c->device->scale_add(NULL, new, (float)c->options.momentum, old, b->gradient);
    c->device->cast(NULL, b->gradient, new, 1.0f);
    return new;
}

static bool dgc_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                         struct payload *p) {
    (void)round;
    const int64_t k = density_count(density_at(&c->options, step), b->count);
    const struct tensor momentum = correct(c, b);
    if (sends_whole(c, k, b->count)) return feedback_send_whole(c, b, p);
    const struct tensor velocity = feedback_add(c, b);
    *p = feedback_gather(c, 2 * k);
    const struct pairs mine = pairs_of(p->mine);
    c->device->select_largest(NULL, mine.index, mine.value, velocity);
    c->device->clear_at(NULL, momentum, mine.index, (struct tensor){0});
    return true;
}

static void dgc_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                           const struct payload *p) {
    (void)step, (void)round;
    if (!feedback_sent_whole(b, p)) pairs_add_up(c, b, p);
}

static void dgc_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    struct dgc *s = c->state;
    feedback_commit(c, b, step, accepted);
    if (accepted)
        c->device->cast(NULL, tensor_slice(s->momentum, b->offset, b->count),
                        tensor_slice(s->next_momentum, b->offset, b->count), 1.0f);
}

/* Momentum is linear in the gradients: like the residual it counts as a sum over ranks. */
static void dgc_visit(struct compressor *c, kept_take *take, void *context) {
    const struct dgc *s = c->state;
    feedback_visit(c, take, context);
    take(context, &(struct kept){.name = "momentum", .share = SHARE_SUM, .tensor = s->momentum});
}

static int dgc_check(const struct compress_options *o, struct error *e) {
    if (density_check(o, e) != 0) return -1;
    if (!(o->momentum >= 0.0 && o->momentum < 1.0))
        return error_set(
            e, "found momentum correction %g for compressor 'dgc', expected at least 0 and less than 1",
            o->momentum);
    return 0;
}

const struct compressor_method compress_dgc = {
    .name = "dgc",
    .help = "top-k of accumulated momentum, denser at the start; made for SGD (whose momentum is then 0), "
            "before AdamW one "
            "more momentum",
    .starts_itself = true,
    .rounds = 1,
    .state_bytes = sizeof(struct dgc),
    .check = dgc_check,
    .layout = dgc_layout,
    .residual = feedback_residual,
    .visit = dgc_visit,
    .compress = dgc_compress,
    .decompress = dgc_decompress,
    .commit = dgc_commit,
};
