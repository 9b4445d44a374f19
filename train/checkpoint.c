#define _GNU_SOURCE
#include "train/checkpoint.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/files.h"
#include "train/model_files.h"
#include "train/state.h"

int checkpoint_write_config(const char *folder, const struct gpt_config *c, const char *tokenizer,
                            int64_t step, struct file_sum *sum, struct error *e) {
    char path[CHECKPOINT_PATH + 20];
    snprintf(path, sizeof path, "%s/config.json", folder);
    cJSON *config = cJSON_CreateObject();
    cJSON *architectures = cJSON_AddArrayToObject(config, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString("GPT2LMHeadModel"));
    cJSON_AddStringToObject(config, "model_type", "gpt2");
    cJSON_AddNumberToObject(config, "vocab_size", c->vocab);
    cJSON_AddNumberToObject(config, "n_positions", c->context);
    cJSON_AddNumberToObject(config, "n_ctx", c->context);
    cJSON_AddNumberToObject(config, "n_embd", c->channels);
    cJSON_AddNumberToObject(config, "n_layer", c->layers);
    cJSON_AddNumberToObject(config, "n_head", c->heads);
    cJSON_AddStringToObject(config, "activation_function", "gelu_new");
    cJSON_AddNumberToObject(config, "layer_norm_epsilon", 1e-5);
    cJSON_AddNumberToObject(config, "initializer_range", 0.02);
    const char *const drops[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    for (int i = 0; i < 3; i++) cJSON_AddNumberToObject(config, drops[i], (double)c->dropout);
    cJSON_AddBoolToObject(config, "tie_word_embeddings", c->tied);
    cJSON_AddStringToObject(config, "torch_dtype", "float32");
    cJSON_AddStringToObject(config, "tandem_tokenizer", tokenizer);
    cJSON_AddNumberToObject(config, "tandem_step", (double)step);
    char *text = cJSON_Print(config);
    const int status = files_output_text(path, text, sum, e);
    free(text);
    cJSON_Delete(config);
    return status;
}

enum { LONGEST_RUN_DIR = 900 };

static void name_root(char *root, const char *run_dir) {
    snprintf(root, LONGEST_RUN_DIR + 20, "%s/checkpoints", run_dir);
}

void checkpoint_path(char *path, const char *run_dir, int64_t step) {
    snprintf(path, CHECKPOINT_PATH, "%.*s/checkpoints/step-%08lld", LONGEST_RUN_DIR, run_dir,
             (long long)step);
}

void checkpoint_path_beside(char *path, const char *run_dir, int64_t step) {
    checkpoint_path(path, run_dir, step);
    strcat(path, ".tmp");
}

/* A half-written checkpoint goes; an old one that was on its way to be replaced (files_exchange_folder) comes back. */
static void tidy(const char *root) {
    DIR *folder = opendir(root);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[1400], before[1400];
        const char *ending = strrchr(entry->d_name, '.');
        if (strncmp(entry->d_name, "step-", 5) != 0 || !ending) continue;
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        snprintf(before, sizeof before, "%s/%.*s", root, (int)(ending - entry->d_name), entry->d_name);
        if (strcmp(ending, ".old") == 0 && rename(path, before) == 0) continue;
        if (strcmp(ending, ".old") == 0 || strcmp(ending, ".tmp") == 0) files_remove_folder(path);
    }
    closedir(folder);
}

int checkpoint_prepare(const char *run_dir, struct error *e) {
    char root[LONGEST_RUN_DIR + 20];
    if (strlen(run_dir) > LONGEST_RUN_DIR)
        return error_set(e, "run folder '%.100s...': the name is longer than %d characters", run_dir,
                         LONGEST_RUN_DIR);
    name_root(root, run_dir);
    if (files_make_folder(*run_dir ? root : run_dir, e)) return -1;
    tidy(root);
    return 0;
}

int checkpoint_begin(const char *run_dir, int64_t step, struct error *e) {
    char beside[CHECKPOINT_PATH];
    if (checkpoint_prepare(run_dir, e)) return -1;
    checkpoint_path_beside(beside, run_dir, step);
    return files_make_folder(beside, e);
}

int checkpoint_publish(const char *run_dir, int64_t step, struct error *e) {
    char root[LONGEST_RUN_DIR + 20], beside[CHECKPOINT_PATH], path[CHECKPOINT_PATH], latest[CHECKPOINT_PATH],
        name[32];
    name_root(root, run_dir);
    checkpoint_path_beside(beside, run_dir, step);
    checkpoint_path(path, run_dir, step);
    snprintf(latest, sizeof latest, "%s/latest", root);
    snprintf(name, sizeof name, "step-%08lld\n", (long long)step);
    if (files_sync_folder(beside, e) || files_exchange_folder(beside, path, e) ||
        files_sync_folder(root, e) || files_write_text(latest, name, e) || files_sync_folder(root, e))
        return -1;
    files_remove_folder(beside); /* the same step of an earlier run in this folder */
    return 0;
}

void checkpoint_discard(const char *run_dir, int64_t step) {
    char beside[CHECKPOINT_PATH];
    checkpoint_path_beside(beside, run_dir, step);
    files_remove_folder(beside);
}

