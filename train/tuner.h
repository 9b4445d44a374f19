/* --interval auto: measures what dense reductions take, and the window of the backward pass in which they can hide (from the
 * moment the first bucket is ready to the moment the last one is), and decides COVAP's interval and how many
 * units a range is cut into. No clocks are compared: the true time of a collective is the least that any rank measured for it, since the
 * others' times hold waiting. All ranks come to the same decision at the same step, as they decide from the same numbers. */
#ifndef TANDEM_TUNER_H
#define TANDEM_TUNER_H

#include "comm/bucket.h"

enum { TUNER_WARMUP = 3, TUNER_SAMPLES = 7 };
static const int64_t TUNER_NEVER = (int64_t)1 << 53; /* more steps than any run has, and exact in JSON */

struct tuner {
    bool active;
    int64_t retune;  /* steps between measurements; 0: one only */
    int64_t next;    /* step at which the next measurement begins, or TUNER_NEVER */
    int64_t samples; /* taken in the measurement under way */
    bool measuring;  /* reductions are dense meanwhile */
    double comm[TUNER_SAMPLES], window[TUNER_SAMPLES]; /* ms, true communication and the window */
    int64_t interval;                                  /* in force outside of measurements */
    int64_t units;                                     /* of a flat range, that go with it; 0: any */
    double comm_ms, window_ms;                         /* medians of the last decision */
};

/* interval: where to start; inactive tuners never change it. */
struct tuner tuner_create(bool active, int64_t interval, int64_t retune);

/* The interval for the next step: 1 while measuring. */
int64_t tuner_interval(const struct tuner *tuner, int64_t step);

/* Looks at a finished step. True when it has come to a new decision (interval or units change now). Of the stages of a pipeline
 * the one whose reductions take longest decides for all. Collective over world. */
bool tuner_observe(struct tuner *tuner, struct bucket_engine *engine, struct comm *world, int64_t step);

/* Shows its state to a checkpoint. */
void tuner_visit(struct tuner *tuner, kept_take *take, void *context);

/* Measures anew a few steps after `step`: for state that comes from another number of ranks. */
void tuner_measure_anew(struct tuner *tuner, int64_t step);

/* ceil(communication / window), at least 1; with a decision in force, a step up or down only where the ratio has left
 * its interval by a tenth (hysteresis). Exposed for tests. */
int64_t tuner_decide(double comm_ms, double window_ms, int64_t in_force);

#endif
