/* Pipeline schedules: every one of up to 8 stages, 4 chunks and 24 micro-batches against its formulas and without deadlock, and
 * lists with one mistake against the check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/schedule.h"

static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
static const struct schedule_costs unit = {1, 1, 1, 0};

static bool is_named(const struct schedule *s, const char *name) {
    return strcmp(s->name, name) == 0;
}

static void create(struct schedule *s, const char *name, int stages, int chunks, int micro_batches) {
    struct error e;
    if (schedule_create(s, name, stages, chunks, micro_batches, &e)) fail_msg("%s", e.text);
}

/* Runs visit on every schedule up to these sizes. */
static void each_schedule(int stages, int chunks, int micro_batches,
                          void (*visit)(const struct schedule *s)) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int p = 1; p <= stages; p++)
            for (int v = 1; v <= (strcmp(names[i], "interleaved") == 0 ? chunks : 1); v++)
                for (int m = 1; m <= micro_batches; m++) {
                    struct schedule s;
                    create(&s, names[i], p, v, m);
                    visit(&s);
                    schedule_free(&s);
                }
}

static struct simulation simulate(const struct schedule *s, const struct schedule_costs *costs,
                                  enum message_mode mode) {
    struct simulation result;
    struct error e;
    if (schedule_simulate(s, costs, mode, &result, &e))
        fail_msg("%s, %d stages, %d chunks, %d micro-batches: %s", s->name, s->stages, s->chunks,
                 s->micro_batches, e.text);
    return result;
}

static double bubble_of(const struct schedule *s, const struct schedule_costs *costs) {
    struct simulation result = simulate(s, costs, MESSAGES_ASYNCHRONOUS);
    simulation_free(&result);
    return result.bubble_share;
}

static void assert_near(double a, double b) {
    if (!(fabs(a - b) < 1e-9)) fail_msg("%.12g is not %.12g", a, b);
}

/* (p - 1) / (v m + p - 1), the textbook's; with fewer micro-batches than stages a chunk starts when the one before has run
 * through all stages: v p + m - 1 passes long. */
static double wave_bubble(int p, int v, int m) {
    return m >= p ? (double)(p - 1) / (v * m + p - 1) : 1 - (double)(v * m) / (v * p + m - 1);
}

/* F, B and W for which ZB-H1 has a formula: W is not the longest. The message is 0: the formulas have none. */
static const struct schedule_costs several_costs[] = {
    {1, 1, 1, 0}, {1, 1.5, 0.5, 0}, {2, 1, 1, 0}, {2, 3, 1.5, 0}};

static double expected_bubble(const struct schedule *s, const struct schedule_costs *c) {
    const int p = s->stages, m = s->micro_batches;
    if (!is_named(s, "zb-h1")) return wave_bubble(p, s->chunks, m);
    const double pass = c->forward + c->backward_input + c->backward_weight;
    const double idle = m >= p ? (p - 1) * (pass - 2 * c->backward_weight)
                               : (p - 1) * pass - (m + p - 2) * c->backward_weight;
    return idle / (m * pass + idle);
}

static void check_bubble(const struct schedule *s) {
    for (size_t i = 0; i < sizeof several_costs / sizeof *several_costs; i++) {
        const double bubble = bubble_of(s, &several_costs[i]);
        assert_near(bubble, expected_bubble(s, &several_costs[i]));
        assert_near(bubble, schedule_bubble_formula(s, &several_costs[i]));
    }
}

static void test_the_bubble_is_the_formulas(void **state) {
    (void)state;
    each_schedule(8, 4, 24, check_bubble);
}

static void test_zb_h1_has_no_formula_for_long_weight_passes(void **state) {
    (void)state;
    const struct schedule_costs costs[] = {{1, 3, 2, 0}, {3, 1, 2, 0}};
    struct schedule s;
    create(&s, "zb-h1", 4, 1, 8);
    for (int i = 0; i < 2; i++) {
        assert_true(isnan(schedule_bubble_formula(&s, &costs[i])));
        assert_true(bubble_of(&s, &costs[i]) > expected_bubble(&s, &costs[i]) + 1e-9);
    }
    schedule_free(&s);
}

