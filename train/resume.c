#define _GNU_SOURCE
#include "train/resume.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/manifest.h"
#include "train/safetensors.h"
#include "train/snapshot.h"

/* The path named by --resume, or "" for a new run. The same on every rank, as all look into the same folder. */
static int find_checkpoint(const struct options *o, struct resume *r, struct error *e) {
    char root[CHECKPOINT_PATH], latest[CHECKPOINT_PATH + 8];
    int64_t *step;
    r->checkpoint[0] = 0;
    if (strcmp(o->resume, "off") == 0) return 0;
    if (strcmp(o->resume, "auto") != 0)
        return checkpoint_locate(o->resume, r->checkpoint, CHECKPOINT_PATH, e);
    snprintf(root, sizeof root, "%.1000s/checkpoints", o->run_dir);
    snprintf(latest, sizeof latest, "%s/latest", root);
    if (access(latest, F_OK) == 0) return checkpoint_locate(o->run_dir, r->checkpoint, CHECKPOINT_PATH, e);
    const int count = checkpoint_list(root, &step);
    const long long newest = count ? step[count - 1] : 0;
    free(step);
    if (!count) return 0;
    return error_set(
        e,
        "'%s' is missing, but step-%08lld lies there: name the checkpoint to go on from with --resume "
        "%.500s/step-%08lld, or begin anew with --resume off",
        latest, newest, root, newest);
}

static bool lies_in_run_dir(const char *checkpoint, const char *run_dir) {
    char *own = realpath(run_dir, NULL), *found = realpath(checkpoint, NULL);
    char expected[CHECKPOINT_PATH + 16];
    bool same = false;
    if (own && found) {
        const int length = snprintf(expected, sizeof expected, "%.1000s/checkpoints/", own);
        same = strncmp(found, expected, (size_t)length) == 0;
    }
    free(own);
    free(found);
    return same;
}

static cJSON *read_manifest(const char *checkpoint, struct error *e) {
    char path[MANIFEST_PATH];
    manifest_path(path, checkpoint);
    if (access(path, F_OK) != 0) {
        error_set(e,
                  "'%s' holds a model, but no training.json: nothing to go on from; expected a checkpoint "
                  "that tandem "
                  "train has written",
                  checkpoint);
        return NULL;
    }
    cJSON *m = manifest_read(checkpoint, e);
    if (!m) manifest_suggest(checkpoint, "--resume", e);
    return m;
}

/* All ranks must have found the same. Collective. */
static int agree_on_checkpoint(struct comm *comm, const cJSON *m, struct error *e) {
    const char *seal = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "crc32"));
    if (comm_same(comm, m ? (double)strtoul(seal, NULL, 16) : -1)) return 0;
    return error_set(
        e, "the ranks find different checkpoints to resume from; expected a folder that all hosts share");
}

/* Every file once, by some rank. Collective. */
static int verify_files(struct comm *comm, const cJSON *m, const char *checkpoint, struct error *e) {
    int status = 0;
    for (int i = comm->rank; i < manifest_files(m) && !status; i += comm->size)
        status = manifest_verify(m, checkpoint, manifest_file(m, i), e);
    if (status) manifest_suggest(checkpoint, "--resume", e);
    return comm_agree(comm, status, e);
}

/* The checkpoint being loaded into the trainer. */
struct loading {
    struct trainer *trainer;
    const cJSON *manifest;
    const char *checkpoint;
    struct safetensors
        *file;         /* [files], as snapshot_name_file has them; those that are not needed are closed */
    int files, stages; /* when it was written */
    bool same_ranks;   /* it was written by ranks that held what those of now do */
    int reset;         /* tensors left as they are in a new run */
    struct error *e;
    int status;
};

/* The number of the file of a rank's own. */
static int file_of_rank(const struct loading *l, int replica, int stage) {
    return (STATE_RANK + replica) * l->stages + stage;
}

static int open_files(struct loading *l) {
    const struct mesh *m = &l->trainer->mesh;
    l->file = memory_alloc_zeroed(sizeof *l->file * (size_t)l->files);
    for (int i = 0; i < l->files; i++) {
        char name[SNAPSHOT_FILE_NAME], path[CHECKPOINT_PATH + SNAPSHOT_FILE_NAME];
        const int kind = i / l->stages;
        const bool others = kind >= STATE_RANK && l->same_ranks && kind - STATE_RANK != m->data_rank;
        snapshot_name_file(i, l->stages, name);
        if (others || !manifest_has_file(l->manifest, name)) continue;
        snprintf(path, sizeof path, "%s/%s", l->checkpoint, name);
        if (safetensors_open(&l->file[i], path, l->e)) return -1;
    }
    return 0;
}

/* Fills the tensor from the one of files first .. first + count - 1 that has it. */
static int load_from(struct loading *l, int first, int count, const struct state_tensor *t) {
    struct tensor found;
    char name[SNAPSHOT_FILE_NAME];
    int file = first;
    while (file < first + count && !(l->file[file].map && safetensors_has(&l->file[file], t->name))) file++;
    snapshot_name_file(first, l->stages, name);
    if (file == first + count)
        return error_set(l->e, "'%s' has no tensor '%s'; expected it in %s%s", l->checkpoint, t->name, name,
                         count > 1 ? " or the others of its kind" : "");
    if (safetensors_find_like(&l->file[file], t->name, t->tensor, &found, l->e)) return -1;
    l->trainer->device->copy_in(l->trainer->gpt.stream, t->tensor, found.data);
    return 0;
}

