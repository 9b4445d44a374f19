/* The loader: which windows there are, in which order they come, and what a split must be like. */
#include "tests/data_files.h"

#include "data/loader.h"

static void test_permutation(void **state) {
    (void)state;
    enum { MOST = 4100 };
    static uint8_t seen[MOST];
    const int64_t large[] = {4095, 4096, 4097};
    for (int n = 1; n <= 300 + 3; n++) {
        struct loader l = {.windows = n <= 300 ? n : large[n - 301]};
        for (uint64_t seed = 0; seed < 5; seed++) {
            l.seed = seed * 0x123456789abcdef;
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                memset(seen, 0, sizeof seen);
                for (int64_t i = 0; i < l.windows; i++) {
                    int64_t w = loader_window(&l, epoch * l.windows + i);
                    assert_in_range(w, 0, l.windows - 1);
                    assert_int_equal(seen[w]++, 0);
                }
            }
        }
    }
}

/* Another epoch and another seed give another order, the same ones the same. */
static void test_order_is_drawn(void **state) {
    (void)state;
    const struct loader a = {.windows = 1000, .seed = 1}, b = {.windows = 1000, .seed = 2};
    int same_epoch = 0, same_seed = 0, in_place = 0, neighbours = 0;
    for (int64_t i = 0; i < 1000; i++) {
        assert_int_equal(loader_window(&a, i), loader_window(&a, i));
        same_epoch += loader_window(&a, i) == loader_window(&a, i + 1000);
        same_seed += loader_window(&a, i) == loader_window(&b, i);
        in_place += loader_window(&a, i) == i;
        neighbours += i > 0 && loader_window(&a, i) == loader_window(&a, i - 1) + 1;
    }
    /* each is 1 on average for random orders: more than 12 has a chance of 1 in 10^10 */
    assert_in_range(same_epoch, 0, 12);
    assert_in_range(same_seed, 0, 12);
    assert_in_range(in_place, 0, 12);
    assert_in_range(neighbours, 0, 12);
}

/* Where the first quarter of the windows goes in 400 orders: into each eighth of the epoch equally often. */
static void test_order_is_uniform(void **state) {
    (void)state;
    enum { WINDOWS = 240, EPOCHS = 400, PARTS = 8 };
    const struct loader l = {.windows = WINDOWS, .seed = 3};
    int hits[PARTS] = {0};
    for (int64_t i = 0; i < (int64_t)WINDOWS * EPOCHS; i++)
        hits[i % WINDOWS * PARTS / WINDOWS] += loader_window(&l, i) < WINDOWS / 4;
    for (int p = 0; p < PARTS; p++)
        assert_in_range(hits[p], 2800, 3200); /* 3000, standard deviation below 45 */
}

/* All orders of three windows come up about equally often. */
static void test_order_of_three(void **state) {
    (void)state;
    enum { EPOCHS = 6000 };
    const struct loader l = {.windows = 3, .seed = 5};
    int orders[9] = {0};
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
        orders[loader_window(&l, 3 * epoch) * 3 + loader_window(&l, 3 * epoch + 1)]++;
    for (int o = 0; o < 9; o++)
        if (o % 4 != 0) assert_in_range(orders[o], 800, 1200); /* 1000, standard deviation 29 */
}

static void test_huge_windows(void **state) {
    (void)state;
    const struct loader l = {.windows = (INT64_C(1) << 40) + 1, .seed = 9};
    int64_t i = (INT64_C(1) << 42), first = loader_window(&l, i);
    assert_in_range(first, 0, l.windows - 1);
    assert_int_not_equal(first, loader_window(&l, i + 1));
    const struct loader widest = {.windows = INT64_MAX, .seed = 9};
    assert_in_range(loader_window(&widest, INT64_MAX), 0, INT64_MAX - 1);
}

/* A split of the given shards that counts 0, 1, 2, ... through all of them. */
static void write_split(const char *dir, const char *split, const int64_t *counts, int shards, int vocab) {
    char path[SHARD_PATH_BYTES];
    mkdir(dir, 0700);
    int64_t first = 0;
    for (int s = 0; s < shards; s++) {
        shard_path(path, dir, split, s);
        write_counting_shard(path, first, counts[s], vocab);
        first += counts[s];
    }
}

