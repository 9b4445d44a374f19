/* The model cut into stages, run by hand in one process: what a pipeline computes is what the whole model does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gpt.h"
#include "model/partition.h"

enum {
    LAYERS = 3,
    CONTEXT = 6,
    VOCAB = 37,
    SEQUENCES = 2,
    MICRO_BATCHES = 3,
    STAGES_MAX = 5,
    CHUNKS_MAX = 5
};
enum { ROWS = SEQUENCES * CONTEXT };
static int32_t tokens[MICRO_BATCHES * ROWS], targets[MICRO_BATCHES * ROWS];

/* A way to run the model. */
struct layout {
    int stages, chunks; /* of a stage */
    bool tied, recompute, split;
    float dropout;
    enum dtype precision;
};

static struct gpt_config config_of(const struct layout *l) {
    return (struct gpt_config){.layers = LAYERS,
                               .heads = 2,
                               .channels = 12,
                               .context = CONTEXT,
                               .vocab = VOCAB,
                               .tied = l->tied,
                               .recompute = l->recompute,
                               .dropout = l->dropout,
                               .precision = l->precision};
}

/* Micro-batches that leave the last rows of the buffers unused, but for the first one. */
static struct gpt_batch batch_of(int m) {
    return (struct gpt_batch){.tokens = tokens + m * ROWS,
                              .targets = targets + m * ROWS,
                              .sequences = m == 0 ? SEQUENCES : SEQUENCES - 1,
                              .positions = CONTEXT,
                              .training = true,
                              .seed = 3,
                              .step = 5,
                              .first_sequence = m * SEQUENCES};
}

struct pipeline {
    struct layout layout;
    struct gpt stage[STAGES_MAX];
    int64_t ready[STAGES_MAX];
    struct gpt_loss loss;
};

static void open_pipeline(struct pipeline *p, const struct layout *l) {
    const struct gpt_config config = config_of(l);
    struct gpt_chunk all[CHUNKS_MAX];
    struct error e;
    *p = (struct pipeline){.layout = *l};
    assert_int_equal(partition_model(&config, l->stages * l->chunks, all, &e), 0);
    for (int s = 0; s < l->stages; s++) {
        struct gpt_chunk own[CHUNKS_MAX];
        int sets[CHUNKS_MAX], inputs[CHUNKS_MAX];
        for (int c = 0; c < l->chunks; c++) {
            own[c] = all[c * l->stages + s];
            sets[c] = MICRO_BATCHES;
            inputs[c] = own[c].embedding ? 0 : 1;
        }
        const struct gpt_stage stage = {own, sets, inputs, l->chunks, l->split};
        struct gpt *g = &p->stage[s];
        gpt_create_stage(g, &config, &device_cpu, SEQUENCES, &stage);
        gpt_initialise(g, 11);
        memset(g->gradient.data, 0xff, sizeof(float) * (size_t)g->table.elements); /* NaN: nothing reads it */
    }
}

static void close_pipeline(struct pipeline *p) {
    for (int s = 0; s < p->layout.stages; s++) gpt_free(&p->stage[s]);
}

static void note_ready(void *context, int64_t elements) {
    int64_t *ready = context;
    assert_true(elements > *ready);
    *ready = elements;
}

static struct gpt *stage_of(struct pipeline *p, int k, struct gpt_batch *b, int m) {
    *b = batch_of(m);
    b->chunk = k / p->layout.stages;
    b->set = (m + 1) % MICRO_BATCHES;
    return &p->stage[k % p->layout.stages];
}

static void hand_over(struct tensor to, struct tensor from) {
    assert_int_equal(tensor_count(to), tensor_count(from));
    memcpy(to.data, from.data, sizeof(float) * (size_t)tensor_count(from));
}

static void forward(struct pipeline *p, int k, int m) {
    struct gpt_batch b, before;
    struct gpt *g = stage_of(p, k, &b, m);
    if (k > 0) {
        const struct gpt *from = stage_of(p, k - 1, &before, m);
        hand_over(gpt_input(g, &b), gpt_output(from, &before));
    }
    gpt_forward(g, &b);
}

