/* The parameter table: complete, without overlap, in ready order; initial weights as documented. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gpt.h"

static const struct gpt_config config = {.layers = 3, .heads = 2, .channels = 10, .context = 7, .vocab = 13};

static struct param_table make_table(bool tied) {
    struct gpt_config c = config;
    struct param_table table;
    c.tied = tied;
    param_table_create(&table, &c, NULL, 0);
    return table;
}

/* GPT-2's own list, by name and shape. */
static const struct {
    const char *name;
    int rows, columns; /* columns 0: a vector */
    bool decay;
} block[] = {{"ln_1.weight", 10, 0, false},        {"ln_1.bias", 10, 0, false},
             {"attn.c_attn.weight", 10, 30, true}, {"attn.c_attn.bias", 30, 0, false},
             {"attn.c_proj.weight", 10, 10, true}, {"attn.c_proj.bias", 10, 0, false},
             {"ln_2.weight", 10, 0, false},        {"ln_2.bias", 10, 0, false},
             {"mlp.c_fc.weight", 10, 40, true},    {"mlp.c_fc.bias", 40, 0, false},
             {"mlp.c_proj.weight", 40, 10, true},  {"mlp.c_proj.bias", 10, 0, false}},
  outside[] = {{"wte.weight", 13, 10, true},
               {"wpe.weight", 7, 10, true},
               {"ln_f.weight", 10, 0, false},
               {"ln_f.bias", 10, 0, false},
               {"lm_head.weight", 13, 10, true}};
enum { BLOCK = 12, OUTSIDE = 5 };

static void check_entry(const struct param_table *table, const char *name, int rows, int columns,
                        bool decay) {
    for (int i = 0; i < table->params; i++) {
        const struct param *p = &table->param[i];
        if (strcmp(p->name, name) != 0) continue;
        assert_int_equal(p->ndim, columns ? 2 : 1);
        assert_int_equal(p->dim[0], rows);
        if (columns) assert_int_equal(p->dim[1], columns);
        assert_int_equal(p->count, rows * (columns ? columns : 1));
        assert_int_equal(p->decay, decay);
        assert_ptr_equal(param_find(table, p->kind, p->layer), p);
        return;
    }
    fail_msg("no parameter %s", name);
}

static void test_table_is_complete(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct param_table table = make_table(tied);
        char name[64];
        for (int l = 0; l < config.layers; l++)
            for (int i = 0; i < BLOCK; i++) {
                snprintf(name, sizeof name, "h.%d.%s", l, block[i].name);
                check_entry(&table, name, block[i].rows, block[i].columns, block[i].decay);
            }
        for (int i = 0; i < OUTSIDE - tied; i++)
            check_entry(&table, outside[i].name, outside[i].rows, outside[i].columns, outside[i].decay);
        assert_int_equal(table.params, config.layers * BLOCK + OUTSIDE - tied);
        param_table_free(&table);
    }
}

static void test_flat_range_has_no_overlap_and_its_gaps_are_small(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct param_table table = make_table(tied);
        int64_t end = 0, parameters = 0;
        for (int i = 0; i < table.params; i++) {
            const struct param *p = &table.param[i];
            assert_true(p->offset >= end && p->offset < end + 16 && p->offset % 16 == 0);
            end = p->offset + p->count;
            parameters += p->count;
        }
        assert_true(table.elements >= end && table.elements < end + 16);
        assert_int_equal(table.parameters, parameters);
        param_table_free(&table);
    }
}

/* When the backward pass is through with a parameter's gradient. */
static int ready_rank(const struct param *p, int layers) {
    if (p->kind == PARAM_HEAD) return 0;
    if (p->kind == PARAM_LN_F_W || p->kind == PARAM_LN_F_B) return 1;
    if (p->layer < 0) return 100;
    return 2 + 2 * (layers - 1 - p->layer) + (strstr(p->name, "attn") || strstr(p->name, "ln_1"));
}

