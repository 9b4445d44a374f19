/* Update rules. An optimizer owns its moments (one arena) and knows nothing of ranks: gradients arrive reduced. */
#ifndef TANDEM_OPTIMIZER_H
#define TANDEM_OPTIMIZER_H

#include "model/gpt.h"

struct optimizer_options {
    const char *rule; /* adamw or sgd: a row of the table */
    float beta1, beta2, eps, momentum, weight_decay;
    double clip; /* largest global gradient norm; 0: no clipping */
};

struct optimizer_rule;
struct optimizer {
    struct optimizer_options options;
    const struct optimizer_rule *rule;
    struct arena memory;
    struct tensor moment[2]; /* flat, like the weights */
};

void optimizer_create(struct optimizer *optimizer, const struct optimizer_options *options,
                      const struct gpt *gpt);
void optimizer_free(struct optimizer *optimizer);

/* The name of moment i as PyTorch has it, for checkpoints; NULL: there are no more. */
const char *optimizer_moment_name(const struct optimizer *optimizer, int i);

/* Sums of squares of the gradient, in double and in a fixed order, part by part: head and final norm, blocks from the last to
 * the first, position embedding, token embedding. 0 for parts that the gpt does not hold, and for the copy of a shared embedding
 * beside the head: added over the stages of a pipeline, the sums are those of the whole model, to the bit. */
enum { OPTIMIZER_OTHER_PARTS = 3 };
void optimizer_gradient_squares(const struct gpt *gpt,
                                double *squares /* [layers + OPTIMIZER_OTHER_PARTS] */);

/* A part of the flat range and what its gradient is. */
struct optimizer_range {
    int64_t offset, count;
    int64_t gradients; /* so many steps' gradients are in the sum; 0: leave weights and moments untouched */
};

/* Updates with learning rate lr. The gradient is scaled by min(1, clip / norm) on the way. range[ranges] covers the flat
 * range in order: a part that comes with the sum of n steps' gradients makes n steps at once (adamw: kernels/ops.def; sgd: the sum
 * sees to that). NULL: all of it, once. step: of the newest gradient, from 1. */
void optimizer_update(struct optimizer *optimizer, struct gpt *gpt, double lr, double norm,
                      const struct optimizer_range *range, int ranges, int64_t step);

#endif
