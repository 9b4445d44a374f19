#include "data/corpus.h"

#include "data/shard.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FREQUENT = 3, BEGIN_TOKENS = 24, CELL_BYTES = 256 };

/* Appends text to a cell, with what is not printable as an escape; a cell that is full takes no more. */
static void append_text(char *cell, const uint8_t *text, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++) {
        size_t used = strlen(cell);
        const char *format = text[i] == '\n'    ? "\\n"
                             : text[i] == '\t'  ? "\\t"
                             : isprint(text[i]) ? "%c"
                                                : "\\x%02x";
        snprintf(cell + used, CELL_BYTES - used, format, text[i]);
    }
}

/* Appends a token as text, or as its number if this program does not know the tokenizer. */
static void append_token(char *cell, const struct tokenizer *tokenizer, int32_t token) {
    uint8_t text[16];
    if (tokenizer && token < tokenizer->vocab) {
        append_text(cell, text, tokenizer->decode(token, text));
    } else {
        size_t used = strlen(cell);
        snprintf(cell + used, CELL_BYTES - used, "<%d>", token);
    }
}

/* Shannon entropy of the frequencies, -sum p log2 p, in bits per token. */
static double compute_entropy(const int64_t *frequency, int64_t vocab, int64_t count) {
    double bits = 0;
    for (int64_t token = 0; token < vocab; token++) {
        double p = (double)frequency[token] / (double)count;
        if (p > 0) bits -= p * log2(p);
    }
    return bits;
}

/* Writes the most frequent tokens into a cell, the most frequent first; their frequencies become zero. */
static void describe_frequent(char *cell, const struct tokenizer *tokenizer, int64_t *frequency,
                              int64_t vocab, int64_t count) {
    for (int n = 0; n < FREQUENT; n++) {
        int64_t most = 0;
        for (int64_t token = 1; token < vocab; token++)
            if (frequency[token] > frequency[most]) most = token;
        if (frequency[most] == 0) return;
        strcat(cell, n ? "  '" : "'");
        append_token(cell, tokenizer, (int32_t)most);
        size_t used = strlen(cell);
        snprintf(cell + used, CELL_BYTES - used, "' %.1f%%", 100.0 * (double)frequency[most] / (double)count);
        frequency[most] = 0;
    }
}

static void print_title(void) {
    printf("%-20s %14s %7s %9s %7s %10s  %-31s %s\n", "shard", "tokens", "vocab", "tokenizer", "B/token",
           "bits/token", "most frequent", "begins");
}

static void print_shard(const char *path, const struct shard *s, int64_t *frequency) {
    struct error unknown;
    const struct tokenizer *tokenizer = tokenizer_find(s->tokenizer, &unknown);
    for (int64_t i = 0; i < s->count; i++) frequency[shard_token(s, i)]++;
    double entropy = compute_entropy(frequency, s->vocab, s->count);
    char frequent[CELL_BYTES] = "", begins[CELL_BYTES] = "";
    describe_frequent(frequent, tokenizer, frequency, s->vocab, s->count);
    for (int64_t i = 0; i < s->count && i < BEGIN_TOKENS; i++)
        append_token(begins, tokenizer, shard_token(s, i));
    const char *slash = strrchr(path, '/');
    printf("%-20s %14lld %7d %9s %7d %10.3f  %-31s %s\n", slash ? slash + 1 : path, (long long)s->count,
           s->vocab, s->tokenizer, s->token_bytes, entropy, frequent, begins);
}

static int inspect_shard(const char *path, bool title, struct error *e) {
    struct shard s;
    if (shard_open(&s, path, e) != 0) return -1;
    int result = 0;
    int64_t *frequency =
        calloc((size_t)s.vocab, sizeof *frequency); /* a strange header may ask for gigabytes */
    if (frequency) {
        if (title) print_title();
        print_shard(path, &s, frequency);
    } else {
        result =
            error_set(e, "%s has a vocabulary of %d: not enough memory to count its tokens", path, s.vocab);
    }
    free(frequency);
    shard_close(&s);
    return result;
}

static int inspect_folder(const char *dir, struct error *e) {
    static const char *const splits[] = {"train", "validation"};
    char path[SHARD_PATH_BYTES];
    int printed = 0;
    for (int n = 0; n < 2; n++) {
        int count = shard_count_files(dir, splits[n], e);
        if (count < 0) return -1;
        for (int s = 0; s < count; s++) {
            shard_path(path, dir, splits[n], s);
            if (inspect_shard(path, printed++ == 0, e) != 0) return -1;
        }
    }
    if (printed > 0) return 0;
    return error_set(e,
                     "%s has no shards (train-00000.bin, validation-00000.bin, ...): make "
                     "them with `tandem data build TEXT... --out DIR`",
                     dir);
}

int corpus_inspect(const char *path, struct error *e) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return inspect_folder(path, e);
    return inspect_shard(path, true, e);
}