static void check_less_than_1f1b(const struct schedule *s) {
    const struct schedule_costs costs[] = {{1, 1, 1, 0}, {1, 1, 0.1, 0}, {1, 1, 3, 0}, {1, 2, 2, 0}};
    if (!is_named(s, "zb-h1") || s->stages == 1) return;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        assert_true(bubble_of(s, &costs[i]) < wave_bubble(s->stages, 1, s->micro_batches) - 1e-9);
}

static void test_zb_h1_idles_less_than_1f1b(void **state) {
    (void)state;
    each_schedule(8, 1, 24, check_less_than_1f1b);
}

static int least(int a, int b) {
    return a < b ? a : b;
}

static void check_peaks(const struct schedule *s) {
    const int p = s->stages, v = s->chunks, m = s->micro_batches;
    struct simulation result = simulate(s, &unit, MESSAGES_ASYNCHRONOUS);
    for (int stage = 0; stage < p; stage++) {
        const int peak = result.peak_activations[stage];
        if (is_named(s, "gpipe")) assert_int_equal(peak, m);
        if (is_named(s, "1f1b")) assert_int_equal(peak, least(m, p - stage));
        if (is_named(s, "zb-h1")) assert_in_range(peak, 1, least(m, p)); /* 1F1B's first stage */
        if (is_named(s, "interleaved") && v > 1 && m % p == 0) /* groups of p, the last of them the largest */
            assert_int_equal(peak, least(v * m, 2 * (p - 1 - stage) + (v - 1) * p + 1));
        assert_in_range(peak, 1, v * m);
    }
    simulation_free(&result);
}

static void test_peaks_of_activations(void **state) {
    (void)state;
    each_schedule(8, 4, 24, check_peaks);
}

/* schedule_create has checked this without message costs; costs do not change who waits for whom, but the clocks. */
static void check_blocking(const struct schedule *s) {
    const struct schedule_costs costs = {1, 1.25, 0.75, 0.5};
    struct simulation blocking = simulate(s, &costs, MESSAGES_BLOCKING);
    struct simulation asynchronous = simulate(s, &costs, MESSAGES_ASYNCHRONOUS);
    const double work = s->chunks * s->micro_batches * 3.0;
    assert_true(blocking.makespan >= asynchronous.makespan - 1e-9 && asynchronous.makespan >= work - 1e-9);
    if (s->stages == 1) assert_near(blocking.makespan, work);
    simulation_free(&blocking);
    simulation_free(&asynchronous);
}

static void test_no_deadlock_when_messages_block(void **state) {
    (void)state;
    each_schedule(8, 4, 24, check_blocking);
}

static bool is_send(const struct action *a) {
    return a->kind == ACTION_SEND_FORWARD || a->kind == ACTION_SEND_BACKWARD;
}

static bool is_receive(const struct action *a) {
    return a->kind == ACTION_RECEIVE_FORWARD || a->kind == ACTION_RECEIVE_BACKWARD;
}

/* The next message of `stage` from i on, to (or from) the peer; -1: none. */
static int next_message(const struct schedule *s, int stage, int i, bool (*is_kind)(const struct action *),
                        int peer) {
    for (; i < s->count[stage]; i++)
        if (is_kind(&s->list[stage][i]) && schedule_peer(s, stage, &s->list[stage][i]) == peer) return i;
    return -1;
}

/* The n-th send from a to b and the n-th receive at b from a are the same message. */
static void check_match(const struct schedule *s, int a, int b) {
    for (int i = -1, j = -1;;) {
        i = next_message(s, a, i + 1, is_send, b);
        j = next_message(s, b, j + 1, is_receive, a);
        assert_int_equal(i < 0, j < 0);
        if (i < 0) return;
        const struct action *send = &s->list[a][i], *receive = &s->list[b][j];
        const bool forward = send->kind == ACTION_SEND_FORWARD;
        assert_int_equal(receive->kind, forward ? ACTION_RECEIVE_FORWARD : ACTION_RECEIVE_BACKWARD);
        assert_int_equal(send->micro_batch, receive->micro_batch);
        assert_int_equal(receive->chunk * s->stages + b, send->chunk * s->stages + a + (forward ? 1 : -1));
    }
}

