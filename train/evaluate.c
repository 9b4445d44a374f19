#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many sequences are read at once: a micro-batch, or in a pipeline enough of them to keep it full. */
static int64_t piece_of(const struct pipeline *p) {
    enum { MICRO_BATCHES_A_STAGE = 8 };
    const int stages = p->schedule.stages;
    return p->micro_batch * (stages > 1 ? MICRO_BATCHES_A_STAGE * stages : 1);
}

/* Windows first .. end-1 of `windows`. */
static struct gpt_loss evaluate_windows(struct pipeline *p, const struct loader *l, int64_t windows,
                                        int64_t first, int64_t end) {
    const int64_t T = l->context, piece = piece_of(p);
    int32_t *tokens = memory_alloc(2 * sizeof *tokens * (size_t)(piece * T)), *targets = tokens + piece * T;
    struct gpt_loss sums = {0};
    for (int64_t k = first; k < end; k += piece) {
        const int64_t count = end - k < piece ? end - k : piece;
        for (int64_t i = 0; i < count; i++)
            loader_read(l, (k + i) * l->windows / windows, tokens + i * T, targets + i * T);
        const struct gpt_batch share = {
            .tokens = tokens, .targets = targets, .sequences = count, .positions = T};
        const struct gpt_loss part = pipeline_evaluate(p, &share).sums;
        sums.loss += part.loss;
        sums.correct += part.correct;
    }
    free(tokens);
    return sums;
}

struct eval_record evaluate(struct pipeline *p, const struct loader *l, const struct mesh *mesh,
                            int64_t windows, int64_t step) {
    if (windows == 0 || windows > l->windows) windows = l->windows;
    const int64_t first = windows * mesh->data_rank / mesh->dp,
                  end = windows * (mesh->data_rank + 1) / mesh->dp;
    const int64_t T = l->context;
    const struct gpt_loss part = evaluate_windows(p, l, windows, first, end);
    double sums[2] = {part.loss, part.correct}; /* of stages without the head: 0 */
    comm_reduce(mesh->world, sums, 2, REDUCE_SUM);
    const double count = (double)(windows * T), loss = sums[0] / count;
    return (struct eval_record){
        .step = step,
        .val_loss = loss,
        .val_accuracy = sums[1] / count,
        .perplexity = exp(loss),
        .bits_per_byte = strcmp(l->tokenizer, "bytes") == 0 ? loss / M_LN2 : NAN, /* a token is a byte */
    };
}