static struct gpt_backward_plan plan_of(struct pipeline *p, int k, int m, bool tells) {
    return (struct gpt_backward_plan){.scale = 0.01f,
                                      .accumulate = m > 0,
                                      .ready = tells && m + 1 == MICRO_BATCHES ? note_ready : NULL,
                                      .context = &p->ready[k % p->layout.stages]};
}

static void backward(struct pipeline *p, int k, int m) {
    struct gpt_batch b, next;
    struct gpt *g = stage_of(p, k, &b, m);
    if (k + 1 < p->layout.stages * p->layout.chunks) {
        const struct gpt *from = stage_of(p, k + 1, &next, m);
        hand_over(gpt_boundary_gradient(g, &b), gpt_boundary_gradient(from, &next));
    }
    const struct gpt_backward_plan plan = plan_of(p, k, m, !p->layout.split);
    const struct gpt_loss part = gpt_backward(g, &b, &plan);
    p->loss.loss += part.loss;
    p->loss.correct += part.correct;
}

static void backward_weights(struct pipeline *p, int k, int m) {
    struct gpt_batch b;
    struct gpt *g = stage_of(p, k, &b, m);
    const struct gpt_backward_plan plan = plan_of(p, k, m, true);
    gpt_backward_weights(g, &b, &plan);
}

/* All micro-batches forward, then all backward, then, in a split model, the weights. */
static void run(struct pipeline *p) {
    const int all = p->layout.stages * p->layout.chunks;
    for (int m = 0; m < MICRO_BATCHES; m++)
        for (int k = 0; k < all; k++) forward(p, k, m);
    for (int m = 0; m < MICRO_BATCHES; m++)
        for (int k = all - 1; k >= 0; k--) backward(p, k, m);
    for (int m = 0; p->layout.split && m < MICRO_BATCHES; m++)
        for (int k = all - 1; k >= 0; k--) backward_weights(p, k, m);
}

static const struct param *find_name(const struct param_table *table, const char *name) {
    for (int i = 0; i < table->params; i++)
        if (strcmp(table->param[i].name, name) == 0) return &table->param[i];
    return NULL;
}

/* The stages' tensors against those of the whole model, bit by bit; that of a shared embedding is the sum of two parts. */
static void compare(const struct pipeline *p, const struct gpt *whole, bool gradients) {
    for (int i = 0; i < whole->table.params; i++) {
        const struct param *expected = &whole->table.param[i];
        const float *want = tensor_f32(param_view(expected, gradients ? whole->gradient : whole->weight));
        double sum[VOCAB * 12] = {0};
        int holders = 0;
        for (int s = 0; s < p->layout.stages; s++) {
            const struct gpt *g = &p->stage[s];
            const struct param *held = find_name(&g->table, expected->name);
            if (!held) continue;
            holders++;
            assert_int_equal(held->count, expected->count);
            const float *have = tensor_f32(param_view(held, gradients ? g->gradient : g->weight));
            const bool shared = held->kind == PARAM_WTE && g->table.shares_embedding;
            assert_int_equal(shared, held->kind == PARAM_WTE && p->layout.tied && p->layout.stages > 1);
            if (!gradients || !shared)
                assert_memory_equal(have, want, sizeof(float) * (size_t)held->count);
            else
                for (int64_t k = 0; k < held->count; k++) sum[k] += (double)have[k];
        }
        const bool twice = expected->kind == PARAM_WTE && p->layout.tied && p->layout.stages > 1;
        assert_int_equal(holders, twice ? 2 : 1);
        for (int64_t k = 0; gradients && twice && k < expected->count; k++)
            assert_true(fabs(sum[k] - (double)want[k]) < 1e-7);
    }
}

static void check_layout(const struct layout *l) {
    struct layout alone = *l;
    struct pipeline *whole = malloc(sizeof *whole), *cut = malloc(sizeof *cut);
    alone.stages = alone.chunks = 1;
    alone.split = alone.recompute = false;
    open_pipeline(whole, &alone);
    open_pipeline(cut, l);
    compare(cut, &whole->stage[0], false);
    run(whole);
    run(cut);
    assert_true(whole->loss.loss == cut->loss.loss && whole->loss.correct == cut->loss.correct);
    compare(cut, &whole->stage[0], true);
    for (int s = 0; s < l->stages; s++) {
        const struct param_table *t = &cut->stage[s].table;
        const struct param *last = &t->param[t->params - 1];
        const bool waits = t->shares_embedding && s == l->stages - 1; /* for the first stage's part */
        assert_int_equal(cut->ready[s], waits ? last->offset : t->elements);
    }
    close_pipeline(whole);
    close_pipeline(cut);
    free(whole);
    free(cut);
}

