#define _GNU_SOURCE
#include "train/metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/options_json.h"

enum { REDUCE_SAME = -1 };

static const struct {
    const char *name;
    size_t offset;
    int reduction;
} fields[] = {
#define FIELD(name, reduction, help) {#name, offsetof(struct step_record, name), REDUCE_##reduction},
#include "train/step_fields.def"
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double *field_of(const struct step_record *r, int i) {
    return (double *)((char *)r + fields[i].offset);
}

void step_record_reduce(struct step_record *r, struct comm *comm, enum reduction reduction, double *extra,
                        int count) {
    enum { MOST_EXTRA = 8 };
    double values[FIELDS + MOST_EXTRA], *all[FIELDS + MOST_EXTRA];
    int used = 0;
    CHECK(count <= MOST_EXTRA, "%d values more than the record", count);
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].reduction == (int)reduction) all[used++] = field_of(r, i);
    for (int i = 0; i < count; i++) all[used++] = &extra[i];
    for (int i = 0; i < used; i++) values[i] = *all[i];
    comm_reduce(comm, values, used, reduction);
    for (int i = 0; i < used; i++) *all[i] = values[i];
}

int metrics_open(struct metrics *m, const char *run_dir, bool write, struct error *e) {
    *m = (struct metrics){0};
    if (!write) return 0;
    char path[1100];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    m->file = fopen(path, "we");
    return m->file ? 0 : error_set(e, "'%s' cannot be written: %s", path, strerror(errno));
}

void metrics_close(struct metrics *m) {
    if (m->file) fclose(m->file);
    m->file = NULL;
}

static cJSON *new_event(const char *event) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "event", event);
    return object;
}

static void add_text(cJSON *object, const char *name, const char *value) {
    cJSON_AddStringToObject(object, name, value);
}

/* cJSON prints NaN and infinity as null: "not measured". */
static void add_number(cJSON *object, const char *name, double value) {
    cJSON_AddNumberToObject(object, name, value);
}

static void write_event(struct metrics *m, cJSON *object) {
    char *text = cJSON_PrintUnformatted(object);
    fprintf(m->file, "%s\n", text);
    fflush(m->file);
    free(text);
    cJSON_Delete(object);
}

static void write_facts(struct metrics *m, cJSON *event, const struct options *o, const struct run_facts *f) {
    add_text(event, "version", f->version);
    add_text(event, "host", f->host);
    add_text(event, "device_description", f->device);
    add_text(event, "communication", f->communication);
    add_text(event, "tokenizer", f->tokenizer);
    add_number(event, "ranks", f->ranks);
    add_number(event, "hosts", f->hosts);
    add_number(event, "threads_per_rank", f->threads);
    add_number(event, "vocab_size", f->vocab);
    add_number(event, "buckets", f->buckets);
    add_number(event, "parameters", (double)f->parameters);
    add_number(event, "train_tokens", (double)f->train_tokens);
    add_number(event, "validation_tokens", (double)f->validation_tokens);
    add_number(event, "peak_flops", f->peak_flops);
    options_json_add(o, cJSON_AddObjectToObject(event, "options"));
    write_event(m, event);
}

void metrics_start(struct metrics *m, const struct options *o, const struct run_facts *f) {
    if (m->file) write_facts(m, new_event("start"), o, f);
}

void metrics_resume(struct metrics *m, int64_t step, const char *checkpoint, const struct options *o,
                    const struct run_facts *f) {
    if (!m->file) return;
    cJSON *event = new_event("resume");
    add_number(event, "step", (double)step);
    add_text(event, "checkpoint", checkpoint);
    write_facts(m, event, o, f);
}

void metrics_step(struct metrics *m, int64_t step, const struct step_record *r) {
    if (!m->file) return;
    cJSON *event = new_event("step");
    add_number(event, "step", (double)step);
    for (int i = 0; i < FIELDS; i++) add_number(event, fields[i].name, *field_of(r, i));
    /* Part of the format; measured by parts of tandem that this run does not use. */
    cJSON_AddNullToObject(event, "energy_j");
    write_event(m, event);
}

void metrics_buckets(struct metrics *m, int64_t step, const struct bucket_engine *engine, double started) {
    if (!m->file || engine->comm->size == 1) return;
    cJSON *event = new_event("buckets");
    add_number(event, "step", (double)step);
    cJSON *list = cJSON_AddArrayToObject(event, "buckets");
    for (int i = 0; i < engine->buckets; i++) {
        const struct bucket *b = &engine->bucket[i];
        cJSON *entry = cJSON_CreateObject();
        add_number(entry, "elements", (double)b->view.count);
        add_number(entry, "ready_ms", 1e3 * (b->ready - started));
        add_number(entry, "start_ms", 1e3 * (b->start - started));
        add_number(entry, "end_ms", 1e3 * (b->end - started));
        cJSON_AddItemToArray(list, entry);
    }
    write_event(m, event);
}

static void add_eval(cJSON *event, const struct eval_record *r) {
    add_number(event, "val_loss", r->val_loss);
    add_number(event, "val_accuracy", r->val_accuracy);
    add_number(event, "perplexity", r->perplexity);
    add_number(event, "bits_per_byte", r->bits_per_byte);
}

void metrics_eval(struct metrics *m, const struct eval_record *r) {
    if (!m->file) return;
    cJSON *event = new_event("eval");
    add_number(event, "step", (double)r->step);
    add_eval(event, r);
    write_event(m, event);
}

void metrics_end(struct metrics *m, int64_t steps, double median_step_ms, const struct eval_record *last,
                 const char *reason) {
    if (!m->file) return;
    cJSON *event = new_event("end");
    add_number(event, "steps", (double)steps);
    add_number(event, "median_step_ms", median_step_ms);
    add_eval(event, last);
    add_text(event, "reason", reason);
    write_event(m, event);
}
