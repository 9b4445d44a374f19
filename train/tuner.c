#include "train/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INTERVAL_MAX = 64, UNITS_MAX = 256, BUCKET_MIN = 1 << 15 };
static const double hysteresis = 0.1;
static const double unit_share =
    0.02; /* of the window: what may show when the unit that is ready last is sent */

struct tuner tuner_create(bool active, int64_t interval, int64_t retune) {
    return (struct tuner){.active = active, .interval = interval, .retune = retune, .next = TUNER_WARMUP};
}

int64_t tuner_interval(const struct tuner *t, int64_t step) {
    return t->active && (step < TUNER_WARMUP || t->measuring || step >= t->next) ? 1 : t->interval;
}

int64_t tuner_decide(double comm_ms, double window_ms, int64_t in_force) {
    const double ratio = window_ms > 0 ? comm_ms / window_ms : 0;
    const int64_t wanted = (int64_t)fmin(fmax(1.0, ceil(ratio)), INTERVAL_MAX);
    if (in_force < 1) return wanted;
    const bool above = ratio > (double)in_force * (1 + hysteresis);
    const bool below = ratio < (double)(in_force - 1) * (1 - hysteresis);
    return above || below ? wanted : in_force;
}

/* Time of the step's reductions without waiting: each bucket's share of the time in which the link was its own, the least
 * over ranks. */
static double true_communication_ms(struct bucket_engine *engine) {
    double *share = memory_alloc_zeroed(sizeof *share * (size_t)engine->buckets), busy_until = 0, sum = 0;
    for (int i = 0; i < engine->buckets; i++) {
        const struct bucket *b = &engine->bucket[i];
        share[i] = fmax(0.0, b->end - fmax(b->start, busy_until));
        busy_until = fmax(busy_until, b->end);
    }
    comm_reduce(engine->comm, share, engine->buckets, REDUCE_MIN);
    for (int i = 0; i < engine->buckets; i++) sum += share[i];
    free(share);
    return 1e3 * sum;
}

/* The computation beside which messages can travel; the least over ranks. */
static double hiding_window_ms(struct bucket_engine *engine) {
    double window = engine->bucket[engine->buckets - 1].ready - engine->bucket[0].ready;
    comm_reduce(engine->comm, &window, 1, REDUCE_MIN);
    return 1e3 * window;
}

void tuner_visit(struct tuner *t, kept_take *take, void *context) {
    const struct kept all[] = {
        {.name = "tuner_active", .type = NUMBER_FLAG, .number = &t->active, .count = 1},
        {.name = "tuner_next", .type = NUMBER_WHOLE, .number = &t->next, .count = 1},
        {.name = "tuner_samples", .type = NUMBER_WHOLE, .number = &t->samples, .count = 1},
        {.name = "tuner_measuring", .type = NUMBER_FLAG, .number = &t->measuring, .count = 1},
        {.name = "tuner_comm", .type = NUMBER_REAL, .number = t->comm, .count = TUNER_SAMPLES},
        {.name = "tuner_window", .type = NUMBER_REAL, .number = t->window, .count = TUNER_SAMPLES},
        {.name = "tuner_interval", .type = NUMBER_WHOLE, .number = &t->interval, .count = 1},
        {.name = "tuner_bucket_elements", .type = NUMBER_WHOLE, .number = &t->bucket_elements, .count = 1},
        {.name = "tuner_comm_ms", .type = NUMBER_REAL, .number = &t->comm_ms, .count = 1},
        {.name = "tuner_window_ms", .type = NUMBER_REAL, .number = &t->window_ms, .count = 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take(context, &all[i]);
}

void tuner_measure_anew(struct tuner *t, int64_t step) {
    t->next = step + TUNER_WARMUP;
    t->measuring = false;
    t->samples = 0;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values) {
    double sorted[TUNER_SAMPLES];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, TUNER_SAMPLES, sizeof *sorted, by_value);
    return sorted[TUNER_SAMPLES / 2];
}

/* Equal buckets, a multiple of the interval of them, each taking about unit_share of the window. */
static int64_t decide_bucket(const struct tuner *t, int64_t total) {
    const double wanted = (double)total * unit_share * t->window_ms / fmax(t->comm_ms, 1e-6);
    const int64_t least = total / UNITS_MAX > BUCKET_MIN ? total / UNITS_MAX : BUCKET_MIN;
    const int64_t unit = wanted > (double)least ? (int64_t)fmin(wanted, (double)total) : least;
    const int64_t rounds = (total + unit * t->interval - 1) / (unit * t->interval);
    return (total + rounds * t->interval - 1) / (rounds * t->interval);
}

static bool decide(struct tuner *t, struct bucket_engine *engine, int64_t step) {
    t->comm_ms = median(t->comm);
    t->window_ms = median(t->window);
    const int64_t before = t->next == TUNER_WARMUP ? 0 : t->interval;
    t->interval = tuner_decide(t->comm_ms, t->window_ms, before);
    t->bucket_elements = t->interval > 1 ? decide_bucket(t, tensor_count(engine->gradient)) : 0;
    t->measuring = false;
    t->samples = 0;
    t->next = t->retune > 0 ? step + 1 + t->retune : TUNER_NEVER;
    return true;
}

bool tuner_observe(struct tuner *t, struct bucket_engine *engine, int64_t step) {
    if (!t->active || step + 1 < t->next) return false;
    /* This step was still one of the old plan, or the first of the measurement: the next one is dense. */
    if (!t->measuring) return t->measuring = true;
    t->comm[t->samples] = true_communication_ms(engine);
    t->window[t->samples++] = hiding_window_ms(engine);
    return t->samples == TUNER_SAMPLES && decide(t, engine, step);
}
