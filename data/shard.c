#include "data/shard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARD_VERSION = 1, PIECE_TOKENS = 1 << 16 };

static const char shard_magic[8] = {'T', 'A', 'N', 'D', 'E', 'M', 'S', 'H'};

struct shard_header {
    char magic[8];
    uint32_t version, token_bytes;
    uint64_t count;
    uint32_t vocab, zero;
    char tokenizer[16];
    uint8_t rest[16];
};
_Static_assert(sizeof(struct shard_header) == 64, "the header is laid out without gaps");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and read in place");

static int shard_check_header(const struct shard_header *h, int64_t file_bytes, const char *path,
                              struct error *e) {
    if (file_bytes < (int64_t)sizeof *h || memcmp(h->magic, shard_magic, sizeof shard_magic) != 0)
        return error_set(e,
                         "%s is not a shard (a shard begins with \"%.8s\" and has a header of %zu "
                         "bytes): make one with `tandem data build TEXT... --out DIR`",
                         path, shard_magic, sizeof *h);
    if (h->version != SHARD_VERSION)
        return error_set(e,
                         "%s has shard version %u, expected %d: build it again with this version "
                         "of tandem",
                         path, h->version, SHARD_VERSION);
    if (h->token_bytes != 1 && h->token_bytes != 2 && h->token_bytes != 4)
        return error_set(e,
                         "%s has %u bytes per token, expected 1, 2 or 4: its header is damaged, "
                         "build it again",
                         path, h->token_bytes);
    if (h->vocab < 1 || h->vocab > INT32_MAX || h->count < 1 || h->count > INT64_MAX)
        return error_set(e,
                         "%s has a vocabulary of %u and %llu tokens, expected at least 1 and less "
                         "than 2^31 and 2^63: its header is damaged, build it again",
                         path, h->vocab, (unsigned long long)h->count);
    int64_t body = file_bytes - (int64_t)sizeof *h, count = (int64_t)h->count;
    if (body / h->token_bytes < count)
        return error_set(e,
                         "%s is cut short: it holds %lld tokens, its header promises %lld: copy "
                         "or build it again",
                         path, (long long)(body / h->token_bytes), (long long)count);
    if (body - count * h->token_bytes != 0)
        return error_set(e,
                         "%s is too long: %lld bytes follow the last of its %lld tokens: copy or "
                         "build it again",
                         path, (long long)(body - count * h->token_bytes), (long long)count);
    return 0;
}

/* Position of the first token >= vocab, or count. By pieces: the maximum of a piece vectorises, a search does
 * not. */
static int64_t shard_find_bad(const struct shard *s) {
    if (s->token_bytes < 4 && s->vocab >= 1 << (8 * s->token_bytes)) return s->count;
    for (int64_t start = 0; start < s->count; start += PIECE_TOKENS) {
        int64_t end = start + PIECE_TOKENS < s->count ? start + PIECE_TOKENS : s->count;
        uint32_t largest = 0;
        for (int64_t i = start; i < end; i++) {
            uint32_t token = (uint32_t)shard_token(s, i);
            largest = token > largest ? token : largest;
        }
        for (int64_t i = start; largest >= (uint32_t)s->vocab; i++)
            if ((uint32_t)shard_token(s, i) >= (uint32_t)s->vocab) return i;
    }
    return s->count;
}

int shard_open(struct shard *s, const char *path, struct error *e) {
    *s = (struct shard){0};
    struct file_map map;
    if (file_map(&map, path, "a shard", e) != 0) return -1;
    const struct shard_header *h = (const void *)map.bytes;
    if (shard_check_header(h, map.size, path, e) != 0) {
        file_unmap(&map);
        return -1;
    }
    *s = (struct shard){.tokens = map.bytes + sizeof *h, .count = (int64_t)h->count, .map = map};
    s->token_bytes = (int)h->token_bytes, s->vocab = (int)h->vocab;
    memcpy(s->tokenizer, h->tokenizer, sizeof h->tokenizer);

    int64_t bad = shard_find_bad(s);
    if (bad == s->count) return 0;
    error_set(e,
              "%s: token %lld is %u, but its vocabulary is %d (tokens 0 to %d): the "
              "file is damaged, copy or build it again",
              path, (long long)bad, (uint32_t)shard_token(s, bad), s->vocab, s->vocab - 1);
    shard_close(s);
    return -1;
}

