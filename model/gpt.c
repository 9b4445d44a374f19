/* Memory of the model, and the parts outside the blocks: embedding, head and loss. model/block.c has the blocks. */
#include "model/gpt.h"

#include <stdlib.h>
#include <string.h>

#include "model/block.h"

enum { LOGIT_CHUNK_ELEMENTS = 1 << 23 }; /* 32 MiB of logits at most, whatever batch and context */

static int64_t minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Chunks of equal size, as few as keep the logits within their bound. */
static int64_t chunk_rows_for(int64_t rows, int64_t vocab) {
    int64_t most = LOGIT_CHUNK_ELEMENTS / vocab;
    if (most < 1) most = 1;
    int64_t chunks = (rows + most - 1) / most;
    return (rows + chunks - 1) / chunks;
}

static void layout_block(struct arena *a, struct block_activations *block, const struct gpt_config *c,
                         int64_t rows) {
    const int64_t C = c->channels;
    block->ln1 = arena_take(a, c->precision, rows, C);
    block->stats1 = arena_take(a, DTYPE_F32, rows, 2);
    block->qkv = arena_take(a, c->precision, rows, 3 * C);
    block->lse = arena_take(a, DTYPE_F32, rows, c->heads);
    block->att = arena_take(a, c->precision, rows, C);
    block->mid = arena_take(a, DTYPE_F32, rows, C);
    block->ln2 = arena_take(a, c->precision, rows, C);
    block->stats2 = arena_take(a, DTYPE_F32, rows, 2);
    block->pre = arena_take(a, c->precision, rows, 4 * C);
    block->act = arena_take(a, c->precision, rows, 4 * C);
}

static void layout_activations(struct gpt *g, bool training) {
    struct arena *a = &g->activation_memory;
    const struct gpt_config *c = &g->config;
    const int64_t N = g->max_rows, C = c->channels;
    const bool share = c->recompute || !training;
    g->tokens = arena_take(a, DTYPE_I32, N);
    g->targets = arena_take(a, DTYPE_I32, N);
    g->loss = arena_take(a, DTYPE_F32, N);
    g->correct = arena_take(a, DTYPE_F32, N);
    for (int l = 0; l < c->layers; l++) {
        if (l == 0 || !share)
            layout_block(a, &g->block[l], c, N);
        else
            g->block[l] = g->block[0];
        if (l == 0 || training) g->block[l].x = arena_take(a, DTYPE_F32, N, C);
    }
    g->x_final = training ? arena_take(a, DTYPE_F32, N, C) : g->block[0].x;
    g->ln_f = arena_take(a, c->precision, N, C);
    g->stats_f = arena_take(a, DTYPE_F32, N, 2);
    g->delta = arena_take(a, c->precision, N, C);
    g->logits = arena_take(a, c->precision, g->chunk_rows, c->vocab);
    g->one_row = arena_take(a, DTYPE_F32, 1, c->vocab);
    if (!training) return;
    g->dx = arena_take(a, DTYPE_F32, N, C);
    g->dy = arena_take(a, c->precision, N, C);
    g->dwide = arena_take(a, c->precision, N, 4 * C);
}