static void check_matches(const struct schedule *s) {
    for (int a = 0; a < s->stages; a++)
        for (int b = 0; b < s->stages; b++)
            if (a != b) check_match(s, a, b);
    for (int i = 0; s->stages == 1 && i < s->count[0]; i++)
        assert_false(is_send(&s->list[0][i]) || is_receive(&s->list[0][i]));
}

static void test_messages_of_two_stages_match_by_order(void **state) {
    (void)state;
    each_schedule(6, 3, 14, check_matches);
}

static void test_interleaved_of_one_chunk_is_1f1b(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++)
        for (int m = 1; m <= 9; m++) {
            struct schedule a, b;
            create(&a, "1f1b", p, 1, m);
            create(&b, "interleaved", p, 1, m);
            for (int stage = 0; stage < p; stage++) {
                assert_int_equal(a.count[stage], b.count[stage]);
                assert_memory_equal(a.list[stage], b.list[stage], sizeof **a.list * (size_t)a.count[stage]);
            }
            schedule_free(&a);
            schedule_free(&b);
        }
}

static void refuse(const char *message, const char *name, int stages, int chunks, int micro_batches) {
    struct schedule s;
    struct error e;
    assert_int_equal(schedule_create(&s, name, stages, chunks, micro_batches, &e), -1);
    if (!strstr(e.text, message)) fail_msg("'%s' does not say '%s'", e.text, message);
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    refuse("'dualpipe' is not known; expected gpipe, 1f1b, interleaved or zb-h1", "dualpipe", 2, 1, 4);
    refuse("found 0 stages of 1 chunks and 4 micro-batches", "1f1b", 0, 1, 4);
    refuse("expected at least one", "1f1b", 2, 0, 4);
    refuse("expected at least one", "1f1b", 2, 1, -4);
    refuse("schedule zb-h1 has one; take one chunk, or schedule interleaved", "zb-h1", 2, 2, 4);
    refuse("at most 1048576", "1f1b", 1025, 1, 1);
    refuse("at most 1048576", "interleaved", 2000000000, 2000000000, 2000000000);
}

/* Lists with a mistake. */

static void remove_action(struct schedule *s, int stage, int i) {
    struct action *list = s->list[stage];
    memmove(list + i, list + i + 1, sizeof *list * (size_t)(--s->count[stage] - i));
}

static void insert_action(struct schedule *s, int stage, int i, struct action a) {
    struct action *list = s->list[stage] =
        realloc(s->list[stage], sizeof *list * (size_t)(s->count[stage] + 1));
    memmove(list + i + 1, list + i, sizeof *list * (size_t)(s->count[stage]++ - i));
    list[i] = a;
}

static void swap_actions(struct schedule *s, int stage, int i, int j) {
    const struct action a = s->list[stage][i];
    s->list[stage][i] = s->list[stage][j];
    s->list[stage][j] = a;
}

static void assert_found(const struct schedule *s, const char *mistake, int stage, int i) {
    struct error e;
    if (schedule_check(s, &e) == 0)
        fail_msg("%s, %d stages, %d chunks, %d micro-batches: %s stage %d, action %d was not found", s->name,
                 s->stages, s->chunks, s->micro_batches, mistake, stage, i);
    assert_true(strlen(e.text) > 0);
}

static void check_single_mistakes(const struct schedule *valid) {
    struct schedule s = *valid;
    struct error e;
    for (int stage = 0; stage < s.stages; stage++)
        for (int i = 0; i < s.count[stage]; i++) {
            const struct action a = s.list[stage][i];
            remove_action(&s, stage, i);
            assert_found(&s, "dropping", stage, i);
            insert_action(&s, stage, i, a);
            insert_action(&s, stage, i, a);
            assert_found(&s, "doubling", stage, i);
            remove_action(&s, stage, i);
            s.list[stage][i].micro_batch++;
            assert_found(&s, "another micro-batch of", stage, i);
            s.list[stage][i] = a;
            s.list[stage][i].chunk--;
            assert_found(&s, "another chunk of", stage, i);
            s.list[stage][i] = a;
            s.list[stage][i].kind = (a.kind + 1) % (ACTION_RECEIVE_BACKWARD + 1);
            assert_found(&s, "another kind of", stage, i);
            s.list[stage][i] = a;
        }
    assert_int_equal(schedule_check(&s, &e), 0); /* all is as it was */
}

