/* The GPT-2 transformer (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU, tied or untied head.
 * Forward pass, loss and hand-derived backward pass on one device, of the whole model or of the chunks that one stage of a
 * pipeline holds, for one micro-batch at a time. */
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
    /* Gradients of the outputs of its four matrix products, from which those of the weights are made. */
    struct tensor d_mlp, d_att; /* (N,C), where they are not that of the residual stream itself */
    struct tensor d_pre, d_qkv; /* (N,4C), (N,3C) */
};

/* What a chunk keeps of one micro-batch. */
struct gpt_activations {
    struct tensor tokens;            /* int32 (max_rows) */
    struct block_activations *block; /* [layers]; with recompute or for inference all share all but x */
    struct tensor x_out;             /* (N,C) the residual stream behind the last block */
    struct tensor ln_f, stats_f;     /* of a chunk with the head */
    struct tensor
        dx; /* (N,C) gradient of the residual stream: of x_out, and in the end of the chunk's input */
};

struct gpt {
    struct gpt_config config;
    const struct device *device;
    struct stream *stream;
    struct param_table table;
    struct arena parameter_memory, gradient_memory, activation_memory;
    struct tensor weight, gradient; /* flat; gradient.data is NULL in a model made for inference */
    struct tensor rounded; /* flat: what products take of the weights; in fp32 the weights themselves */
    int64_t max_rows, chunk_rows; /* rows of a full micro-batch, and of one piece of the head */
    bool split;                   /* the backward pass leaves the weights to gpt_backward_weights */

    int chunks;
    struct gpt_chunk *chunk;       /* [chunks] */
    struct gpt_activations **kept; /* kept[chunk][set] */
    int *sets;                     /* [chunks] */
    struct tensor **incoming;      /* incoming[chunk][input] (N,C) */
    int *inputs;                   /* [chunks]; 0 for a chunk with the embedding */
    const struct block_activations
        *whole; /* recompute: the block whose activations are not overwritten yet */

    struct tensor targets;       /* int32 (max_rows) */
    struct tensor loss, correct; /* (max_rows) */
    struct tensor delta;         /* (N,C) a branch on its way into the residual stream */
    struct tensor logits;        /* (chunk_rows,V) */
    struct tensor one_row;       /* (V) of logits, fp32 */
    struct tensor dy, dwide;     /* gradients of a branch (N,C), of the wide layers (N,4C) */
};

/* The part of a pipeline that a model holds. */
struct gpt_stage {
    const struct gpt_chunk *chunk; /* [chunks], in the order of the model */
    const int *sets;               /* [chunks] micro-batches whose activations are kept at once */
    const int *inputs; /* [chunks] inputs that may have arrived or be on their way; 0 with the embedding */
    int chunks;
    bool split; /* gpt_backward leaves the blocks' matrices to gpt_backward_weights; not with recompute */
};

/* One micro-batch. Dropout draws from (seed, step, place, global index), so ranks may share a batch as they like. */
struct gpt_batch {
    const int32_t *tokens, *targets; /* host, [sequences * positions] */
    int64_t sequences, positions;
    bool training; /* dropout acts */
    uint64_t seed;
    int64_t step, first_sequence; /* index of its first sequence in the global batch */
    /* What computes it, where its activations are kept, and where the chunk's input is; 0 in a whole model. */
    int chunk, set, input;
};

/* How gpt_backward treats gradients, and whom it tells. */
struct gpt_backward_plan {
    float scale;     /* of the loss: 1 / tokens of the global batch */
    bool accumulate; /* add to the gradients (micro-batches after the first) instead of overwriting them */
    /* The gradients of this chunk and of those behind it, [0, elements), are final; NULL: nobody asks. */
    void (*ready)(void *context, int64_t elements);
    void *context;
};

struct gpt_loss {
    double loss, correct; /* sums over the positions of the batch */
};

/* Allocates a model for micro-batches of up to max_sequences x config.context tokens; without training there are no
 * gradients and little activation memory. Weights are zero until gpt_initialise or a checkpoint fills them. */
void gpt_create(struct gpt *gpt, const struct gpt_config *config, const struct device *device,
                int64_t max_sequences, bool training);

/* The same for one stage of a pipeline, for training. */
void gpt_create_stage(struct gpt *gpt, const struct gpt_config *config, const struct device *device,
                      int64_t max_sequences, const struct gpt_stage *stage);
void gpt_free(struct gpt *gpt);

/* Random weights from the seed (param_initialise). */
void gpt_initialise(struct gpt *gpt, uint64_t seed);

/* Brings the weights that matrix products take up to date; to be called after every change of gpt->weight. */
void gpt_round_weights(struct gpt *gpt);

/* Bytes of weights, gradients and activations. */
int64_t gpt_memory_bytes(const struct gpt *gpt);

/* Embedding, blocks and final norm, as far as batch->chunk has them. */
void gpt_forward(struct gpt *gpt, const struct gpt_batch *batch);

/* What goes over the boundaries of a chunk, (rows of the batch, C). Its input, to be filled before gpt_forward, which takes it
 * over: then the next may arrive. Its output, after gpt_forward. The gradient, in the same place: of its output before
 * gpt_backward, of its input after it. The last two stay until the set's next micro-batch. */
struct tensor gpt_input(const struct gpt *gpt, const struct gpt_batch *batch);
struct tensor gpt_output(const struct gpt *gpt, const struct gpt_batch *batch);
struct tensor gpt_boundary_gradient(const struct gpt *gpt, const struct gpt_batch *batch);

/* After gpt_forward of a chunk with the head: the head and the loss, by pieces of rows; no gradient. */
struct gpt_loss gpt_evaluate(struct gpt *gpt, const struct gpt_batch *batch);

/* After gpt_forward: the head with its loss and gradient by pieces, then the backward pass to the embedding, as far as
 * batch->chunk has them; without the head the loss is 0. */
struct gpt_loss gpt_backward(struct gpt *gpt, const struct gpt_batch *batch,
                             const struct gpt_backward_plan *plan);

/* In a split model, after gpt_backward: the gradients of the blocks' matrices. It is this part that tells plan->ready. */
void gpt_backward_weights(struct gpt *gpt, const struct gpt_batch *batch,
                          const struct gpt_backward_plan *plan);

/* After gpt_forward: logits[vocab] (host) of one row of the micro-batch. */
void gpt_logits(struct gpt *gpt, int64_t row, float *logits);

/* Parameters of the whole model. */
int64_t gpt_parameters(const struct gpt_config *config);

/* FLOPs of one training step per token by the usual count: 6 x matrix parameters + 12 x layers x channels x positions. */
double gpt_flops_per_token(const struct gpt_config *config, int64_t positions);

#endif
