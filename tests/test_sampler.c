/* Sampling: the likeliest at temperature 0, cuts, and the distribution of many draws by chi-square. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "train/sampler.h"

enum { VOCAB = 10, DRAWS = 20000 };
static const float logits[VOCAB] = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -3.0f, 2.0f, 1.0f, -0.5f, 100.0f};
enum { USED = 9 }; /* without the overwhelming last one */

/* Chi-square of DRAWS draws against softmax(logits / temperature) over the tokens that `allowed` names;
 * others must not come. Fixed seeds: the same number every time. */
static void check_distribution(const struct sampler *s, const bool *allowed, int tokens) {
    double p[VOCAB] = {0}, total = 0, chi_square = 0;
    int count[VOCAB] = {0};
    for (int i = 0; i < tokens; i++)
        if (allowed[i]) total += p[i] = exp((double)logits[i] / s->temperature);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t token = sampler_draw(s, logits, tokens, i);
        assert_true(token >= 0 && token < tokens && allowed[token]);
        count[token]++;
    }
    for (int i = 0; i < tokens; i++) {
        const double expected = DRAWS * p[i] / total;
        if (expected > 0) chi_square += (count[i] - expected) * (count[i] - expected) / expected;
    }
    assert_true(chi_square < 33.0); /* 8 degrees of freedom at most: exceeded once in 16000 */
}

static void test_temperature_zero_takes_the_first_of_the_likeliest(void **state) {
    (void)state;
    for (int64_t position = 0; position < 100; position++) {
        assert_int_equal(sampler_draw(&(struct sampler){0.0, 0, 1.0, 7}, logits, USED, position), 2);
        assert_int_equal(sampler_draw(&(struct sampler){0.0, 0, 1.0, 7}, logits, VOCAB, position), 9);
    }
}

static void test_draws_follow_the_softmax(void **state) {
    (void)state;
    const bool all[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (uint64_t seed = 0; seed < 3; seed++) {
        check_distribution(&(struct sampler){1.0, 0, 1.0, seed}, all, USED);
        check_distribution(&(struct sampler){0.7, 0, 1.0, seed}, all, USED);
        check_distribution(&(struct sampler){3.0, USED + 5, 1.0, seed}, all, USED);
    }
}

static void test_top_k_keeps_the_k_likeliest(void **state) {
    (void)state;
    check_distribution(&(struct sampler){1.0, 3, 1.0, 1}, (const bool[]){0, 0, 1, 0, 1, 0, 1, 0, 0}, USED);
    check_distribution(&(struct sampler){1.0, 1, 1.0, 1}, (const bool[]){0, 0, 1, 0, 0, 0, 0, 0, 0}, USED);
}

/* Shares, likeliest first: tokens 2 and 6 hold 0.305 each, 4 0.185, 7 0.112, 0 0.068, ... */
static void test_top_p_keeps_the_fewest_that_hold_the_share(void **state) {
    (void)state;
    check_distribution(&(struct sampler){1.0, 0, 0.5, 1}, (const bool[]){0, 0, 1, 0, 0, 0, 1, 0, 0}, USED);
    check_distribution(&(struct sampler){1.0, 0, 0.7, 1}, (const bool[]){0, 0, 1, 0, 1, 0, 1, 0, 0}, USED);
    check_distribution(&(struct sampler){1.0, 0, 0.0, 1}, (const bool[]){0, 0, 1, 0, 0, 0, 0, 0, 0}, USED);
    /* after top-k: the share is one of what is left */
    check_distribution(&(struct sampler){1.0, 2, 0.9, 1}, (const bool[]){0, 0, 1, 0, 0, 0, 1, 0, 0}, USED);
}

static void test_seed_and_position_decide(void **state) {
    (void)state;
    int same_seed = 0, other_seed = 0;
    for (int i = 0; i < 1000; i++) {
        const struct sampler s = {1.0, 0, 1.0, 5}, other = {1.0, 0, 1.0, 6};
        const int32_t token = sampler_draw(&s, logits, USED, i);
        same_seed += token == sampler_draw(&s, logits, USED, i);
        other_seed += token == sampler_draw(&other, logits, USED, i);
    }
    assert_int_equal(same_seed, 1000);
    assert_true(other_seed < 400); /* two independent draws agree with probability 0.24 */
}

static void test_extreme_logits(void **state) {
    (void)state;
    const float extreme[4] = {-3e38f, 3e38f, -INFINITY, 0.0f};
    for (int i = 0; i < 100; i++)
        assert_int_equal(sampler_draw(&(struct sampler){0.01, 0, 1.0, 1}, extreme, 4, i), 1);
    assert_int_equal(sampler_draw(&(struct sampler){1.0, 0, 1.0, 1}, extreme, 1, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature_zero_takes_the_first_of_the_likeliest),
        cmocka_unit_test(test_draws_follow_the_softmax),
        cmocka_unit_test(test_top_k_keeps_the_k_likeliest),
        cmocka_unit_test(test_top_p_keeps_the_fewest_that_hold_the_share),
        cmocka_unit_test(test_seed_and_position_decide),
        cmocka_unit_test(test_extreme_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
