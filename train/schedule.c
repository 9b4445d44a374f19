#include "train/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/schedule/generate.h"

/* A stage makes v m passes each way, and waits for p - 1 more while the pipeline fills and drains. With m < p, each chunk starts
 * when the one before it has run through all stages: v p + m - 1. */
static double wave_makespan(const struct schedule *s, const struct schedule_costs *costs) {
    const int p = s->stages, v = s->chunks, m = s->micro_batches;
    const int passes = m < p ? v * p + m - 1 : v * m + p - 1;
    return passes * (costs->forward + costs->backward_input + costs->backward_weight);
}

static const struct schedule_kind {
    const char *name;
    bool chunked; /* can have more than one chunk a stage */
    void (*generate)(struct schedule *s);
    double (*makespan)(const struct schedule *s, const struct schedule_costs *costs);
} kinds[] = {
    {"gpipe", false, gpipe_generate, wave_makespan},
    {"1f1b", false, one_f_one_b_generate, wave_makespan},
    {"interleaved", true, interleaved_generate, wave_makespan},
    {"zb-h1", false, zero_bubble_generate, zero_bubble_makespan},
};
enum { KINDS = sizeof kinds / sizeof *kinds, LARGEST = 1 << 20 };

static const struct schedule_kind *find_kind(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

static int check_sizes(const struct schedule *s, const struct schedule_kind *kind, struct error *e) {
    if (s->stages < 1 || s->chunks < 1 || s->micro_batches < 1)
        return error_set(e,
                         "found %d stages of %d chunks and %d micro-batches; expected at least one of each",
                         s->stages, s->chunks, s->micro_batches);
    if (s->chunks > 1 && !kind->chunked)
        return error_set(e,
                         "found %d chunks a stage, but schedule %s has one; take one chunk, or schedule "
                         "interleaved, which can have more",
                         s->chunks, s->name);
    const int64_t longer = s->stages > s->micro_batches ? s->stages : s->micro_batches;
    if (longer > LARGEST || (int64_t)s->stages * s->chunks > LARGEST / longer)
        return error_set(
            e,
            "found %d stages, %d chunks a stage, %d micro-batches; expected stages x chunks x the "
            "larger of stages and micro-batches to be at most %d",
            s->stages, s->chunks, s->micro_batches, LARGEST);
    return 0;
}

/* All that a stage can do with a micro-batch of a chunk: three passes, two messages each way. */
static int capacity(const struct schedule *s) {
    return 7 * s->chunks * s->micro_batches;
}

static void allocate_lists(struct schedule *s) {
    s->list = memory_alloc(sizeof *s->list * (size_t)s->stages);
    s->count = memory_alloc_zeroed(sizeof *s->count * (size_t)s->stages);
    for (int stage = 0; stage < s->stages; stage++)
        s->list[stage] = memory_alloc(sizeof **s->list * (size_t)capacity(s));
}

void schedule_free(struct schedule *s) {
    for (int stage = 0; stage < s->stages; stage++) free(s->list[stage]);
    free(s->list);
    free(s->count);
}

void schedule_emit(struct schedule *s, int stage, enum action_kind kind, int chunk, int micro_batch) {
    CHECK(s->count[stage] < capacity(s), "schedule %s has too many actions in stage %d", s->name, stage);
    s->list[stage][s->count[stage]++] = (struct action){kind, chunk, micro_batch};
}

bool schedule_splits_backward(const struct schedule *s, int stage) {
    for (int i = 0; i < s->count[stage]; i++)
        if (s->list[stage][i].kind == ACTION_BACKWARD_WEIGHT) return true;
    return false;
}

int schedule_peer(const struct schedule *s, int stage, const struct action *a) {
    const bool next = a->kind == ACTION_SEND_FORWARD || a->kind == ACTION_RECEIVE_BACKWARD;
    return (stage + (next ? 1 : s->stages - 1)) % s->stages;
}

const char *schedule_action_name(enum action_kind kind) {
    static const char *const names[] = {
        [ACTION_FORWARD] = "forward",
        [ACTION_BACKWARD] = "backward",
        [ACTION_BACKWARD_INPUT] = "backward (input)",
        [ACTION_BACKWARD_WEIGHT] = "backward (weight)",
        [ACTION_SEND_FORWARD] = "send forward",
        [ACTION_RECEIVE_FORWARD] = "receive forward",
        [ACTION_SEND_BACKWARD] = "send backward",
        [ACTION_RECEIVE_BACKWARD] = "receive backward",
    };
    return names[kind];
}

double schedule_bubble_formula(const struct schedule *s, const struct schedule_costs *costs) {
    const double pass = costs->forward + costs->backward_input + costs->backward_weight;
    return 1 - s->chunks * s->micro_batches * pass / find_kind(s->name)->makespan(s, costs);
}

/* What is done while lowering, by model chunk x micro-batch. */
struct progress {
    bool *forward, *backward;
};

static bool is_ready(const struct schedule *s, const struct progress *done, int stage,
                     const struct action *a) {
    const int k = a->chunk * s->stages + stage, last = s->stages * s->chunks - 1;
    const int at = k * s->micro_batches + a->micro_batch;
    if (a->kind == ACTION_FORWARD) return k == 0 || done->forward[at - s->micro_batches];
    if (a->kind == ACTION_BACKWARD_WEIGHT) return done->backward[at];
    return done->forward[at] && (k == last || done->backward[at + s->micro_batches]);
}

/* Marks a as done, and appends its message, if it makes one, to the lists of both ends. */
static void finish(struct schedule *s, struct progress *done, int stage, const struct action *a) {
    const int k = a->chunk * s->stages + stage, last = s->stages * s->chunks - 1;
    const bool forward = a->kind == ACTION_FORWARD;
    if (a->kind == ACTION_BACKWARD_WEIGHT) return;
    (forward ? done->forward : done->backward)[k * s->micro_batches + a->micro_batch] = true;
    if (s->stages == 1 || k == (forward ? last : 0)) return;
    const int to = forward ? k + 1 : k - 1;
    schedule_emit(s, stage, forward ? ACTION_SEND_FORWARD : ACTION_SEND_BACKWARD, a->chunk, a->micro_batch);
    schedule_emit(s, to % s->stages, forward ? ACTION_RECEIVE_FORWARD : ACTION_RECEIVE_BACKWARD,
                  to / s->stages, a->micro_batch);
}

/* Fills the empty lists of s with the compute actions of `compute` and their messages. Goes in rounds: each stage whose next
 * action is ready does it, then the messages of the round are appended. So everything stands in its list in the order of one
 * walk through all of them, in which an action comes after what it needs and a message is one entry for both ends. -1 if
 * a round finds nothing to do. */
static int lower(struct schedule *s, const struct schedule *compute) {
    const size_t passes = (size_t)s->stages * (size_t)s->chunks * (size_t)s->micro_batches;
    struct progress done = {memory_alloc_zeroed(passes), memory_alloc_zeroed(passes)};
    int *next = memory_alloc_zeroed(sizeof *next * (size_t)s->stages);
    const struct action **now = memory_alloc(sizeof *now * (size_t)s->stages);
    int left = 0, moved;
    for (int stage = 0; stage < s->stages; stage++) left += compute->count[stage];
    do {
        moved = 0;
        for (int stage = 0; stage < s->stages; stage++) {
            const struct action *a = &compute->list[stage][next[stage]];
            now[stage] = next[stage] < compute->count[stage] && is_ready(s, &done, stage, a) ? a : NULL;
            if (!now[stage]) continue;
            schedule_emit(s, stage, a->kind, a->chunk, a->micro_batch);
            next[stage]++;
            moved++;
        }
        for (int stage = 0; stage < s->stages; stage++)
            if (now[stage]) finish(s, &done, stage, now[stage]);
        left -= moved;
    } while (left && moved);
    free(now);
    free(next);
    free(done.forward);
    free(done.backward);
    return left ? -1 : 0;
}

int schedule_create(struct schedule *s, const char *name, int stages, int chunks, int micro_batches,
                    struct error *e) {
    const struct schedule_kind *kind = find_kind(name);
    if (!kind)
        return error_set(e, "schedule '%.64s' is not known; expected gpipe, 1f1b, interleaved or zb-h1",
                         name);
    *s = (struct schedule){
        .name = kind->name, .stages = stages, .chunks = chunks, .micro_batches = micro_batches};
    if (check_sizes(s, kind, e)) return -1;
    struct schedule compute = *s;
    allocate_lists(&compute);
    allocate_lists(s);
    kind->generate(&compute);
    CHECK(lower(s, &compute) == 0, "schedule %s of %d stages, %d chunks, %d micro-batches waits for itself",
          name, stages, chunks, micro_batches);
    schedule_free(&compute);
    CHECK(schedule_check(s, e) == 0, "schedule %s of %d stages, %d chunks, %d micro-batches: %s", name,
          stages, chunks, micro_batches, e->text);
    return 0;
}
