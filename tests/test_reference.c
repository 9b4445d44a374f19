/* The whole model against PyTorch: loss, every gradient, and a few AdamW steps, on the cases in tests/ref.
 *
 *     build/tests/test_reference [CASE_FOLDER TEXT_FILE TOLERANCE]     follows another fixture of the same format
 *
 * The oracle is double precision, so what differs is tandem's fp32. In 16 bits the oracle rounds where tandem does: a rounding
 * in another place is as large as what the format costs, one that falls otherwise now and then is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gradient_norm.h"
#include "train/checkpoint.h"
#include "train/files.h"
#include "train/optimizer.h"
#include "train/safetensors.h"

struct fixture {
    char folder[512], text[600];
    double tolerance; /* relative, of losses and gradient norms */
    bool recompute;
    enum dtype precision;
    int64_t micro_batches; /* the batch is cut into so many */
};

struct case_state {
    struct gpt gpt;
    uint8_t *text;
    char *steps, *next_line;
    int32_t *tokens, *targets;
    int64_t batch;
};

static uint8_t *read_bytes(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(size);
    assert_int_equal(fread(bytes, 1, size, f), size);
    fclose(f);
    return bytes;
}

static void open_case(struct case_state *s, const struct fixture *f) {
    struct error e = {0};
    struct checkpoint_info info;
    char path[700];
    assert_int_equal(checkpoint_read_info(f->folder, &info, &e), 0);
    info.config.recompute = f->recompute;
    info.config.precision = f->precision;
    snprintf(path, sizeof path, "%s/steps.jsonl", f->folder);
    s->steps = s->next_line = files_read_text(path, &e);
    assert_non_null(s->steps);
    s->text = read_bytes(f->text);
    cJSON *first = cJSON_Parse(s->steps);
    s->batch = cJSON_GetArraySize(cJSON_GetObjectItem(first, "offsets"));
    cJSON_Delete(first);
    gpt_create(&s->gpt, &info.config, &device_cpu, s->batch / f->micro_batches, true);
    assert_int_equal(checkpoint_read_weights(f->folder, &s->gpt, &e), 0);
    s->tokens = malloc(2 * sizeof *s->tokens * (size_t)(s->batch * info.config.context));
    s->targets = s->tokens + s->batch * info.config.context;
}

static void close_case(struct case_state *s) {
    gpt_free(&s->gpt);
    free(s->text);
    free(s->steps);
    free(s->tokens);
}

/* The next step of the fixture into tokens and targets; NULL at the end. */
static cJSON *next_step(struct case_state *s) {
    const int64_t T = s->gpt.config.context;
    cJSON *step = *s->next_line ? cJSON_Parse(s->next_line) : NULL;
    if (!step) return NULL;
    s->next_line += strcspn(s->next_line, "\n");
    if (*s->next_line) s->next_line++;
    const cJSON *offset;
    int64_t i = 0;
    cJSON_ArrayForEach(offset, cJSON_GetObjectItem(step, "offsets")) {
        for (int64_t t = 0; t < T; t++, i++) {
            s->tokens[i] = s->text[offset->valueint + t];
            s->targets[i] = s->text[offset->valueint + t + 1];
        }
    }
    return step;
}

/* How far the gradients count as ready must grow, and end at everything. */
static void watch_ready(void *context, int64_t elements) {
    int64_t *ready = context;
    assert_true(elements > *ready);
    *ready = elements;
}

static double mean_loss(struct case_state *s, const struct fixture *f) {
    const int64_t T = s->gpt.config.context, micro = s->batch / f->micro_batches;
    int64_t ready = 0;
    double loss = 0;
    for (int64_t m = 0; m < f->micro_batches; m++) {
        const struct gpt_batch batch = {.tokens = s->tokens + m * micro * T,
                                        .targets = s->targets + m * micro * T,
                                        .sequences = micro,
                                        .positions = T,
                                        .training = true};
        const bool last = m + 1 == f->micro_batches;
        const struct gpt_backward_plan plan = {.scale = 1.0f / (float)(s->batch * T),
                                               .accumulate = m > 0,
                                               .ready = last ? watch_ready : NULL,
                                               .context = &ready};
        gpt_forward(&s->gpt, &batch);
        const struct gpt_loss alone = gpt_evaluate(&s->gpt, &batch),
                              part = gpt_backward(&s->gpt, &batch, &plan);
        assert_true(alone.loss == part.loss && alone.correct == part.correct);
        loss += part.loss / (double)(s->batch * T);
    }
    assert_int_equal(ready, s->gpt.table.elements);
    return loss;
}

