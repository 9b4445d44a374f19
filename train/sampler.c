#include "train/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/philox.h"

struct candidate {
    double weight;
    int32_t token;
};

static int by_weight(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token - y->token;
}

/* How many of the sorted candidates take part. */
static int64_t cut(const struct sampler *s, const struct candidate *c, int64_t count) {
    double total = 0.0, share = 0.0;
    if (s->top_k > 0 && s->top_k < count) count = s->top_k;
    for (int64_t i = 0; i < count; i++) total += c[i].weight;
    for (int64_t i = 0; i < count; i++) {
        share += c[i].weight;
        if (share >= s->top_p * total) return i + 1;
    }
    return count;
}

int32_t sampler_draw(const struct sampler *s, const float *logits, int vocab, int64_t position) {
    struct candidate *c = memory_alloc(sizeof *c * (size_t)vocab);
    float largest = logits[0];
    for (int i = 1; i < vocab; i++) largest = fmaxf(largest, logits[i]);
    for (int i = 0; i < vocab; i++) {
        /* Less the largest logit, so that nothing overflows. */
        double x = (double)logits[i] - (double)largest;
        c[i] = (struct candidate){s->temperature > 0.0 ? exp(x / s->temperature) : (double)(x == 0.0), i};
    }
    qsort(c, (size_t)vocab, sizeof *c, by_weight);
    const int64_t count = s->temperature > 0.0 ? cut(s, c, vocab) : 1;
    double total = 0.0;
    for (int64_t i = 0; i < count; i++) total += c[i].weight;
    const struct philox draw = philox_draw(philox_key(s->seed, "sample", 0, 0), (uint64_t)position, 0);
    double at = total * (draw.word[0] / 4294967296.0);
    int64_t chosen = 0;
    while (chosen + 1 < count && (at -= c[chosen].weight) >= 0.0) chosen++;
    int32_t token = c[chosen].token;
    free(c);
    return token;
}
