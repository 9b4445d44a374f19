#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "train/compare.h"
#include "train/files.h"

/* cJSON prints NaN and infinity as null: not measured, or not reached. */
static void add_number(cJSON *object, const char *name, double value) {
    cJSON_AddNumberToObject(object, name, value);
}

static void add_sample(cJSON *object, const char *name, const struct sample *s) {
    cJSON *entry = cJSON_AddObjectToObject(object, name);
    add_number(entry, "count", s->count);
    add_number(entry, "mean", s->mean);
    add_number(entry, "sd", s->sd);
}

static void add_difference(cJSON *object, const char *name, const struct paired_difference *d) {
    add_sample(object, name, &d->sample);
    cJSON *entry = cJSON_GetObjectItem(object, name);
    add_number(entry, "lower", d->lower);
    add_number(entry, "upper", d->upper);
}

/* Every time, byte count and ratio of a method by name, for compare.json and compare.csv alike. */
static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(name) \
    { #name, offsetof(struct compare_summary, name) }
    FIELD(step_ms),     FIELD(exposed_ms), FIELD(compress_ms), FIELD(compress_share), FIELD(bytes_sent),
    FIELD(bytes_ratio), FIELD(training_s), FIELD(target_s),    FIELD(interval),
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double field_of(const struct compare_summary *s, int i) {
    return *(const double *)((const char *)s + fields[i].offset);
}

static cJSON *run_entry(const struct compare_result *r, int method, int seed) {
    const struct compare_run *run = &r->run[method * r->plan->seeds + seed];
    cJSON *entry = cJSON_CreateObject();
    add_number(entry, "seed", (double)(r->plan->options->seed + seed));
    cJSON_AddStringToObject(entry, "host", run->host);
    cJSON_AddStringToObject(entry, "version", run->version);
    cJSON_AddBoolToObject(entry, "diverged", run->diverged);
    add_number(entry, "steps", (double)run->steps);
    add_number(entry, "val_loss", run->val_loss);
    add_number(entry, "val_accuracy", run->val_accuracy);
    add_number(entry, "step_ms", run->step_ms);
    add_number(entry, "bytes_sent", run->bytes_sent);
    add_number(entry, "bytes_dense", run->bytes_dense);
    add_number(entry, "training_s", run->training_s);
    add_number(entry, "target_s", run->target_s);
    add_number(entry, "interval", run->interval);
    return entry;
}

static cJSON *method_entry(const struct compare_result *r, int method) {
    const struct compare_plan *p = r->plan;
    const struct compare_summary *s = &r->summary[method];
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "method", p->method[method].word);
    cJSON_AddStringToObject(entry, "folder", p->method[method].folder);
    cJSON_AddStringToObject(entry, "verdict", compare_verdict_name(r, method));
    add_number(entry, "diverged", s->diverged);
    add_number(entry, "reached_target", s->reached);
    add_sample(entry, "val_loss", &s->val_loss);
    add_sample(entry, "val_accuracy", &s->val_accuracy);
    add_difference(entry, "loss_difference", &s->loss_difference);
    add_difference(entry, "accuracy_difference", &s->accuracy_difference);
    for (int i = 0; i < FIELDS; i++) add_number(entry, fields[i].name, field_of(s, i));
    cJSON *speedup = cJSON_AddObjectToObject(entry, "speedup");
    for (int m = 0; m < p->methods; m++)
        add_number(speedup, p->method[m].word, compare_speedup(r, method, m));
    cJSON *runs = cJSON_AddArrayToObject(entry, "runs");
    for (int i = 0; i < p->seeds; i++) cJSON_AddItemToArray(runs, run_entry(r, method, i));
    return entry;
}

static int write_json(const struct compare_result *r, const char *path, struct error *e) {
    const struct compare_plan *p = r->plan;
    cJSON *all = cJSON_CreateObject();
    cJSON_AddStringToObject(all, "version", TANDEM_VERSION);
    cJSON_AddStringToObject(all, "reference", p->method[p->reference].word);
    add_number(all, "ranks", r->ranks);
    add_number(all, "seeds", p->seeds);
    add_number(all, "margin", p->options->margin);
    add_number(all, "target_loss", p->options->target_loss > 0 ? p->options->target_loss : NAN);
    cJSON *methods = cJSON_AddArrayToObject(all, "methods");
    for (int m = 0; m < p->methods; m++) cJSON_AddItemToArray(methods, method_entry(r, m));
    cJSON *warnings = cJSON_AddArrayToObject(all, "warnings");
    for (int i = 0; i < r->warnings; i++) cJSON_AddItemToArray(warnings, cJSON_CreateString(r->warning[i]));
    char *text = cJSON_Print(all);
    const int status = files_write_text(path, text, e);
    free(text);
    cJSON_Delete(all);
    return status;
}

/* A cell of the table of numbers; empty for what is not known. */
static void put_cell(FILE *out, double value) {
    if (isfinite(value))
        fprintf(out, ",%.17g", value);
    else
        fprintf(out, ",");
}

static void put_row(FILE *out, const struct compare_result *r, int method) {
    const struct compare_summary *s = &r->summary[method];
    fprintf(out, "%s,%s,%d", r->plan->method[method].word, compare_verdict_name(r, method), s->diverged);
    const double losses[] = {s->val_loss.mean,
                             s->val_loss.sd,
                             s->loss_difference.sample.mean,
                             s->loss_difference.lower,
                             s->loss_difference.upper,
                             s->val_accuracy.mean,
                             s->val_accuracy.sd,
                             s->accuracy_difference.sample.mean,
                             s->accuracy_difference.lower,
                             s->accuracy_difference.upper};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) put_cell(out, losses[i]);
    for (int i = 0; i < FIELDS; i++) put_cell(out, field_of(s, i));
    put_cell(out, compare_speedup(r, method, r->plan->reference));
    fprintf(out, "\n");
}

static int write_csv(const struct compare_result *r, const char *path, struct error *e) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    CHECK(out, "out of memory");
    fprintf(out,
            "method,verdict,diverged,val_loss,val_loss_sd,loss_difference,loss_lower,loss_upper,val_accuracy,"
            "val_accuracy_sd,accuracy_difference,accuracy_lower,accuracy_upper");
    for (int i = 0; i < FIELDS; i++) fprintf(out, ",%s", fields[i].name);
    fprintf(out, ",speedup\n");
    for (int m = 0; m < r->plan->methods; m++) put_row(out, r, m);
    fclose(out);
    const int status = files_write_text(path, text, e);
    free(text);
    return status;
}

int compare_write(const struct compare_result *r, struct error *e) {
    char path[COMPARE_LONGEST_PATH + 16];
    const char *run_dir = r->plan->options->run_dir;
    snprintf(path, sizeof path, "%s/compare.json", run_dir);
    if (write_json(r, path, e)) return -1;
    snprintf(path, sizeof path, "%s/compare.csv", run_dir);
    return write_csv(r, path, e);
}
