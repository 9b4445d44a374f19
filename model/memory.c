/* Memory of a model, or of the stage of one: parameters, gradients, activations. */
#include <stdlib.h>

#include "model/gpt.h"

enum { LOGIT_CHUNK_ELEMENTS = 1 << 23 }; /* 32 MiB of logits at most, whatever batch and context */

/* Chunks of equal size, as few as keep the logits within their bound. */
static int64_t chunk_rows_for(int64_t rows, int64_t vocab) {
    int64_t most = LOGIT_CHUNK_ELEMENTS / vocab;
    if (most < 1) most = 1;
    int64_t chunks = (rows + most - 1) / most;
    return (rows + chunks - 1) / chunks;
}

/* What the forward pass of a block leaves. */
static void layout_block(struct arena *a, struct block_activations *k, const struct gpt_config *c,
                         int64_t N) {
    const int64_t C = c->channels;
    k->ln1 = arena_take(a, c->precision, N, C);
    k->stats1 = arena_take(a, DTYPE_F32, N, 2);
    k->qkv = arena_take(a, c->precision, N, 3 * C);
    k->lse = arena_take(a, DTYPE_F32, N, c->heads);
    k->att = arena_take(a, c->precision, N, C);
    k->mid = arena_take(a, DTYPE_F32, N, C);
    k->ln2 = arena_take(a, c->precision, N, C);
    k->stats2 = arena_take(a, DTYPE_F32, N, 2);
    k->pre = arena_take(a, c->precision, N, 4 * C);
    k->act = arena_take(a, c->precision, N, 4 * C);
}

/* Where its backward pass leaves the gradients: in a split model each block has its own, partly in memory that the backward
 * pass is done with by then. */
static void layout_gradients(struct gpt *g, struct block_activations *k) {
    struct arena *a = &g->activation_memory;
    const int64_t N = g->max_rows, C = g->config.channels;
    const enum dtype precision = g->config.precision;
    k->d_mlp = g->split ? arena_take(a, precision, N, C) : g->dy;
    k->d_pre = g->split ? arena_take(a, precision, N, 4 * C) : g->dwide;
    k->d_att = tensor_of(g->split ? k->mid.data : g->dy.data, precision, N, C);
    k->d_qkv = tensor_of(g->split ? k->pre.data : g->dwide.data, precision, N, 3 * C);
}

/* With recompute or for inference, one block's memory serves all: that of `shared`. */
static void layout_chunk(struct gpt *g, const struct gpt_chunk *chunk, struct gpt_activations *kept,
                         bool training, struct block_activations **shared) {
    struct arena *a = &g->activation_memory;
    const struct gpt_config *c = &g->config;
    const int64_t N = g->max_rows, C = c->channels;
    const bool share = c->recompute || !training;
    if (chunk->embedding) kept->tokens = arena_take(a, DTYPE_I32, N);
    for (int l = 0; l < chunk->layers; l++) {
        struct block_activations *k = &kept->block[l];
        if (share && *shared)
            *k = **shared;
        else
            layout_block(a, k, c, N);
        if (training || !*shared) k->x = arena_take(a, DTYPE_F32, N, C);
        if (training) layout_gradients(g, k);
        if (!*shared) *shared = k;
    }
    kept->x_out = training ? arena_take(a, DTYPE_F32, N, C) : kept->block[0].x;
    if (training) kept->dx = arena_take(a, DTYPE_F32, N, C);
    if (!chunk->head) return;
    kept->ln_f = arena_take(a, c->precision, N, C);
    kept->stats_f = arena_take(a, DTYPE_F32, N, 2);
}

static void layout_activations(struct gpt *g, bool training) {
    struct arena *a = &g->activation_memory;
    const int64_t N = g->max_rows, C = g->config.channels;
    const enum dtype precision = g->config.precision;
    struct block_activations *shared = NULL;
    bool head = false;
    g->delta = arena_take(a, precision, N, C);
    if (training) {
        g->dy = arena_take(a, precision, N, C);
        g->dwide = arena_take(a, precision, N, 4 * C);
    }
    for (int i = 0; i < g->chunks; i++) {
        head = head || g->chunk[i].head;
        for (int input = 0; input < g->inputs[i]; input++)
            g->incoming[i][input] = arena_take(a, DTYPE_F32, N, C);
        for (int set = 0; set < g->sets[i]; set++)
            layout_chunk(g, &g->chunk[i], &g->kept[i][set], training, &shared);
    }
    if (!head) return;
    g->targets = arena_take(a, DTYPE_I32, N);
    g->loss = arena_take(a, DTYPE_F32, N);
    g->correct = arena_take(a, DTYPE_F32, N);
    g->logits = arena_take(a, precision, g->chunk_rows, g->config.vocab);
    g->one_row = arena_take(a, DTYPE_F32, 1, g->config.vocab);
}

