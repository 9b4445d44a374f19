#define _GNU_SOURCE
#include "train/manifest.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "train/options_json.h"
#include "train/sealed_json.h"

enum { FORMAT = 1 };

/* CRC-32 over windows spread over the split: other text gives another one. */
static void fingerprint(const struct loader *l, char text[16]) {
    enum { WINDOWS = 64 };
    int32_t *tokens = memory_alloc(2 * sizeof *tokens * (size_t)l->context);
    uLong crc = crc32(0, NULL, 0);
    for (int64_t i = 0; i < WINDOWS; i++) {
        loader_read(l, i * l->windows / WINDOWS, tokens, tokens + l->context);
        crc = crc32(crc, (const Bytef *)tokens, (uInt)(sizeof *tokens * (size_t)l->context));
    }
    free(tokens);
    snprintf(text, 16, "%08lx", crc);
}

static void add_whole(cJSON *object, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    cJSON_AddRawToObject(object, name, text);
}

/* Reals with all their digits, which cJSON would shorten. */
static void add_numbers(void *context, const struct kept *k) {
    /* Two compressors of one rank keep the same numbers. */
    if (cJSON_GetObjectItemCaseSensitive(context, k->name)) return;
    cJSON *list = cJSON_AddArrayToObject(context, k->name);
    for (int i = 0; i < k->count; i++) {
        char text[40] = "";
        switch (k->type) {
        case NUMBER_FLAG:
            snprintf(text, sizeof text, "%d", ((const bool *)k->number)[i]);
            break;
        case NUMBER_WHOLE:
            snprintf(text, sizeof text, "%lld", (long long)((const int64_t *)k->number)[i]);
            break;
        case NUMBER_REAL:
            snprintf(text, sizeof text, "%.17g", ((const double *)k->number)[i]);
            break;
        }
        cJSON_AddItemToArray(list, cJSON_CreateRaw(text));
    }
}

cJSON *manifest_create(struct trainer *t, int64_t step) {
    cJSON *m = cJSON_CreateObject();
    char print[16];
    cJSON_AddNumberToObject(m, "format", FORMAT);
    cJSON_AddStringToObject(m, "version", TANDEM_VERSION);
    add_whole(m, "step", step);
    add_whole(m, "ranks", t->comm->size);
    add_whole(m, "stages", t->mesh.pp);
    add_whole(m, "chunks", t->pipeline.schedule.chunks);
    cJSON *data = cJSON_AddObjectToObject(m, "data");
    fingerprint(&t->train, print);
    add_whole(data, "train_tokens", t->train.tokens);
    add_whole(data, "vocab_size", t->gpt.config.vocab);
    cJSON_AddStringToObject(data, "fingerprint", print);
    options_json_add(t->options, cJSON_AddObjectToObject(m, "options"));
    cJSON *numbers = cJSON_AddObjectToObject(m, "numbers");
    state_visit_switched_numbers(t, add_numbers, numbers);
    state_visit_numbers(t, add_numbers, numbers);
    cJSON_AddObjectToObject(m, "files");
    return m;
}

static cJSON *files_of(const cJSON *m) {
    return cJSON_GetObjectItemCaseSensitive(m, "files");
}

void manifest_add_file(cJSON *m, const char *name, const struct file_sum *sum) {
    cJSON *entry = cJSON_AddObjectToObject(files_of(m), name);
    char text[16];
    snprintf(text, sizeof text, "%08x", sum->crc);
    add_whole(entry, "bytes", sum->bytes);
    cJSON_AddStringToObject(entry, "crc32", text);
}

void manifest_path(char *path, const char *checkpoint) {
    snprintf(path, MANIFEST_PATH, "%s/training.json", checkpoint);
}

int manifest_write(const cJSON *m, const char *checkpoint, struct error *e) {
    char path[MANIFEST_PATH];
    manifest_path(path, checkpoint);
    return sealed_json_write(path, m, e);
}

cJSON *manifest_read(const char *checkpoint, struct error *e) {
    char path[MANIFEST_PATH];
    manifest_path(path, checkpoint);
    cJSON *m = sealed_json_read(path, e);
    if (!m || manifest_number(m, "format") == FORMAT) return m;
    error_set(e, "'%s' has format %lld, expected %d: it is of another version of tandem", path,
              (long long)manifest_number(m, "format"), FORMAT);
    cJSON_Delete(m);
    return NULL;
}

int64_t manifest_number(const cJSON *m, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m, name);
    return cJSON_IsNumber(item) ? (int64_t)item->valuedouble : -1;
}

int manifest_files(const cJSON *m) {
    return cJSON_GetArraySize(files_of(m));
}

const char *manifest_file(const cJSON *m, int i) {
    return cJSON_GetArrayItem(files_of(m), i)->string;
}

bool manifest_has_file(const cJSON *m, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(files_of(m), name) != NULL;
}

int manifest_verify(const cJSON *m, const char *checkpoint, const char *name, struct error *e) {
    char path[CHECKPOINT_PATH + 64];
    struct file_sum found;
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(files_of(m), name);
    const char *recorded = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "crc32"));
    const int64_t bytes = manifest_number(entry, "bytes");
    if (!recorded) return error_set(e, "'%s/training.json' does not list %s", checkpoint, name);
    if (files_sum(path, &found, e)) return -1;
    if (found.bytes != bytes)
        return error_set(e, "'%s' is damaged: it has %lld bytes, expected %lld", path, (long long)found.bytes,
                         (long long)bytes);
    if (found.crc == strtoul(recorded, NULL, 16)) return 0;
    return error_set(e, "'%s' is damaged: its CRC-32 is %08x, expected %s", path, found.crc, recorded);
}

