#define _GNU_SOURCE
#include "train/checkpoint.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/files.h"
#include "train/safetensors.h"

/* Hugging Face keeps the head outside the transformer. */
static void tensor_name(const struct param *p, char *name, size_t size) {
    snprintf(name, size, "%s%s", p->kind == PARAM_HEAD ? "" : "transformer.", p->name);
}

static int write_weights(const char *path, const struct gpt *g, struct error *e) {
    const int count = g->table.params;
    char(*names)[64] = memory_alloc(sizeof *names * (size_t)count);
    const char **name = memory_alloc(sizeof *name * (size_t)count);
    struct tensor *host = memory_alloc(sizeof *host * (size_t)count);
    float *values = memory_alloc(sizeof *values * (size_t)g->table.elements);
    g->device->copy_out(g->stream, values, g->weight);
    struct tensor flat = tensor_of(values, DTYPE_F32, g->table.elements);
    for (int i = 0; i < count; i++) {
        tensor_name(&g->table.param[i], names[i], sizeof names[i]);
        name[i] = names[i];
        host[i] = param_view(&g->table.param[i], flat);
    }
    int status = safetensors_write(path, name, host, count, e);
    free(values);
    free(host);
    free(name);
    free(names);
    return status;
}

static int write_config(const char *path, const struct gpt_config *c, const char *tokenizer, int64_t step,
                        struct error *e) {
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
    int status = files_write_text(path, text, e);
    free(text);
    cJSON_Delete(config);
    return status;
}

int checkpoint_prepare(const char *run_dir, struct error *e) {
    enum { LONGEST_RUN_DIR = 900 };
    char root[LONGEST_RUN_DIR + 20];
    if (strlen(run_dir) > LONGEST_RUN_DIR)
        return error_set(e, "run folder '%.100s...': the name is longer than %d characters", run_dir,
                         LONGEST_RUN_DIR);
    snprintf(root, sizeof root, "%s/checkpoints", run_dir);
    return files_make_folder(*run_dir ? root : run_dir, e);
}

int checkpoint_save(const char *run_dir, int64_t step, const struct gpt *g, const char *tokenizer,
                    struct error *e) {
    char root[950], name[32], path[1000], beside[1010], file[1100];
    snprintf(root, sizeof root, "%s/checkpoints", run_dir);
    snprintf(name, sizeof name, "step-%08lld", (long long)step);
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(beside, sizeof beside, "%s.tmp", path);
    if (checkpoint_prepare(run_dir, e)) return -1;
    files_remove_folder(beside); /* left by a run that was killed while it wrote */
    if (files_make_folder(beside, e)) return -1;
    int status = 0;
    snprintf(file, sizeof file, "%s/model.safetensors", beside);
    status = status || write_weights(file, g, e);
    snprintf(file, sizeof file, "%s/config.json", beside);
    status = status || write_config(file, &g->config, tokenizer, step, e);
    status = status || files_sync_folder(beside, e);
    if (status) {
        files_remove_folder(beside);
        return -1;
    }
    files_remove_folder(path); /* the same step of an earlier run in this folder */
    if (rename(beside, path)) return error_set(e, "'%s' cannot be renamed: %s", beside, strerror(errno));
    snprintf(file, sizeof file, "%s/latest", root);
    strcat(name, "\n");
    return files_write_text(file, name, e) || files_sync_folder(root, e) ? -1 : 0;
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

/* "fp32 (8, 3)" */
static void describe(struct tensor t, char *text, size_t size) {
    int used = snprintf(text, size, "%s (", dtype_table[t.dtype].name);
    for (int d = 0; d < t.ndim; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? ", " : "", (long long)t.dim[d]);
    snprintf(text + used, size - (size_t)used, ")");
}

static int read_weight(const struct safetensors *f, struct gpt *g, const struct param *p, struct error *e) {
    char name[64], found[128], expected[128];
    struct tensor t, w = param_view(p, g->weight);
    tensor_name(p, name, sizeof name);
    /* Some GPT-2 files leave the prefix out. */
    if (safetensors_find(f, safetensors_has(f, p->name) ? p->name : name, &t, e)) return -1;
    bool fits = t.dtype == DTYPE_F32 && t.ndim == w.ndim;
    for (int d = 0; fits && d < w.ndim; d++) fits = t.dim[d] == w.dim[d];
    if (!fits) {
        describe(t, found, sizeof found);
        describe(w, expected, sizeof expected);
        return error_set(e, "'%s': tensor '%s' is %s; expected %s", f->path, name, found, expected);
    }
    g->device->copy_in(g->stream, w, t.data);
    return 0;
}

int checkpoint_read_weights(const char *checkpoint, struct gpt *g, struct error *e) {
    char path[1100];
    struct safetensors f;
    snprintf(path, sizeof path, "%s/model.safetensors", checkpoint);
    if (safetensors_open(&f, path, e)) return -1;
    int status = 0;
    for (int i = 0; !status && i < g->table.params; i++) status = read_weight(&f, g, &g->table.param[i], e);
    gpt_round_weights(g);
    safetensors_close(&f);
    return status;
}