static void assert_close(double value, double expected, double tolerance, const char *what) {
    if (fabs(value - expected) <= tolerance * fabs(expected)) return;
    fail_msg("%s: %.9g, expected %.9g (relative error %.2g)", what, value, expected,
             fabs(value / expected - 1));
}

static void check_gradients(struct case_state *s, const struct fixture *f) {
    struct error e = {0};
    struct safetensors file;
    char path[700], name[80];
    snprintf(path, sizeof path, "%s/gradients.safetensors", f->folder);
    assert_int_equal(safetensors_open(&file, path, &e), 0);
    for (int i = 0; i < s->gpt.table.params; i++) {
        const struct param *p = &s->gpt.table.param[i];
        struct tensor t;
        snprintf(name, sizeof name, "%s%s", p->kind == PARAM_HEAD ? "" : "transformer.", p->name);
        assert_int_equal(safetensors_find(&file, name, &t, &e), 0);
        const float *found = tensor_f32(param_view(p, s->gpt.gradient)), *expected = tensor_f32(t);
        double difference = 0, norm = 0;
        for (int64_t k = 0; k < p->count; k++) {
            difference += pow((double)found[k] - (double)expected[k], 2);
            norm += pow((double)expected[k], 2);
        }
        if (!(sqrt(difference) <= 1e-5 * sqrt(norm)))
            fail_msg("%s: gradient of %s is off by %.2g of its norm", f->folder, name,
                     sqrt(difference / norm));
    }
    safetensors_close(&file);
}

static void follow(const struct fixture *f, bool has_gradients) {
    struct case_state s;
    open_case(&s, f);
    struct optimizer optimizer;
    const struct optimizer_options rule = {"adamw", 0.9f, 0.99f, 1e-8f, 0.0f, 0.1f, 1.0};
    optimizer_create(&optimizer, &rule, &s.gpt);
    /* A gradient that is not written shows: nothing may depend on what was there. */
    memset(s.gpt.gradient.data, 0xff, sizeof(float) * (size_t)s.gpt.table.elements);
    for (int i = 0; i < s.gpt.table.params; i++) { /* but the gaps between parameters stay zero */
        const struct param *p = &s.gpt.table.param[i];
        int64_t end = i + 1 < s.gpt.table.params ? p[1].offset : s.gpt.table.elements;
        memset((float *)s.gpt.gradient.data + p->offset + p->count, 0,
               sizeof(float) * (size_t)(end - p->offset - p->count));
    }
    double worst_loss = 0, worst_norm = 0;
    cJSON *step;
    for (int i = 0; (step = next_step(&s)); i++) {
        char what[640];
        const double loss = cJSON_GetObjectItem(step, "loss")->valuedouble;
        const double norm = cJSON_GetObjectItem(step, "grad_norm")->valuedouble;
        const double own_loss = mean_loss(&s, f), own_norm = gradient_norm(&s.gpt);
        if (i == 0 && has_gradients) check_gradients(&s, f);
        worst_loss = fmax(worst_loss, fabs(own_loss / loss - 1));
        worst_norm = fmax(worst_norm, fabs(own_norm / norm - 1));
        snprintf(what, sizeof what, "%.400s step %d loss", f->folder, i);
        assert_close(own_loss, loss, f->tolerance, what);
        snprintf(what, sizeof what, "%.400s step %d gradient norm", f->folder, i);
        assert_close(own_norm, norm, f->tolerance, what);
        optimizer_update(&optimizer, &s.gpt, 1e-3, own_norm, NULL, 0, i + 1);
        cJSON_Delete(step);
    }
    print_message("%s: largest relative error of a loss %.2g, of a gradient norm %.2g\n", f->folder,
                  worst_loss, worst_norm);
    optimizer_free(&optimizer);
    close_case(&s);
}

static void follow_case(const char *name, bool recompute, int64_t micro_batches) {
    struct fixture f = {.tolerance = 1e-5, .recompute = recompute, .micro_batches = micro_batches};
    snprintf(f.folder, sizeof f.folder, "tests/ref/%s", name);
    snprintf(f.text, sizeof f.text, "tests/ref/%s/text.bin", name);
    follow(&f, true);
}

static void test_tied_head(void **state) {
    (void)state;
    follow_case("tied", false, 1);
}

static void test_untied_head(void **state) {
    (void)state;
    follow_case("untied", false, 1);
}

static void test_context_of_several_tiles(void **state) {
    (void)state;
    follow_case("long", false, 1);
}

static void test_recompute(void **state) {
    (void)state;
    follow_case("tied", true, 1);
    follow_case("untied", true, 1);
}

static void test_gradient_accumulation(void **state) {
    (void)state;
    follow_case("tied", false, 3);
    follow_case("untied", true, 2);
}

