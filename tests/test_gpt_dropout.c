/* The whole model with dropout: gradients against finite differences of its own loss under the same draw, and
 * the draw's independence of recomputation and of how the batch is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "model/gpt.h"

enum { SEQUENCES = 6, CONTEXT = 7, VOCAB = 19, TOKENS = SEQUENCES * CONTEXT };
static const struct gpt_config odd = {
    .layers = 3, .heads = 3, .channels = 15, .context = CONTEXT, .vocab = VOCAB, .dropout = 0.2f};
static int32_t tokens[TOKENS], targets[TOKENS];

static void fill_tokens(void) {
    for (int i = 0; i < TOKENS; i++) {
        const struct philox draw = philox_draw(1, (uint64_t)i, 0);
        tokens[i] = (int32_t)(draw.word[0] % VOCAB);
        targets[i] = (int32_t)(draw.word[1] % VOCAB);
    }
}

static enum dtype precision; /* of the models that are opened */

static void open_model(struct gpt *g, bool tied, bool recompute, float dropout) {
    struct gpt_config c = odd;
    c.tied = tied;
    c.recompute = recompute;
    c.dropout = dropout;
    c.precision = precision;
    gpt_create(g, &c, &device_cpu, SEQUENCES, true);
    gpt_initialise(g, 9);
    /* Larger than at the start of training, and biases that are not zero: every gradient is well above
     * rounding. */
    for (int k = 0; k < g->table.params; k++) {
        const struct param *p = &g->table.param[k];
        float *w = (float *)g->weight.data + p->offset;
        for (int64_t i = 0; i < p->count; i++)
            w[i] = p->ndim == 2 ? 10.0f * w[i] : w[i] + 0.1f * sinf((float)(i + k));
    }
    gpt_round_weights(g);
}

static struct gpt_batch batch_of(int64_t first, int64_t count, int64_t step) {
    return (struct gpt_batch){.tokens = tokens + first * CONTEXT,
                              .targets = targets + first * CONTEXT,
                              .sequences = count,
                              .positions = CONTEXT,
                              .training = true,
                              .seed = 4,
                              .step = step,
                              .first_sequence = first};
}

static double loss_of(struct gpt *g) {
    const struct gpt_batch batch = batch_of(0, SEQUENCES, 2);
    gpt_forward(g, &batch);
    return gpt_evaluate(g, &batch).loss / TOKENS;
}

/* Forward and backward in micro-batches of the given sizes, which end with 0; the mean loss. */
static double train_in_parts(struct gpt *g, const int *parts) {
    double loss = 0;
    for (int64_t first = 0; *parts; first += *parts++) {
        const struct gpt_batch batch = batch_of(first, *parts, 2);
        const struct gpt_backward_plan plan = {.scale = 1.0f / TOKENS, .accumulate = first > 0};
        gpt_forward(g, &batch);
        loss += gpt_backward(g, &batch, &plan).loss / TOKENS;
    }
    return loss;
}

static double train_at_once(struct gpt *g) {
    return train_in_parts(g, (const int[]){SEQUENCES, 0});
}

/* Slope of the loss along direction[count] of weights w, by a central difference of fourth order. */
static double slope_along(struct gpt *g, float *w, const float *direction, int64_t count, double h) {
    static const double place[] = {-2, -1, 1, 2}, weight[] = {1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12};
    float *kept = malloc(sizeof *kept * (size_t)count);
    memcpy(kept, w, sizeof *kept * (size_t)count);
    double slope = 0;
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < count; i++) w[i] = kept[i] + (float)(place[k] * h) * direction[i];
        slope += weight[k] * loss_of(g) / h;
    }
    memcpy(w, kept, sizeof *kept * (size_t)count);
    free(kept);
    return slope;
}

