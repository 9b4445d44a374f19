#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/compare.h"
#include "train/options_json.h"

struct series {
    double *value;
    int64_t count, room;
};

static void append(struct series *s, double value) {
    if (s->count == s->room) {
        s->room = 2 * s->room + 1000;
        s->value = realloc(s->value, sizeof *s->value * (size_t)s->room);
        CHECK(s->value, "out of memory: %lld steps", (long long)s->room);
    }
    s->value[s->count++] = value;
}

/* The file as it is read, line by line. */
struct reading {
    struct compare_run *run;
    const struct options *options;
    int ranks;
    double target_loss;
    struct series step_ms, exposed_ms, compress_ms;
    const cJSON *found; /* options in the file */
    struct error *e;
    int status;
};

static double number(const cJSON *event, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *event, const char *name) {
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, name));
    return value ? value : "";
}

/* Whether an option that has another value than before leaves the run as it was. */
static bool changes_nothing(const char *name) {
    static const char *const harmless[] = {"run_dir", "config", "log_every", "timeout", "keep"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(name, harmless[i]) == 0) return true;
    return false;
}

static void check_option(void *context, const char *name, const char *value, bool is_text) {
    struct reading *r = context;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->found, name);
    if (r->status || changes_nothing(name) || options_json_same(item, value, is_text)) return;
    char *before = item ? cJSON_PrintUnformatted(item) : strdup("unknown");
    r->status =
        error_set(r->e,
                  "'%.300s' holds a run with other options: %s was %.100s and is now %.100s; name another "
                  "--run-dir, or remove that folder",
                  r->options->run_dir, name, before, value);
    free(before);
}

static void read_start(struct reading *r, const cJSON *event) {
    struct compare_run *run = r->run;
    snprintf(run->host, sizeof run->host, "%s", text(event, "host"));
    snprintf(run->version, sizeof run->version, "%s", text(event, "version"));
    snprintf(run->device, sizeof run->device, "%s", text(event, "device_description"));
    r->found = cJSON_GetObjectItemCaseSensitive(event, "options");
    options_visit(r->options, TRAIN, check_option, r);
    if (!r->status && number(event, "ranks") != r->ranks)
        r->status =
            error_set(r->e,
                      "'%.300s' holds a run on %.0f ranks, and now there are %d; name another --run-dir, "
                      "or remove that folder",
                      r->options->run_dir, number(event, "ranks"), r->ranks);
}

static void read_step(struct reading *r, const cJSON *event) {
    struct compare_run *run = r->run;
    append(&r->step_ms, number(event, "step_ms"));
    append(&r->exposed_ms, number(event, "comm_exposed_ms"));
    append(&r->compress_ms, number(event, "compress_ms"));
    run->bytes_sent += number(event, "bytes_sent");
    run->bytes_dense += number(event, "bytes_dense");
    run->training_s += 1e-3 * number(event, "step_ms");
    run->interval = fmax(run->interval, number(event, "interval"));
}

static void read_eval(struct reading *r, const cJSON *event) {
    struct compare_run *run = r->run;
    run->val_loss = number(event, "val_loss");
    run->val_accuracy = number(event, "val_accuracy");
    if (isinf(run->target_s) && run->val_loss <= r->target_loss) run->target_s = run->training_s;
}

static void read_end(struct reading *r, const cJSON *event) {
    struct compare_run *run = r->run;
    const char *reason = text(event, "reason");
    run->steps = (int64_t)number(event, "steps");
    run->diverged = strcmp(reason, "diverged") == 0;
    run->complete = run->diverged || strcmp(reason, "finished") == 0;
}

static void read_event(struct reading *r, const cJSON *event) {
    static const struct {
        const char *name;
        void (*read)(struct reading *r, const cJSON *event);
    } readers[] = {{"start", read_start}, {"step", read_step}, {"eval", read_eval}, {"end", read_end}};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(text(event, "event"), readers[i].name) == 0) readers[i].read(r, event);
}

/* The first step pays for page faults and library start-up. */
static double typical(const struct series *s, double interval) {
    const int64_t window = isnan(interval) ? 1 : (int64_t)interval, skip = s->count > 1;
    return statistics_windowed_median(s->value + skip, s->count - skip, window);
}

static void finish(struct reading *r) {
    struct compare_run *run = r->run;
    const double steps = (double)r->step_ms.count;
    run->step_ms = typical(&r->step_ms, run->interval);
    run->exposed_ms = typical(&r->exposed_ms, run->interval);
    run->compress_ms = typical(&r->compress_ms, run->interval);
    run->bytes_sent /= steps;
    run->bytes_dense /= steps;
    if (run->diverged) run->val_loss = run->val_accuracy = NAN; /* of the weights before: no result */
    free(r->step_ms.value);
    free(r->exposed_ms.value);
    free(r->compress_ms.value);
}

int compare_run_read(struct compare_run *run, const struct options *o, int ranks, double target_loss,
                     struct error *e) {
    *run = (struct compare_run){.interval = NAN, .val_loss = NAN, .val_accuracy = NAN};
    run->target_s = target_loss > 0 ? INFINITY : NAN;
    struct reading r = {.run = run, .options = o, .ranks = ranks, .target_loss = target_loss, .e = e};
    char path[COMPARE_LONGEST_PATH + 16], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", o->run_dir);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (!r.status && getline(&line, &room, file) > 0) {
        cJSON *event = cJSON_Parse(line); /* a line that was cut off: the run is not complete */
        read_event(&r, event);
        cJSON_Delete(event);
    }
    free(line);
    fclose(file);
    finish(&r);
    return r.status;
}