/* Distance of all gradients to those of a file, over the norm of those. */
static double gradient_distance(const struct case_state *s, const char *folder, const char *name,
                                float scale) {
    struct error e = {0};
    struct safetensors file;
    char path[700];
    double difference = 0, norm = 0;
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    assert_int_equal(safetensors_open(&file, path, &e), 0);
    for (int i = 0; i < s->gpt.table.params; i++) {
        const struct param *p = &s->gpt.table.param[i];
        struct tensor t;
        char tensor[80];
        snprintf(tensor, sizeof tensor, "%s%s", p->kind == PARAM_HEAD ? "" : "transformer.", p->name);
        assert_int_equal(safetensors_find(&file, tensor, &t, &e), 0);
        const float *found = tensor_f32(param_view(p, s->gpt.gradient)), *expected = tensor_f32(t);
        for (int64_t k = 0; k < p->count; k++) {
            difference += pow((double)(found[k] / scale) - (double)expected[k], 2);
            norm += pow((double)expected[k], 2);
        }
    }
    safetensors_close(&file);
    return sqrt(difference / norm);
}

/* What one step in 16 bits comes to. */
struct half_step {
    double loss_error, gradient_error; /* from the exact ones */
    double loss_away, gradient_away;   /* from the oracle that rounds to bf16 */
};

static struct half_step run_half_step(const char *name, enum dtype precision, float scale, bool recompute) {
    struct fixture f = {.recompute = recompute, .precision = precision, .micro_batches = 1};
    struct case_state s;
    struct error e = {0};
    struct half_step result = {0};
    char path[700];
    snprintf(f.folder, sizeof f.folder, "tests/ref/%s", name);
    snprintf(f.text, sizeof f.text, "tests/ref/%s/text.bin", name);
    open_case(&s, &f);
    cJSON *step = next_step(&s);
    const int64_t T = s.gpt.config.context, N = s.batch * T;
    const struct gpt_batch batch = {
        .tokens = s.tokens, .targets = s.targets, .sequences = s.batch, .positions = T, .training = true};
    const struct gpt_backward_plan plan = {.scale = scale / (float)N};
    gpt_forward(&s.gpt, &batch);
    const double loss = gpt_backward(&s.gpt, &batch, &plan).loss / (double)N;
    result.loss_error = fabs(loss - cJSON_GetObjectItem(step, "loss")->valuedouble);
    result.gradient_error = gradient_distance(&s, f.folder, "gradients", scale);
    snprintf(path, sizeof path, "%s/bf16.json", f.folder);
    char *text = precision == DTYPE_BF16 ? files_read_text(path, &e) : NULL;
    if (text) {
        cJSON *oracle = cJSON_Parse(text);
        result.loss_away = fabs(loss - cJSON_GetObjectItem(oracle, "loss")->valuedouble);
        result.gradient_away = gradient_distance(&s, f.folder, "gradients-bf16", scale);
        cJSON_Delete(oracle);
        free(text);
    }
    cJSON_Delete(step);
    close_case(&s);
    return result;
}

static void test_bf16_rounds_where_it_should(void **state) {
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        const struct half_step s = run_half_step("tied", DTYPE_BF16, 1.0f, recompute);
        print_message("loss %.2g from the oracle's and %.2g from the exact one, gradients %.2g and %.2g\n",
                      s.loss_away, s.loss_error, s.gradient_away, s.gradient_error);
        assert_true(s.loss_away > 0 && s.loss_away < 0.1 * s.loss_error);
        assert_true(s.gradient_away > 0 && s.gradient_away < 0.1 * s.gradient_error);
    }
}

/* A rounding costs 2^-9 and 2^-12 on average, and there are about a dozen on the way of a gradient. */
static void test_half_precision_costs_what_its_bits_cost(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        const char *name = tied ? "tied" : "untied";
        assert_true(run_half_step(name, DTYPE_BF16, 1.0f, false).gradient_error < 0x1p-6);
        assert_true(run_half_step(name, DTYPE_F16, 1024.0f, false).gradient_error < 0x1p-9);
    }
}

static int follow_given(char **argv) {
    struct fixture f = {.tolerance = atof(argv[3]), .micro_batches = 1};
    snprintf(f.folder, sizeof f.folder, "%s", argv[1]);
    snprintf(f.text, sizeof f.text, "%s", argv[2]);
    follow(&f, false);
    return 0;
}

int main(int argc, char **argv) {
    struct error e;
    if (device_cpu.open(2, &e)) return 1;
    if (argc == 4) return follow_given(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_untied_head),
        cmocka_unit_test(test_context_of_several_tiles),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_gradient_accumulation),
        cmocka_unit_test(test_bf16_rounds_where_it_should),
        cmocka_unit_test(test_half_precision_costs_what_its_bits_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