static void check_direction(struct gpt *g, const struct param *p, const float *direction, const char *what) {
    float *w = (float *)g->weight.data + p->offset;
    const float *gradient = (const float *)g->gradient.data + p->offset;
    double slope = 0, norm = 0, length = 0;
    for (int64_t i = 0; i < p->count; i++) {
        slope += (double)gradient[i] * (double)direction[i];
        norm += (double)gradient[i] * (double)gradient[i];
        length += (double)direction[i] * (double)direction[i];
    }
    const double found = slope_along(g, w, direction, p->count, 0.02 / sqrt(length));
    /* of the largest slope that a direction of this length could have; keys' biases have none at all */
    if (!(fabs(found - slope) <= 0.01 * sqrt(norm * length) + 1e-5 * sqrt(length)))
        fail_msg("%s along %s: slope %.6g, finite differences say %.6g", p->name, what, slope, found);
}

static void check_gradients(bool tied, bool recompute) {
    struct gpt g;
    open_model(&g, tied, recompute, odd.dropout);
    train_at_once(&g);
    for (int k = 0; k < g.table.params; k++) {
        const struct param *p = &g.table.param[k];
        const float *gradient = (const float *)g.gradient.data + p->offset;
        float *direction = calloc((size_t)p->count, sizeof *direction);
        int64_t largest = 0;
        for (int64_t i = 0; i < p->count; i++) {
            if (fabsf(gradient[i]) > fabsf(gradient[largest])) largest = i;
            direction[i] = philox_draw(8, (uint64_t)(p->offset + i), 0).word[0] & 1 ? 1.0f : -1.0f;
        }
        check_direction(&g, p, direction, "random signs");
        memcpy(direction, gradient, sizeof *direction * (size_t)p->count);
        check_direction(&g, p, direction, "the gradient");
        memset(direction, 0, sizeof *direction * (size_t)p->count);
        direction[largest] = 1.0f;
        check_direction(&g, p, direction, "its largest element");
        direction[largest] = 0.0f;
        direction[p->count - 1] = 1.0f;
        check_direction(&g, p, direction, "its last element");
        free(direction);
    }
    gpt_free(&g);
}

static void test_gradients_against_finite_differences(void **state) {
    (void)state;
    check_gradients(true, false);
    check_gradients(false, true);
}

/* How far the results of sums in another order may be apart: an element that rounds to the other side changes what follows. */
static const struct {
    enum dtype dtype;
    double loss, gradient; /* relative */
} formats[] = {{DTYPE_F32, 1e-6, 1e-6}, {DTYPE_BF16, 0x1p-9, 0x1p-7}, {DTYPE_F16, 0x1p-12, 0x1p-10}};

static void test_recomputation_changes_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        const int tied = i % 2;
        precision = formats[i / 2].dtype;
        struct gpt kept, recomputed;
        open_model(&kept, tied, false, odd.dropout);
        open_model(&recomputed, tied, true, odd.dropout);
        assert_true(train_at_once(&kept) == train_at_once(&recomputed));
        assert_memory_equal(kept.gradient.data, recomputed.gradient.data,
                            sizeof(float) * (size_t)kept.table.elements);
        gpt_free(&kept);
        gpt_free(&recomputed);
    }
    precision = DTYPE_F32;
}

/* Parts of unequal size, in micro-batches or on other ranks: the same draws, so the same sums but for
 * rounding. */
static void test_the_cut_of_the_batch_does_not_matter(void **state) {
    (void)state;
    static const int cuts[][7] = {{3, 3, 0}, {1, 2, 3, 0}, {1, 1, 1, 1, 1, 1, 0}};
    for (int i = 0; i < 6; i++) {
        const int tied = i % 2;
        precision = formats[i / 2].dtype;
        struct gpt whole, parts;
        open_model(&whole, tied, false, odd.dropout);
        open_model(&parts, tied, tied, odd.dropout);
        const double loss = train_at_once(&whole);
        for (int c = 0; c < 3; c++) {
            assert_true(fabs(train_in_parts(&parts, cuts[c]) / loss - 1) < formats[i / 2].loss);
            const float *a = tensor_f32(whole.gradient), *b = tensor_f32(parts.gradient);
            double difference = 0, norm = 0;
            for (int64_t k = 0; k < whole.table.elements; k++) {
                difference += pow((double)a[k] - (double)b[k], 2);
                norm += pow((double)a[k], 2);
            }
            assert_true(sqrt(difference) <= formats[i / 2].gradient * sqrt(norm));
        }
        gpt_free(&whole);
        gpt_free(&parts);
    }
    precision = DTYPE_F32;
}

