/* The parameter table: every parameter of the model once. Sizes, initialisation, weight decay, checkpoint names and
 * the place in the flat range all come from here.
 *
 * The flat range lies in the order in which the backward pass finishes the gradients: head, final norm, blocks from the
 * last to the first, embeddings. So "what is ready" is one growing count, and a bucket is an interval. */
#ifndef TANDEM_PARAMS_H
#define TANDEM_PARAMS_H

#include "kernels/tensor.h"

struct gpt_config {
    int layers, heads, channels, context, vocab;
    bool tied;      /* the head is the transposed token embedding */
    bool recompute; /* keep only each block's input, and run its forward pass again in the backward pass */
    float dropout;
    enum dtype precision; /* of the operands and results of matrix products: fp32 (0), bf16 or fp16 */
};

/* In ready order; those from PARAM_MLP_PROJ_W to PARAM_LN_1_B once per layer. */
enum param_kind {
    PARAM_HEAD, /* untied only */
    PARAM_LN_F_W,
    PARAM_LN_F_B,
    PARAM_MLP_PROJ_W,
    PARAM_MLP_PROJ_B,
    PARAM_FC_W,
    PARAM_FC_B,
    PARAM_LN_2_W,
    PARAM_LN_2_B,
    PARAM_ATT_PROJ_W,
    PARAM_ATT_PROJ_B,
    PARAM_QKV_W,
    PARAM_QKV_B,
    PARAM_LN_1_W,
    PARAM_LN_1_B,
    PARAM_WPE,
    PARAM_WTE,
    PARAM_KINDS
};

struct param {
    enum param_kind kind;
    int layer;     /* -1: not in a block */
    char name[48]; /* Hugging Face GPT-2: h.0.attn.c_attn.weight; matrices are (in, out) */
    int ndim;
    int64_t dim[2];
    float init_mean, init_std;
    bool decay;            /* weight decay acts on matrices only */
    bool product;          /* a weight or bias of a matrix product: taken in gpt_config.precision */
    int64_t offset, count; /* elements of the flat range */
};

/* A chunk: a part of the model that lies together. The whole model is one chunk; a pipeline cuts it (model/partition.h). */
struct gpt_chunk {
    bool embedding;          /* begins with the token and position embedding */
    int first_layer, layers; /* then come these blocks, if any */
    bool head;               /* ends with the final norm, the head and the loss */
};

struct param_table {
    struct param *param; /* [params], offsets ascending */
    int params;
    int64_t elements;   /* of the flat range, gaps for alignment included */
    int64_t parameters; /* sum of the counts: what is held here */
    bool
        shares_embedding; /* a tied token embedding is held here and on another stage: it is the last entry */
    int index
        [PARAM_KINDS]; /* of the kind's first entry; that of the i-th layer at index + stride * place[layer] */
    int *place, stride, layers; /* place[layers]: 0 for the last layer that is held; -1: not held */
};

/* Builds the table for a configuration: the parameters of chunk[chunks], in ascending order, which one stage of a pipeline
 * holds; NULL: of the whole model. A tied token embedding belongs to the chunk with the embedding and to that with the
 * head. Free with param_table_free. */
void param_table_create(struct param_table *table, const struct gpt_config *config,
                        const struct gpt_chunk *chunk, int chunks);
void param_table_free(struct param_table *table);

/* The parameter must be held here. */
const struct param *param_find(const struct param_table *table, enum param_kind kind, int layer);

/* The parameter's part of a flat tensor (weights, gradients, moments). */
struct tensor param_view(const struct param *param, struct tensor flat);

/* values[param->count], drawn from (seed, name): the same whatever the number of ranks. Normal by Box-Muller on Philox. */
void param_initialise(const struct param *param, uint64_t seed, float *values);

#endif