static void test_flat_range_lies_in_ready_order(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct param_table table = make_table(tied);
        for (int i = 1; i < table.params; i++)
            assert_true(ready_rank(&table.param[i - 1], table.layers) <=
                        ready_rank(&table.param[i], table.layers));
        param_table_free(&table);
    }
}

static float *initial(const struct param *p, uint64_t seed, int threads) {
    float *values = malloc(sizeof *values * (size_t)p->count);
    omp_set_num_threads(threads);
    param_initialise(p, seed, values);
    return values;
}

static void test_initial_weights_depend_on_seed_and_name_only(void **state) {
    (void)state;
    struct param_table table = make_table(false);
    float *before = NULL;
    for (int i = 0; i < table.params; i++) {
        const struct param *p = &table.param[i];
        const size_t bytes = sizeof(float) * (size_t)p->count;
        float *one = initial(p, 5, 1), *three = initial(p, 5, 3), *other = initial(p, 6, 2);
        assert_memory_equal(one, three, bytes);
        if (p->init_std > 0) {
            assert_memory_not_equal(one, other, bytes);
            if (before) assert_memory_not_equal(one, before, 4 * sizeof(float));
        }
        free(three);
        free(other);
        if (p->init_std == 0) {
            free(one);
            continue;
        }
        free(before);
        before = one;
    }
    free(before);
    param_table_free(&table);
}

/* Mean, deviation and fourth moment of what was drawn, within five standard errors. */
static void check_normal(const char *name, const float *x, int64_t n, double std) {
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t i = 0; i < n; i++) {
        const double z = (double)x[i] / std;
        sum += z, squares += z * z, fourth += z * z * z * z;
    }
    const double count = (double)n;
    if (fabs(sum / count) > 5 / sqrt(count) || fabs(squares / count - 1) > 5 * sqrt(2 / count) ||
        fabs(fourth / count - 3) > 5 * sqrt(96 / count))
        fail_msg("%s: moments %g %g %g", name, sum / count, squares / count, fourth / count);
}

static void test_initial_weights_have_the_documented_distribution(void **state) {
    (void)state;
    const struct gpt_config wide = {.layers = 8, .heads = 4, .channels = 64, .context = 65, .vocab = 257};
    struct param_table table;
    param_table_create(&table, &wide, NULL, 0);
    for (int i = 0; i < table.params; i++) {
        const struct param *p = &table.param[i];
        float *x = initial(p, 11, 2);
        const bool residual = strstr(p->name, "c_proj.weight") != NULL;
        if (p->ndim == 2)
            check_normal(p->name, x, p->count, residual ? 0.02 / sqrt(2.0 * 8) : 0.02);
        else
            for (int64_t k = 0; k < p->count; k++)
                assert_true(x[k] == (p->kind == PARAM_LN_F_W || strstr(p->name, "ln_1.weight") ||
                                             strstr(p->name, "ln_2.weight")
                                         ? 1.0f
                                         : 0.0f));
        free(x);
    }
    param_table_free(&table);
}

static void test_flops_of_gpt2_small(void **state) {
    (void)state;
    const struct gpt_config gpt2 = {
        .layers = 12, .heads = 12, .channels = 768, .context = 1024, .vocab = 50257};
    struct gpt_config tied = gpt2;
    struct param_table table;
    tied.tied = true;
    param_table_create(&table, &tied, NULL, 0);
    assert_int_equal(table.parameters, 124439808);
    param_table_free(&table);
    const double expected = 6.0 * (124439808.0 - 1024 * 768) + 12.0 * 12 * 768 * 1024;
    assert_true(gpt_flops_per_token(&tied, 1024) == expected);
    assert_true(gpt_flops_per_token(&gpt2, 1024) == expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_complete),
        cmocka_unit_test(test_flat_range_has_no_overlap_and_its_gaps_are_small),
        cmocka_unit_test(test_flat_range_lies_in_ready_order),
        cmocka_unit_test(test_initial_weights_depend_on_seed_and_name_only),
        cmocka_unit_test(test_initial_weights_have_the_documented_distribution),
        cmocka_unit_test(test_flops_of_gpt2_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
