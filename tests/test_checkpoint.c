/* Saved models: round trip, every way in which one can be damaged, and that a failure leaves earlier ones
 * whole. */
#include "tests/data_files.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "train/checkpoint.h"
#include "train/files.h"
#include "train/safetensors.h"
#include "train/state.h"

static const struct gpt_config config = {.layers = 2, .heads = 2, .channels = 8, .context = 6, .vocab = 11};
static int runs;

static void open_model(struct gpt *g, bool tied, uint64_t seed) {
    struct gpt_config c = config;
    c.tied = tied;
    gpt_create(g, &c, &device_cpu, 1, false);
    gpt_initialise(g, seed);
}

struct tensors {
    const char *name[64];
    struct tensor tensor[64];
    int count;
};

static void list_tensor(void *context, const struct state_tensor *t) {
    struct tensors *all = context;
    all->name[all->count] = strdup(t->name);
    all->tensor[all->count++] = t->tensor;
}

/* A checkpoint of the model alone, by the same steps that a run takes. */
static int checkpoint_save(const char *run, int64_t step, const struct gpt *g, const char *tokenizer,
                           struct error *e) {
    char beside[CHECKPOINT_PATH], file[CHECKPOINT_PATH + 32];
    struct tensors all = {.count = 0};
    struct file_sum sum;
    if (checkpoint_begin(run, step, e)) return -1;
    checkpoint_path_beside(beside, run, step);
    snprintf(file, sizeof file, "%s/model.safetensors", beside);
    state_visit_weights(g, list_tensor, &all);
    const int status = safetensors_write(file, all.name, all.tensor, all.count, &sum, e) ||
                       checkpoint_write_config(beside, &g->config, tokenizer, step, &sum, e) ||
                       checkpoint_publish(run, step, e);
    for (int i = 0; i < all.count; i++) free((char *)all.name[i]);
    if (status) checkpoint_discard(run, step);
    return status ? -1 : 0;
}

/* A new run folder with the model saved at step 7. */
static const char *saved_run(const struct gpt *g) {
    struct error e;
    const char *run = test_path("deep/run-%d", runs++);
    if (checkpoint_save(run, 7, g, "bytes", &e)) fail_msg("%s", e.text);
    return run;
}

static bool same_weights(const struct gpt *a, const struct gpt *b) {
    return memcmp(a->weight.data, b->weight.data, sizeof(float) * (size_t)a->table.elements) == 0;
}

/* Loads the newest checkpoint of a run, as a user would; -1 with the message of the first step that fails. */
static int load(const char *run, struct gpt *g, struct checkpoint_info *info, struct error *e) {
    char path[1024];
    *g = (struct gpt){0};
    if (checkpoint_locate(run, path, sizeof path, e) || checkpoint_read_info(path, info, e)) return -1;
    gpt_create(g, &info->config, &device_cpu, 1, false);
    return checkpoint_read_weights(path, g, e);
}

/* Nothing else than whole checkpoints lies in the folder. */
static void assert_tidy(const char *run) {
    char command[1200];
    snprintf(command, sizeof command, "test -z \"$(find '%s' -name '*.tmp*')\"", run);
    assert_int_equal(system(command), 0);
}

static void assert_loads(const char *run, const struct gpt *expected, int64_t step) {
    struct gpt g;
    struct checkpoint_info info;
    struct error e;
    if (load(run, &g, &info, &e)) fail_msg("%s", e.text);
    assert_int_equal(info.step, step);
    assert_true(same_weights(&g, expected));
    gpt_free(&g);
    assert_tidy(run);
}

#define assert_refused(run, ...)                                 \
    do {                                                         \
        struct gpt refused;                                      \
        struct checkpoint_info ignored;                          \
        struct error e;                                          \
        assert_int_equal(load(run, &refused, &ignored, &e), -1); \
        assert_message(e, __VA_ARGS__);                          \
        gpt_free(&refused);                                      \
    } while (0)

