/* Draws the next token from logits. */
#ifndef TANDEM_SAMPLER_H
#define TANDEM_SAMPLER_H

#include "kernels/base.h"

struct sampler {
    double temperature; /* 0: the likeliest token (the first of equals) */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all; else the fewest likeliest tokens that together hold this share */
    uint64_t seed;
};

/* Token number `position` of a text: softmax(logits[vocab] / temperature), cut to top_k and top_p, drawn with a number
 * from (seed, position). */
int32_t sampler_draw(const struct sampler *sampler, const float *logits, int vocab, int64_t position);

#endif