static void test_windows_across_shards(void **state) {
    (void)state;
    enum { CONTEXT = 7, VOCAB = 1000 };
    const char *dir = test_path("across");
    const int64_t counts[] = {10, 1,  1,  30,
                              3,  14, 15, 2}; /* 76 tokens: 10 windows, the target of the last is 70 */
    write_split(dir, "train", counts, 8, VOCAB);
    struct loader l;
    struct error e;
    assert_int_equal(loader_open(&l, dir, "train", CONTEXT, 10, 0, &e), 0);
    assert_int_equal(l.shards, 8);
    assert_int_equal(l.tokens, 76);
    assert_int_equal(l.windows, 10);
    assert_int_equal(l.vocab, VOCAB);
    assert_string_equal(l.tokenizer, "bytes");
    for (int64_t w = 0; w < l.windows; w++) {
        int32_t tokens[CONTEXT], targets[CONTEXT];
        loader_read(&l, w, tokens, targets);
        for (int j = 0; j < CONTEXT; j++) {
            assert_int_equal(tokens[j], w * CONTEXT + j);
            assert_int_equal(targets[j], w * CONTEXT + j + 1);
        }
    }
    loader_close(&l);
    assert_null(l.shard);
}

/* dp ranks share a batch: rank r takes its part of each step's sequences. In `epochs` epochs every token but
 * the first and those of the tail is a target exactly `epochs` times, also where the batch does not divide
 * the windows. */
static void check_epochs(const char *dir, int context, int batch, int dp, int epochs) {
    struct loader l[4];
    struct error e;
    for (int r = 0; r < dp; r++)
        assert_int_equal(loader_open(&l[r], dir, "train", context, batch, 42, &e), 0);
    int *times = memory_alloc_zeroed((size_t)l[0].tokens * sizeof *times);
    int32_t tokens[64], targets[64];
    int64_t all = l[0].windows * epochs;
    for (int64_t step = 0; step * batch < all; step++)
        for (int r = 0; r < dp; r++)
            for (int place = r; place < batch && step * batch + place < all; place += dp) {
                loader_read(&l[r], loader_window(&l[r], step * batch + place), tokens, targets);
                for (int j = 0; j < context; j++) times[targets[j]]++;
            }
    assert_int_equal(times[0], 0);
    for (int64_t t = 1; t < l[0].tokens; t++)
        assert_int_equal(times[t], t <= l[0].windows * context ? epochs : 0);
    free(times);
    for (int r = 0; r < dp; r++) loader_close(&l[r]);
}

static void test_every_token_once(void **state) {
    (void)state;
    const char *dir = test_path("epochs");
    write_split(dir, "train", (const int64_t[]){400, 7, 600}, 3, 2000);
    for (int dp = 1; dp <= 4; dp++) {
        check_epochs(dir, 16, 12, dp, 1); /* 62 windows and a tail of 14 tokens */
        check_epochs(dir, 16, 12, dp, 3);
        check_epochs(dir, 1, 5, dp, 2);   /* 1006 windows of one token */
        check_epochs(dir, 64, 15, dp, 2); /* 15 windows, one batch an epoch */
    }
}

static void test_tail(void **state) {
    (void)state;
    const struct {
        int64_t tokens;
        int context;
        int64_t windows;
    } cases[] = {{2, 1, 1}, {9, 8, 1}, {16, 8, 1}, {17, 8, 2}, {18, 8, 2}, {1000, 999, 1}};
    struct loader l;
    struct error e;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *dir = test_path("tail%zu", c);
        write_split(dir, "validation", &cases[c].tokens, 1, 256);
        assert_int_equal(loader_open(&l, dir, "validation", cases[c].context, 1, 0, &e), 0);
        assert_int_equal(l.windows, cases[c].windows);
        loader_close(&l);
    }
}

/* Opening fails with all of the words in its message. */
#define assert_refused(dir, split, context, min_windows, ...)                           \
    do {                                                                                \
        struct loader l;                                                                \
        struct error e;                                                                 \
        assert_int_equal(loader_open(&l, dir, split, context, min_windows, 0, &e), -1); \
        assert_message(e, dir, __VA_ARGS__);                                            \
        assert_null(l.shard);                                                           \
    } while (0)

static void test_no_shards(void **state) {
    (void)state;
    const char *dir = test_path("none"), *command = "tandem data build TEXT... --out DIR";
    assert_refused(dir, "train", 8, 1, "cannot list", "No such file", command);
    write_file(dir, "x", 1);
    assert_refused(dir, "train", 8, 1, "cannot list", "Not a directory", command);
    const char *other = test_path("other");
    write_split(other, "train", (const int64_t[]){100}, 1, 256);
    assert_refused(other, "validation", 8, 1, "no shard of the validation split", "validation-00000.bin",
                   command);
    const char *names[] = {"validation-0.bin", "validation-000000.bin", "validation-00000.bin.tmp",
                           "validation.bin"};
    for (int n = 0; n < 4; n++) write_file(test_path("other/%s", names[n]), "x", 1);
    assert_refused(other, "validation", 8, 1, "no shard of the validation split");
}