void shard_close(struct shard *s) {
    file_unmap(&s->map);
    *s = (struct shard){0};
}

/* Narrows tokens to `token_bytes` each; `packed` has room for PIECE_TOKENS * 4 bytes. */
static void pack_tokens(void *packed, const int32_t *tokens, int64_t count, int token_bytes, int vocab) {
    for (int64_t i = 0; i < count; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < vocab, "token %d outside a vocabulary of %d", tokens[i], vocab);
        if (token_bytes == 1) ((uint8_t *)packed)[i] = (uint8_t)tokens[i];
        if (token_bytes == 2) ((uint16_t *)packed)[i] = (uint16_t)tokens[i];
        if (token_bytes == 4) ((int32_t *)packed)[i] = tokens[i];
    }
}

static bool write_tokens(FILE *file, const struct shard_header *h, const int32_t *tokens) {
    bool good = fwrite(h, sizeof *h, 1, file) == 1;
    void *packed = memory_alloc(PIECE_TOKENS * sizeof(int32_t));
    int64_t count = (int64_t)h->count;
    for (int64_t start = 0; good && start < count; start += PIECE_TOKENS) {
        int64_t piece = start + PIECE_TOKENS < count ? PIECE_TOKENS : count - start;
        pack_tokens(packed, tokens + start, piece, (int)h->token_bytes, (int)h->vocab);
        good = fwrite(packed, h->token_bytes, (size_t)piece, file) == (size_t)piece;
    }
    free(packed);
    return good && fflush(file) == 0 && fsync(fileno(file)) == 0;
}

int shard_write(const char *path, const int32_t *tokens, int64_t count, int vocab, const char *tokenizer,
                struct error *e) {
    CHECK(count >= 1 && vocab >= 1, "a shard of %lld tokens and vocabulary %d", (long long)count, vocab);
    struct shard_header h = {.version = SHARD_VERSION, .count = (uint64_t)count, .vocab = (uint32_t)vocab};
    h.token_bytes = vocab <= 1 << 8 ? 1 : vocab <= 1 << 16 ? 2 : 4;
    memcpy(h.magic, shard_magic, sizeof h.magic);
    memcpy(h.tokenizer, tokenizer, strnlen(tokenizer, sizeof h.tokenizer));

    char beside[SHARD_PATH_BYTES];
    snprintf(beside, sizeof beside, "%s.tmp", path);
    FILE *file = fopen(beside, "wb");
    if (!file) return error_set(e, "cannot write %s: %s", beside, strerror(errno));
    bool good = write_tokens(file, &h, tokens);
    int code = errno; /* of the write: fclose may change it */
    if (fclose(file) != 0 && good) good = false, code = errno;
    if (good && rename(beside, path) != 0) good = false, code = errno;
    if (good) return 0;
    unlink(beside);
    return error_set(e, "cannot write %s (%lld tokens of %u bytes): %s", path, (long long)count,
                     h.token_bytes, strerror(code));
}

void shard_path(char path[SHARD_PATH_BYTES], const char *dir, const char *split, int index) {
    snprintf(path, SHARD_PATH_BYTES, "%s/%s-%05d.bin", dir, split, index);
}

static bool is_shard_name(const char *name, const char *split) {
    size_t prefix = strlen(split);
    if (strncmp(name, split, prefix) != 0 || name[prefix] != '-') return false;
    const char *number = name + prefix + 1;
    for (int i = 0; i < 5; i++)
        if (!isdigit((unsigned char)number[i])) return false;
    return strcmp(number + 5, ".bin") == 0;
}

int shard_count_files(const char *dir, const char *split, struct error *e) {
    DIR *folder = opendir(dir);
    if (!folder)
        return error_set(e,
                         "cannot list %s: %s; expected a folder of shards: make one with `tandem "
                         "data build TEXT... --out DIR`",
                         dir, strerror(errno));
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += is_shard_name(entry->d_name, split);
    closedir(folder);
    return count;
}
