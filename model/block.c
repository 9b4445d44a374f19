#include "model/block.h"

#include "kernels/philox.h"

static const char *const place_names[] = {
    [DROPOUT_EMBEDDING] = "dropout embedding",
    [DROPOUT_PROBABILITIES] = "dropout probabilities",
    [DROPOUT_ATTENTION] = "dropout attention",
    [DROPOUT_MLP] = "dropout mlp",
};

struct dropout block_dropout(const struct gpt *g, const struct gpt_batch *b, enum dropout_place place,
                             int layer) {
    if (!b->training || g->config.dropout == 0.0f) return (struct dropout){0};
    const int64_t heads = place == DROPOUT_PROBABILITIES ? g->config.heads : 1;
    return (struct dropout){
        .rate = g->config.dropout,
        .key = philox_key(b->seed, place_names[place], (uint64_t)b->step, (uint64_t)layer),
        .first_row = b->first_sequence * heads * b->positions,
    };
}

struct gpt_activations *block_set(const struct gpt *g, const struct gpt_batch *b) {
    return &g->kept[b->chunk][b->set];
}

struct block_activations *block_activations(const struct gpt *g, const struct gpt_batch *b, int l) {
    return &block_set(g, b)->block[l - g->chunk[b->chunk].first_layer];
}

struct tensor block_weight(const struct gpt *g, enum param_kind kind, int layer) {
    const struct param *p = param_find(&g->table, kind, layer);
    return param_view(p, p->product ? g->rounded : g->weight);
}

struct tensor block_gradient(const struct gpt *g, enum param_kind kind, int layer) {
    return param_view(param_find(&g->table, kind, layer), g->gradient);
}

struct tensor block_rows(struct tensor t, const struct gpt_batch *b) {
    return tensor_slice(t, 0, b->sequences * b->positions);
}

struct tensor block_sequences(struct tensor t, const struct gpt_batch *b) {
    return tensor_of(t.data, t.dtype, b->sequences, b->positions, tensor_columns(t));
}

static struct tensor lse_of(const struct gpt *g, const struct block_activations *k,
                            const struct gpt_batch *b) {
    const struct tensor t = k->lse;
    return tensor_of(t.data, t.dtype, b->sequences, g->config.heads, b->positions);
}

/* The attention half and the first MLP layer: everything the backward pass reads. */
static void forward_to_gelu(struct gpt *g, const struct gpt_batch *b, int l) {
    const struct device *d = g->device;
    const struct block_activations *k = block_activations(g, b, l);
    g->whole = k;
    d->linear_forward(g->stream, block_rows(k->qkv, b), block_rows(k->ln1, b),
                      block_weight(g, PARAM_QKV_W, l), block_weight(g, PARAM_QKV_B, l));
    d->attention_forward(g->stream, block_sequences(k->att, b), lse_of(g, k, b), block_sequences(k->qkv, b),
                         block_dropout(g, b, DROPOUT_PROBABILITIES, l));
    d->linear_forward(g->stream, block_rows(g->delta, b), block_rows(k->att, b),
                      block_weight(g, PARAM_ATT_PROJ_W, l), block_weight(g, PARAM_ATT_PROJ_B, l));
    d->residual_layernorm_forward(g->stream, block_rows(k->mid, b), block_rows(k->ln2, b),
                                  block_rows(k->stats2, b), block_rows(k->x, b), block_rows(g->delta, b),
                                  block_weight(g, PARAM_LN_2_W, l), block_weight(g, PARAM_LN_2_B, l),
                                  block_dropout(g, b, DROPOUT_ATTENTION, l));
    d->linear_gelu_forward(g->stream, block_rows(k->act, b), block_rows(k->pre, b), block_rows(k->ln2, b),
                           block_weight(g, PARAM_FC_W, l), block_weight(g, PARAM_FC_B, l));
}

void block_forward(struct gpt *g, const struct gpt_batch *b, int l) {
    forward_to_gelu(g, b, l);
    g->device->linear_forward(g->stream, block_rows(g->delta, b),
                              block_rows(block_activations(g, b, l)->act, b),
                              block_weight(g, PARAM_MLP_PROJ_W, l), block_weight(g, PARAM_MLP_PROJ_B, l));
}

void block_recompute(struct gpt *g, const struct gpt_batch *b, int l) {
    const struct block_activations *k = block_activations(g, b, l);
    g->device->layernorm_forward(g->stream, block_rows(k->ln1, b), block_rows(k->stats1, b),
                                 block_rows(k->x, b), block_weight(g, PARAM_LN_1_W, l),
                                 block_weight(g, PARAM_LN_1_B, l));
    forward_to_gelu(g, b, l);
}