static void test_single_mistakes_are_found(void **state) {
    (void)state;
    each_schedule(4, 2, 6, check_single_mistakes);
}

/* An oracle of its own: the actions of all stages as a graph, a message being one node for both ends. An edge goes from each
 * action to the next in its list, and from what is needed to what needs it. Blocking messages deadlock, or an action comes before
 * what it needs, if and only if the graph has a cycle. */
enum node_kind { NODE_FORWARD, NODE_BACKWARD, NODE_WEIGHT, NODE_INPUT, NODE_GRADIENT, NODES };

static int node(const struct schedule *s, int k, int m, enum node_kind kind) {
    return (k * s->micro_batches + m) * NODES + kind;
}

static int node_of(const struct schedule *s, int stage, const struct action *a) {
    const int k = a->chunk * s->stages + stage, m = a->micro_batch;
    switch (a->kind) {
    case ACTION_FORWARD:
        return node(s, k, m, NODE_FORWARD);
    case ACTION_BACKWARD_WEIGHT:
        return node(s, k, m, NODE_WEIGHT);
    case ACTION_SEND_FORWARD:
        return node(s, k + 1, m, NODE_INPUT);
    case ACTION_RECEIVE_FORWARD:
        return node(s, k, m, NODE_INPUT);
    case ACTION_SEND_BACKWARD:
        return node(s, k - 1, m, NODE_GRADIENT);
    case ACTION_RECEIVE_BACKWARD:
        return node(s, k, m, NODE_GRADIENT);
    default:
        return node(s, k, m, NODE_BACKWARD);
    }
}

struct edges {
    int from[8192], to[8192], count;
};

static void add_edge(struct edges *g, int from, int to) {
    assert_true(g->count < 8192);
    g->from[g->count] = from;
    g->to[g->count++] = to;
}

static void add_dependencies(struct edges *g, const struct schedule *s) {
    const int chunks = s->stages * s->chunks;
    /* Added in order of the micro-batches, by the whole backward pass or its second part. */
    const enum node_kind weight = is_named(s, "zb-h1") ? NODE_WEIGHT : NODE_BACKWARD;
    for (int m = 0; m < s->micro_batches; m++)
        for (int k = 0; k < chunks; k++) {
            const int forward = node(s, k, m, NODE_FORWARD), backward = node(s, k, m, NODE_BACKWARD);
            add_edge(g, forward, backward);
            add_edge(g, backward, node(s, k, m, NODE_WEIGHT));
            if (m) add_edge(g, node(s, k, m - 1, weight), node(s, k, m, weight));
            if (k == chunks - 1) continue;
            add_edge(g, forward, node(s, k + 1, m, NODE_INPUT));
            add_edge(g, node(s, k + 1, m, NODE_INPUT), node(s, k + 1, m, NODE_FORWARD));
            add_edge(g, node(s, k + 1, m, NODE_BACKWARD), node(s, k, m, NODE_GRADIENT));
            add_edge(g, node(s, k, m, NODE_GRADIENT), backward);
        }
}

/* Kahn's algorithm: takes nodes that nothing points to, with their edges, until none is left. */
static bool has_cycle(struct edges *g, int nodes) {
    bool *taken = calloc((size_t)nodes, 1);
    int left = nodes;
    for (bool moved = true; moved;) {
        moved = false;
        for (int n = 0; n < nodes; n++) {
            bool free_of = !taken[n];
            for (int i = 0; i < g->count && free_of; i++) free_of = g->to[i] != n;
            if (!free_of) continue;
            taken[n] = moved = true;
            left--;
            for (int i = g->count; i-- > 0;)
                if (g->from[i] == n) g->from[i] = g->from[--g->count], g->to[i] = g->to[g->count];
        }
    }
    free(taken);
    return left > 0;
}

static bool oracle_accepts(const struct schedule *s) {
    static struct edges g;
    g.count = 0;
    add_dependencies(&g, s);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 1; i < s->count[stage]; i++)
            add_edge(&g, node_of(s, stage, &s->list[stage][i - 1]), node_of(s, stage, &s->list[stage][i]));
    return !has_cycle(&g, NODES * s->stages * s->chunks * s->micro_batches);
}

