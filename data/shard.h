/* A shard: one file of tokens, memory-mapped. Layout, little-endian, 64-byte header:
 *   0 char[8] "TANDEMSH"   8 u32 version (1)   12 u32 bytes per token (1, 2 or 4)   16 u64 token count
 *   24 u32 vocabulary      28 u32 zero         32 char[16] tokenizer name, NUL-padded   48 zero
 * followed by the tokens, unsigned. */
#ifndef TANDEM_SHARD_H
#define TANDEM_SHARD_H

#include "data/file.h"

enum { SHARD_PATH_BYTES = 4096 };

struct shard {
    const uint8_t *tokens;
    int64_t count; /* tokens */
    int token_bytes, vocab;
    char tokenizer[17];
    struct file_map map;
};

/* Maps a shard and checks all of it: magic, version, size against the header, every token < vocab.
 * -1 with a message that names the file, what was found and what was expected. Synchronous. */
int shard_open(struct shard *shard, const char *path, struct error *e);
void shard_close(struct shard *shard); /* accepts a shard that is all zero */

/* Token i, 0 <= i < count (not checked). */
static inline int32_t shard_token(const struct shard *s, int64_t i) {
    if (s->token_bytes == 1) return s->tokens[i];
    if (s->token_bytes == 2) return ((const uint16_t *)(const void *)s->tokens)[i];
    return ((const int32_t *)(const void *)s->tokens)[i];
}

/* Writes tokens[count], count >= 1, each 0 <= token < vocab, with 1, 2 or 4 bytes each as the vocabulary
 * needs. The file is written beside `path`, synced and renamed there, so that a reader never sees half of it.
 * -1 with a message if the file system refuses. */
int shard_write(const char *path, const int32_t *tokens, int64_t count, int vocab, const char *tokenizer,
                struct error *e);

/* The shards of a split in a folder are <split>-00000.bin, <split>-00001.bin, ... */
void shard_path(char path[SHARD_PATH_BYTES], const char *dir, const char *split, int index);

/* How many files with such a name there are. -1 with a message if `dir` cannot be listed. */
int shard_count_files(const char *dir, const char *split, struct error *e);

#endif
