#include "train/optimizer.h"

#include <math.h>
#include <string.h>

/* A run of elements that are updated alike. */
struct run {
    int64_t offset, count;
    float lr, decay, grad_scale;
    int64_t step, gradients;
};

struct optimizer_rule {
    const char *name;
    int moments;           /* flat tensors it keeps */
    const char *moment[2]; /* their names */
    void (*update)(const struct optimizer *o, struct gpt *g, const struct run *run);
};

static struct tensor part(struct tensor flat, const struct run *run) {
    return tensor_slice(flat, run->offset, run->count);
}

static void update_adamw(const struct optimizer *o, struct gpt *g, const struct run *run) {
    const struct adamw_step step = {.lr = run->lr,
                                    .beta1 = o->options.beta1,
                                    .beta2 = o->options.beta2,
                                    .eps = o->options.eps,
                                    .decay = run->decay,
                                    .grad_scale = run->grad_scale,
                                    .step = run->step,
                                    .gradients = run->gradients};
    g->device->adamw(g->stream, part(g->weight, run), part(g->gradient, run), part(o->moment[0], run),
                     part(o->moment[1], run), step);
}

static void update_sgd(const struct optimizer *o, struct gpt *g, const struct run *run) {
    const struct sgd_step step = {
        .lr = run->lr, .momentum = o->options.momentum, .decay = run->decay, .grad_scale = run->grad_scale};
    g->device->sgd(g->stream, part(g->weight, run), part(g->gradient, run), part(o->moment[0], run), step);
}

static const struct optimizer_rule rules[] = {{"adamw", 2, {"exp_avg", "exp_avg_sq"}, update_adamw},
                                              {"sgd", 1, {"momentum_buffer"}, update_sgd}};

void optimizer_create(struct optimizer *o, const struct optimizer_options *options, const struct gpt *g) {
    *o = (struct optimizer){.options = *options, .memory.device = g->device};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].name, options->rule) == 0) o->rule = &rules[i];
    CHECK(o->rule, "no optimizer '%s'", options->rule);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < o->rule->moments; i++)
            o->moment[i] = arena_take(&o->memory, DTYPE_F32, g->table.elements);
        if (pass == 0) arena_commit(&o->memory);
    }
}

void optimizer_free(struct optimizer *o) {
    arena_free(&o->memory);
}

const char *optimizer_moment_name(const struct optimizer *o, int i) {
    return i < o->rule->moments ? o->rule->moment[i] : NULL;
}

static int part_of(const struct param *p, int layers) {
    if (p->layer >= 0) return layers - p->layer;
    return p->kind == PARAM_WTE ? layers + 2 : p->kind == PARAM_WPE ? layers + 1 : 0;
}

void optimizer_gradient_squares(const struct gpt *g, double *squares) {
    const struct param_table *t = &g->table;
    const int layers = g->config.layers;
    memset(squares, 0, sizeof *squares * (size_t)(layers + OPTIMIZER_OTHER_PARTS));
    for (int i = 0, next; i < t->params; i = next) {
        const struct param *p = &t->param[i];
        const int where = part_of(p, layers);
        for (next = i + 1; next < t->params && part_of(&t->param[next], layers) == where;) next++;
        const int64_t end = next < t->params ? t->param[next].offset : t->elements;
        if (p->kind == PARAM_WTE && !g->chunk[0].embedding) continue; /* counted with the embedding */
        g->device->sum_squares(g->stream, &squares[where],
                               tensor_slice(g->gradient, p->offset, end - p->offset));
    }
}

void optimizer_update(struct optimizer *o, struct gpt *g, double lr, double norm,
                      const struct optimizer_range *range, int ranges, int64_t step) {
    const struct optimizer_range everything = {.count = g->table.elements, .gradients = 1};
    const double clip = o->options.clip;
    const float scale = clip > 0.0 && norm > clip ? (float)(clip / norm) : 1.0f;
    if (!range) range = &everything, ranges = 1;
    int r = 0;
    for (int i = 0; i < g->table.params; i++) {
        const struct param *p = &g->table.param[i];
        while (range[r].offset + range[r].count <= p->offset) r++;
        for (int k = r; k < ranges && range[k].offset < p->offset + p->count; k++) {
            const int64_t first = maximum(p->offset, range[k].offset);
            const int64_t end = minimum(p->offset + p->count, range[k].offset + range[k].count);
            const struct run run = {
                first, end - first, (float)lr,         p->decay ? o->options.weight_decay : 0.0f,
                scale, step,        range[k].gradients};
            if (range[k].gradients > 0) o->rule->update(o, g, &run);
        }
    }
    gpt_round_weights(g);
}
