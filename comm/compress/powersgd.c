/* PowerSGD (Vogels, Karimireddy, Jaggi 2019): each parameter matrix M (R x C), with what was held back, becomes a product of
 * two thin ones, by one step of power iteration from the Q of the step before:
 *
 *     P_i = M_i Q,  P = orthogonalize(sum over ranks of P_i)      round 0, a sum of R r words
 *     Q_i = transpose(M_i) P,  Q = sum over ranks of Q_i          round 1, a sum of C r words
 *     gradient = P transpose(Q),   residual_i = M_i - P transpose(Q_i)
 *
 * Q_i is this rank's own, so the residual is what P does not span of M_i, and the residuals add up to the sum of the M_i
 * less the gradient. (Taking the mean over ranks off instead, as others do, adds up to the same, but lets what ranks differ in
 * pile up in their residuals.) Vectors, and matrices that this would not make at least twice as short, go dense with
 * round 0. */
#include "comm/compress/feedback.h"
#include "kernels/philox.h"

struct powersgd {
    struct feedback feedback;
    struct tensor q, next_q; /* the Q of all matrices, one behind the other, in keep and in scratch */
    struct tensor wire; /* [elements] in scratch; a bucket's part: P and dense parameters, Q, minus Q_i */
};

/* A parameter in the bucket and where its parts lie. */
struct part {
    int matrix;                  /* the next to look at */
    int64_t at_q;                /* in powersgd.q */
    int64_t at_first, at_second; /* in the payloads of the two rounds */
    int64_t next_q, next_first, next_second;
    const struct flat_matrix *shape;
    bool low_rank;
};

static bool pays(const struct compressor *c, const struct flat_matrix *m) {
    return 2 * (m->rows + m->columns) * c->options.rank <= m->rows * m->columns;
}

/* The parameter behind *part in the bucket; start from zeros. */
static bool next_part(const struct compressor *c, const struct bucket_view *b, struct part *part) {
    while (part->matrix < c->matrices) {
        const struct flat_matrix *m = part->shape = &c->matrix[part->matrix++];
        const int64_t rank = c->options.rank;
        part->low_rank = pays(c, m);
        part->at_q = part->next_q;
        part->next_q += part->low_rank ? m->columns * rank : 0;
        if (m->offset < b->offset) continue;
        if (m->offset >= b->offset + b->count) return false;
        part->at_first = part->next_first;
        part->at_second = part->next_second;
        part->next_first += part->low_rank ? m->rows * rank : m->rows * m->columns;
        part->next_second += part->low_rank ? m->columns * rank : 0;
        return true;
    }
    return false;
}

/* Lengths of the two payloads: those of the end. */
static struct part end_of(const struct compressor *c, const struct bucket_view *b) {
    struct part end = {0};
    while (next_part(c, b, &end)) {
    }
    return end;
}

static struct tensor in_range(struct tensor range, const struct flat_matrix *m) {
    return tensor_matrix(tensor_slice(range, m->offset, m->rows * m->columns), m->rows, m->columns);
}

static struct tensor matrix_at(struct tensor t, int64_t offset, int64_t rows, int64_t columns) {
    return tensor_matrix(tensor_slice(t, offset, rows * columns), rows, columns);
}

static struct tensor gradient_of(const struct bucket_view *b, const struct flat_matrix *m) {
    return matrix_at(b->gradient, m->offset - b->offset, m->rows, m->columns);
}

/* The bucket's part of wire: round 0, round 1, own round 1. It fits, as low-rank parts are at most half as long. */
static struct tensor wire_of(const struct compressor *c, const struct bucket_view *b) {
    const struct powersgd *s = c->state;
    return tensor_slice(s->wire, b->offset, b->count);
}

static void powersgd_layout(struct compressor *c) {
    struct powersgd *s = c->state;
    int64_t q = 0;
    for (int i = 0; i < c->matrices; i++)
        if (pays(c, &c->matrix[i])) q += c->matrix[i].columns * c->options.rank;
    feedback_layout(c, 0);
    s->q = arena_take(&c->keep, DTYPE_F32, q);
    s->next_q = arena_take(&c->scratch, DTYPE_F32, q);
    s->wire = arena_take(&c->scratch, DTYPE_F32, c->elements);
}

static uint64_t key_of(const struct compressor *c, const struct flat_matrix *m, const char *name) {
    return philox_key(c->options.seed, name, (uint64_t)m->offset, 0);
}

/* Q of the step before with orthonormal columns; at first, when it is zero, random ones, the same on all ranks. */
static struct tensor start_of(struct compressor *c, const struct part *part) {
    struct powersgd *s = c->state;
    const int64_t columns = part->shape->columns, rank = c->options.rank;
    const struct tensor next = matrix_at(s->next_q, part->at_q, columns, rank);
    c->device->cast(NULL, next, matrix_at(s->q, part->at_q, columns, rank), 1.0f);
    c->device->orthogonalize(NULL, next, key_of(c, part->shape, "powersgd q"));
    return next;
}