/* An equal share of the sum over the replicas there were. */
static int load_share(struct loading *l, const struct state_tensor *t) {
    const int64_t count = tensor_count(t->tensor);
    double *sum = memory_alloc_zeroed(sizeof *sum * (size_t)count);
    int status = 0, holders = 0;
    for (int f = file_of_rank(l, 0, 0); f < l->files && !status; f++) {
        struct tensor found;
        if (!l->file[f].map || !safetensors_has(&l->file[f], t->name)) continue;
        holders++;
        status = safetensors_find_like(&l->file[f], t->name, t->tensor, &found, l->e);
        for (int64_t i = 0; i < count && !status; i++) sum[i] += (double)tensor_f32(found)[i];
    }
    if (!holders)
        status = error_set(l->e, "'%s' has no tensor '%s' in any file of a rank", l->checkpoint, t->name);
    float *share = memory_alloc(sizeof *share * (size_t)count);
    for (int64_t i = 0; i < count; i++) share[i] = (float)(sum[i] / l->trainer->mesh.dp);
    if (!status) l->trainer->device->copy_in(l->trainer->gpt.stream, t->tensor, share);
    free(share);
    free(sum);
    return status;
}

static void load_tensor(void *context, const struct state_tensor *t) {
    struct loading *l = context;
    const struct mesh *m = &l->trainer->mesh;
    if (l->status) return;
    if (t->file < STATE_RANK)
        l->status = load_from(l, (int)t->file * l->stages, l->stages, t);
    else if (l->same_ranks)
        l->status = load_from(l, file_of_rank(l, m->data_rank, t->copy ? 0 : m->stage), 1, t);
    else if (t->share == SHARE_SUM)
        l->status = load_share(l, t);
    else
        l->reset++;
}

/* The tuner, and the buckets that follow from it, before all that lies by bucket. */
static void load_numbers(struct loading *l, int64_t step) {
    struct trainer *t = l->trainer;
    struct tuner *tuner = &t->reducer.tuner;
    struct manifest_numbers switched = {.manifest = l->manifest}, numbers = switched;
    state_visit_switched_numbers(t, manifest_load_number, &switched);
    if (tuner->active && !l->same_ranks) tuner_measure_anew(tuner, step);
    if (tuner->active) reducer_replan(&t->reducer, step);
    reducer_gather_norms(&t->reducer);
    state_visit_numbers(t, manifest_load_number, &numbers);
    reducer_scatter_norms(&t->reducer);
    l->reset += numbers.missing;
}

static int load(struct trainer *t, const cJSON *m, const struct resume *r, struct error *e) {
    struct loading l = {.trainer = t, .manifest = m, .checkpoint = r->checkpoint, .e = e};
    const int64_t ranks = manifest_number(m, "ranks"), chunks = manifest_number(m, "chunks");
    l.stages = (int)manifest_number(m, "stages");
    l.same_ranks = ranks == t->comm->size && l.stages == t->mesh.pp && chunks == t->pipeline.schedule.chunks;
    if (l.stages < 1 || ranks < l.stages || ranks % l.stages)
        return error_set(e, "'%s/training.json' does not say of how many ranks and stages it is",
                         r->checkpoint);
    l.files = STATE_RANK * l.stages + (int)ranks;
    l.status = comm_agree(t->comm, open_files(&l), e);
    if (!l.status) load_numbers(&l, r->step);
    if (!l.status) state_visit_tensors(t, load_tensor, &l);
    gpt_round_weights(&t->gpt);
    for (int i = 0; i < l.files; i++) safetensors_close(&l.file[i]);
    free(l.file);
    if (!l.status && l.reset && t->comm->rank == 0)
        log_line("what --compress %s keeps by rank or by bucket does not fit %s and starts anew",
                 t->options->compress, l.same_ranks ? "the options given now" : "other ranks and stages");
    return l.status;
}

static int check_run(const struct trainer *t, const cJSON *m, const struct resume *r, struct error *e) {
    if (manifest_check_run(m, t, r->checkpoint, e)) return -1;
    if (r->step <= t->options->steps) return 0;
    return error_set(e, "'%s' is of step %lld; expected --steps to be at least that, found %lld",
                     r->checkpoint, (long long)r->step, (long long)t->options->steps);
}

int resume_training(struct resume *r, struct trainer *t, struct error *e) {
    *r = (struct resume){0};
    int status = find_checkpoint(t->options, r, e);
    cJSON *m = !status && *r->checkpoint ? read_manifest(r->checkpoint, e) : NULL;
    if (comm_agree(t->comm, status || (*r->checkpoint && !m) ? -1 : 0, e) ||
        agree_on_checkpoint(t->comm, m, e)) {
        cJSON_Delete(m);
        return -1;
    }
    if (!m) return 0;
    r->step = manifest_number(m, "step");
    r->same_run = lies_in_run_dir(r->checkpoint, t->options->run_dir);
    status = comm_agree(t->comm, check_run(t, m, r, e), e) || verify_files(t->comm, m, r->checkpoint, e) ||
             comm_agree(t->comm, load(t, m, r, e), e);
    cJSON_Delete(m);
    return status ? -1 : 0;
}