int manifest_verify_model(const char *checkpoint, struct error *e) {
    char path[MANIFEST_PATH];
    manifest_path(path, checkpoint);
    if (access(path, F_OK) != 0) return 0; /* a model from elsewhere */
    cJSON *m = manifest_read(checkpoint, e);
    int status = !m || manifest_verify(m, checkpoint, "config.json", e);
    for (int i = 0; !status && i < manifest_files(m); i++)
        if (strncmp(manifest_file(m, i), "model", 5) == 0)
            status = manifest_verify(m, checkpoint, manifest_file(m, i), e);
    cJSON_Delete(m);
    if (status) manifest_suggest(checkpoint, "--checkpoint", e);
    return status ? -1 : 0;
}

static bool is_whole(const char *checkpoint) {
    struct error ignored;
    cJSON *m = manifest_read(checkpoint, &ignored);
    bool whole = m != NULL;
    for (int i = 0; whole && i < manifest_files(m); i++)
        whole = manifest_verify(m, checkpoint, manifest_file(m, i), &ignored) == 0;
    cJSON_Delete(m);
    return whole;
}

void manifest_suggest(const char *checkpoint, const char *option, struct error *e) {
    char root[CHECKPOINT_PATH], path[CHECKPOINT_PATH + 32], damaged[32] = "";
    const struct error found = *e;
    int64_t *step;
    snprintf(root, sizeof root, "%s", checkpoint);
    for (size_t n = strlen(root); n > 1 && root[n - 1] == '/'; n--) root[n - 1] = 0;
    char *slash = strrchr(root, '/');
    if (slash) snprintf(damaged, sizeof damaged, "%s", slash + 1), *slash = 0;
    for (int i = checkpoint_list(root, &step) - 1; i >= 0; i--) {
        char name[32];
        snprintf(name, sizeof name, "step-%08lld", (long long)step[i]);
        snprintf(path, sizeof path, "%s/%s", root, name);
        if (strcmp(name, damaged) == 0 || !is_whole(path)) continue;
        error_set(e, "%.420s; %s is whole: use %s %s", found.text, name, option, path);
        free(step);
        return;
    }
    free(step);
    error_set(e, "%.600s; no whole checkpoint lies beside it", found.text);
}

/* Compares what the run began with to what it is now. */
struct comparison {
    const cJSON *options;
    const char *checkpoint;
    struct error *e;
    int status;
};

static void check_option(void *context, const char *name, const char *value, bool is_text) {
    struct comparison *c = context;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(c->options, name);
    if (c->status || !options_are_fixed(name) || options_json_same(item, value, is_text)) return;
    char *before = item ? cJSON_PrintUnformatted(item) : strdup("unknown"), dashed[64];
    snprintf(dashed, sizeof dashed, "%s", name);
    for (char *d = dashed; *d; d++)
        if (*d == '_') *d = '-';
    c->status = error_set(
        c->e,
        "--%s is %.100s, but the run in '%.300s' began with %.100s, and cannot go on otherwise; give "
        "that value, or begin a new run with --resume off and another --run-dir",
        dashed, value, c->checkpoint, before);
    free(before);
}

int manifest_check_run(const cJSON *m, const struct trainer *t, const char *checkpoint, struct error *e) {
    struct comparison c = {cJSON_GetObjectItemCaseSensitive(m, "options"), checkpoint, e, 0};
    options_visit(t->options, TRAIN, check_option, &c);
    if (c.status) return -1;
    char print[16];
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(m, "data");
    const char *recorded = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(data, "fingerprint"));
    const int64_t tokens = manifest_number(data, "train_tokens"), vocab = manifest_number(data, "vocab_size");
    if (vocab != t->gpt.config.vocab)
        return error_set(
            e,
            "the vocabulary is %d, but the run in '%s' began with %lld; expected the same data and --vocab",
            t->gpt.config.vocab, checkpoint, (long long)vocab);
    fingerprint(&t->train, print);
    if (tokens == t->train.tokens && recorded && strcmp(recorded, print) == 0) return 0;
    return error_set(
        e,
        "'%s' holds other data than the run in '%s' began with: %lld training tokens, fingerprint %s, "
        "where it had %lld and %s; expected the same data",
        t->options->data, checkpoint, (long long)t->train.tokens, print, (long long)tokens,
        recorded ? recorded : "none");
}

void manifest_load_number(void *context, const struct kept *k) {
    struct manifest_numbers *n = context;
    const cJSON *numbers = cJSON_GetObjectItemCaseSensitive(n->manifest, "numbers");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(numbers, k->name), *item;
    int i = 0;
    if (cJSON_GetArraySize(list) != k->count) {
        n->missing++;
        return;
    }
    cJSON_ArrayForEach(item, list) {
        switch (k->type) {
        case NUMBER_FLAG:
            ((bool *)k->number)[i++] = item->valuedouble != 0;
            break;
        case NUMBER_WHOLE:
            ((int64_t *)k->number)[i++] = (int64_t)item->valuedouble;
            break;
        case NUMBER_REAL:
            ((double *)k->number)[i++] = item->valuedouble;
            break;
        }
    }
}
