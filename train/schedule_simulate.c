/* Runs the lists of a schedule on paper: who waits for what, how long it all takes, what is alive meanwhile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/schedule.h"

static bool is_message(enum action_kind kind) {
    return kind >= ACTION_SEND_FORWARD;
}

static bool is_send(enum action_kind kind) {
    return kind == ACTION_SEND_FORWARD || kind == ACTION_SEND_BACKWARD;
}

static bool is_forward(enum action_kind kind) {
    return kind == ACTION_FORWARD || kind == ACTION_SEND_FORWARD || kind == ACTION_RECEIVE_FORWARD;
}

/* Times by model chunk x micro-batch, NAN while something has not happened; of one direction: forward or backward. */
struct direction {
    double *made;     /* the content of the message that the chunk sends */
    double *arrived;  /* the message to the chunk; as far as its sender is concerned */
    double *received; /* the receive was begun */
};

struct simulator {
    const struct schedule *s;
    const struct schedule_costs *costs;
    enum message_mode mode;
    struct simulation *result;
    struct direction forward, backward;
    double *memory; /* of the tables above */
    int *next;      /* of each stage: the action at which it is */
    double *clock;  /* of each stage: when it got there */
    int *alive;     /* of each stage: activations held */
};

static int cell(const struct schedule *s, int stage, const struct action *a) {
    return (a->chunk * s->stages + stage) * s->micro_batches + a->micro_batch;
}

static double cost_of(const struct schedule_costs *costs, enum action_kind kind) {
    switch (kind) {
    case ACTION_FORWARD:
        return costs->forward;
    case ACTION_BACKWARD:
        return costs->backward_input + costs->backward_weight;
    case ACTION_BACKWARD_INPUT:
        return costs->backward_input;
    case ACTION_BACKWARD_WEIGHT:
        return costs->backward_weight;
    default:
        return 0;
    }
}

/* When what the compute action a needs is there; NAN: not yet. */
static double input_time(const struct simulator *x, int stage, const struct action *a) {
    const struct schedule *s = x->s;
    const int k = a->chunk * s->stages + stage, last = s->stages * s->chunks - 1, at = cell(s, stage, a);
    if (a->kind == ACTION_BACKWARD_WEIGHT) return x->backward.made[at];
    const bool forward = a->kind == ACTION_FORWARD;
    if (!forward && isnan(x->forward.made[at])) return NAN;
    if (k == (forward ? 0 : last)) return 0;
    const struct direction *d = forward ? &x->forward : &x->backward;
    if (s->stages == 1) return d->made[forward ? at - s->micro_batches : at + s->micro_batches];
    return isnan(d->received[at]) ? NAN : d->arrived[at];
}

static void record(struct simulator *x, int stage, double start, double end) {
    x->result->start[stage][x->next[stage]] = start;
    x->result->end[stage][x->next[stage]] = end;
    x->clock[stage] = end;
    x->next[stage]++;
}

static bool step_compute(struct simulator *x, int stage, const struct action *a) {
    const double input = input_time(x, stage, a);
    if (isnan(input)) return false;
    const double start = fmax(x->clock[stage], input), end = start + cost_of(x->costs, a->kind);
    int *peak = &x->result->peak_activations[stage];
    if (a->kind == ACTION_FORWARD && ++x->alive[stage] > *peak) *peak = x->alive[stage];
    if (a->kind == ACTION_BACKWARD || a->kind == ACTION_BACKWARD_WEIGHT) x->alive[stage]--;
    if (a->kind == ACTION_FORWARD) x->forward.made[cell(x->s, stage, a)] = end;
    if (a->kind == ACTION_BACKWARD || a->kind == ACTION_BACKWARD_INPUT)
        x->backward.made[cell(x->s, stage, a)] = end;
    record(x, stage, start, end);
    if (end > x->result->makespan) x->result->makespan = end;
    return true;
}

/* The receive that belongs to a send of `stage`. */
static struct action other_end(const struct schedule *s, int stage, const struct action *send) {
    const bool forward = send->kind == ACTION_SEND_FORWARD;
    const int to = send->chunk * s->stages + stage + (forward ? 1 : -1);
    return (struct action){forward ? ACTION_RECEIVE_FORWARD : ACTION_RECEIVE_BACKWARD, to / s->stages,
                           send->micro_batch};
}

static bool is_same(const struct action *a, const struct action *b) {
    return a->kind == b->kind && a->chunk == b->chunk && a->micro_batch == b->micro_batch;
}