static void copy_stage(struct gpt *g, const struct gpt_stage *stage) {
    g->split = stage->split;
    g->chunks = stage->chunks;
    g->chunk = memory_alloc(sizeof *g->chunk * (size_t)g->chunks);
    g->sets = memory_alloc(sizeof *g->sets * (size_t)g->chunks);
    g->inputs = memory_alloc(sizeof *g->inputs * (size_t)g->chunks);
    g->incoming = memory_alloc(sizeof *g->incoming * (size_t)g->chunks);
    g->kept = memory_alloc(sizeof *g->kept * (size_t)g->chunks);
    for (int i = 0; i < g->chunks; i++) {
        g->chunk[i] = stage->chunk[i];
        g->sets[i] = stage->sets[i];
        g->inputs[i] = stage->inputs[i];
        g->incoming[i] = memory_alloc_zeroed(sizeof *g->incoming[i] * (size_t)g->inputs[i]);
        g->kept[i] = memory_alloc_zeroed(sizeof *g->kept[i] * (size_t)g->sets[i]);
        for (int set = 0; set < g->sets[i]; set++)
            g->kept[i][set].block =
                memory_alloc_zeroed(sizeof *g->kept[i][set].block * (size_t)(g->chunk[i].layers + 1));
    }
}

static void create(struct gpt *g, const struct gpt_config *config, const struct device *device,
                   int64_t max_sequences, const struct gpt_stage *stage, bool training) {
    *g = (struct gpt){.config = *config, .device = device, .max_rows = max_sequences * config->context};
    CHECK(config->channels % config->heads == 0, "%d channels do not split into %d heads", config->channels,
          config->heads);
    CHECK(!stage->split || !config->recompute,
          "a split backward pass needs the activations that recompute drops");
    copy_stage(g, stage);
    param_table_create(&g->table, config, g->chunk, g->chunks);
    g->chunk_rows = chunk_rows_for(g->max_rows, config->vocab);
    g->parameter_memory.device = g->gradient_memory.device = g->activation_memory.device = device;
    for (int pass = 0; pass < 2; pass++) {
        g->rounded = g->weight = arena_take(&g->parameter_memory, DTYPE_F32, g->table.elements);
        if (config->precision != DTYPE_F32)
            g->rounded = arena_take(&g->parameter_memory, config->precision, g->table.elements);
        if (training) g->gradient = arena_take(&g->gradient_memory, DTYPE_F32, g->table.elements);
        layout_activations(g, training);
        if (pass) break;
        arena_commit(&g->parameter_memory);
        if (training) arena_commit(&g->gradient_memory);
        arena_commit(&g->activation_memory);
    }
}

void gpt_create(struct gpt *g, const struct gpt_config *config, const struct device *device,
                int64_t max_sequences, bool training) {
    const struct gpt_chunk whole = {true, 0, config->layers, true};
    const struct gpt_stage stage = {
        .chunk = &whole, .sets = (const int[]){1}, .inputs = (const int[]){0}, .chunks = 1};
    create(g, config, device, max_sequences, &stage, training);
}

void gpt_create_stage(struct gpt *g, const struct gpt_config *config, const struct device *device,
                      int64_t max_sequences, const struct gpt_stage *stage) {
    create(g, config, device, max_sequences, stage, true);
}

void gpt_free(struct gpt *g) {
    arena_free(&g->parameter_memory);
    arena_free(&g->gradient_memory);
    arena_free(&g->activation_memory);
    param_table_free(&g->table);
    for (int i = 0; i < g->chunks; i++) {
        for (int set = 0; set < g->sets[i]; set++) free(g->kept[i][set].block);
        free(g->kept[i]);
        free(g->incoming[i]);
    }
    free(g->kept);
    free(g->incoming);
    free(g->inputs);
    free(g->sets);
    free(g->chunk);
    *g = (struct gpt){0};
}

void gpt_initialise(struct gpt *g, uint64_t seed) {
    for (int i = 0; i < g->table.params; i++) {
        const struct param *p = &g->table.param[i];
        float *values = memory_alloc(sizeof *values * (size_t)p->count);
        param_initialise(p, seed, values);
        g->device->copy_in(g->stream, param_view(p, g->weight), values);
        free(values);
    }
    gpt_round_weights(g);
}

void gpt_round_weights(struct gpt *g) {
    if (g->rounded.data != g->weight.data) g->device->cast(g->stream, g->rounded, g->weight, 1.0f);
}

int64_t gpt_memory_bytes(const struct gpt *g) {
    return (int64_t)(g->parameter_memory.size + g->gradient_memory.size + g->activation_memory.size);
}
