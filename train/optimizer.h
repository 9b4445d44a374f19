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
    int64_t step;            /* updates done */
};

void optimizer_create(struct optimizer *optimizer, const struct optimizer_options *options,
                      const struct gpt *gpt);
void optimizer_free(struct optimizer *optimizer);

/* The global norm of the gradient before clipping, in double and in a fixed order. */
double optimizer_gradient_norm(const struct gpt *gpt);

/* One update of all weights with learning rate lr. The gradient is scaled by min(1, clip / norm) on the way. */
void optimizer_update(struct optimizer *optimizer, struct gpt *gpt, double lr, double norm);

#endif
