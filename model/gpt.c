/* A chunk of the model, or all of it: the parts outside the blocks, embedding, head and loss. model/block.c has the blocks. */
#include "model/gpt.h"

#include <stdlib.h>
#include <string.h>

#include "model/block.h"

static enum param_kind head_kind(const struct gpt *g) {
    return g->config.tied ? PARAM_WTE : PARAM_HEAD;
}

/* A tied token embedding is looked up in fp32 and multiplied rounded. */
static struct tensor head_weight(const struct gpt *g) {
    return param_view(param_find(&g->table, head_kind(g), -1), g->rounded);
}

/* (B,T) view of the first rows of a buffer. */
static struct tensor view_tokens(struct tensor t, const struct gpt_batch *b) {
    return tensor_of(t.data, t.dtype, b->sequences, b->positions);
}

static void check_rows(const struct gpt *g, const struct gpt_batch *b) {
    const int64_t rows = b->sequences * b->positions;
    CHECK(rows >= 1 && rows <= g->max_rows && b->positions <= g->config.context,
          "a micro-batch of %lld x %lld tokens in a model made for %lld, context %d", (long long)b->sequences,
          (long long)b->positions, (long long)g->max_rows, g->config.context);
}

/* Where a chunk's forward pass reads the residual stream. */
static struct tensor *stream_in(const struct gpt *g, const struct gpt_batch *b) {
    struct gpt_activations *kept = block_set(g, b);
    return g->chunk[b->chunk].layers ? &kept->block[0].x : &kept->x_out;
}

struct tensor gpt_input(const struct gpt *g, const struct gpt_batch *b) {
    return block_rows(g->incoming[b->chunk][b->input], b);
}

struct tensor gpt_output(const struct gpt *g, const struct gpt_batch *b) {
    return block_rows(block_set(g, b)->x_out, b);
}

struct tensor gpt_boundary_gradient(const struct gpt *g, const struct gpt_batch *b) {
    return block_rows(block_set(g, b)->dx, b);
}

/* The chunk's input: computed from the tokens, or what has arrived, which trades places with what the set held before. */
static void begin_stream(struct gpt *g, const struct gpt_batch *b) {
    struct gpt_activations *kept = block_set(g, b);
    struct tensor *x = stream_in(g, b), *incoming;
    if (g->chunk[b->chunk].embedding) {
        g->device->copy_in(g->stream, block_rows(kept->tokens, b), b->tokens);
        g->device->embedding_forward(g->stream, block_sequences(*x, b), view_tokens(kept->tokens, b),
                                     block_weight(g, PARAM_WTE, -1), block_weight(g, PARAM_WPE, -1),
                                     block_dropout(g, b, DROPOUT_EMBEDDING, 0));
        return;
    }
    incoming = &g->incoming[b->chunk][b->input];
    const struct tensor free_now = *x;
    *x = *incoming;
    *incoming = free_now;
}

/* Adds the block's last branch to the residual stream. The end of a block and the norm of what follows are one pass over the
 * rows; at the end of a chunk there is no norm. */
static void end_block(struct gpt *g, const struct gpt_batch *b, int l) {
    const struct gpt_chunk *chunk = &g->chunk[b->chunk];
    struct gpt_activations *kept = block_set(g, b);
    const bool last = l + 1 == chunk->first_layer + chunk->layers;
    const struct dropout drop = block_dropout(g, b, DROPOUT_MLP, l);
    const struct tensor mid = block_rows(block_activations(g, b, l)->mid, b), delta = block_rows(g->delta, b);
    if (last && !chunk->head) {
        g->device->residual_add(g->stream, block_rows(kept->x_out, b), mid, delta, drop);
        return;
    }
    const struct block_activations *next = last ? NULL : block_activations(g, b, l + 1);
    g->device->residual_layernorm_forward(
        g->stream, block_rows(last ? kept->x_out : next->x, b), block_rows(last ? kept->ln_f : next->ln1, b),
        block_rows(last ? kept->stats_f : next->stats1, b), mid, delta,
        last ? block_weight(g, PARAM_LN_F_W, -1) : block_weight(g, PARAM_LN_1_W, l + 1),
        last ? block_weight(g, PARAM_LN_F_B, -1) : block_weight(g, PARAM_LN_1_B, l + 1), drop);
}