static bool send_first(struct compressor *c, const struct bucket_view *b, struct payload *p) {
    const struct powersgd *s = c->state;
    const struct tensor wire = wire_of(c, b);
    struct part i = {0};
    feedback_add(c, b);
    while (next_part(c, b, &i)) {
        const struct tensor error = in_range(s->feedback.error, i.shape);
        if (i.low_rank) {
            const struct tensor projection = matrix_at(wire, i.at_first, i.shape->rows, c->options.rank);
            c->device->matmul(NULL, projection, error, false, start_of(c, &i), false, 0.0f);
        } else {
            c->device->cast(NULL, tensor_slice(wire, i.at_first, tensor_count(error)), error, 1.0f);
            c->device->fill_zero(NULL, error);
        }
    }
    *p = (struct payload){.how = SEND_SUM, .mine = tensor_slice(wire, 0, i.next_first)};
    return true;
}

static bool send_second(struct compressor *c, const struct bucket_view *b, struct payload *p) {
    const struct powersgd *s = c->state;
    const struct part end = end_of(c, b);
    const struct tensor wire = wire_of(c, b), sum = tensor_slice(wire, end.next_first, end.next_second);
    const struct tensor own = tensor_slice(wire, end.next_first + end.next_second, end.next_second);
    for (struct part i = {0}; next_part(c, b, &i);) {
        if (!i.low_rank) continue;
        const struct tensor projection = matrix_at(wire, i.at_first, i.shape->rows, c->options.rank);
        c->device->orthogonalize(NULL, projection, key_of(c, i.shape, "powersgd p"));
        c->device->matmul(NULL, matrix_at(sum, i.at_second, i.shape->columns, c->options.rank),
                          in_range(s->feedback.error, i.shape), true, projection, false, 0.0f);
    }
    c->device->cast(NULL, own, sum, -1.0f);
    *p = (struct payload){.how = SEND_SUM, .mine = sum};
    return true;
}

static bool powersgd_compress(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                              struct payload *p) {
    (void)step;
    if (round == 1) return !feedback_sent_whole(b, p) && send_second(c, b, p);
    if (end_of(c, b).next_second == 0) return feedback_send_whole(c, b, p);
    return send_first(c, b, p);
}

/* gradient = P transpose(Q), error -= P transpose(Q_i), and the Q to start from next time. */
static void take_second(struct compressor *c, const struct bucket_view *b, const struct part *i,
                        struct tensor sum) {
    const struct powersgd *s = c->state;
    const int64_t rank = c->options.rank, length = tensor_count(sum);
    const struct tensor wire = wire_of(c, b),
                        own = tensor_slice(wire, end_of(c, b).next_first + length, length);
    const struct tensor p = matrix_at(wire, i->at_first, i->shape->rows, rank);
    const struct tensor q = matrix_at(sum, i->at_second, i->shape->columns, rank);
    c->device->matmul(NULL, gradient_of(b, i->shape), p, false, q, true, 0.0f);
    c->device->matmul(NULL, in_range(s->feedback.error, i->shape), p, false,
                      matrix_at(own, i->at_second, i->shape->columns, rank), true, 1.0f);
    c->device->cast(NULL, matrix_at(s->next_q, i->at_q, i->shape->columns, rank), q, 1.0f);
}

static void powersgd_decompress(struct compressor *c, const struct bucket_view *b, int64_t step, int round,
                                const struct payload *p) {
    (void)step;
    if (feedback_sent_whole(b, p)) return;
    for (struct part i = {0}; next_part(c, b, &i);)
        if (i.low_rank && round == 1)
            take_second(c, b, &i, p->mine);
        else if (!i.low_rank && round == 0)
            c->device->cast(NULL, gradient_of(b, i.shape),
                            matrix_at(p->mine, i.at_first, i.shape->rows, i.shape->columns), 1.0f);
}

static void powersgd_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted) {
    struct powersgd *s = c->state;
    feedback_commit(c, b, step, accepted);
    if (!accepted) return;
    for (struct part i = {0}; next_part(c, b, &i);)
        if (i.low_rank)
            c->device->cast(NULL, matrix_at(s->q, i.at_q, i.shape->columns, c->options.rank),
                            matrix_at(s->next_q, i.at_q, i.shape->columns, c->options.rank), 1.0f);
}

static void powersgd_visit(struct compressor *c, kept_take *take, void *context) {
    const struct powersgd *s = c->state;
    feedback_visit(c, take, context);
    int64_t at = 0;
    for (int i = 0; i < c->matrices; i++) {
        const struct flat_matrix *m = &c->matrix[i];
        if (!pays(c, m)) continue;
        const struct tensor q = matrix_at(s->q, at, m->columns, c->options.rank);
        take(context, &(struct kept){.name = "powersgd_q", .matrix = i, .tensor = q});
        at += m->columns * c->options.rank;
    }
}

static int powersgd_check(const struct compress_options *o, struct error *e) {
    if (o->rank >= 1) return 0;
    return error_set(e, "found rank %lld for compressor 'powersgd', expected at least 1", (long long)o->rank);
}

const struct compressor_method compress_powersgd = {
    .name = "powersgd",
    .help = "matrices as products of two of low rank, the rest kept in a residual",
    .lossless = true,
    .whole_matrices = true,
    .rounds = 2,
    .state_bytes = sizeof(struct powersgd),
    .check = powersgd_check,
    .layout = powersgd_layout,
    .residual = feedback_residual,
    .visit = powersgd_visit,
    .compress = powersgd_compress,
    .decompress = powersgd_decompress,
    .commit = powersgd_commit,
};