static void test_round_trip(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct gpt g, again;
        struct checkpoint_info info;
        struct error e;
        open_model(&g, tied, 3);
        const char *run = saved_run(&g);
        assert_loads(run, &g, 7);
        assert_int_equal(load(run, &again, &info, &e), 0);
        const struct gpt_config *c = &info.config;
        assert_true(c->layers == 2 && c->heads == 2 && c->channels == 8 && c->context == 6 && c->vocab == 11);
        assert_int_equal(c->tied, tied);
        assert_string_equal(info.tokenizer, "bytes");
        gpt_free(&again);
        char path[1024];
        const char *itself = test_path("deep/run-%d/checkpoints/step-00000007", runs - 1);
        assert_int_equal(checkpoint_locate(itself, path, sizeof path, &e), 0);
        assert_string_equal(path, itself);
        gpt_free(&g);
    }
}

static void test_the_newest_is_found_and_the_same_step_replaced(void **state) {
    (void)state;
    struct gpt first, second;
    struct error e;
    open_model(&first, true, 1);
    open_model(&second, true, 2);
    const char *run = saved_run(&first);
    assert_int_equal(checkpoint_save(run, 100000000000, &second, "bytes", &e), 0);
    assert_loads(run, &second, 100000000000);
    assert_loads(test_path("deep/run-%d/checkpoints/step-00000007", runs - 1), &first, 7);
    assert_int_equal(checkpoint_save(run, 7, &second, "bytes", &e), 0);
    assert_loads(run, &second, 7);
    gpt_free(&first);
    gpt_free(&second);
}

static void test_what_a_killed_run_left_is_replaced(void **state) {
    (void)state;
    struct gpt g;
    struct error e;
    open_model(&g, true, 1);
    const char *run = saved_run(&g);
    const char *left = test_path("deep/run-%d/checkpoints/step-00000008.tmp", runs - 1);
    assert_int_equal(files_make_folder(left, &e), 0);
    write_file(test_path("deep/run-%d/checkpoints/step-00000008.tmp/model.safetensors", runs - 1), "half", 4);
    write_file(test_path("deep/run-%d/checkpoints/latest.tmp", runs - 1), "step", 4);
    write_file(test_path("deep/run-%d/checkpoints/step-00000008.tmp/other", runs - 1), "half", 4);
    assert_int_equal(checkpoint_save(run, 8, &g, "bytes", &e), 0);
    assert_loads(run, &g, 8);
    assert_false(file_exists(test_path("deep/run-%d/checkpoints/step-00000008/other", runs - 1)));
    gpt_free(&g);
}

/* Where a file system cannot exchange two names at once, a kill between two renames leaves the old one aside. */
static void test_a_checkpoint_left_aside_comes_back(void **state) {
    (void)state;
    struct gpt g;
    struct error e;
    open_model(&g, true, 1);
    const char *run = saved_run(&g), *path = test_path("deep/run-%d/checkpoints/step-00000007", runs - 1);
    const char *aside = test_path("deep/run-%d/checkpoints/step-00000007.old", runs - 1);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(checkpoint_prepare(run, &e), 0);
    assert_false(file_exists(aside));
    assert_loads(run, &g, 7);
    assert_int_equal(files_make_folder(aside, &e), 0);
    write_file(test_path("deep/run-%d/checkpoints/step-00000007.old/config.json", runs - 1), "{}", 2);
    assert_int_equal(checkpoint_prepare(run, &e), 0);
    assert_false(file_exists(aside));
    assert_loads(run, &g, 7);
    gpt_free(&g);
}

static void test_the_list_is_of_whole_ones_in_order(void **state) {
    (void)state;
    struct gpt g;
    struct error e;
    int64_t *step;
    open_model(&g, true, 1);
    const char *run = saved_run(&g);
    const int64_t others[] = {100000000000, 8, 0};
    for (int i = 0; i < 3; i++) assert_int_equal(checkpoint_save(run, others[i], &g, "bytes", &e), 0);
    assert_int_equal(checkpoint_begin(run, 9, &e), 0);
    assert_int_equal(checkpoint_list(test_path("deep/run-%d/checkpoints", runs - 1), &step), 4);
    assert_true(step[0] == 0 && step[1] == 7 && step[2] == 8 && step[3] == 100000000000);
    free(step);
    checkpoint_discard(run, 9);
    checkpoint_remove(run, 7);
    assert_int_equal(checkpoint_list(test_path("deep/run-%d/checkpoints", runs - 1), &step), 3);
    free(step);
    assert_int_equal(checkpoint_list(test_path("nowhere"), &step), 0);
    free(step);
    gpt_free(&g);
}

