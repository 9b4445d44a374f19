/* Tokens in, sequences out. A split (train or validation) is all shards DIR/<split>-NNNNN.bin joined in order of name
 * and cut into windows of `context` tokens, each with the next token of each position as its target; windows do not
 * overlap, a tail shorter than a window is left out.
 *
 * Training order: sequence i of the run (i = step * batch + place in the batch) belongs to epoch i / windows, and takes
 * window p(i % windows), p being a permutation drawn from (seed, epoch). So every window is seen exactly once in an
 * epoch, whatever number of ranks shares the batch: a rank just asks for its own i. */
#ifndef TANDEM_LOADER_H
#define TANDEM_LOADER_H

#include "data/shard.h"

struct loader {
    struct shard *shard; /* [shards] */
    int64_t *first;      /* [shards + 1] first token of each shard in the joined stream */
    int shards;
    int64_t tokens, windows;
    int context, vocab;
    char tokenizer[17];
    uint64_t seed;
};

/* Opens all shards of a split. -1 with a message if there are none, one is bad or missing in the numbering, they disagree
 * on vocabulary or tokenizer, or there are fewer than `min_windows` windows (one batch). Not collective. */
int loader_open(struct loader *l, const char *dir, const char *split, int context, int64_t min_windows,
                uint64_t seed, struct error *e);
void loader_close(struct loader *l);

/* Window of training sequence i >= 0 (any size). */
int64_t loader_window(const struct loader *l, int64_t i);

/* tokens[context] and targets[context] of window w, 0 <= w < windows. */
void loader_read(const struct loader *l, int64_t w, int32_t *tokens, int32_t *targets);

#endif
