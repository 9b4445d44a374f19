#include "train/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

#include "train/checkpoint.h"
#include "train/safetensors.h"

void snapshot_name_file(int file, int stages, char name[SNAPSHOT_FILE_NAME]) {
    static const char *const kinds[] = {"model", "optimizer", "compressor"};
    const int kind = file / stages, stage = file % stages;
    if (kind >= STATE_RANK)
        snprintf(name, SNAPSHOT_FILE_NAME, "rank-%05d.safetensors", file - STATE_RANK * stages);
    else if (stages == 1)
        snprintf(name, SNAPSHOT_FILE_NAME, "%s.safetensors", kinds[kind]);
    else
        snprintf(name, SNAPSHOT_FILE_NAME, "%s-%05d-of-%05d.safetensors", kinds[kind], stage + 1, stages);
}

static void list_tensor(void *context, const struct state_tensor *t) {
    struct snapshot *s = context;
    if (t->copy) return;
    for (int i = 0; i < s->files; i++) {
        struct snapshot_file *f = &s->file[i];
        const int kind = i / s->stages;
        if (!f->mine || (kind < STATE_RANK ? kind : STATE_RANK) != (int)t->file) continue;
        if (f->tensors == f->room) {
            f->room = 2 * f->room + 64;
            f->tensor = realloc(f->tensor, sizeof *f->tensor * (size_t)f->room);
            CHECK(f->tensor, "out of memory: a list of %d tensors", f->room);
        }
        f->tensor[f->tensors++] = *t;
    }
}

static size_t bytes_of(const struct state_tensor *t) {
    return (size_t)tensor_count(t->tensor) * dtype_table[t->tensor.dtype].size;
}

static void reserve(struct snapshot *s) {
    size_t bytes = 0;
    for (int i = 0; i < s->files; i++)
        for (int k = 0; s->file[i].mine && k < s->file[i].tensors; k++)
            bytes += bytes_of(&s->file[i].tensor[k]);
    if (bytes <= s->size) return;
    free(s->memory);
    s->memory = memory_alloc(bytes);
    s->size = bytes;
}

void snapshot_take(struct snapshot *s, struct trainer *t) {
    const struct mesh *m = &t->mesh;
    s->stages = m->pp;
    s->files = (STATE_RANK + m->dp) * m->pp;
    if (!s->file) s->file = memory_alloc_zeroed(sizeof *s->file * (size_t)s->files);
    for (int i = 0; i < s->files; i++) {
        const int kind = i / m->pp, writer = kind < STATE_RANK ? kind % m->dp : kind - STATE_RANK;
        s->file[i].tensors = 0;
        s->file[i].mine = i % m->pp == m->stage && writer == m->data_rank;
        s->file[i].sum = (struct file_sum){0};
    }
    state_visit_tensors(t, list_tensor, s);
    reserve(s);
    size_t used = 0;
    for (int i = 0; i < s->files; i++)
        for (int k = 0; s->file[i].mine && k < s->file[i].tensors; k++) {
            struct state_tensor *entry = &s->file[i].tensor[k];
            t->device->copy_out(t->gpt.stream, s->memory + used, entry->tensor);
            entry->tensor.data = s->memory + used;
            used += bytes_of(entry);
        }
}

static int write_file(struct snapshot_file *f, const char *path, struct error *e) {
    const char **names = memory_alloc(sizeof *names * (size_t)f->tensors);
    struct tensor *tensors = memory_alloc(sizeof *tensors * (size_t)f->tensors);
    for (int k = 0; k < f->tensors; k++) {
        names[k] = f->tensor[k].name;
        tensors[k] = f->tensor[k].tensor;
    }
    const int status = safetensors_write(path, names, tensors, f->tensors, &f->sum, e);
    free(names);
    free(tensors);
    return status;
}

int snapshot_write(struct snapshot *s, const char *folder, struct error *e) {
    char name[SNAPSHOT_FILE_NAME], path[CHECKPOINT_PATH + SNAPSHOT_FILE_NAME];
    for (int i = 0; i < s->files; i++) {
        if (!s->file[i].mine || !s->file[i].tensors) continue;
        snapshot_name_file(i, s->stages, name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (write_file(&s->file[i], path, e)) return -1;
    }
    return 0;
}

int64_t snapshot_written(const struct snapshot *s) {
    int64_t bytes = 0;
    for (int i = 0; i < s->files; i++) bytes += s->file[i].sum.bytes;
    return bytes;
}

void snapshot_free(struct snapshot *s) {
    for (int i = 0; i < s->files; i++) free(s->file[i].tensor);
    free(s->file);
    free(s->memory);
    *s = (struct snapshot){0};
}