static void test_missing_parts_are_named(void **state) {
    (void)state;
    struct gpt g;
    open_model(&g, true, 1);
    assert_refused(test_path("nowhere"), "no checkpoint in", "nowhere", "--run-dir");
    const char *run = saved_run(&g);
    unlink(test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1));
    assert_refused(run, "model.safetensors' cannot be opened");
    run = saved_run(&g);
    unlink(test_path("deep/run-%d/checkpoints/step-00000007/config.json", runs - 1));
    assert_refused(run, "latest' names", "not a checkpoint");
    run = saved_run(&g);
    unlink(test_path("deep/run-%d/checkpoints/latest", runs - 1));
    assert_refused(run, "no checkpoint in");
    gpt_free(&g);
}

static void test_configurations_that_cannot_be_are_named(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "empty"},
        {"{", "is not JSON"},
        {"[]", "model_type"},
        {"{\"model_type\":\"llama\"}", "found model_type 'llama', expected 'gpt2'"},
        {"{\"model_type\":\"gpt2\"}", "n_layer"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":1.5}", "n_layer"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":\"2\"}", "n_layer"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":-1}", "n_head"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":1e300}", "n_embd"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8}", "n_positions"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8,\"n_positions\":6}", "vocab_size"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":8,\"n_positions\":6,\"vocab_size\":"
         "11}",
         "n_embd 8 does not split into n_head 3"},
    };
    struct gpt g;
    open_model(&g, true, 1);
    const char *run = saved_run(&g);
    const char *file = test_path("deep/run-%d/checkpoints/step-00000007/config.json", runs - 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(file, bad[i][0], strlen(bad[i][0]));
        assert_refused(run, file, bad[i][1]);
    }
    gpt_free(&g);
}

/* The weights of a model of another size under a configuration that is fine in itself. */
static void test_weights_of_another_model_are_named(void **state) {
    (void)state;
    static const struct {
        struct gpt_config config;
        const char *message;
    } other[] = {
        {{.layers = 1, .heads = 2, .channels = 8, .context = 6, .vocab = 11, .tied = true},
         "no tensor 'transformer.h.1."},
        {{.layers = 2, .heads = 2, .channels = 10, .context = 6, .vocab = 11, .tied = true},
         "is fp32 (10); expected fp32 (8)"},
        {{.layers = 2, .heads = 2, .channels = 8, .context = 5, .vocab = 11, .tied = true},
         "transformer.wpe.weight"},
        {{.layers = 2, .heads = 2, .channels = 8, .context = 6, .vocab = 12, .tied = true},
         "transformer.wte.weight"},
    };
    struct gpt g;
    struct error e;
    open_model(&g, true, 1);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct gpt wrong;
        gpt_create(&wrong, &other[i].config, &device_cpu, 1, false);
        const char *run = saved_run(&g);
        const char *model = test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1);
        saved_run(&wrong);
        const char *foreign = test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1);
        assert_int_equal(rename(foreign, model), 0);
        assert_refused(run, model, other[i].message);
        gpt_free(&wrong);
    }
    struct gpt untied; /* a tied model's file lacks the head of an untied one */
    open_model(&untied, false, 1);
    const char *run = saved_run(&untied);
    const char *model = test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1);
    saved_run(&g);
    assert_int_equal(
        rename(test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1), model), 0);
    assert_refused(run, model, "no tensor 'lm_head.weight'");
    gpt_free(&untied);

    const int32_t numbers[8] = {0};
    const char *const name = "transformer.ln_f.weight";
    const struct tensor t = tensor_of((void *)numbers, DTYPE_I32, 8);
    run = saved_run(&g);
    model = test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1);
    struct file_sum sum;
    assert_int_equal(safetensors_write(model, &name, &t, 1, &sum, &e), 0);
    assert_refused(run, model, name, "int32", "fp32");
    gpt_free(&g);
}

