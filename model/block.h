/* One transformer block: x + attention(norm(x)), then + mlp(norm(.)). Private to model/; documented with gpt.h. */
#ifndef TANDEM_BLOCK_H
#define TANDEM_BLOCK_H

#include "model/gpt.h"

enum dropout_place { DROPOUT_EMBEDDING, DROPOUT_PROBABILITIES, DROPOUT_ATTENTION, DROPOUT_MLP };

/* What to draw at a place of the network for this batch; rate 0 outside training. */
struct dropout block_dropout(const struct gpt *gpt, const struct gpt_batch *batch, enum dropout_place place,
                             int layer);

/* The activations of the batch's micro-batch, in its chunk; and of one block there. */
struct gpt_activations *block_set(const struct gpt *gpt, const struct gpt_batch *batch);
struct block_activations *block_activations(const struct gpt *gpt, const struct gpt_batch *batch, int layer);

/* A parameter as operations take it: rounded to gpt_config.precision where it is part of a product; and its gradient. layer -1:
 * one outside the blocks. */
struct tensor block_weight(const struct gpt *gpt, enum param_kind kind, int layer);
struct tensor block_gradient(const struct gpt *gpt, enum param_kind kind, int layer);

/* The rows of a buffer that the batch has: (B T,C), and as (B,T,C). */
struct tensor block_rows(struct tensor buffer, const struct gpt_batch *batch);
struct tensor block_sequences(struct tensor buffer, const struct gpt_batch *batch);

/* From the block's ln1 (the caller's) up to the MLP's branch in gpt->delta, which the caller adds to its mid. */
void block_forward(struct gpt *gpt, const struct gpt_batch *batch, int layer);

/* Rebuilds the block's activations from its x. */
void block_recompute(struct gpt *gpt, const struct gpt_batch *batch, int layer);

/* The set's dx holds the gradient of the block's output; after both halves, mlp first, that of its input. */
void block_backward_mlp(struct gpt *gpt, const struct gpt_batch *batch, int layer, float beta);
void block_backward_attention(struct gpt *gpt, const struct gpt_batch *batch, int layer, float beta);

/* In a split model, after both: the gradients of the block's matrices. */
void block_backward_weights(struct gpt *gpt, const struct gpt_batch *batch, int layer, float beta);

#endif
