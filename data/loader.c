#include "data/loader.h"

#include "kernels/philox.h"

#include <stdlib.h>
#include <string.h>

static int open_shards(struct loader *l, const char *dir, const char *split, int count, struct error *e) {
    char path[SHARD_PATH_BYTES];
    for (; l->shards < count; l->shards++) {
        struct shard *shard = &l->shard[l->shards], *head = &l->shard[0];
        shard_path(path, dir, split, l->shards);
        if (shard_open(shard, path, e) != 0) return -1;
        l->first[l->shards + 1] = l->first[l->shards] + shard->count;
        if (shard->vocab == head->vocab && strcmp(shard->tokenizer, head->tokenizer) == 0) continue;
        error_set(e,
                  "%s has vocabulary %d and tokenizer \"%s\", but %s-00000.bin beside it "
                  "has %d and \"%s\": they are of different builds; build again with "
                  "`tandem data build TEXT... --out DIR`",
                  path, shard->vocab, shard->tokenizer, split, head->vocab, head->tokenizer);
        shard_close(shard);
        return -1;
    }
    return 0;
}

static int open_split(struct loader *l, const char *dir, const char *split, int64_t min_windows,
                      struct error *e) {
    if (l->context < 1) return error_set(e, "the context is %d tokens; expected at least 1", l->context);
    int count = shard_count_files(dir, split, e);
    if (count < 0) return -1;
    if (count == 0)
        return error_set(e,
                         "%s has no shard of the %s split (%s-00000.bin, ...): make them with "
                         "`tandem data build TEXT... --out DIR`",
                         dir, split, split);
    l->shard = memory_alloc_zeroed((size_t)count * sizeof *l->shard);
    l->first = memory_alloc_zeroed(((size_t)count + 1) * sizeof *l->first);
    if (open_shards(l, dir, split, count, e) != 0) return -1;

    l->tokens = l->first[count];
    l->windows = (l->tokens - 1) / l->context;
    l->vocab = l->shard[0].vocab;
    memcpy(l->tokenizer, l->shard[0].tokenizer, sizeof l->tokenizer);
    if (l->windows >= min_windows) return 0;
    return error_set(e,
                     "the %s split in %s has %lld tokens; one batch needs at least %lld (%lld "
                     "sequences of %d, and one more token): use more text, a smaller batch or "
                     "a shorter context",
                     split, dir, (long long)l->tokens, (long long)(min_windows * l->context + 1),
                     (long long)min_windows, l->context);
}

int loader_open(struct loader *l, const char *dir, const char *split, int context, int64_t min_windows,
                uint64_t seed, struct error *e) {
    *l = (struct loader){.context = context, .seed = seed};
    if (open_split(l, dir, split, min_windows > 1 ? min_windows : 1, e) == 0) return 0;
    loader_close(l);
    return -1;
}

void loader_close(struct loader *l) {
    for (int s = 0; s < l->shards; s++) shard_close(&l->shard[s]);
    free(l->shard);
    free(l->first);
    *l = (struct loader){0};
}

/* A permutation of [0, 2^bits) drawn by the key: a Feistel network, whose two halves in turn are xored with a
 * random function of the other. Each round undoes itself, so the whole is a bijection, whatever the function
 * and the widths. */
static uint64_t permute_bits(uint64_t key, int bits, uint64_t x) {
    enum { ROUNDS = 8 };
    int low_bits = bits / 2;
    uint64_t low_mask = (UINT64_C(1) << low_bits) - 1, high_mask = (UINT64_C(1) << (bits - low_bits)) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (uint64_t round = 0; round < ROUNDS; round += 2) {
        high ^= philox_draw(key, low, round).word[0] & high_mask;
        low ^= philox_draw(key, high, round + 1).word[0] & low_mask;
    }
    return high << low_bits | low;
}

/* [0, windows) lies in the smallest [0, 2^bits): following the cycle of x until it comes back inside is a
 * bijection there, and takes less than two steps on average. */
int64_t loader_window(const struct loader *l, int64_t i) {
    uint64_t windows = (uint64_t)l->windows, x = (uint64_t)(i % l->windows);
    uint64_t key = philox_key(l->seed, "epoch order", (uint64_t)(i / l->windows), 0);
    int bits = windows > 1 ? 64 - __builtin_clzll(windows - 1) : 0;
    do x = permute_bits(key, bits, x);
    while (x >= windows);
    return (int64_t)x;
}

/* The shard that holds token t of the joined stream. */
static int find_shard(const struct loader *l, int64_t t) {
    int low = 0, high = l->shards - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (l->first[middle] <= t)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void loader_read(const struct loader *l, int64_t w, int32_t *tokens, int32_t *targets) {
    int64_t start = w * l->context;
    int s = find_shard(l, start);
    for (int j = 0; j <= l->context; j++) {
        if (start + j == l->first[s + 1]) s++;
        int32_t token = shard_token(&l->shard[s], start + j - l->first[s]);
        if (j < l->context) tokens[j] = token;
        if (j > 0) targets[j - 1] = token;
    }
}
