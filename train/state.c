#include "train/state.h"

#include <stdio.h>

/* Hugging Face keeps the head outside the transformer. */
static void name_tensor(char *name, size_t size, const struct param *p, const char *part) {
    snprintf(name, size, "%s%s%s%s", p->kind == PARAM_HEAD ? "" : "transformer.", p->name, *part ? "." : "",
             part);
}

/* Each parameter's part of a flat tensor. */
static void visit_flat(const struct gpt *g, struct tensor flat, const char *part, enum state_file file,
                       enum share share, state_take *take, void *context) {
    for (int i = 0; i < g->table.params; i++) {
        const struct param *p = &g->table.param[i];
        struct state_tensor t = {.file = file, .share = share, .tensor = param_view(p, flat)};
        name_tensor(t.name, sizeof t.name, p, part);
        take(context, &t);
    }
}

void state_visit_weights(const struct gpt *g, state_take *take, void *context) {
    visit_flat(g, g->weight, "", STATE_MODEL, SHARE_SAME, take, context);
}

/* The compressor's list on its way into ours. */
struct relay {
    const struct gpt *gpt;
    state_take *take;
    void *context;
};

static void take_kept(void *context, const struct kept *kept) {
    const struct relay *r = context;
    if (!kept->tensor.data) return;
    struct state_tensor t = {.share = kept->share, .tensor = kept->tensor};
    switch (kept->share) {
    case SHARE_SUM:
        visit_flat(r->gpt, kept->tensor, kept->name, STATE_RANK, SHARE_SUM, r->take, r->context);
        return;
    case SHARE_SAME:
        t.file = STATE_COMPRESSOR;
        name_tensor(t.name, sizeof t.name, &r->gpt->table.param[kept->matrix], kept->name);
        break;
    case SHARE_RANK:
        t.file = STATE_RANK;
        snprintf(t.name, sizeof t.name, "%s", kept->name);
        break;
    }
    r->take(r->context, &t);
}

void state_visit_tensors(struct trainer *t, state_take *take, void *context) {
    const char *name;
    struct relay relay = {&t->gpt, take, context};
    state_visit_weights(&t->gpt, take, context);
    for (int i = 0; (name = optimizer_moment_name(&t->optimizer, i)); i++)
        visit_flat(&t->gpt, t->optimizer.moment[i], name, STATE_OPTIMIZER, SHARE_SAME, take, context);
    reducer_visit(&t->reducer, take_kept, &relay);
}

struct number_relay {
    kept_take *take;
    void *context;
};

static void take_number(void *context, const struct kept *kept) {
    const struct number_relay *r = context;
    if (!kept->tensor.data) r->take(r->context, kept);
}

void state_visit_switched_numbers(struct trainer *t, kept_take *take, void *context) {
    if (t->loss_scale.dynamic) loss_scale_visit(&t->loss_scale, take, context);
    if (t->reducer.tuner.active) tuner_visit(&t->reducer.tuner, take, context);
}

void state_visit_numbers(struct trainer *t, kept_take *take, void *context) {
    struct number_relay relay = {take, context};
    reducer_visit(&t->reducer, take_number, &relay);
}