void gpt_create(struct gpt *g, const struct gpt_config *config, const struct device *device,
                int64_t max_sequences, bool training) {
    *g = (struct gpt){.config = *config, .device = device, .max_rows = max_sequences * config->context};
    CHECK(config->channels % config->heads == 0, "%d channels do not split into %d heads", config->channels,
          config->heads);
    param_table_create(&g->table, config);
    g->chunk_rows = chunk_rows_for(g->max_rows, config->vocab);
    g->block = memory_alloc_zeroed(sizeof *g->block * (size_t)config->layers);
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

void gpt_free(struct gpt *g) {
    arena_free(&g->parameter_memory);
    arena_free(&g->gradient_memory);
    arena_free(&g->activation_memory);
    param_table_free(&g->table);
    free(g->block);
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

static struct tensor weight_of(const struct gpt *g, enum param_kind kind) {
    return param_view(param_find(&g->table, kind, -1), g->weight);
}

static struct tensor gradient_of(const struct gpt *g, enum param_kind kind) {
    return param_view(param_find(&g->table, kind, -1), g->gradient);
}

static enum param_kind head_kind(const struct gpt *g) {
    return g->config.tied ? PARAM_WTE : PARAM_HEAD;
}

/* A tied token embedding is looked up in fp32 and multiplied rounded. */
static struct tensor head_weight(const struct gpt *g) {
    return param_view(param_find(&g->table, head_kind(g), -1), g->rounded);
}

/* (B,T) or (B,T,C) views of the first rows of a buffer. */
static struct tensor view_tokens(struct tensor t, const struct gpt_batch *b) {
    return tensor_of(t.data, t.dtype, b->sequences, b->positions);
}

static struct tensor view_sequences(struct tensor t, const struct gpt_batch *b) {
    return tensor_of(t.data, t.dtype, b->sequences, b->positions, tensor_columns(t));
}

static int64_t batch_rows(const struct gpt *g, const struct gpt_batch *b) {
    const int64_t rows = b->sequences * b->positions;
    CHECK(rows >= 1 && rows <= g->max_rows && b->positions <= g->config.context,
          "a micro-batch of %lld x %lld tokens in a model made for %lld, context %d", (long long)b->sequences,
          (long long)b->positions, (long long)g->max_rows, g->config.context);
    return rows;
}

void gpt_forward(struct gpt *g, const struct gpt_batch *b) {
    const struct device *d = g->device;
    const int64_t rows = batch_rows(g, b);
    const int layers = g->config.layers;
    d->copy_in(g->stream, tensor_slice(g->tokens, 0, rows), b->tokens);
    d->embedding_forward(g->stream, view_sequences(g->block[0].x, b), view_tokens(g->tokens, b),
                         weight_of(g, PARAM_WTE), weight_of(g, PARAM_WPE),
                         block_dropout(g, b, DROPOUT_EMBEDDING, 0));
    d->layernorm_forward(g->stream, tensor_slice(g->block[0].ln1, 0, rows),
                         tensor_slice(g->block[0].stats1, 0, rows), tensor_slice(g->block[0].x, 0, rows),
                         block_weight(g, PARAM_LN_1_W, 0), block_weight(g, PARAM_LN_1_B, 0));
    for (int l = 0; l < layers; l++) {
        const bool last = l + 1 == layers;
        block_forward(g, b, l);
        /* The end of this block and the first norm of what follows are one pass over the rows. */
        struct block_activations *next = last ? NULL : &g->block[l + 1];
        d->residual_layernorm_forward(
            g->stream, tensor_slice(last ? g->x_final : next->x, 0, rows),
            tensor_slice(last ? g->ln_f : next->ln1, 0, rows),
            tensor_slice(last ? g->stats_f : next->stats1, 0, rows), tensor_slice(g->block[l].mid, 0, rows),
            tensor_slice(g->delta, 0, rows),
            last ? weight_of(g, PARAM_LN_F_W) : block_weight(g, PARAM_LN_1_W, l + 1),
            last ? weight_of(g, PARAM_LN_F_B) : block_weight(g, PARAM_LN_1_B, l + 1),
            block_dropout(g, b, DROPOUT_MLP, l));
    }
}

/* Sums of the per-position results, in double and in order. */
static struct gpt_loss loss_sums(struct gpt *g, int64_t rows) {
    float *host = memory_alloc(2 * sizeof *host * (size_t)rows);
    struct gpt_loss sums = {0};
    g->device->copy_out(g->stream, host, tensor_slice(g->loss, 0, rows));
    g->device->copy_out(g->stream, host + rows, tensor_slice(g->correct, 0, rows));
    for (int64_t i = 0; i < rows; i++) {
        sums.loss += host[i];
        sums.correct += host[rows + i];
    }
    free(host);
    return sums;
}

/* The head by chunks of rows: logits, loss, and with scale != 0 the gradients of head and final norm output (into dy). */
static struct gpt_loss run_head(struct gpt *g, const struct gpt_batch *b, float scale, bool accumulate) {
    const struct device *d = g->device;
    const int64_t rows = batch_rows(g, b);
    const struct tensor w = head_weight(g);
    d->copy_in(g->stream, tensor_slice(g->targets, 0, rows), b->targets);
    for (int64_t first = 0; first < rows; first += g->chunk_rows) {
        const int64_t count = minimum(g->chunk_rows, rows - first);
        struct tensor x = tensor_slice(g->ln_f, first, count), logits = tensor_slice(g->logits, 0, count);
        d->matmul(g->stream, logits, x, false, w, true, 0.0f);
        d->cross_entropy(g->stream, tensor_slice(g->loss, first, count),
                         tensor_slice(g->correct, first, count), logits,
                         tensor_slice(g->targets, first, count), scale);
        if (scale == 0.0f) continue;
        d->matmul(g->stream, tensor_slice(g->dy, first, count), logits, false, w, false, 0.0f);
        d->matmul(g->stream, gradient_of(g, head_kind(g)), logits, true, x, false,
                  accumulate || first > 0 ? 1.0f : 0.0f);
    }
    return loss_sums(g, rows);
}

struct gpt_loss gpt_evaluate(struct gpt *g, const struct gpt_batch *b) {
    return run_head(g, b, 0.0f, false);
}

static void tell_ready(const struct gpt *g, const struct gpt_backward_plan *plan, enum param_kind kind,
                       int layer) {
    if (!plan->ready) return;
    const struct param *p = param_find(&g->table, kind, layer);
    const bool last = p == &g->table.param[g->table.params - 1];
    plan->ready(plan->context, last ? g->table.elements : p[1].offset);
}

struct gpt_loss gpt_backward(struct gpt *g, const struct gpt_batch *b, const struct gpt_backward_plan *plan) {
    const struct device *d = g->device;
    const int64_t rows = batch_rows(g, b);
    const float beta = plan->accumulate ? 1.0f : 0.0f;
    const struct gpt_loss sums = run_head(g, b, plan->scale, plan->accumulate);
    if (!g->config.tied) tell_ready(g, plan, PARAM_HEAD, -1);

    struct tensor dx = tensor_slice(g->dx, 0, rows);
    d->fill_zero(g->stream, dx);
    d->layernorm_backward(g->stream, dx, gradient_of(g, PARAM_LN_F_W), gradient_of(g, PARAM_LN_F_B),
                          tensor_slice(g->dy, 0, rows), tensor_slice(g->x_final, 0, rows),
                          tensor_slice(g->stats_f, 0, rows), weight_of(g, PARAM_LN_F_W), beta);
    tell_ready(g, plan, PARAM_LN_F_B, -1);

    for (int l = g->config.layers - 1; l >= 0; l--) {
        if (g->config.recompute && l + 1 < g->config.layers)
            block_recompute(g, b, l); /* the last is still whole */
        block_backward_mlp(g, b, l, beta);
        tell_ready(g, plan, PARAM_LN_2_B, l);
        block_backward_attention(g, b, l, beta);
        tell_ready(g, plan, PARAM_LN_1_B, l);
    }

    const struct dropout drop = block_dropout(g, b, DROPOUT_EMBEDDING, 0);
    if (drop.rate > 0.0f) d->dropout_apply(g->stream, dx, dx, drop);
    /* A tied head has written its part of the token embedding's gradient already. */
    d->embedding_backward(g->stream, gradient_of(g, PARAM_WTE), gradient_of(g, PARAM_WPE),
                          view_sequences(g->dx, b), view_tokens(g->tokens, b), g->config.tied ? 1.0f : beta,
                          beta);
    tell_ready(g, plan, PARAM_WTE, -1);
    return sums;
}

void gpt_logits(struct gpt *g, int64_t row, float *logits) {
    g->device->matmul(g->stream, g->one_row, tensor_slice(g->ln_f, row, 1), false, head_weight(g), true,
                      0.0f);
    g->device->copy_out(g->stream, logits, g->one_row);
}

double gpt_flops_per_token(const struct gpt_config *c, int64_t positions) {
    struct gpt_config tied = *c;
    tied.tied = true; /* the embedding look-up multiplies nothing: only one V x C matrix counts */
    struct param_table table;
    param_table_create(&table, &tied);
    const double matrices = (double)(table.parameters - (int64_t)c->context * c->channels);
    param_table_free(&table);
    return 6.0 * matrices + 12.0 * c->layers * (double)c->channels * (double)positions;
}
