/* ranks: 1 2 3 4
 * A step that overflows on one rank alone is skipped by all, and leaves nothing behind: the run goes on, to the bit, as one
 * that never had it. */
#include "tests/data_files.h"

#include "train/trainer.h"

static struct comm *comm;

static struct options options_of(const char *method, const char *overlap) {
    static char words[4][128];
    snprintf(words[0], sizeof words[0], "--data=%s", test_folder);
    snprintf(words[1], sizeof words[1], "--compress=%s", method);
    snprintf(words[2], sizeof words[2], "--overlap=%s", overlap);
    char *line[] = {"train",
                    words[0],
                    words[1],
                    words[2],
                    "--precision=fp16",
                    "--layers=2",
                    "--heads=2",
                    "--channels=32",
                    "--context=16",
                    "--batch-size=24",
                    "--micro-batch=2",
                    "--interval=3",
                    "--bucket-mib=0.01",
                    "--steps=20",
                    "--threads=1",
                    "--compress-start=2",
                    "--density=0.05",
                    "--warmup=0",
                    "--lr-schedule=constant",
                    NULL};
    struct options o;
    struct error e;
    bool help;
    if (options_parse(&o, TRAIN, (int)(sizeof line / sizeof *line) - 1, line, &help, &e))
        fail_msg("%s", e.text);
    return o;
}

/* What must not change in a step that is skipped. */
struct memory {
    uint8_t *bytes;
    size_t size;
};

static struct memory memory_of(const struct trainer *t) {
    const struct compressor *c = t->reducer.engine->compressor;
    const struct arena arenas[] = {t->gpt.parameter_memory, t->optimizer.memory, c->keep};
    struct memory m = {0};
    for (int i = 0; i < 3; i++) m.size += arenas[i].size;
    uint8_t *at = m.bytes = memory_alloc(m.size);
    for (int i = 0; i < 3; at += arenas[i++].size)
        if (arenas[i].size) memcpy(at, arenas[i].base, arenas[i].size);
    return m;
}

static bool same_memory(struct memory a, struct memory b) {
    const bool same = a.size == b.size && memcmp(a.bytes, b.bytes, a.size) == 0;
    free(a.bytes);
    free(b.bytes);
    return same;
}

/* The step of that number, on batch `batch`: with a constant learning rate the number alone makes no difference. */
static struct step_outcome make_step(struct trainer *t, int64_t step, int64_t batch) {
    trainer_read_batch(t, batch);
    return trainer_step(t, step, (struct step_votes){0});
}

/* On the last rank alone fp16 cannot hold the gradients of activations. */
static void overflow(struct trainer *t, int64_t step) {
    const double scale = t->loss_scale.scale;
    const struct memory before = memory_of(t);
    if (comm->rank == comm->size - 1) t->loss_scale.scale = 0x1p40;
    const struct step_outcome outcome = make_step(t, step, step);
    assert_int_equal(outcome.verdict, STEP_SKIPPED);
    assert_true(outcome.record.skipped == 1);
    assert_true(t->loss_scale.scale == (comm->rank == comm->size - 1 ? 0x1p39 : scale / 2));
    assert_true(same_memory(before, memory_of(t)));
    t->loss_scale.scale = scale;
}

static void check_method(const char *method, const char *overlap) {
    const struct options o = options_of(method, overlap);
    struct trainer with, without;
    struct error e;
    if (trainer_create(&with, &o, comm, &e) || trainer_create(&without, &o, comm, &e)) fail_msg("%s", e.text);
    int64_t number = 0;
    overflow(&with, number++);
    for (int64_t step = 0; step < 6; step++) {
        assert_int_equal(make_step(&with, number++, step).verdict, STEP_ACCEPTED);
        assert_int_equal(make_step(&without, step, step).verdict, STEP_ACCEPTED);
        trainer_check_ranks(&with, step);
        if (step >= 3) overflow(&with, number++);
        if (!same_memory(memory_of(&with), memory_of(&without))) fail_msg("%s, step %d", method, (int)step);
    }
    trainer_free(&with);
    trainer_free(&without);
}

static void test_skipped_steps_leave_nothing_behind(void **state) {
    (void)state;
    check_method("none", "on");
    check_method("covap", "on");
    check_method("covap", "off");
    check_method("accumulate", "on");
    check_method("topk", "on");
    check_method("powersgd", "on");
}

static int open_ranks(void **state) {
    const struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    struct error e;
    if (make_test_folder(state)) return -1;
    write_counting_shard(test_path("train-00000.bin"), 0, 20000, 61);
    write_counting_shard(test_path("validation-00000.bin"), 0, 500, 61);
    return comm_open(&comm, "auto", &options, &e);
}

static int close_ranks(void **state) {
    comm_close(comm);
    return remove_test_folder(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_skipped_steps_leave_nothing_behind)};
    return cmocka_run_group_tests(tests, open_ranks, close_ranks);
}