static int verdicts[2];

static void check_swaps(const struct schedule *s) {
    struct schedule swapped = *s;
    struct error e;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->count[stage]; i++)
            for (int j = i + 1; j < s->count[stage] && j < i + 4; j++) {
                swap_actions(&swapped, stage, i, j);
                const bool accepted = schedule_check(&swapped, &e) == 0;
                if (accepted != oracle_accepts(&swapped))
                    fail_msg(
                        "%s, %d stages, %d chunks, %d micro-batches: stage %d, actions %d and %d swapped: %s",
                        s->name, s->stages, s->chunks, s->micro_batches, stage, i, j,
                        accepted ? "accepted" : e.text);
                verdicts[accepted]++;
                swap_actions(&swapped, stage, i, j);
            }
}

static void test_swapped_actions_against_an_oracle(void **state) {
    (void)state;
    each_schedule(3, 2, 4, check_swaps);
    assert_true(verdicts[false] > 100 && verdicts[true] > 100);
}

static int find(const struct schedule *s, int stage, enum action_kind kind, int micro_batch) {
    for (int i = 0; i < s->count[stage]; i++)
        if (s->list[stage][i].kind == kind && s->list[stage][i].micro_batch == micro_batch) return i;
    fail_msg("stage %d does not have it", stage);
    return -1;
}

static void assert_says(const struct schedule *s, const char *message) {
    struct error e;
    assert_int_equal(schedule_check(s, &e), -1);
    if (!strstr(e.text, message)) fail_msg("'%s' does not say '%s'", e.text, message);
}

static void test_what_the_check_says(void **state) {
    (void)state;
    struct schedule s;
    create(&s, "1f1b", 2, 1, 3);
    const int i = find(&s, 1, ACTION_RECEIVE_FORWARD, 2);
    const struct action receive = s.list[1][i];
    remove_action(&s, 1, i);
    assert_says(&s, "stage 1: found receive forward of chunk 0, micro-batch 2 0 times, expected 1");
    insert_action(&s, 1, s.count[1], receive); /* begun only after it is needed */
    assert_says(&s, "deadlock: ");
    assert_says(&s, "stage 1 waits at its action");
    assert_says(&s, "forward of chunk 0, micro-batch 2");
    schedule_free(&s);

    create(&s, "gpipe", 1, 1, 2);
    swap_actions(&s, 0, find(&s, 0, ACTION_BACKWARD, 0), find(&s, 0, ACTION_BACKWARD, 1));
    assert_says(&s, "found the weight gradient of chunk 0, micro-batch 1, expected micro-batch 0");
    schedule_free(&s);
}

/* Each stage waits for the other before it sends: harmless if a receive only begins, and the end if it blocks. */
static void test_a_deadlock_of_blocking_messages_only(void **state) {
    (void)state;
    struct schedule s;
    create(&s, "1f1b", 2, 1, 2);
    const int receive = find(&s, 0, ACTION_RECEIVE_BACKWARD, 0), send = find(&s, 0, ACTION_SEND_FORWARD, 1);
    assert_int_equal(receive, send + 1);
    swap_actions(&s, 0, send, receive);
    struct simulation result = simulate(&s, &unit, MESSAGES_ASYNCHRONOUS);
    simulation_free(&result);
    assert_says(&s, "deadlock when messages block: stage 0 waits at its action");
    assert_says(&s, "receive backward of chunk 0, micro-batch 0 (from stage 1); stage 1 waits at its action");
    schedule_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bubble_is_the_formulas),
        cmocka_unit_test(test_zb_h1_has_no_formula_for_long_weight_passes),
        cmocka_unit_test(test_zb_h1_idles_less_than_1f1b),
        cmocka_unit_test(test_peaks_of_activations),
        cmocka_unit_test(test_no_deadlock_when_messages_block),
        cmocka_unit_test(test_messages_of_two_stages_match_by_order),
        cmocka_unit_test(test_interleaved_of_one_chunk_is_1f1b),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_single_mistakes_are_found),
        cmocka_unit_test(test_swapped_actions_against_an_oracle),
        cmocka_unit_test(test_what_the_check_says),
        cmocka_unit_test(test_a_deadlock_of_blocking_messages_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
