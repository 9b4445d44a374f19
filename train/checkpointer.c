#define _GNU_SOURCE
#include "train/checkpointer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/manifest.h"
#include "train/model_files.h"

static const char *run_dir_of(const struct checkpointer *c) {
    return c->trainer->options->run_dir;
}

static bool leads(const struct checkpointer *c) {
    return c->trainer->comm->rank == 0;
}

static void add_kept(struct checkpointer *c, int64_t step) {
    int n = 0;
    for (int i = 0; i < c->count; i++)
        if (c->kept[i] != step) c->kept[n++] = c->kept[i];
    c->kept = realloc(c->kept, sizeof *c->kept * (size_t)(n + 1));
    CHECK(c->kept, "out of memory: a list of %d checkpoints", n + 1);
    c->kept[n] = step;
    c->count = n + 1;
}

void checkpointer_create(struct checkpointer *c, struct trainer *t, int64_t resumed) {
    *c = (struct checkpointer){.trainer = t, .step = resumed};
    writer_create(&c->writer);
    if (!leads(c) || resumed < 0) return;
    char root[CHECKPOINT_PATH];
    int64_t *step;
    snprintf(root, sizeof root, "%s/checkpoints", run_dir_of(c));
    const int count = checkpoint_list(root, &step);
    for (int i = 0; i < count && step[i] <= resumed; i++) add_kept(c, step[i]);
    free(step);
}

void checkpointer_free(struct checkpointer *c) {
    if (!c->trainer) return;
    writer_free(&c->writer);
    snapshot_free(&c->snapshot);
    cJSON_Delete(c->manifest);
    free(c->kept);
    *c = (struct checkpointer){0};
}

static int write_files(void *context, struct error *e) {
    struct checkpointer *c = context;
    struct trainer *t = c->trainer;
    char beside[CHECKPOINT_PATH];
    checkpoint_path_beside(beside, run_dir_of(c), c->step);
    const int stages = t->mesh.pp, chunks = t->pipeline.schedule.chunks;
    if (leads(c) &&
        checkpoint_write_config(beside, &t->gpt.config, t->train.tokenizer, c->step, &c->config, e))
        return -1;
    if (leads(c) && stages > 1 &&
        model_files_write_index(beside, &t->gpt.config, stages, chunks, &c->index, e))
        return -1;
    return snapshot_write(&c->snapshot, beside, e);
}

/* What other ranks have written must be seen here. */
static int look_at_files(const struct checkpointer *c, const char *beside, struct error *e) {
    for (int i = 0; i < c->snapshot.files; i++) {
        char name[SNAPSHOT_FILE_NAME], path[CHECKPOINT_PATH + SNAPSHOT_FILE_NAME];
        struct stat info;
        if (!c->snapshot.file[i].sum.bytes) continue;
        snapshot_name_file(i, c->snapshot.stages, name);
        snprintf(path, sizeof path, "%s/%s", beside, name);
        if (stat(path, &info) == 0 && info.st_size == c->snapshot.file[i].sum.bytes) continue;
        return error_set(
            e,
            "'%s' is not there as its rank has written it; expected --run-dir to be a folder that all hosts "
            "share",
            path);
    }
    return 0;
}

static int publish(void *context, struct error *e) {
    struct checkpointer *c = context;
    char beside[CHECKPOINT_PATH];
    checkpoint_path_beside(beside, run_dir_of(c), c->step);
    if (look_at_files(c, beside, e) || manifest_write(c->manifest, beside, e) ||
        checkpoint_publish(run_dir_of(c), c->step, e))
        return -1;
    const int64_t keep = c->trainer->options->keep;
    add_kept(c, c->step);
    for (; keep && c->count > keep; c->count--) {
        checkpoint_remove(run_dir_of(c), c->kept[0]);
        memmove(c->kept, c->kept + 1, sizeof *c->kept * (size_t)(c->count - 1));
    }
    return 0;
}

