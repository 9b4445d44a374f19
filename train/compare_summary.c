#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/compare.h"

enum { ENOUGH_SEEDS = 5 };

static void warn(struct compare_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void warn(struct compare_result *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    r->warning = realloc(r->warning, sizeof *r->warning * (size_t)(r->warnings + 1));
    CHECK(r->warning && vasprintf(&r->warning[r->warnings++], format, arguments) >= 0, "out of memory");
    va_end(arguments);
}

static const struct compare_run *runs_of(const struct compare_result *r, int method) {
    return r->run + method * r->plan->seeds;
}

/* A field of struct compare_run, of every seed of a method. */
static void collect(const struct compare_result *r, int method, size_t offset, double *values) {
    for (int s = 0; s < r->plan->seeds; s++)
        values[s] = *(const double *)((const char *)&runs_of(r, method)[s] + offset);
}

#define MEDIAN(field) median_of(r, method, offsetof(struct compare_run, field))
static double median_of(const struct compare_result *r, int method, size_t offset) {
    double values[r->plan->seeds];
    collect(r, method, offset, values);
    return statistics_median(values, r->plan->seeds);
}

static void pair(const struct compare_result *r, int method, size_t offset, struct sample *sample,
                 struct paired_difference *difference) {
    const int seeds = r->plan->seeds;
    double mine[seeds], reference[seeds];
    collect(r, method, offset, mine);
    collect(r, r->plan->reference, offset, reference);
    *sample = statistics_sample(mine, seeds);
    *difference = statistics_pair(mine, reference, seeds);
}

static void summarise(struct compare_result *r, int method) {
    struct compare_summary *s = &r->summary[method];
    pair(r, method, offsetof(struct compare_run, val_loss), &s->val_loss, &s->loss_difference);
    pair(r, method, offsetof(struct compare_run, val_accuracy), &s->val_accuracy, &s->accuracy_difference);
    for (int i = 0; i < r->plan->seeds; i++) {
        s->diverged += runs_of(r, method)[i].diverged;
        s->reached += isfinite(runs_of(r, method)[i].target_s);
    }
    s->judged = !s->diverged && method != r->plan->reference;
    s->verdict = statistics_verdict(&s->loss_difference, r->plan->options->margin);
    s->step_ms = MEDIAN(step_ms);
    s->exposed_ms = MEDIAN(exposed_ms);
    s->compress_ms = MEDIAN(compress_ms);
    s->compress_share = s->compress_ms / s->step_ms;
    s->bytes_sent = MEDIAN(bytes_sent);
    s->bytes_ratio = s->bytes_sent / MEDIAN(bytes_dense);
    s->training_s = MEDIAN(training_s);
    s->target_s = MEDIAN(target_s);
    s->interval = MEDIAN(interval);
}

/* Options that say how gradients travel and how the work is divided: what methods may differ in. */
static bool may_differ(const char *name) {
    static const char *const names[] = {
        "compress",     "wire",      "interval",    "retune",    "covap_dropped",  "ef_initial",
        "ef_increment", "ef_period", "density",     "rank",      "compress_start", "levels",
        "bucket_mib",   "overlap",   "micro_batch", "recompute", "log_every"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void keep_option(void *object, const char *name, const char *value, bool is_text) {
    (void)is_text;
    if (!may_differ(name)) cJSON_AddStringToObject(object, name, value);
}

static void warn_of_options(struct compare_result *r, int method) {
    cJSON *mine = cJSON_CreateObject(), *reference = cJSON_CreateObject();
    const struct compare_method *m = &r->plan->method[method], *first = &r->plan->method[r->plan->reference];
    options_visit(&m->options, TRAIN, keep_option, mine);
    options_visit(&first->options, TRAIN, keep_option, reference);
    for (const cJSON *a = mine->child, *b = reference->child; a; a = a->next, b = b->next)
        if (strcmp(a->valuestring, b->valuestring) != 0)
            warn(r, "%s has %s %s, and %s has %s: they differ in more than what is sent", m->word, a->string,
                 a->valuestring, first->word, b->valuestring);
    cJSON_Delete(mine);
    cJSON_Delete(reference);
}

/* The first seed whose run was made elsewhere than that of the reference. */
static void warn_of_places(struct compare_result *r, int method) {
    const int reference = r->plan->reference;
    for (int s = 0; s < r->plan->seeds; s++) {
        const struct compare_run *a = &runs_of(r, method)[s], *b = &runs_of(r, reference)[s];
        if (strcmp(a->host, b->host) == 0 && strcmp(a->device, b->device) == 0 &&
            strcmp(a->version, b->version) == 0)
            continue;
        warn(r,
             "%s was measured on %s (%s) with version %s, and %s on %s (%s) with version %s: times do not "
             "compare",
             r->plan->method[method].word, a->host, a->device, a->version, r->plan->method[reference].word,
             b->host, b->device, b->version);
        return;
    }
}

static void warn_of_intervals(struct compare_result *r, int method) {
    double low = INFINITY, high = 0;
    if (strcmp(r->plan->method[method].options.interval, "auto") != 0) return;
    for (int s = 0; s < r->plan->seeds; s++) {
        low = fmin(low, runs_of(r, method)[s].interval);
        high = fmax(high, runs_of(r, method)[s].interval);
    }
    if (low < high)
        warn(r,
             "%s: --interval auto chose intervals from %.0f to %.0f, so its seeds are not runs of one "
             "method; set "
             "the interval to compare",
             r->plan->method[method].word, low, high);
}

static void warn_of_method(struct compare_result *r, int method) {
    const struct compare_summary *s = &r->summary[method];
    const char *word = r->plan->method[method].word;
    if (s->diverged)
        warn(r, "%s diverged in %d of %d runs; its means are of the others", word, s->diverged,
             r->plan->seeds);
    warn_of_intervals(r, method);
    if (method == r->plan->reference) return;
    warn_of_options(r, method);
    warn_of_places(r, method);
    const double half = s->loss_difference.upper - s->loss_difference.sample.mean;
    if (half > r->plan->options->margin)
        warn(r,
             "%s: the mean difference is known to +-%.4f, the margin is %g: too small to be shown with this "
             "spread; add seeds",
             word, half, r->plan->options->margin);
}

void compare_result_create(struct compare_result *r, const struct compare_plan *plan,
                           const struct compare_run *run, int ranks) {
    *r = (struct compare_result){.plan = plan, .ranks = ranks, .run = run};
    r->summary = memory_alloc_zeroed(sizeof *r->summary * (size_t)plan->methods);
    if (plan->seeds < ENOUGH_SEEDS)
        warn(r, "%d seed%s: fewer than %d say little about the spread", plan->seeds,
             plan->seeds == 1 ? "" : "s", ENOUGH_SEEDS);
    for (int m = 0; m < plan->methods; m++) summarise(r, m);
    for (int m = 0; m < plan->methods; m++) warn_of_method(r, m);
}

void compare_result_free(struct compare_result *r) {
    for (int i = 0; i < r->warnings; i++) free(r->warning[i]);
    free(r->warning);
    free(r->summary);
    *r = (struct compare_result){0};
}

const char *compare_verdict_name(const struct compare_result *r, int method) {
    static const char *const names[] = {
        [VERDICT_PRESERVED] = "preserved", [VERDICT_WORSE] = "worse", [VERDICT_NOT_SHOWN] = "not shown"};
    const struct compare_summary *s = &r->summary[method];
    if (s->diverged) return "diverged";
    return s->judged ? names[s->verdict] : "reference";
}

double compare_speedup(const struct compare_result *r, int method, int relative_to) {
    return r->summary[relative_to].step_ms / r->summary[method].step_ms;
}
