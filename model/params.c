#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"

/* A dimension as a multiple of channels, or one of the sizes that are not. */
enum { VOCAB = -1, CONTEXT = -2, NONE = 0 };

enum init { ZEROS, ONES, NORMAL, RESIDUAL };

static const float INIT_STD =
    0.02f;               /* Radford et al. 2019; projections into the residual stream: / sqrt(2 layers) */
enum { ALIGNMENT = 16 }; /* elements: each parameter starts on a cache line */

static const struct {
    const char *name;
    int dim[2];
    enum init init;
    bool per_layer, product;
} kinds[PARAM_KINDS] = {
    [PARAM_HEAD] = {"lm_head.weight", {VOCAB, 1}, NORMAL, false, true},
    [PARAM_LN_F_W] = {"ln_f.weight", {1, NONE}, ONES, false, false},
    [PARAM_LN_F_B] = {"ln_f.bias", {1, NONE}, ZEROS, false, false},
    [PARAM_MLP_PROJ_W] = {"mlp.c_proj.weight", {4, 1}, RESIDUAL, true, true},
    [PARAM_MLP_PROJ_B] = {"mlp.c_proj.bias", {1, NONE}, ZEROS, true, true},
    [PARAM_FC_W] = {"mlp.c_fc.weight", {1, 4}, NORMAL, true, true},
    [PARAM_FC_B] = {"mlp.c_fc.bias", {4, NONE}, ZEROS, true, true},
    [PARAM_LN_2_W] = {"ln_2.weight", {1, NONE}, ONES, true, false},
    [PARAM_LN_2_B] = {"ln_2.bias", {1, NONE}, ZEROS, true, false},
    [PARAM_ATT_PROJ_W] = {"attn.c_proj.weight", {1, 1}, RESIDUAL, true, true},
    [PARAM_ATT_PROJ_B] = {"attn.c_proj.bias", {1, NONE}, ZEROS, true, true},
    [PARAM_QKV_W] = {"attn.c_attn.weight", {1, 3}, NORMAL, true, true},
    [PARAM_QKV_B] = {"attn.c_attn.bias", {3, NONE}, ZEROS, true, true},
    [PARAM_LN_1_W] = {"ln_1.weight", {1, NONE}, ONES, true, false},
    [PARAM_LN_1_B] = {"ln_1.bias", {1, NONE}, ZEROS, true, false},
    [PARAM_WPE] = {"wpe.weight", {CONTEXT, 1}, NORMAL, false, false},
    [PARAM_WTE] = {"wte.weight", {VOCAB, 1}, NORMAL, false, false},
};

static int64_t dimension(int code, const struct gpt_config *c) {
    return code == VOCAB ? c->vocab : code == CONTEXT ? c->context : (int64_t)code * c->channels;
}