int checkpointer_begin(struct checkpointer *c, int64_t step, struct error *e) {
    if (checkpointer_finish(c, e)) return -1;
    if (c->step == step) return 0;
    const int status = leads(c) ? checkpoint_begin(run_dir_of(c), step, e) : 0;
    if (comm_agree(c->trainer->comm, status, e)) return -1;
    c->step = step;
    c->phase = CHECKPOINTER_FILES;
    c->config = c->index = (struct file_sum){0};
    reducer_gather_norms(&c->trainer->reducer);
    snapshot_take(&c->snapshot, c->trainer);
    if (leads(c)) {
        cJSON_Delete(c->manifest);
        c->manifest = manifest_create(c->trainer, step);
    }
    writer_start(&c->writer, write_files, c);
    return 0;
}

bool checkpointer_ready(struct checkpointer *c) {
    return c->phase != CHECKPOINTER_IDLE && writer_wait(&c->writer, 0);
}

/* Each file's length and checksum, from the rank that has written it to all. Collective. */
static void share_sums(struct checkpointer *c) {
    const int files = c->snapshot.files;
    double *values = memory_alloc_zeroed(sizeof *values * 2 * (size_t)files);
    for (int i = 0; i < files; i++) {
        if (!c->snapshot.file[i].mine) continue;
        values[2 * i] = (double)c->snapshot.file[i].sum.bytes;
        values[2 * i + 1] = (double)c->snapshot.file[i].sum.crc;
    }
    comm_reduce(c->trainer->comm, values, 2 * files, REDUCE_SUM);
    for (int i = 0; i < files; i++)
        c->snapshot.file[i].sum = (struct file_sum){(int64_t)values[2 * i], (uint32_t)values[2 * i + 1]};
    free(values);
}

static void list_files(struct checkpointer *c) {
    manifest_add_file(c->manifest, "config.json", &c->config);
    if (c->snapshot.stages > 1) manifest_add_file(c->manifest, MODEL_INDEX, &c->index);
    for (int i = 0; i < c->snapshot.files; i++) {
        char name[SNAPSHOT_FILE_NAME];
        snapshot_name_file(i, c->snapshot.stages, name);
        if (c->snapshot.file[i].sum.bytes) manifest_add_file(c->manifest, name, &c->snapshot.file[i].sum);
    }
}

int checkpointer_advance(struct checkpointer *c, struct error *e) {
    const int status = writer_end(&c->writer, e);
    const enum checkpointer_phase over = c->phase;
    c->phase = CHECKPOINTER_IDLE;
    if (comm_agree(c->trainer->comm, status, e)) {
        if (leads(c)) checkpoint_discard(run_dir_of(c), c->step);
        c->step = -1;
        return -1;
    }
    if (over == CHECKPOINTER_PUBLISH) return 0;
    share_sums(c);
    c->phase = CHECKPOINTER_PUBLISH;
    if (!leads(c)) return 0;
    list_files(c);
    writer_start(&c->writer, publish, c);
    return 0;
}

int checkpointer_finish(struct checkpointer *c, struct error *e) {
    const double timeout = c->trainer->options->timeout;
    double written = -1, since = clock_seconds();
    while (c->phase != CHECKPOINTER_IDLE) {
        /* Short enough that no rank waits for another's message longer than it should. */
        const bool ready = writer_wait(&c->writer, fmin(1.0, timeout / 4));
        double votes[2] = {ready, (double)snapshot_written(&c->snapshot)};
        comm_reduce(c->trainer->comm, votes, 2, REDUCE_SUM);
        if ((int)votes[0] == c->trainer->comm->size) {
            if (checkpointer_advance(c, e)) return -1;
            votes[1] = -1;
        }
        if (votes[1] != written) written = votes[1], since = clock_seconds();
        if (clock_seconds() - since > timeout)
            job_abort(EXIT_CHECKPOINT, __FILE__, __LINE__,
                      "checkpoint of step %lld: nothing has been written to '%s' for %g s; is its file "
                      "system there?",
                      (long long)c->step, run_dir_of(c), timeout);
    }
    return 0;
}
