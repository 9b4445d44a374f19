/* Both update rules on a whole model against plain loops in double, over several steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/philox.h"
#include "tests/gradient_norm.h"
#include "train/optimizer.h"

static const struct gpt_config config = {.layers = 2, .heads = 3, .channels = 9, .context = 5, .vocab = 11};
enum { STEPS = 6 };

struct oracle {
    int64_t elements;
    double *p, *m, *v;
};

static void update_adamw(struct oracle *o, const struct optimizer_options *r, int64_t i, double g,
                         double decay, double lr, int step) {
    o->m[i] = (double)r->beta1 * o->m[i] + (1 - (double)r->beta1) * g;
    o->v[i] = (double)r->beta2 * o->v[i] + (1 - (double)r->beta2) * g * g;
    const double m = o->m[i] / (1 - pow((double)r->beta1, step)),
                 v = o->v[i] / (1 - pow((double)r->beta2, step));
    o->p[i] -= lr * (m / (sqrt(v) + (double)r->eps) + decay * o->p[i]);
}

static void update_sgd(struct oracle *o, const struct optimizer_options *r, int64_t i, double g, double decay,
                       double lr) {
    o->m[i] = (double)r->momentum * o->m[i] + g + decay * o->p[i];
    o->p[i] -= lr * o->m[i];
}

static void oracle_update(struct oracle *o, const struct optimizer_options *r, const struct gpt *g, double lr,
                          int step) {
    const float *gradient = tensor_f32(g->gradient);
    double squares = 0;
    for (int64_t i = 0; i < o->elements; i++) squares += (double)gradient[i] * (double)gradient[i];
    const double norm = sqrt(squares), scale = r->clip > 0 && norm > r->clip ? r->clip / norm : 1.0;
    const double found = gradient_norm(g);
    if (fabs(found / norm - 1) > 1e-12) fail_msg("norm %.17g, expected %.17g", found, norm);
    for (int k = 0; k < g->table.params; k++) {
        const struct param *p = &g->table.param[k];
        const double decay = p->ndim == 2 ? (double)r->weight_decay : 0.0; /* matrices only */
        for (int64_t i = p->offset; i < p->offset + p->count; i++)
            if (strcmp(r->rule, "adamw") == 0)
                update_adamw(o, r, i, scale * (double)gradient[i], decay, lr, step);
            else
                update_sgd(o, r, i, scale * (double)gradient[i], decay, lr);
    }
}

static void draw_gradient(const struct gpt *g, int step) {
    for (int k = 0; k < g->table.params; k++) {
        const struct param *p = &g->table.param[k];
        float *gradient = (float *)g->gradient.data + p->offset;
        for (int64_t i = 0; i < p->count; i++) {
            const struct philox draw = philox_draw(3, (uint64_t)(p->offset + i), (uint64_t)step);
            gradient[i] = (float)ldexp((double)draw.word[0] / 2147483648.0 - 1.0, -(int)(draw.word[1] % 20));
        }
    }
}

static void check_rule(const struct optimizer_options *rule) {
    struct gpt g;
    struct optimizer optimizer;
    gpt_create(&g, &config, &device_cpu, 1, true);
    gpt_initialise(&g, 1);
    optimizer_create(&optimizer, rule, &g);
    struct oracle o = {.elements = g.table.elements};
    o.p = calloc(3 * (size_t)o.elements, sizeof(double));
    o.m = o.p + o.elements;
    o.v = o.m + o.elements;
    const float *weight = tensor_f32(g.weight);
    for (int64_t i = 0; i < o.elements; i++) o.p[i] = (double)weight[i];
    for (int step = 1; step <= STEPS; step++) {
        const double lr = 0.01 / step;
        draw_gradient(&g, step);
        oracle_update(&o, rule, &g, lr, step);
        optimizer_update(&optimizer, &g, lr, gradient_norm(&g), NULL, 0, step);
        for (int64_t i = 0; i < o.elements; i++)
            if (!(fabs((double)weight[i] - o.p[i]) <= 2e-6 * (fabs(o.p[i]) + 0.1)))
                fail_msg("%s, step %d: weight %d is %.9g, expected %.9g", rule->rule, step, (int)i,
                         (double)weight[i], o.p[i]);
    }
    free(o.p);
    optimizer_free(&optimizer);
    gpt_free(&g);
}

static void check_rules(float weight_decay, double clip) {
    check_rule(&(struct optimizer_options){"adamw", 0.9f, 0.95f, 1e-8f, 0.0f, weight_decay, clip});
    check_rule(&(struct optimizer_options){"adamw", 0.0f, 0.999f, 1e-3f, 0.0f, weight_decay, clip});
    check_rule(&(struct optimizer_options){"sgd", 0.0f, 0.0f, 0.0f, 0.9f, weight_decay, clip});
    check_rule(&(struct optimizer_options){"sgd", 0.0f, 0.0f, 0.0f, 0.0f, weight_decay, clip});
}

static void test_plain(void **state) {
    (void)state;
    check_rules(0.0f, 0.0);
}

static void test_weight_decay_acts_on_matrices_only(void **state) {
    (void)state;
    check_rules(0.5f, 0.0);
}

static void test_clipping(void **state) {
    (void)state;
    /* from well below the norm to well above it, and close to it on both sides */
    for (double clip = 0.125; clip < 100; clip *= 1.5) check_rules(0.1f, clip);
}

/* Whatever products compute in, the weights take the same update, and what products take of them follows. */
static void check_master_weights(enum dtype precision) {
    const struct optimizer_options rule = {"adamw", 0.9f, 0.95f, 1e-8f, 0.0f, 0.1f, 1.0};
    struct gpt g[2];
    struct optimizer optimizer[2];
    for (int k = 0; k < 2; k++) {
        struct gpt_config c = config;
        c.precision = k ? precision : DTYPE_F32;
        gpt_create(&g[k], &c, &device_cpu, 1, true);
        gpt_initialise(&g[k], 1);
        optimizer_create(&optimizer[k], &rule, &g[k]);
    }
    const size_t count = (size_t)g[0].table.elements;
    uint16_t *expected = calloc(count, sizeof *expected), *before = calloc(count, sizeof *before);
    for (int step = 1; step <= STEPS; step++) {
        memcpy(before, g[1].rounded.data, count * sizeof *before);
        for (int k = 0; k < 2; k++) {
            draw_gradient(&g[k], step);
            optimizer_update(&optimizer[k], &g[k], 0.01, gradient_norm(&g[k]), NULL, 0, step);
        }
        assert_memory_equal(g[0].weight.data, g[1].weight.data, count * sizeof(float));
        const float *w = tensor_f32(g[1].weight);
        for (size_t i = 0; i < count; i++)
            expected[i] = precision == DTYPE_BF16 ? half_to_bf16(w[i]) : half_to_fp16(w[i]);
        assert_memory_equal(g[1].rounded.data, expected, count * sizeof *expected);
        assert_memory_not_equal(g[1].rounded.data, before, count * sizeof *before);
    }
    for (int k = 0; k < 2; k++) {
        optimizer_free(&optimizer[k]);
        gpt_free(&g[k]);
    }
    free(expected);
    free(before);
}

static void test_weights_stay_fp32(void **state) {
    (void)state;
    check_master_weights(DTYPE_BF16);
    check_master_weights(DTYPE_F16);
}

int main(void) {
    struct error e;
    if (device_cpu.open(2, &e)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_weight_decay_acts_on_matrices_only),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_weights_stay_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
