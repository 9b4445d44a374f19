#include "train/optimizer.h"

#include <math.h>
#include <string.h>

struct optimizer_rule {
    const char *name;
    int moments; /* flat tensors it keeps */
    void (*update)(const struct optimizer *o, struct gpt *g, const struct param *p, float lr, float scale);
};

static void update_adamw(const struct optimizer *o, struct gpt *g, const struct param *p, float lr,
                         float scale) {
    const struct adamw_step step = {.lr = lr,
                                    .beta1 = o->options.beta1,
                                    .beta2 = o->options.beta2,
                                    .eps = o->options.eps,
                                    .decay = p->decay ? o->options.weight_decay : 0.0f,
                                    .grad_scale = scale,
                                    .step = o->step};
    g->device->adamw(g->stream, param_view(p, g->weight), param_view(p, g->gradient),
                     param_view(p, o->moment[0]), param_view(p, o->moment[1]), step);
}

static void update_sgd(const struct optimizer *o, struct gpt *g, const struct param *p, float lr,
                       float scale) {
    const struct sgd_step step = {.lr = lr,
                                  .momentum = o->options.momentum,
                                  .decay = p->decay ? o->options.weight_decay : 0.0f,
                                  .grad_scale = scale};
    g->device->sgd(g->stream, param_view(p, g->weight), param_view(p, g->gradient),
                   param_view(p, o->moment[0]), step);
}

static const struct optimizer_rule rules[] = {{"adamw", 2, update_adamw}, {"sgd", 1, update_sgd}};

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

double optimizer_gradient_norm(const struct gpt *g) {
    double squares = 0.0;
    g->device->sum_squares(g->stream, &squares, g->gradient);
    return sqrt(squares);
}

void optimizer_update(struct optimizer *o, struct gpt *g, double lr, double norm) {
    const double clip = o->options.clip;
    const float scale = clip > 0.0 && norm > clip ? (float)(clip / norm) : 1.0f;
    o->step++;
    for (int i = 0; i < g->table.params; i++) o->rule->update(o, g, &g->table.param[i], (float)lr, scale);
}