/* A block keeps 14 C numbers a row in 16 bits and 2 C, the residual stream, in 32: 36 bytes where fp32 has 64. */
static void test_half_precision_takes_half_the_memory(void **state) {
    (void)state;
    struct gpt g[2];
    for (int k = 0; k < 2; k++) {
        struct gpt_config c = {.layers = 24,
                               .heads = 4,
                               .channels = 128,
                               .context = 64,
                               .vocab = 16,
                               .precision = formats[k].dtype};
        gpt_create(&g[k], &c, &device_cpu, 2, true);
    }
    assert_true((double)g[1].activation_memory.size < 0.6 * (double)g[0].activation_memory.size);
    for (int k = 0; k < 2; k++) gpt_free(&g[k]);
}

static double loss_with(struct gpt *g, struct gpt_batch batch) {
    gpt_forward(g, &batch);
    return gpt_evaluate(g, &batch).loss;
}

static void test_draws_depend_on_seed_step_and_place(void **state) {
    (void)state;
    struct gpt g, plain;
    open_model(&g, true, false, odd.dropout);
    open_model(&plain, true, false, 0.0f);
    struct gpt_batch batch = batch_of(0, 1, 0), other = batch;
    const double loss = loss_with(&g, batch);
    assert_true(loss_with(&g, batch) == loss);
    other.seed++;
    assert_true(loss_with(&g, other) != loss);
    other = batch, other.step++;
    assert_true(loss_with(&g, other) != loss);
    other = batch, other.first_sequence++;
    assert_true(loss_with(&g, other) != loss);
    other = batch, other.training = false;
    assert_true(loss_with(&g, other) == loss_with(&plain, batch));
    assert_true(loss_with(&g, other) != loss);
    gpt_free(&g);
    gpt_free(&plain);
}

/* Where the sum of a residual stream and a branch is the stream itself, the branch was dropped. */
static void dropped(bool *zero, struct tensor sum, struct tensor stream) {
    const float *a = tensor_f32(sum), *b = stream.data ? tensor_f32(stream) : NULL;
    for (int64_t i = 0; i < tensor_count(sum); i++) zero[i] = a[i] == (b ? b[i] : 0.0f);
}

static void test_every_place_draws_for_itself(void **state) {
    (void)state;
    enum { PLACES = 1 + 2 * 3, COUNT = TOKENS * 15 };
    static bool zero[PLACES][COUNT];
    struct gpt g;
    open_model(&g, true, false, odd.dropout);
    loss_with(&g, batch_of(0, SEQUENCES, 0));
    const struct gpt_activations *kept = &g.kept[0][0];
    dropped(zero[0], kept->block[0].x, (struct tensor){0});
    for (int l = 0; l < odd.layers; l++) {
        dropped(zero[1 + 2 * l], kept->block[l].mid, kept->block[l].x);
        dropped(zero[2 + 2 * l], l + 1 < odd.layers ? kept->block[l + 1].x : kept->x_out, kept->block[l].mid);
    }
    for (int a = 0; a < PLACES; a++)
        for (int b = 0; b <= a; b++) {
            int both = 0;
            for (int i = 0; i < COUNT; i++) both += zero[a][i] && zero[b][i];
            const double p = (double)odd.dropout, share = a == b ? p : p * p;
            assert_true(fabs((double)both / COUNT - share) < 5 * sqrt(share * (1 - share) / COUNT));
        }
    gpt_free(&g);
}

int main(void) {
    struct error e;
    if (device_cpu.open(2, &e)) return 1;
    fill_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_against_finite_differences),
        cmocka_unit_test(test_recomputation_changes_no_bit),
        cmocka_unit_test(test_the_cut_of_the_batch_does_not_matter),
        cmocka_unit_test(test_half_precision_takes_half_the_memory),
        cmocka_unit_test(test_draws_depend_on_seed_step_and_place),
        cmocka_unit_test(test_every_place_draws_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