void gpt_forward(struct gpt *g, const struct gpt_batch *b) {
    const struct device *d = g->device;
    const struct gpt_chunk *chunk = &g->chunk[b->chunk];
    struct gpt_activations *kept = block_set(g, b);
    check_rows(g, b);
    begin_stream(g, b);
    const struct tensor x = block_rows(*stream_in(g, b), b);
    if (chunk->layers) {
        const struct block_activations *k = &kept->block[0];
        d->layernorm_forward(g->stream, block_rows(k->ln1, b), block_rows(k->stats1, b), x,
                             block_weight(g, PARAM_LN_1_W, chunk->first_layer),
                             block_weight(g, PARAM_LN_1_B, chunk->first_layer));
    } else if (chunk->head) {
        d->layernorm_forward(g->stream, block_rows(kept->ln_f, b), block_rows(kept->stats_f, b), x,
                             block_weight(g, PARAM_LN_F_W, -1), block_weight(g, PARAM_LN_F_B, -1));
    }
    for (int l = chunk->first_layer; l < chunk->first_layer + chunk->layers; l++) {
        block_forward(g, b, l);
        end_block(g, b, l);
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

/* The head by pieces of rows: logits, loss, and with scale != 0 the gradients of head and final norm output (into dy). */
static struct gpt_loss run_head(struct gpt *g, const struct gpt_batch *b, float scale, bool accumulate) {
    const struct device *d = g->device;
    const int64_t rows = b->sequences * b->positions;
    const struct tensor w = head_weight(g), ln_f = block_set(g, b)->ln_f;
    check_rows(g, b);
    d->copy_in(g->stream, tensor_slice(g->targets, 0, rows), b->targets);
    for (int64_t first = 0; first < rows; first += g->chunk_rows) {
        const int64_t count = minimum(g->chunk_rows, rows - first);
        struct tensor x = tensor_slice(ln_f, first, count), logits = tensor_slice(g->logits, 0, count);
        d->matmul(g->stream, logits, x, false, w, true, 0.0f);
        d->cross_entropy(g->stream, tensor_slice(g->loss, first, count),
                         tensor_slice(g->correct, first, count), logits,
                         tensor_slice(g->targets, first, count), scale);
        if (scale == 0.0f) continue;
        d->matmul(g->stream, tensor_slice(g->dy, first, count), logits, false, w, false, 0.0f);
        d->matmul(g->stream, block_gradient(g, head_kind(g), -1), logits, true, x, false,
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

/* Head, loss and final norm; their gradients are final before those of the blocks in a split model, too, but lie before them. */
static struct gpt_loss backward_head(struct gpt *g, const struct gpt_batch *b,
                                     const struct gpt_backward_plan *plan, float beta) {
    const struct gpt_activations *kept = block_set(g, b);
    const struct tensor dx = block_rows(kept->dx, b);
    const struct gpt_loss sums = run_head(g, b, plan->scale, plan->accumulate);
    if (!g->config.tied && !g->split) tell_ready(g, plan, PARAM_HEAD, -1);
    g->device->fill_zero(g->stream, dx);
    g->device->layernorm_backward(g->stream, dx, block_gradient(g, PARAM_LN_F_W, -1),
                                  block_gradient(g, PARAM_LN_F_B, -1), block_rows(g->dy, b),
                                  block_rows(kept->x_out, b), block_rows(kept->stats_f, b),
                                  block_weight(g, PARAM_LN_F_W, -1), beta);
    if (!g->split) tell_ready(g, plan, PARAM_LN_F_B, -1);
    return sums;
}

static void backward_embedding(struct gpt *g, const struct gpt_batch *b, const struct gpt_backward_plan *plan,
                               float beta) {
    const struct gpt_activations *kept = block_set(g, b);
    const struct tensor dx = block_rows(kept->dx, b);
    const struct dropout drop = block_dropout(g, b, DROPOUT_EMBEDDING, 0);
    if (drop.rate > 0.0f) g->device->dropout_apply(g->stream, dx, dx, drop);
    /* A tied head in this model has written its part of the token embedding's gradient already. */
    const bool added = g->config.tied && !g->table.shares_embedding;
    g->device->embedding_backward(g->stream, block_gradient(g, PARAM_WTE, -1),
                                  block_gradient(g, PARAM_WPE, -1), block_sequences(kept->dx, b),
                                  view_tokens(kept->tokens, b), added ? 1.0f : beta, beta);
    if (!g->split) tell_ready(g, plan, PARAM_WTE, -1);
}

struct gpt_loss gpt_backward(struct gpt *g, const struct gpt_batch *b, const struct gpt_backward_plan *plan) {
    const struct gpt_chunk *chunk = &g->chunk[b->chunk];
    const float beta = plan->accumulate ? 1.0f : 0.0f;
    struct gpt_loss sums = {0};
    check_rows(g, b);
    if (chunk->head) sums = backward_head(g, b, plan, beta);
    for (int l = chunk->first_layer + chunk->layers - 1; l >= chunk->first_layer; l--) {
        if (g->config.recompute && g->whole != block_activations(g, b, l)) block_recompute(g, b, l);
        block_backward_mlp(g, b, l, beta);
        if (!g->split) tell_ready(g, plan, PARAM_LN_2_B, l);
        block_backward_attention(g, b, l, beta);
        if (!g->split) tell_ready(g, plan, PARAM_LN_1_B, l);
    }
    if (chunk->embedding) backward_embedding(g, b, plan, beta);
    return sums;
}

void gpt_backward_weights(struct gpt *g, const struct gpt_batch *b, const struct gpt_backward_plan *plan) {
    const struct gpt_chunk *chunk = &g->chunk[b->chunk];
    CHECK(g->split, "gradients of weights alone in a model that makes them with those of its activations");
    if (chunk->head) tell_ready(g, plan, PARAM_LN_F_B, -1);
    for (int l = chunk->first_layer + chunk->layers - 1; l >= chunk->first_layer; l--) {
        block_backward_weights(g, b, l, plan->accumulate ? 1.0f : 0.0f);
        tell_ready(g, plan, PARAM_LN_1_B, l);
    }
    if (chunk->embedding) tell_ready(g, plan, PARAM_WTE, -1);
}

void gpt_logits(struct gpt *g, int64_t row, float *logits) {
    g->device->matmul(g->stream, g->one_row, tensor_slice(g->kept[0][0].ln_f, row, 1), false, head_weight(g),
                      true, 0.0f);
    g->device->copy_out(g->stream, logits, g->one_row);
}

int64_t gpt_parameters(const struct gpt_config *c) {
    struct param_table table;
    param_table_create(&table, c, NULL, 0);
    const int64_t parameters = table.parameters;
    param_table_free(&table);
    return parameters;
}

double gpt_flops_per_token(const struct gpt_config *c, int64_t positions) {
    struct gpt_config tied = *c;
    tied.tied = true; /* the embedding look-up multiplies nothing: only one V x C matrix counts */
    const double matrices = (double)(gpt_parameters(&tied) - (int64_t)c->context * c->channels);
    return 6.0 * matrices + 12.0 * c->layers * (double)c->channels * (double)positions;
}