/* y = x w: the gradient of w from dy. */
static void weight_backward(struct gpt *g, const struct gpt_batch *b, struct tensor dy, struct tensor x,
                            enum param_kind weight, int l, float beta) {
    g->device->matmul(g->stream, block_gradient(g, weight, l), block_rows(x, b), true, block_rows(dy, b),
                      false, beta);
}

/* y = x w: the gradient of x into dx; and that of w, unless the model is split. */
static void linear_backward(struct gpt *g, const struct gpt_batch *b, struct tensor dx, struct tensor dy,
                            struct tensor x, enum param_kind weight, int l, float beta) {
    if (!g->split) weight_backward(g, b, dy, x, weight, l, beta);
    g->device->matmul(g->stream, block_rows(dx, b), block_rows(dy, b), false, block_weight(g, weight, l),
                      true, 0.0f);
}

/* The gradient of a branch: that of the residual stream, through the branch's dropout where there is one, rounded as the
 * branch was. A split model keeps it in `own`, as the residual stream's goes on. */
static struct tensor branch_gradient(struct gpt *g, const struct gpt_batch *b, enum dropout_place place,
                                     int l, struct tensor own) {
    const struct dropout drop = block_dropout(g, b, place, l);
    const struct tensor dx = block_set(g, b)->dx;
    if (drop.rate == 0.0f && dx.dtype == own.dtype && !g->split) return dx;
    g->device->dropout_apply(g->stream, block_rows(own, b), block_rows(dx, b), drop);
    return own;
}

void block_backward_mlp(struct gpt *g, const struct gpt_batch *b, int l, float beta) {
    const struct device *d = g->device;
    const struct block_activations *k = block_activations(g, b, l);
    const struct tensor dy = branch_gradient(g, b, DROPOUT_MLP, l, k->d_mlp);
    d->bias_backward(g->stream, block_gradient(g, PARAM_MLP_PROJ_B, l), block_rows(dy, b), beta);
    linear_backward(g, b, k->d_pre, dy, k->act, PARAM_MLP_PROJ_W, l, beta);
    d->gelu_backward(g->stream, block_rows(k->d_pre, b), block_gradient(g, PARAM_FC_B, l),
                     block_rows(k->pre, b), beta);
    linear_backward(g, b, g->dy, k->d_pre, k->ln2, PARAM_FC_W, l, beta);
    d->layernorm_backward(g->stream, block_rows(block_set(g, b)->dx, b), block_gradient(g, PARAM_LN_2_W, l),
                          block_gradient(g, PARAM_LN_2_B, l), block_rows(g->dy, b), block_rows(k->mid, b),
                          block_rows(k->stats2, b), block_weight(g, PARAM_LN_2_W, l), beta);
}

void block_backward_attention(struct gpt *g, const struct gpt_batch *b, int l, float beta) {
    const struct device *d = g->device;
    const struct block_activations *k = block_activations(g, b, l);
    const struct tensor dy = branch_gradient(g, b, DROPOUT_ATTENTION, l, k->d_att);
    d->bias_backward(g->stream, block_gradient(g, PARAM_ATT_PROJ_B, l), block_rows(dy, b), beta);
    /* The forward pass is done with delta: it holds the gradient of the attention output. */
    linear_backward(g, b, g->delta, dy, k->att, PARAM_ATT_PROJ_W, l, beta);
    d->attention_backward(g->stream, block_sequences(k->d_qkv, b), block_sequences(g->delta, b),
                          block_sequences(k->att, b), lse_of(g, k, b), block_sequences(k->qkv, b),
                          block_dropout(g, b, DROPOUT_PROBABILITIES, l));
    d->bias_backward(g->stream, block_gradient(g, PARAM_QKV_B, l), block_rows(k->d_qkv, b), beta);
    linear_backward(g, b, g->dy, k->d_qkv, k->ln1, PARAM_QKV_W, l, beta);
    d->layernorm_backward(g->stream, block_rows(block_set(g, b)->dx, b), block_gradient(g, PARAM_LN_1_W, l),
                          block_gradient(g, PARAM_LN_1_B, l), block_rows(g->dy, b), block_rows(k->x, b),
                          block_rows(k->stats1, b), block_weight(g, PARAM_LN_1_W, l), beta);
}

void block_backward_weights(struct gpt *g, const struct gpt_batch *b, int l, float beta) {
    const struct block_activations *k = block_activations(g, b, l);
    weight_backward(g, b, k->d_mlp, k->act, PARAM_MLP_PROJ_W, l, beta);
    weight_backward(g, b, k->d_pre, k->ln2, PARAM_FC_W, l, beta);
    weight_backward(g, b, k->d_att, k->att, PARAM_ATT_PROJ_W, l, beta);
    weight_backward(g, b, k->d_qkv, k->ln1, PARAM_QKV_W, l, beta);
}
