#include "train/state.h"

#include <stdio.h>

/* Hugging Face keeps the head outside the transformer. */
static void name_tensor(char *name, size_t size, const struct param *p, const char *part) {
    snprintf(name, size, "%s%s%s%s", p->kind == PARAM_HEAD ? "" : "transformer.", p->name, *part ? "." : "",
             part);
}

void state_name_weight(const struct param *p, char name[STATE_NAME]) {
    name_tensor(name, STATE_NAME, p, "");
}

/* A run of parameters and the part of the flat range in which they lie. */
struct span {
    const struct gpt *gpt;
    int first, end; /* parameters */
    int64_t start;  /* elements */
};

static struct span everything(const struct gpt *g) {
    return (struct span){g, 0, g->table.params, 0};
}

/* The embedding beside the head, where the first stage has it, too. */
static bool is_copy(const struct gpt *g, const struct param *p) {
    return g->table.shares_embedding && p->kind == PARAM_WTE && !g->chunk[0].embedding;
}

/* Each parameter's part of a flat tensor over the span. */
static void visit_flat(struct span span, struct tensor flat, const char *part, enum state_file file,
                       enum share share, state_take *take, void *context) {
    for (int i = span.first; i < span.end; i++) {
        const struct param *p = &span.gpt->table.param[i];
        const struct tensor piece = tensor_slice(flat, p->offset - span.start, p->count);
        struct state_tensor t = {.file = file,
                                 .share = share,
                                 .copy = is_copy(span.gpt, p),
                                 .tensor = tensor_make(piece.data, piece.dtype, p->ndim, p->dim)};
        name_tensor(t.name, sizeof t.name, p, part);
        take(context, &t);
    }
}

void state_visit_weights(const struct gpt *g, state_take *take, void *context) {
    visit_flat(everything(g), g->weight, "", STATE_MODEL, SHARE_SAME, take, context);
}

/* A compressor's list on its way into ours. */
struct relay {
    struct span span; /* what it compresses */
    state_take *take; /* of tensors, and of numbers; NULL: not asked for */
    kept_take *take_number;
    void *context;
};

static void take_kept(void *context, const struct kept *kept) {
    const struct relay *r = context;
    if (!kept->tensor.data && r->take_number) r->take_number(r->context, kept);
    if (!kept->tensor.data || !r->take) return;
    const struct param *p = &r->span.gpt->table.param[r->span.first + kept->matrix];
    struct state_tensor t = {.share = kept->share, .tensor = kept->tensor};
    switch (kept->share) {
    case SHARE_SUM:
        visit_flat(r->span, kept->tensor, kept->name, STATE_RANK, SHARE_SUM, r->take, r->context);
        return;
    case SHARE_SAME:
        t.file = STATE_COMPRESSOR;
        t.copy = is_copy(r->span.gpt, p);
        name_tensor(t.name, sizeof t.name, p, kept->name);
        break;
    case SHARE_RANK:
        t.file = STATE_RANK;
        if (r->span.first == 0)
            snprintf(t.name, sizeof t.name, "%s", kept->name);
        else
            name_tensor(t.name, sizeof t.name, p, kept->name);
        break;
    }
    r->take(r->context, &t);
}

/* The compressors of a rank: one, and one more for an embedding that it shares with another stage. */
static void visit_compressors(struct trainer *t, struct relay *relay) {
    const struct reducer *r = &t->reducer;
    const struct gpt *g = &t->gpt;
    const int own = g->table.params - (r->shared != NULL);
    const struct span span[] = {{g, 0, own, 0}, {g, own, g->table.params, r->own}};
    struct bucket_engine *const engine[] = {r->engine, r->shared};
    for (int i = 0; i < 2 && engine[i]; i++) {
        struct compressor *c = engine[i]->compressor;
        relay->span = span[i];
        if (c->method->visit) c->method->visit(c, take_kept, relay);
    }
}

void state_visit_tensors(struct trainer *t, state_take *take, void *context) {
    const char *name;
    struct relay relay = {.take = take, .context = context};
    state_visit_weights(&t->gpt, take, context);
    for (int i = 0; (name = optimizer_moment_name(&t->optimizer, i)); i++)
        visit_flat(everything(&t->gpt), t->optimizer.moment[i], name, STATE_OPTIMIZER, SHARE_SAME, take,
                   context);
    visit_compressors(t, &relay);
}

void state_visit_switched_numbers(struct trainer *t, kept_take *take, void *context) {
    if (t->loss_scale.dynamic) loss_scale_visit(&t->loss_scale, take, context);
    if (t->reducer.tuner.active) tuner_visit(&t->reducer.tuner, take, context);
}

void state_visit_numbers(struct trainer *t, kept_take *take, void *context) {
    struct relay relay = {.take_number = take, .context = context};
    reducer_visit(&t->reducer, take, context);
    visit_compressors(t, &relay);
}