void checkpoint_remove(const char *run_dir, int64_t step) {
    char path[CHECKPOINT_PATH];
    checkpoint_path(path, run_dir, step);
    files_remove_folder(path);
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int checkpoint_list(const char *checkpoints, int64_t **steps) {
    int count = 0;
    *steps = NULL;
    DIR *folder = opendir(checkpoints);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *end;
        const long long step =
            strncmp(entry->d_name, "step-", 5) == 0 ? strtoll(entry->d_name + 5, &end, 10) : -1;
        if (step < 0 || end == entry->d_name + 5 || *end) continue;
        *steps = realloc(*steps, sizeof **steps * (size_t)(count + 1));
        CHECK(*steps, "out of memory: a list of %d checkpoints", count + 1);
        (*steps)[count++] = step;
    }
    if (folder) closedir(folder);
    if (count) qsort(*steps, (size_t)count, sizeof **steps, ascending);
    return count;
}

static bool is_checkpoint(const char *dir) {
    char file[1100];
    snprintf(file, sizeof file, "%s/config.json", dir);
    return access(file, R_OK) == 0;
}

int checkpoint_locate(const char *dir, char *path, size_t size, struct error *e) {
    snprintf(path, size, "%s", dir);
    if (is_checkpoint(dir)) return 0;
    char file[1100];
    snprintf(file, sizeof file, "%s/checkpoints/latest", dir);
    struct error ignored;
    char *name = files_read_text(file, &ignored);
    if (!name)
        return error_set(e,
                         "no checkpoint in '%s': expected config.json or checkpoints/latest there; "
                         "train with --run-dir %s first, or name another --checkpoint",
                         dir, dir);
    name[strcspn(name, "\n")] = 0;
    snprintf(path, size, "%s/checkpoints/%s", dir, name);
    free(name);
    return is_checkpoint(path) ? 0 : error_set(e, "'%s' names '%s', which is not a checkpoint", file, path);
}

/* A whole number of config.json within a range; *value is untouched if the key may be, and is, missing. */
static int read_number(const cJSON *config, const char *path, const char *key, int low, int high, int *value,
                       struct error *e) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    if (!cJSON_IsNumber(item) || item->valuedouble < low || item->valuedouble > high ||
        item->valuedouble != (double)item->valueint)
        return error_set(e, "'%s': expected \"%s\" to be a whole number from %d to %d", path, key, low, high);
    *value = item->valueint;
    return 0;
}

int checkpoint_read_info(const char *checkpoint, struct checkpoint_info *info, struct error *e) {
    char path[1100];
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    char *text = files_read_text(path, e);
    if (!text) return -1;
    cJSON *config = cJSON_Parse(text);
    free(text);
    if (!config) return error_set(e, "'%s' is not JSON", path);
    *info = (struct checkpoint_info){.tokenizer = "bytes"};
    struct gpt_config *c = &info->config;
    const cJSON *tied = cJSON_GetObjectItemCaseSensitive(config, "tie_word_embeddings");
    c->tied = !cJSON_IsFalse(tied); /* GPT-2's default */
    const char *tokenizer =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "tandem_tokenizer"));
    if (tokenizer) snprintf(info->tokenizer, sizeof info->tokenizer, "%s", tokenizer);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(config, "tandem_step");
    if (cJSON_IsNumber(step)) info->step = (int64_t)step->valuedouble;
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "model_type"));
    int status = 0;
    if (!kind || strcmp(kind, "gpt2") != 0)
        status = error_set(e, "'%s': found model_type '%s', expected 'gpt2'", path, kind ? kind : "(none)");
    status = status || read_number(config, path, "n_layer", 1, 1000, &c->layers, e) ||
             read_number(config, path, "n_head", 1, 1000, &c->heads, e) ||
             read_number(config, path, "n_embd", 1, 100000, &c->channels, e) ||
             read_number(config, path, "n_positions", 1, 1 << 20, &c->context, e) ||
             read_number(config, path, "vocab_size", 1, 1000000, &c->vocab, e);
    if (!status && c->channels % c->heads)
        status = error_set(e, "'%s': n_embd %d does not split into n_head %d", path, c->channels, c->heads);
    cJSON_Delete(config);
    return status ? -1 : 0;
}

/* Copies tensors out of an open file until one does not fit. */
struct reading {
    const struct gpt *gpt;
    const struct model_files *files;
    struct error *e;
    int status;
};

static void read_weight(void *context, const struct state_tensor *t) {
    struct reading *r = context;
    /* Some GPT-2 files leave the prefix out. */
    const char *bare = strncmp(t->name, "transformer.", 12) == 0 ? t->name + 12 : t->name;
    struct tensor found;
    if (r->status) return;
    const struct safetensors *file = model_files_with(r->files, bare);
    const char *name = safetensors_has(file, bare) ? bare : t->name;
    r->status = safetensors_find_like(model_files_with(r->files, name), name, t->tensor, &found, r->e);
    if (!r->status) r->gpt->device->copy_in(r->gpt->stream, t->tensor, found.data);
}

int checkpoint_read_weights(const char *checkpoint, struct gpt *g, struct error *e) {
    struct model_files files;
    struct reading r = {.gpt = g, .files = &files, .e = e};
    r.status = model_files_open(&files, checkpoint, e);
    if (!r.status) state_visit_weights(g, read_weight, &r);
    gpt_round_weights(g);
    model_files_close(&files);
    return r.status;
}