/* A send that blocks goes on only together with its receive, and takes it along; a receive waits to be taken. */
static bool step_message(struct simulator *x, int stage, const struct action *a) {
    const struct schedule *s = x->s;
    struct direction *d = is_forward(a->kind) ? &x->forward : &x->backward;
    const bool blocking = x->mode == MESSAGES_BLOCKING;
    if (!is_send(a->kind)) {
        if (blocking) return false;
        d->received[cell(s, stage, a)] = x->clock[stage];
        record(x, stage, x->clock[stage], x->clock[stage]);
        return true;
    }
    const int peer = schedule_peer(s, stage, a);
    const struct action receive = other_end(s, stage, a);
    if (isnan(d->made[cell(s, stage, a)])) return false;
    double start = x->clock[stage];
    if (blocking) {
        if (x->next[peer] >= s->count[peer] || !is_same(&s->list[peer][x->next[peer]], &receive))
            return false;
        start = fmax(start, x->clock[peer]);
        d->received[cell(s, peer, &receive)] = start;
        record(x, peer, start, start + x->costs->message);
    }
    d->arrived[cell(s, peer, &receive)] = start + x->costs->message;
    record(x, stage, start, blocking ? start + x->costs->message : start);
    return true;
}

static bool step(struct simulator *x, int stage) {
    if (x->next[stage] == x->s->count[stage]) return false;
    const struct action *a = &x->s->list[stage][x->next[stage]];
    return is_message(a->kind) ? step_message(x, stage, a) : step_compute(x, stage, a);
}

static void describe(const struct schedule *s, int stage, const struct action *a, char *text, size_t size) {
    int length = snprintf(text, size, "%s of chunk %d, micro-batch %d", schedule_action_name(a->kind),
                          a->chunk, a->micro_batch);
    if (is_message(a->kind))
        snprintf(text + length, size - (size_t)length, " (%s stage %d)", is_send(a->kind) ? "to" : "from",
                 schedule_peer(s, stage, a));
}

/* Says where the first few stages that are not done stand; 0 if there are none. */
static int report_stuck(const struct simulator *x, struct error *e) {
    char text[600] = "", action[128];
    int stuck = 0;
    for (int stage = 0; stage < x->s->stages; stage++) {
        if (x->next[stage] == x->s->count[stage] || stuck == 4) continue;
        describe(x->s, stage, &x->s->list[stage][x->next[stage]], action, sizeof action);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%sstage %d waits at its action %d: %s",
                 stuck++ ? "; " : "", stage, x->next[stage], action);
    }
    return stuck ? error_set(e, "deadlock%s: %s", x->mode == MESSAGES_BLOCKING ? " when messages block" : "",
                             text)
                 : 0;
}

static void simulator_open(struct simulator *x) {
    const size_t stages = (size_t)x->s->stages;
    const size_t cells = stages * (size_t)x->s->chunks * (size_t)x->s->micro_batches;
    x->memory = memory_alloc(sizeof *x->memory * 6 * cells);
    for (size_t i = 0; i < 6 * cells; i++) x->memory[i] = NAN;
    x->forward = (struct direction){x->memory, x->memory + cells, x->memory + 2 * cells};
    x->backward = (struct direction){x->memory + 3 * cells, x->memory + 4 * cells, x->memory + 5 * cells};
    x->next = memory_alloc_zeroed(sizeof *x->next * stages);
    x->clock = memory_alloc_zeroed(sizeof *x->clock * stages);
    x->alive = memory_alloc_zeroed(sizeof *x->alive * stages);
    int64_t actions = 0;
    for (size_t i = 0; i < stages; i++) actions += x->s->count[i];
    *x->result = (struct simulation){
        .peak_activations = memory_alloc_zeroed(sizeof(int) * stages),
        .start = memory_alloc(sizeof(double *) * stages),
        .end = memory_alloc(sizeof(double *) * stages),
    };
    /* One block for all times; the rows point into it. */
    double *times = memory_alloc(sizeof *times * 2 * (size_t)(actions + 1));
    for (size_t i = 0; i < stages; i++) {
        x->result->start[i] = times;
        x->result->end[i] = times + x->s->count[i];
        times += 2 * x->s->count[i];
    }
}

static void simulator_close(struct simulator *x) {
    free(x->memory);
    free(x->next);
    free(x->clock);
    free(x->alive);
}

void simulation_free(struct simulation *result) {
    free(result->start[0]);
    free(result->start);
    free(result->end);
    free(result->peak_activations);
}

int schedule_simulate(const struct schedule *s, const struct schedule_costs *costs, enum message_mode mode,
                      struct simulation *result, struct error *e) {
    struct simulator x = {.s = s, .costs = costs, .mode = mode, .result = result};
    simulator_open(&x);
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < s->stages; stage++)
            while (step(&x, stage)) moved = true;
    }
    double busy = 0;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < x.next[stage]; i++) busy += cost_of(costs, s->list[stage][i].kind);
    if (result->makespan > 0) result->bubble_share = 1 - busy / (s->stages * result->makespan);
    const int status = report_stuck(&x, e);
    simulator_close(&x);
    if (status) simulation_free(result);
    return status;
}
