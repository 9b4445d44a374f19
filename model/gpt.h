/* The GPT-2 transformer (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU, tied or untied head.
 * Forward pass, loss and hand-derived backward pass on one device, for one micro-batch at a time. */
#ifndef TANDEM_GPT_H
#define TANDEM_GPT_H

#include "kernels/device.h"
#include "model/params.h"

/* What a block keeps for its backward pass. N = sequences x positions rows. x, mid, statistics and lse are fp32, the rest is of
 * gpt_config.precision. */
struct block_activations {
    struct tensor x;           /* (N,C) input: the residual stream */
    struct tensor ln1, stats1; /* (N,C), (N,2) */
    struct tensor qkv;         /* (N,3C) */
    struct tensor lse;         /* (B,H,T) */
    struct tensor att;         /* (N,C) attention output before its projection */
    struct tensor mid;         /* (N,C) the residual stream after attention */
    struct tensor ln2, stats2;
    struct tensor pre, act; /* (N,4C) before and after GELU */
};

struct gpt {
    struct gpt_config config;
    const struct device *device;
    struct stream *stream;
    struct param_table table;
    struct arena parameter_memory, gradient_memory, activation_memory;
    struct tensor weight, gradient; /* flat; gradient.data is NULL in a model made for inference */
    struct tensor rounded; /* flat: what products take of the weights; in fp32 the weights themselves */
    int64_t max_rows, chunk_rows; /* rows of a full micro-batch, and of one chunk of the head */

    struct tensor tokens, targets;   /* int32 (max_rows) */
    struct tensor loss, correct;     /* (max_rows) */
    struct block_activations *block; /* [layers]; with recompute or for inference they share all but x */
    struct tensor x_final, ln_f, stats_f;
    struct tensor delta;   /* (N,C) a branch on its way into the residual stream */
    struct tensor logits;  /* (chunk_rows,V) */
    struct tensor one_row; /* (V) of logits, fp32 */
    struct tensor dx, dy,
        dwide; /* gradients of the residual stream, of a branch (N,C), of the wide layers (N,4C) */
};

/* One micro-batch. Dropout draws from (seed, step, place, global index), so ranks may share a batch as they like. */
struct gpt_batch {
    const int32_t *tokens, *targets; /* host, [sequences * positions] */
    int64_t sequences, positions;
    bool training; /* dropout acts */
    uint64_t seed;
    int64_t step, first_sequence; /* index of its first sequence in the global batch */
};

/* How gpt_backward treats gradients, and whom it tells. */
struct gpt_backward_plan {
    float scale;     /* of the loss: 1 / tokens of the global batch */
    bool accumulate; /* add to the gradients (micro-batches after the first) instead of overwriting them */
    void (*ready)(void *context, int64_t elements); /* gradients [0, elements) are final; NULL: nobody asks */
    void *context;
};

struct gpt_loss {
    double loss, correct; /* sums over the positions of the batch */
};

/* Allocates a model for micro-batches of up to max_sequences x config.context tokens; without training there are no
 * gradients and little activation memory. Weights are zero until gpt_initialise or a checkpoint fills them. */
void gpt_create(struct gpt *gpt, const struct gpt_config *config, const struct device *device,
                int64_t max_sequences, bool training);
void gpt_free(struct gpt *gpt);

/* Random weights from the seed (param_initialise). */
void gpt_initialise(struct gpt *gpt, uint64_t seed);

/* Brings the weights that matrix products take up to date; to be called after every change of gpt->weight. */
void gpt_round_weights(struct gpt *gpt);

/* Bytes of weights, gradients and activations. */
int64_t gpt_memory_bytes(const struct gpt *gpt);

/* Embedding, blocks and final norm. */
void gpt_forward(struct gpt *gpt, const struct gpt_batch *batch);

/* After gpt_forward: the head and the loss, by chunks of rows; no gradient. */
struct gpt_loss gpt_evaluate(struct gpt *gpt, const struct gpt_batch *batch);

/* After gpt_forward: the head with its loss and gradient by chunks, then the backward pass to the embedding. */
struct gpt_loss gpt_backward(struct gpt *gpt, const struct gpt_batch *batch,
                             const struct gpt_backward_plan *plan);

/* After gpt_forward: logits[vocab] (host) of one row of the micro-batch. */
void gpt_logits(struct gpt *gpt, int64_t row, float *logits);

/* FLOPs of one training step per token by the usual count: 6 x matrix parameters + 12 x layers x channels x positions. */
double gpt_flops_per_token(const struct gpt_config *config, int64_t positions);

#endif