static void test_bad_shards(void **state) {
    (void)state;
    const char *dir = test_path("bad");
    const int64_t counts[] = {100, 100, 100};
    write_split(dir, "train", counts, 3, 256);
    write_counting_shard(test_path("bad/train-00002.bin"), 0, 100, 300);
    assert_refused(dir, "train", 8, 1, "train-00002.bin has vocabulary 300", "train-00000.bin", "256",
                   "tandem data build");
    write_split(dir, "train", counts, 3, 256);
    patch_file(test_path("bad/train-00001.bin"), 32, "other", 5);
    assert_refused(dir, "train", 8, 1, "train-00001.bin", "tokenizer \"other\"", "\"bytes\"",
                   "different builds");
    write_split(dir, "train", counts, 3, 256);
    assert_int_equal(truncate(test_path("bad/train-00001.bin"), 150), 0);
    assert_refused(dir, "train", 8, 1, "train-00001.bin", "cut short", "86 tokens");
    write_split(dir, "train", counts, 3, 256);
    assert_int_equal(unlink(test_path("bad/train-00001.bin")),
                     0); /* a gap: its tokens would be missing unnoticed */
    assert_refused(dir, "train", 8, 1, "train-00001.bin", "No such file");
}

static void test_too_short(void **state) {
    (void)state;
    const char *dir = test_path("short");
    write_split(dir, "train", (const int64_t[]){50, 50}, 2, 256);
    assert_refused(dir, "train", 10, 10, "100 tokens", "at least 101", "10 sequences of 10", "use more text");
    assert_refused(dir, "train", 100, 0, "100 tokens", "at least 101", "1 sequences of 100");
    assert_refused(dir, "train", 1 << 30, INT64_C(1) << 30, "at least 1152921504606846977");
    struct loader l;
    struct error e;
    assert_int_equal(loader_open(&l, dir, "train", 11, 9, 0, &e), 0);
    loader_close(&l);
    assert_int_equal(loader_open(&l, dir, "train", 0, 1, 0, &e), -1);
    assert_message(e, "context is 0", "at least 1");
}

/* Positions beyond 2^31 tokens, in sparse shards of zeros with a mark where a window reads. */
static void test_more_than_2_31_tokens(void **state) {
    (void)state;
    enum { CONTEXT = 4 };
    const char *dir = test_path("huge");
    const int64_t one[] = {1, 1}, count = (INT64_C(1) << 31) + 1;
    write_split(dir, "train", one, 2, 256);
    for (int s = 0; s < 2; s++) {
        const char *path = test_path("huge/train-%05d.bin", s);
        patch_file(path, 16, &count, 8);
        assert_int_equal(truncate(path, 64 + count), 0);
    }
    patch_file(test_path("huge/train-00001.bin"), 64 + count - 3, "\x01\x02\x03", 3);
    struct loader l;
    struct error e;
    assert_int_equal(loader_open(&l, dir, "train", CONTEXT, 1, 0, &e), 0);
    assert_int_equal(l.windows, (2 * count - 1) / CONTEXT);
    int32_t tokens[CONTEXT], targets[CONTEXT];
    loader_read(&l, l.windows - 1, tokens, targets); /* its last target is the third from the end */
    int64_t start = (l.windows - 1) * CONTEXT;
    for (int j = 0; j < CONTEXT; j++) {
        int64_t mark = start + j + 1 - (2 * count - 3) + 1;
        assert_int_equal(targets[j], mark > 0 ? mark : 0);
    }
    assert_int_not_equal(targets[CONTEXT - 1], 0);
    loader_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation),      cmocka_unit_test(test_order_is_drawn),
        cmocka_unit_test(test_order_is_uniform), cmocka_unit_test(test_order_of_three),
        cmocka_unit_test(test_huge_windows),     cmocka_unit_test(test_windows_across_shards),
        cmocka_unit_test(test_every_token_once), cmocka_unit_test(test_tail),
        cmocka_unit_test(test_no_shards),        cmocka_unit_test(test_bad_shards),
        cmocka_unit_test(test_too_short),        cmocka_unit_test(test_more_than_2_31_tokens),
    };
    return cmocka_run_group_tests_name("loader", tests, make_test_folder, remove_test_folder);
}
