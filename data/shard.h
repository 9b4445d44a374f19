/* A shard: one file of tokens, memory-mapped. Layout, little-endian, 64-byte header:
 *   0 char[8] "TANDEMSH"   8 u32 version (1)   12 u32 bytes per token (1, 2 or 4)   16 u64 token count
 *   24 u32 vocabulary      28 u32 zero         32 char[16] tokenizer name, NUL-padded   48 zero
 * followed by the tokens, unsigned. */
#ifndef TANDEM_SHARD_H
#define TANDEM_SHARD_H

#include "kernels/base.h"

struct shard {
    const uint8_t *tokens;
    int64_t count; /* tokens */
    int token_bytes, vocab;
    char tokenizer[17];
    void *map;
    size_t map_bytes;
};

/* Maps a shard and checks all of it: magic, version, size against the header, every token < vocab.
 * -1 with a message that names the file, what was found and what was expected. Synchronous, not collective. */
int shard_open(struct shard *shard, const char *path, struct error *e);
void shard_close(struct shard *shard);

/* Token i, 0 <= i < count (not checked). */
static inline int32_t shard_token(const struct shard *s, int64_t i) {
    if (s->token_bytes == 1) return s->tokens[i];
    if (s->token_bytes == 2) return ((const uint16_t *)(const void *)s->tokens)[i];
    return ((const int32_t *)(const void *)s->tokens)[i];
}

/* Writes a shard beside `path` and renames it there, so that a reader never sees half a file. */
int shard_write(const char *path, const int32_t *tokens, int64_t count, int vocab, const char *tokenizer,
                struct error *e);

#endif
