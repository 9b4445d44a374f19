#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct eval_record evaluate(struct gpt *g, const struct loader *l, struct comm *comm, int64_t windows,
                            int64_t sequences, int64_t step) {
    if (windows == 0 || windows > l->windows) windows = l->windows;
    const int64_t first = windows * comm->rank / comm->size, end = windows * (comm->rank + 1) / comm->size;
    const int64_t T = l->context;
    int32_t *tokens = memory_alloc(2 * sizeof *tokens * (size_t)(sequences * T)),
            *targets = tokens + sequences * T;
    double sums[2] = {0};
    for (int64_t k = first; k < end; k += sequences) {
        const int64_t count = end - k < sequences ? end - k : sequences;
        for (int64_t i = 0; i < count; i++)
            loader_read(l, (k + i) * l->windows / windows, tokens + i * T, targets + i * T);
        const struct gpt_batch batch = {
            .tokens = tokens, .targets = targets, .sequences = count, .positions = T};
        gpt_forward(g, &batch);
        const struct gpt_loss part = gpt_evaluate(g, &batch);
        sums[0] += part.loss;
        sums[1] += part.correct;
    }
    free(tokens);
    comm_reduce(comm, sums, 2, REDUCE_SUM);
    const double count = (double)(windows * T), loss = sums[0] / count;
    return (struct eval_record){
        .step = step,
        .val_loss = loss,
        .val_accuracy = sums[1] / count,
        .perplexity = exp(loss),
        .bits_per_byte = strcmp(l->tokenizer, "bytes") == 0 ? loss / M_LN2 : NAN, /* a token is a byte */
    };
}
