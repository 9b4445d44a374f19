#include "data/corpus.h"

#include "data/shard.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, MOST_SHARDS = 100000 };

/* A build under way: new shards go to a folder inside the output folder, and into their places when all are
 * written. */
struct build {
    const struct corpus_plan *plan;
    struct corpus_report *report;
    const struct tokenizer *tokenizer;
    struct file_map *text;         /* [plan->text_count] */
    char folder[SHARD_PATH_BYTES]; /* new shards */
    int32_t *tokens;               /* [plan->shard_tokens], or as many as there are: the shard being filled */
    int64_t filled;                /* tokens in it */
    int64_t left;                  /* tokens that the split still lacks */
    const char *split;
    int *shards; /* of the split, in the report */
};

static int check_plan(const struct corpus_plan *plan, struct error *e) {
    if (plan->text_count < 1) return error_set(e, "no text was named; expected at least one file");
    if (!(plan->validation >= 0 && plan->validation < 1))
        return error_set(e,
                         "the validation share is %g; expected at least 0 and less than 1, as in "
                         "0.1",
                         plan->validation);
    if (plan->shard_tokens < 1)
        return error_set(e, "a shard of %lld tokens; expected at least 1", (long long)plan->shard_tokens);
    return 0;
}

static void start_split(struct build *b, const char *split, int64_t tokens, int *shards) {
    b->split = split, b->left = tokens, b->shards = shards, *shards = 0;
}

static int take_tokens(struct build *b, const int32_t *tokens, int64_t count, struct error *e) {
    const struct corpus_plan *plan = b->plan;
    char path[SHARD_PATH_BYTES];
    while (count > 0) {
        if (b->left == 0)
            start_split(b, "validation", b->report->validation_tokens, &b->report->validation_shards);
        int64_t most = b->left < plan->shard_tokens ? b->left : plan->shard_tokens;
        int64_t taken = count < most - b->filled ? count : most - b->filled;
        memcpy(b->tokens + b->filled, tokens, (size_t)taken * sizeof *tokens);
        b->filled += taken, tokens += taken, count -= taken;
        if (b->filled < most) return 0;
        shard_path(path, b->folder, b->split, (*b->shards)++);
        if (shard_write(path, b->tokens, most, b->tokenizer->vocab, b->tokenizer->name, e) != 0) return -1;
        b->left -= most, b->filled = 0;
    }
    return 0;
}

/* Encodes all texts in pieces of bounded size and returns the count of tokens; hands them to take_tokens if
 * `take`. */
static int64_t encode_texts(struct build *b, bool take, struct error *e) {
    int32_t *tokens = memory_alloc(PIECE_BYTES * sizeof *tokens);
    int64_t total = 0;
    for (int t = 0; t < b->plan->text_count && total >= 0; t++) {
        const struct file_map *text = &b->text[t];
        for (int64_t start = 0; start < text->size && total >= 0; start += PIECE_BYTES) {
            int64_t bytes = start + PIECE_BYTES < text->size ? PIECE_BYTES : text->size - start;
            int64_t count = b->tokenizer->encode(text->bytes + start, bytes, tokens);
            total = take && take_tokens(b, tokens, count, e) != 0 ? -1 : total + count;
        }
    }
    free(tokens);
    return total;
}

static int divide_tokens(struct build *b, struct error *e) {
    struct corpus_report *report = b->report;
    int64_t total = encode_texts(b, false, e), shard = b->plan->shard_tokens;
    report->validation_tokens = llround((double)total * b->plan->validation);
    report->train_tokens = total - report->validation_tokens;
    report->vocab = b->tokenizer->vocab;
    if (report->train_tokens < 1)
        return error_set(e,
                         "a validation share of %g of %lld tokens leaves none to train on: use "
                         "more text or a smaller share",
                         b->plan->validation, (long long)total);
    if (total / shard >= MOST_SHARDS)
        return error_set(e, "%lld tokens in shards of %lld are %d shards or more: use larger shards",
                         (long long)total, (long long)shard, MOST_SHARDS);
    b->tokens = memory_alloc((size_t)(total < shard ? total : shard) * sizeof *b->tokens);
    return 0;
}

/* Makes a folder and those above it. */
static int make_folder(const char *path, struct error *e) {
    char part[SHARD_PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0777); /* if this fails the last one fails too, and says why */
        *slash = '/';
    }
    if (mkdir(part, 0777) == 0 || errno == EEXIST) return 0;
    return error_set(e, "cannot make the folder %s: %s", path, strerror(errno));
}

/* Removes the shards of a split numbered `from` and up; those below are all there. */
static int remove_shards(const char *dir, const char *split, int from, struct error *e) {
    char path[SHARD_PATH_BYTES];
    int last = shard_count_files(dir, split, e);
    if (last < 0) return -1;
    for (int index = from; last > from && index < MOST_SHARDS; index++) {
        shard_path(path, dir, split, index);
        if (unlink(path) == 0)
            last--;
        else if (errno != ENOENT)
            return error_set(e, "cannot remove %s of an earlier build: %s", path, strerror(errno));
    }
    return 0;
}

static int install_split(const struct build *b, const char *split, int shards, struct error *e) {
    char from[SHARD_PATH_BYTES], to[SHARD_PATH_BYTES];
    for (int s = 0; s < shards; s++) {
        shard_path(from, b->folder, split, s);
        shard_path(to, b->plan->out, split, s);
        if (rename(from, to) != 0) return error_set(e, "cannot put %s in place: %s", to, strerror(errno));
    }
    return remove_shards(b->plan->out, split, shards, e);
}

/* Until here an earlier build in the output folder is as it was; from here on only renames and removals are
 * left. */
static int install_shards(const struct build *b, struct error *e) {
    if (install_split(b, "train", b->report->train_shards, e) != 0) return -1;
    return install_split(b, "validation", b->report->validation_shards, e);
}

static int build_shards(struct build *b, struct error *e) {
    if (divide_tokens(b, e) != 0 || make_folder(b->plan->out, e) != 0) return -1;
    snprintf(b->folder, sizeof b->folder, "%s/.building", b->plan->out);
    if (make_folder(b->folder, e) != 0) return -1;
    start_split(b, "train", b->report->train_tokens, &b->report->train_shards);
    int result = encode_texts(b, true, e) < 0 ? -1 : install_shards(b, e);
    struct error ignored; /* the first failure is the one to tell */
    remove_shards(b->folder, "train", 0, &ignored);
    remove_shards(b->folder, "validation", 0, &ignored);
    rmdir(b->folder);
    return result;
}

static int map_texts(struct build *b, struct error *e) {
    for (int t = 0; t < b->plan->text_count; t++) {
        if (file_map(&b->text[t], b->plan->texts[t], "a text", e) != 0) return -1;
        b->report->text_bytes += b->text[t].size;
    }
    return 0;
}

int corpus_build(const struct corpus_plan *plan, struct corpus_report *report, struct error *e) {
    *report = (struct corpus_report){0};
    if (check_plan(plan, e) != 0) return -1;
    struct build b = {.plan = plan, .report = report, .tokenizer = tokenizer_find(plan->tokenizer, e)};
    if (!b.tokenizer) return -1;
    b.text = memory_alloc_zeroed((size_t)plan->text_count * sizeof *b.text);
    int result = map_texts(&b, e) == 0 ? build_shards(&b, e) : -1;
    for (int t = 0; t < plan->text_count; t++) file_unmap(&b.text[t]);
    free(b.text);
    free(b.tokens);
    return result;
}
