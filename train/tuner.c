#include "train/tuner.h"

#include <math.h>
#include <stdlib.h>

#include "train/statistics.h"

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
        {.name = "tuner_units", .type = NUMBER_WHOLE, .number = &t->units, .count = 1},
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

/* Equal units of `total` elements, a multiple of the interval of them, each taking about unit_share of the window. */
static int64_t decide_units(const struct tuner *t, double total) {
    const double wanted = total * unit_share * t->window_ms / fmax(t->comm_ms, 1e-6);
    const double least = fmax(total / UNITS_MAX, BUCKET_MIN);
    const double unit = fmin(fmax(wanted, least), total);
    return t->interval * (int64_t)ceil(total / (unit * (double)t->interval));
}

static void decide(struct tuner *t, double total, int64_t step) {
    t->comm_ms = statistics_median(t->comm, TUNER_SAMPLES);
    t->window_ms = statistics_median(t->window, TUNER_SAMPLES);
    const int64_t before = t->next == TUNER_WARMUP ? 0 : t->interval;
    t->interval = tuner_decide(t->comm_ms, t->window_ms, before);
    t->units = t->interval > 1 ? decide_units(t, total) : 0;
    t->measuring = false;
    t->samples = 0;
    t->next = t->retune > 0 ? step + 1 + t->retune : TUNER_NEVER;
}

bool tuner_observe(struct tuner *t, struct bucket_engine *engine, struct comm *world, int64_t step) {
    if (!t->active || step + 1 < t->next) return false;
    /* This step was still one of the old plan, or the first of the measurement: the next one is dense. */
    if (!t->measuring) return t->measuring = true;
    const double comm = true_communication_ms(engine);
    double longest = comm, decisive[2] = {hiding_window_ms(engine), (double)tensor_count(engine->gradient)};
    comm_reduce(world, &longest, 1, REDUCE_MAX);
    if (comm < longest) decisive[0] = decisive[1] = INFINITY;
    comm_reduce(world, decisive, 2, REDUCE_MIN);
    t->comm[t->samples] = longest;
    t->window[t->samples++] = decisive[0];
    if (t->samples < TUNER_SAMPLES) return false;
    decide(t, decisive[1], step);
    return true;
}