static void table_add(struct param_table *table, enum param_kind kind, int layer,
                      const struct gpt_config *c) {
    struct param *p = &table->param[table->params];
    *p = (struct param){.kind = kind, .layer = layer, .offset = table->elements, .count = 1};
    if (layer < 0)
        snprintf(p->name, sizeof p->name, "%s", kinds[kind].name);
    else
        snprintf(p->name, sizeof p->name, "h.%d.%s", layer, kinds[kind].name);
    for (; p->ndim < 2 && kinds[kind].dim[p->ndim] != NONE; p->ndim++) {
        p->dim[p->ndim] = dimension(kinds[kind].dim[p->ndim], c);
        p->count *= p->dim[p->ndim];
    }
    enum init init = kinds[kind].init;
    p->init_mean = init == ONES ? 1.0f : 0.0f;
    p->init_std = init == NORMAL     ? INIT_STD
                  : init == RESIDUAL ? INIT_STD / sqrtf(2.0f * (float)c->layers)
                                     : 0.0f;
    p->decay = p->ndim == 2;
    p->product = kinds[kind].product;
    table->params++;
    table->parameters += p->count;
    table->elements += (p->count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* A kind outside the blocks. */
static bool has_kind(enum param_kind kind, const struct gpt_config *c, bool embedding, bool head) {
    switch (kind) {
    case PARAM_HEAD:
        return head && !c->tied;
    case PARAM_LN_F_W:
    case PARAM_LN_F_B:
        return head;
    case PARAM_WTE:
        return embedding || (head && c->tied);
    default:
        return embedding;
    }
}

/* A run of per-layer kinds: all of the last block held here, then all of the one before it, ... */
static void add_blocks(struct param_table *table, int first, int last, const struct gpt_config *c) {
    int held = 0;
    table->stride = last - first + 1;
    for (int k = first; k <= last; k++) table->index[k] = table->params + k - first;
    for (int layer = c->layers - 1; layer >= 0; layer--) {
        if (table->place[layer] < 0) continue;
        table->place[layer] = held++;
        for (int k = first; k <= last; k++) table_add(table, k, layer, c);
    }
}

void param_table_create(struct param_table *table, const struct gpt_config *c, const struct gpt_chunk *chunk,
                        int chunks) {
    const struct gpt_chunk whole = {true, 0, c->layers, true};
    if (!chunk) chunk = &whole, chunks = 1;
    *table = (struct param_table){.layers = c->layers};
    table->param = memory_alloc(sizeof *table->param * (size_t)(PARAM_KINDS * (c->layers + 1)));
    table->place = memory_alloc(sizeof *table->place * (size_t)c->layers);
    for (int layer = 0; layer < c->layers; layer++) table->place[layer] = -1;
    bool embedding = false, head = false;
    for (int i = 0; i < chunks; i++) {
        embedding = embedding || chunk[i].embedding;
        head = head || chunk[i].head;
        for (int layer = 0; layer < chunk[i].layers; layer++) table->place[chunk[i].first_layer + layer] = 0;
    }
    table->shares_embedding = c->tied && embedding != head;
    for (int kind = 0; kind < PARAM_KINDS; kind++) {
        table->index[kind] = table->params;
        if (!kinds[kind].per_layer) {
            if (has_kind(kind, c, embedding, head)) table_add(table, kind, -1, c);
            continue;
        }
        int last = kind;
        while (last + 1 < PARAM_KINDS && kinds[last + 1].per_layer) last++;
        add_blocks(table, kind, last, c);
        kind = last;
    }
}

void param_table_free(struct param_table *table) {
    free(table->param);
    free(table->place);
    *table = (struct param_table){0};
}

const struct param *param_find(const struct param_table *table, enum param_kind kind, int layer) {
    const int place = layer < 0 ? 0 : table->place[layer];
    const int at = table->index[kind] + table->stride * place;
    const struct param *p = &table->param[at];
    CHECK(place >= 0 && at < table->params && p->kind == kind && p->layer == layer,
          "the model has no parameter %s in layer %d here", kinds[kind].name, layer);
    return p;
}

struct tensor param_view(const struct param *p, struct tensor flat) {
    struct tensor t = tensor_slice(flat, p->offset, p->count);
    return tensor_make(t.data, t.dtype, p->ndim, p->dim);
}

void param_initialise(const struct param *p, uint64_t seed, float *values) {
    const uint64_t key = philox_key(seed, p->name, 0, 0);
    const int64_t quads = (p->count + 3) / 4;
#pragma omp parallel for
    for (int64_t q = 0; q < quads; q++) {
        struct philox draw = philox_draw(key, (uint64_t)q, 0);
        for (int pair = 0; pair < 2; pair++) {
            double u = (draw.word[2 * pair] + 0.5) / 4294967296.0; /* in (0, 1): the logarithm is finite */
            double angle = 2.0 * M_PI * (draw.word[2 * pair + 1] / 4294967296.0);
            double radius = p->init_std * sqrt(-2.0 * log(u));
            int64_t i = 4 * q + 2 * pair;
            if (i < p->count) values[i] = (float)(p->init_mean + radius * cos(angle));
            if (i + 1 < p->count) values[i + 1] = (float)(p->init_mean + radius * sin(angle));
        }
    }
}
