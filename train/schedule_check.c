/* Whether the lists of a schedule are a training step, and cannot deadlock. */
#include <stdlib.h>

#include "train/schedule.h"

/* Whether model chunk k has messages of this kind: not beyond the ends of the model, nor within a stage. */
static bool has_message(const struct schedule *s, int k, enum action_kind kind) {
    const bool to_next = kind == ACTION_SEND_FORWARD || kind == ACTION_RECEIVE_BACKWARD;
    return s->stages > 1 && k != (to_next ? s->stages * s->chunks - 1 : 0);
}

enum { ACTION_KINDS = ACTION_RECEIVE_BACKWARD + 1 };

/* Counts each action of a stage in seen[chunk x micro-batch][kind]; -1 for one that no stage can have. */
static int count_actions(const struct schedule *s, int stage, int (*seen)[ACTION_KINDS], struct error *e) {
    for (int i = 0; i < s->count[stage]; i++) {
        const struct action *a = &s->list[stage][i];
        if ((int)a->kind < 0 || (int)a->kind >= ACTION_KINDS || a->chunk < 0 || a->chunk >= s->chunks ||
            a->micro_batch < 0 || a->micro_batch >= s->micro_batches)
            return error_set(e,
                             "stage %d, action %d: found kind %d, chunk %d, micro-batch %d; expected %d "
                             "chunks and %d micro-batches",
                             stage, i, (int)a->kind, a->chunk, a->micro_batch, s->chunks, s->micro_batches);
        seen[a->chunk * s->micro_batches + a->micro_batch][a->kind]++;
    }
    return 0;
}

static int check_counts(const struct schedule *s, int stage, const int (*seen)[ACTION_KINDS],
                        struct error *e) {
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int m = 0; m < s->micro_batches; m++) {
            const int *count = seen[chunk * s->micro_batches + m], k = chunk * s->stages + stage;
            int expected[ACTION_KINDS] = {[ACTION_FORWARD] = 1};
            const bool split = count[ACTION_BACKWARD] == 0 && count[ACTION_BACKWARD_INPUT] > 0;
            expected[split ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD] = 1;
            expected[ACTION_BACKWARD_WEIGHT] = split;
            for (int kind = ACTION_SEND_FORWARD; kind < ACTION_KINDS; kind++)
                expected[kind] = has_message(s, k, kind);
            for (int kind = 0; kind < ACTION_KINDS; kind++)
                if (count[kind] != expected[kind])
                    return error_set(
                        e, "stage %d: found %s of chunk %d, micro-batch %d %d times, expected %d", stage,
                        schedule_action_name(kind), chunk, m, count[kind], expected[kind]);
        }
    return 0;
}

/* The weight gradients of each chunk come in the order of the micro-batches. */
static int check_weight_order(const struct schedule *s, int stage, struct error *e) {
    int *next = memory_alloc_zeroed(sizeof *next * (size_t)s->chunks), status = 0;
    for (int i = 0; i < s->count[stage] && !status; i++) {
        const struct action *a = &s->list[stage][i];
        if (a->kind != ACTION_BACKWARD && a->kind != ACTION_BACKWARD_WEIGHT) continue;
        if (a->micro_batch != next[a->chunk])
            status = error_set(e,
                               "stage %d, action %d: found the weight gradient of chunk %d, micro-batch %d, "
                               "expected micro-batch %d: they are added in order",
                               stage, i, a->chunk, a->micro_batch, next[a->chunk]);
        next[a->chunk]++;
    }
    free(next);
    return status;
}

static int check_stage(const struct schedule *s, int stage, struct error *e) {
    const size_t cells = (size_t)s->chunks * (size_t)s->micro_batches;
    int(*seen)[ACTION_KINDS] = memory_alloc_zeroed(sizeof *seen * cells);
    const int status = count_actions(s, stage, seen, e) || check_counts(s, stage, seen, e) ||
                       check_weight_order(s, stage, e);
    free(seen);
    return status ? -1 : 0;
}

int schedule_check(const struct schedule *s, struct error *e) {
    for (int stage = 0; stage < s->stages; stage++)
        if (check_stage(s, stage, e)) return -1;
    const struct schedule_costs unit = {1, 1, 1, 0};
    const enum message_mode modes[] = {MESSAGES_ASYNCHRONOUS, MESSAGES_BLOCKING};
    for (int i = 0; i < 2; i++) {
        struct simulation result;
        if (schedule_simulate(s, &unit, modes[i], &result, e)) return -1;
        simulation_free(&result);
    }
    return 0;
}