static void test_truncated_weights_are_noticed(void **state) {
    (void)state;
    struct gpt g;
    struct stat info;
    open_model(&g, false, 1);
    const char *run = saved_run(&g);
    const char *model = test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1);
    assert_int_equal(stat(model, &info), 0);
    for (off_t size = info.st_size - 1; size >= 0; size -= size > 200 ? 97 : 1) {
        assert_int_equal(truncate(model, size), 0);
        assert_refused(run, model);
    }
    gpt_free(&g);
}

/* Files may grow to `bytes` only, which is how a full disk looks. */
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_full_disk_leaves_the_earlier_checkpoint(void **state) {
    (void)state;
    struct gpt g, next;
    struct stat info;
    open_model(&g, true, 1);
    open_model(&next, true, 2);
    const char *run = saved_run(&g);
    assert_int_equal(
        stat(test_path("deep/run-%d/checkpoints/step-00000007/model.safetensors", runs - 1), &info), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (off_t bytes = 0; bytes < info.st_size; bytes += 1 + info.st_size / 20)
        for (int64_t step = 7; step <= 8; step++) {
            struct error e;
            limit_files((rlim_t)bytes);
            int status = checkpoint_save(run, step, &next, "bytes", &e);
            limit_files(RLIM_INFINITY);
            assert_int_equal(status, -1);
            assert_message(e, "step-0000000", "File too large");
            assert_loads(run, &g, 7);
        }
    gpt_free(&g);
    gpt_free(&next);
}

static void test_folders_that_cannot_be_written(void **state) {
    (void)state;
    struct gpt g;
    struct error e;
    open_model(&g, true, 1);
    write_file(test_path("file"), "x", 1);
    assert_int_equal(checkpoint_save(test_path("file"), 1, &g, "bytes", &e), -1);
    assert_message(e, test_path("file"), "Not a directory");
    assert_int_equal(checkpoint_save("/proc/no", 1, &g, "bytes", &e), -1);
    assert_message(e, "/proc/no");
    gpt_free(&g);
}

static void test_run_folder_names(void **state) {
    (void)state;
    struct gpt g;
    struct error e;
    open_model(&g, true, 1);
    assert_int_equal(checkpoint_prepare("", &e), -1);
    assert_message(e, "name is empty");
    char path[1300];
    snprintf(path, sizeof path, "%s", test_folder);
    for (size_t i = strlen(path); i <= 900; i++) path[i] = i % 100 ? 'x' : '/';
    path[901] = 0;
    assert_int_equal(checkpoint_prepare(path, &e), -1);
    assert_message(e, "longer than 900");
    path[900] = 0;
    assert_int_equal(checkpoint_prepare(path, &e), 0);
    assert_int_equal(checkpoint_save(path, 99999999999, &g, "bytes", &e), 0);
    assert_loads(path, &g, 99999999999);
    assert_int_equal(checkpoint_prepare(test_path("a//b/"), &e), 0);
    assert_int_equal(checkpoint_prepare(test_path("a/b"), &e), 0);
    assert_int_equal(rmdir(test_path("a/b/checkpoints")), 0);
    write_file(test_path("a/b/checkpoints"), "x", 1);
    assert_int_equal(checkpoint_prepare(test_path("a/b"), &e), -1);
    assert_message(e, "not a folder");
    gpt_free(&g);
}

int main(void) {
    struct error e;
    if (device_cpu.open(2, &e)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_the_newest_is_found_and_the_same_step_replaced),
        cmocka_unit_test(test_what_a_killed_run_left_is_replaced),
        cmocka_unit_test(test_a_checkpoint_left_aside_comes_back),
        cmocka_unit_test(test_the_list_is_of_whole_ones_in_order),
        cmocka_unit_test(test_missing_parts_are_named),
        cmocka_unit_test(test_configurations_that_cannot_be_are_named),
        cmocka_unit_test(test_weights_of_another_model_are_named),
        cmocka_unit_test(test_truncated_weights_are_noticed),
        cmocka_unit_test(test_full_disk_leaves_the_earlier_checkpoint),
        cmocka_unit_test(test_folders_that_cannot_be_written),
        cmocka_unit_test(test_run_folder_names),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
