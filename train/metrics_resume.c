#define _GNU_SOURCE
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/metrics.h"

static double number(const cJSON *event, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Whether the line stays: whole, not of a later step, and not the end that was not one. */
static bool belongs(const char *line, int64_t step, struct eval_record *last) {
    cJSON *event = cJSON_Parse(line);
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "event"));
    const double at = number(event, "step");
    const bool stays = kind && strchr(line, '\n') && strcmp(kind, "end") != 0 && !(at > (double)step);
    if (stays && strcmp(kind, "eval") == 0)
        *last = (struct eval_record){(int64_t)at, number(event, "val_loss"), number(event, "val_accuracy"),
                                     number(event, "perplexity"), number(event, "bits_per_byte")};
    cJSON_Delete(event);
    return stays;
}

/* Copies what belongs beside the file, and renames it there. */
static int cut(const char *path, int64_t step, struct eval_record *last, struct error *e) {
    char beside[1110], *line = NULL;
    size_t room = 0;
    snprintf(beside, sizeof beside, "%s.tmp", path);
    FILE *from = fopen(path, "re");
    if (!from && errno == ENOENT) return 0;
    FILE *to = from ? fopen(beside, "we") : NULL;
    bool ok = to;
    while (ok && getline(&line, &room, from) > 0)
        if (belongs(line, step, last)) ok = fputs(line, to) >= 0;
    ok = ok && fflush(to) == 0 && fsync(fileno(to)) == 0;
    const int code = errno;
    free(line);
    if (from) fclose(from);
    if (to) ok = fclose(to) == 0 && ok;
    if (ok && rename(beside, path) == 0) return 0;
    unlink(beside);
    return error_set(e, "'%s' cannot be cut at step %lld: %s", path, (long long)step, strerror(code));
}

int metrics_reopen(struct metrics *m, const char *run_dir, bool write, int64_t step, struct eval_record *last,
                   struct error *e) {
    *m = (struct metrics){0};
    if (!write) return 0;
    char path[1100];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    if (cut(path, step, last, e)) return -1;
    m->file = fopen(path, "ae");
    return m->file ? 0 : error_set(e, "'%s' cannot be written: %s", path, strerror(errno));
}
