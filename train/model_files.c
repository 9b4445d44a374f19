#define _GNU_SOURCE
#include "train/model_files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/partition.h"
#include "train/checkpoint.h"
#include "train/snapshot.h"

/* Adds a file unless it is open already. */
static int open_file(struct model_files *m, const char *checkpoint, const char *name, struct error *e) {
    char path[CHECKPOINT_PATH + SNAPSHOT_FILE_NAME];
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    for (int i = 0; i < m->files; i++)
        if (strcmp(m->file[i].path, path) == 0) return 0;
    m->file = realloc(m->file, sizeof *m->file * (size_t)(m->files + 1));
    CHECK(m->file, "out of memory: %d files", m->files + 1);
    return safetensors_open(&m->file[m->files], path, e) ? -1 : (m->files++, 0);
}

int model_files_open(struct model_files *m, const char *checkpoint, struct error *e) {
    char path[CHECKPOINT_PATH + sizeof MODEL_INDEX];
    *m = (struct model_files){0};
    snprintf(path, sizeof path, "%s/%s", checkpoint, MODEL_INDEX);
    if (access(path, F_OK) != 0) return open_file(m, checkpoint, "model.safetensors", e);
    char *text = files_read_text(path, e);
    if (!text) return -1;
    cJSON *index = cJSON_Parse(text);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *file;
    int status =
        cJSON_IsObject(map) && map->child
            ? 0
            : error_set(e, "'%s' has no \"weight_map\"; expected the file of each tensor there", path);
    if (!status) cJSON_ArrayForEach(file, map) {
            const char *name = cJSON_GetStringValue(file);
            if (!name || strchr(name, '/') || strlen(name) >= SNAPSHOT_FILE_NAME)
                status = error_set(e, "'%s': tensor '%s' should name a file beside it", path, file->string);
            status = status || open_file(m, checkpoint, name, e);
            if (status) break;
        }
    cJSON_Delete(index);
    free(text);
    return status ? -1 : 0;
}

void model_files_close(struct model_files *m) {
    for (int i = 0; i < m->files; i++) safetensors_close(&m->file[i]);
    free(m->file);
    *m = (struct model_files){0};
}

const struct safetensors *model_files_with(const struct model_files *m, const char *name) {
    for (int i = 0; i < m->files; i++)
        if (safetensors_has(&m->file[i], name)) return &m->file[i];
    return &m->file[0];
}

/* The tensors of a stage, but for an embedding that the first stage saves. */
static void add_stage(cJSON *map, const struct gpt_config *config, const struct gpt_chunk *own, int chunks,
                      const char *file) {
    struct param_table table;
    param_table_create(&table, config, own, chunks);
    for (int i = 0; i < table.params; i++) {
        char name[STATE_NAME];
        state_name_weight(&table.param[i], name);
        if (!cJSON_GetObjectItemCaseSensitive(map, name)) cJSON_AddStringToObject(map, name, file);
    }
    param_table_free(&table);
}

static char *print_index(const struct gpt_config *config, int stages, int chunks,
                         const struct gpt_chunk *all) {
    cJSON *index = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(index, "metadata"), *map;
    struct gpt_chunk *own = memory_alloc(sizeof *own * (size_t)chunks);
    cJSON_AddNumberToObject(meta, "total_size", 4.0 * (double)gpt_parameters(config));
    map = cJSON_AddObjectToObject(index, "weight_map");
    for (int stage = 0; stage < stages; stage++) {
        char file[SNAPSHOT_FILE_NAME];
        snapshot_name_file(STATE_MODEL * stages + stage, stages, file);
        for (int c = 0; c < chunks; c++) own[c] = all[c * stages + stage];
        add_stage(map, config, own, chunks, file);
    }
    char *text = cJSON_Print(index);
    free(own);
    cJSON_Delete(index);
    return text;
}

int model_files_write_index(const char *folder, const struct gpt_config *config, int stages, int chunks,
                            struct file_sum *sum, struct error *e) {
    struct gpt_chunk *all = memory_alloc(sizeof *all * (size_t)(stages * chunks));
    char path[CHECKPOINT_PATH + sizeof MODEL_INDEX];
    snprintf(path, sizeof path, "%s/%s", folder, MODEL_INDEX);
    int status = partition_model(config, stages * chunks, all, e);
    if (!status) {
        char *text = print_index(config, stages, chunks, all);
        status = files_output_text(path, text, sum, e);
        free(text);
    }
    free(all);
    return status;
}