/* All cuts there are, with and without dropout, for a tied and an untied head, in fp32 and bf16. */
static void check_all(bool recompute, bool split) {
    for (int stages = 1; stages <= STAGES_MAX; stages++)
        for (int chunks = 1; stages * chunks <= LAYERS + 2; chunks++)
            for (int variant = 0; variant < 8; variant++)
                check_layout(&(struct layout){.stages = stages,
                                              .chunks = chunks,
                                              .tied = variant & 1,
                                              .recompute = recompute,
                                              .split = split,
                                              .dropout = variant & 2 ? 0.2f : 0.0f,
                                              .precision = variant & 4 ? DTYPE_BF16 : DTYPE_F32});
}

static void test_stages_compute_what_the_whole_model_does(void **state) {
    (void)state;
    check_all(false, false);
}

static void test_with_recompute(void **state) {
    (void)state;
    check_all(true, false);
}

static void test_with_weights_apart(void **state) {
    (void)state;
    check_all(false, true);
}

/* Least largest cost over all cuts, by trying them all. */
static double best_cut(const struct gpt_config *c, int first, int chunks) {
    const int units = c->layers + 2;
    double best = INFINITY, cost = 0;
    if (chunks == 0) return first == units ? 0 : INFINITY;
    for (int end = first + 1; end <= units; end++) {
        cost += partition_cost(c, end - 1);
        best = fmin(best, fmax(cost, best_cut(c, end, chunks - 1)));
    }
    return best;
}

static void test_partition(void **state) {
    (void)state;
    for (int layers = 1; layers <= 7; layers++)
        for (int vocab = 16; vocab <= 16384; vocab *= 8)
            for (int chunks = 1; chunks <= layers + 2; chunks++) {
                const struct gpt_config c = {.layers = layers, .channels = 32, .context = 64, .vocab = vocab};
                struct gpt_chunk chunk[16];
                struct error e;
                int layer = 0;
                double largest = 0;
                assert_int_equal(partition_model(&c, chunks, chunk, &e), 0);
                for (int k = 0; k < chunks; k++) {
                    const struct gpt_chunk *h = &chunk[k];
                    assert_int_equal(h->embedding, k == 0);
                    assert_int_equal(h->head, k + 1 == chunks);
                    assert_int_equal(h->first_layer, layer);
                    assert_true(h->layers >= 0 && h->layers + h->embedding + h->head > 0);
                    layer += h->layers;
                    const double cost = h->layers * partition_cost(&c, 1) +
                                        h->embedding * partition_cost(&c, 0) +
                                        h->head * partition_cost(&c, layers + 1);
                    largest = fmax(largest, cost);
                }
                assert_int_equal(layer, layers);
                assert_true(fabs(largest / best_cut(&c, 0, chunks) - 1) < 1e-12);
            }
}

static void test_partition_refuses_more_chunks_than_parts(void **state) {
    (void)state;
    const struct gpt_config c = {.layers = 2, .channels = 8, .context = 4, .vocab = 5};
    struct gpt_chunk chunk[8];
    struct error e;
    assert_int_equal(partition_model(&c, 5, chunk, &e), -1);
    assert_non_null(strstr(e.text, "at most 4"));
}

int main(void) {
    struct error e;
    if (device_cpu.open(1, &e)) return 1;
    for (int i = 0; i < MICRO_BATCHES * ROWS; i++)
        tokens[i] = i * 7 % VOCAB, targets[i] = (i * 5 + 1) % VOCAB;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_compute_what_the_whole_model_does),
        cmocka_unit_test(test_with_recompute),
        cmocka_unit_test(test_with_weights_apart),
        cmocka_unit_test(test_partition),
        cmocka_unit_test(test_partition_refuses_more_chunks_than_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
