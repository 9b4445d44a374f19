/* From text to shards: what is written, what is left alone, what is refused, what is printed. */
#include "tests/data_files.h"

#include "data/corpus.h"
#include "data/loader.h"

#include <fcntl.h>

/* `size` bytes that do not repeat with a short period. */
static void write_text(const char *path, int64_t size) {
    uint8_t *text = memory_alloc((size_t)size);
    for (int64_t i = 0; i < size; i++) text[i] = (uint8_t)(i * i / 7 + i);
    write_file(path, text, (size_t)size);
    free(text);
}

static int build(const char *text, const char *out, double validation, int64_t shard_tokens,
                 struct corpus_report *report, struct error *e) {
    const struct corpus_plan plan = {&text, 1, out, "bytes", validation, shard_tokens};
    return corpus_build(&plan, report, e);
}

static int64_t token_at(const struct loader *l, int64_t t) {
    int s = 0;
    while (t >= l->first[s + 1]) s++;
    return shard_token(&l->shard[s], t - l->first[s]);
}

/* The train split and the validation split one after the other are the text. */
static void check_split(const char *text, const char *out, int64_t train, int64_t validation) {
    struct file_map map;
    struct loader l;
    struct error e;
    assert_int_equal(file_map(&map, text, "a text", &e), 0);
    assert_int_equal(map.size, train + validation);
    if (loader_open(&l, out, "train", 1, 1, 0, &e) != 0) fail_msg("%s", e.text);
    assert_int_equal(l.tokens, train);
    for (int64_t t = 0; t < train; t++) assert_int_equal(token_at(&l, t), map.bytes[t]);
    loader_close(&l);
    if (validation > 0) {
        if (loader_open(&l, out, "validation", 1, 1, 0, &e) != 0) fail_msg("%s", e.text);
        assert_int_equal(l.tokens, validation);
        for (int64_t t = 0; t < validation; t++) assert_int_equal(token_at(&l, t), map.bytes[train + t]);
        loader_close(&l);
    }
    file_unmap(&map);
}

static void test_split(void **state) {
    (void)state;
    const struct {
        int64_t size;
        double share;
        int64_t shard, train, validation;
        int train_shards, validation_shards;
    } cases[] = {
        {1000, 0.1, 1000, 900, 100, 1, 1},
        {1000, 0.1, 100, 900, 100, 9, 1},
        {1000, 0.1, 99, 900, 100, 10, 2},
        {1000, 0.29, 7, 710, 290, 102, 42},
        {1007, 0.1, 5000, 906, 101, 1, 1},
        {50, 0, 50, 50, 0, 1, 0},
        {4, 0.1, 1, 4, 0, 4, 0},
        {5, 0.5, 9, 2, 3, 1, 1},
        {3000000, 0.1, 1 << 20, 2700000, 300000, 3, 1}, /* more than one piece of the encoder */
        {3000000, 0.9, 1300000, 300000, 2700000, 1, 3},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *text = test_path("text%zu", c), *out = test_path("split%zu/deeper", c);
        struct corpus_report report;
        struct error e;
        write_text(text, cases[c].size);
        if (build(text, out, cases[c].share, cases[c].shard, &report, &e) != 0) fail_msg("%s", e.text);
        assert_int_equal(report.text_bytes, cases[c].size);
        assert_int_equal(report.train_tokens, cases[c].train);
        assert_int_equal(report.validation_tokens, cases[c].validation);
        assert_int_equal(report.train_shards, cases[c].train_shards);
        assert_int_equal(report.validation_shards, cases[c].validation_shards);
        assert_int_equal(report.vocab, 256);
        assert_int_equal(shard_count_files(out, "train", &e), cases[c].train_shards);
        assert_int_equal(shard_count_files(out, "validation", &e), cases[c].validation_shards);
        assert_false(file_exists(test_path("split%zu/deeper/.building", c)));
        check_split(text, out, cases[c].train, cases[c].validation);
    }
}

static void test_several_texts(void **state) {
    (void)state;
    const char *texts[] = {test_path("one"), test_path("two"), test_path("one")}, *out = test_path("several");
    write_file(texts[0], "abc", 3);
    write_file(texts[1], "\xc3\xa9\n\0z", 5);
    write_file(test_path("joined"), "abc\xc3\xa9\n\0zabc", 11);
    const struct corpus_plan plan = {texts, 3, out, "bytes", 0.3, 4};
    struct corpus_report report;
    struct error e;
    assert_int_equal(corpus_build(&plan, &report, &e), 0);
    assert_int_equal(report.text_bytes, 11);
    check_split(test_path("joined"), out, 8, 3);
}

/* Fewer shards than before: the others go. Files that are none of ours stay. */
static void test_earlier_build(void **state) {
    (void)state;
    const char *text = test_path("again"), *out = test_path("again.out");
    struct corpus_report report;
    struct error e;
    write_text(text, 1000);
    assert_int_equal(build(text, out, 0.3, 50, &report, &e), 0);
    write_file(test_path("again.out/notes.txt"), "mine", 4);
    assert_int_equal(mkdir(test_path("again.out/.building"), 0700), 0); /* of a build that was killed */
    write_file(test_path("again.out/.building/train-00099.bin"), "half", 4);
    write_text(text, 500);
    assert_int_equal(build(text, out, 0, 200, &report, &e), 0);
    assert_int_equal(shard_count_files(out, "train", &e), 3);
    assert_int_equal(shard_count_files(out, "validation", &e), 0);
    assert_true(file_exists(test_path("again.out/notes.txt")));
    assert_false(file_exists(test_path("again.out/.building")));
    check_split(text, out, 500, 0);
}

/* A build that fails half way leaves the earlier one as it was. */
static void test_failed_build(void **state) {
    (void)state;
    const char *text = test_path("kept"), *longer = test_path("longer"), *out = test_path("kept.out");
    struct corpus_report report;
    struct error e;
    write_text(text, 1000);
    write_text(longer, 2000);
    assert_int_equal(build(text, out, 0.1, 100, &report, &e), 0);
    const char *obstacle = test_path("kept.out/.building/train-00002.bin"); /* no file can take this name */
    assert_int_equal(mkdir(test_path("kept.out/.building"), 0700), 0);
    assert_int_equal(mkdir(obstacle, 0700), 0);
    assert_int_equal(build(longer, out, 0.1, 100, &report, &e), -1);
    assert_message(e, "cannot write", obstacle);
    check_split(text, out, 900, 100);
    assert_int_equal(shard_count_files(test_path("kept.out/.building"), "train", &e), 1); /* the obstacle */
    assert_int_equal(rmdir(obstacle), 0);
    assert_int_equal(build(longer, out, 0.1, 100, &report, &e), 0);
    check_split(longer, out, 1800, 200);
}

static void test_refused_plans(void **state) {
    (void)state;
    const char *text = test_path("plan"), *out = test_path("plan.out"), *file = test_path("plan.file");
    struct corpus_report report;
    struct error e;
    write_text(text, 200000);
    write_file(file, "x", 1);
    write_file(test_path("plan.empty"), "", 0);

    const struct {
        const char *text, *out;
        double share;
        int64_t shard;
        const char *found, *expected;
    } cases[] = {
        {text, out, 1, 10, "validation share is 1", "less than 1"},
        {text, out, -0.1, 10, "validation share is -0.1", "at least 0"},
        {text, out, __builtin_nan(""), 10, "validation share is nan", "at least 0"},
        {text, out, 0.1, 0, "0 tokens", "at least 1"},
        {text, out, 0.1, 2, "200000 tokens in shards of 2", "larger shards"},
        {file, out, 0.9, 10, "share of 0.9 of 1 tokens", "leaves none to train on"},
        {test_path("plan.missing"), out, 0.1, 10, "plan.missing: No such file", "expected a text"},
        {test_path("plan.empty"), out, 0.1, 10, "plan.empty is empty", "expected a text"},
        {test_folder, out, 0.1, 10, "is a folder", "expected a text"},
        {text, file, 0.1, 100000, "plan.file", "Not a directory"},
        {text, test_path("plan.file/deeper"), 0.1, 100000, "cannot make the folder", "Not a directory"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(build(cases[c].text, cases[c].out, cases[c].share, cases[c].shard, &report, &e), -1);
        assert_message(e, cases[c].found, cases[c].expected);
        assert_false(file_exists(out));
    }
    struct corpus_plan plan = {&text, 0, out, "bytes", 0.1, 10};
    assert_int_equal(corpus_build(&plan, &report, &e), -1);
    assert_message(e, "no text", "at least one");
    plan.text_count = 1, plan.tokenizer = "byte";
    assert_int_equal(corpus_build(&plan, &report, &e), -1);
    assert_message(e, "no tokenizer \"byte\"", "the tokenizers are: bytes");
}

static void test_bytes_tokenizer(void **state) {
    (void)state;
    struct error e;
    const struct tokenizer *bytes = tokenizer_find("bytes", &e);
    assert_non_null(bytes);
    assert_int_equal(bytes->vocab, 256);
    uint8_t text[256], back[16];
    int32_t tokens[256];
    for (int i = 0; i < 256; i++) text[i] = (uint8_t)i;
    assert_int_equal(bytes->encode(text, 256, tokens), 256);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(tokens[i], i);
        assert_int_equal(bytes->decode(tokens[i], back), 1);
        assert_int_equal(back[0], i);
    }
    assert_null(tokenizer_find("", &e));
}

/* What corpus_inspect prints for `path`. */
static const char *inspect(const char *path) {
    static char printed[4096];
    struct error e;
    fflush(stdout);
    int terminal = dup(STDOUT_FILENO), file = open(test_path("stdout"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(terminal >= 0 && file >= 0);
    dup2(file, STDOUT_FILENO);
    int result = corpus_inspect(path, &e);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    if (result != 0) fail_msg("%s", e.text);
    ssize_t size = pread(file, printed, sizeof printed - 1, 0);
    assert_true(size >= 0);
    printed[size] = 0;
    close(file);
    return printed;
}

static void assert_printed(const char *printed, const char *words) {
    if (!strstr(printed, words)) fail_msg("no \"%s\" in:\n%s", words, printed);
}

static void test_inspect(void **state) {
    (void)state;
    const char *text = test_path("aabc"), *out = test_path("inspect");
    struct corpus_report report;
    struct error e;
    write_file(text, "aab\ncaab\nca\xff\xff\xff\t", 15);
    assert_int_equal(build(text, out, 0.3, 5, &report, &e), 0);

    const char *printed = inspect(out);
    assert_printed(printed, "shard");
    assert_printed(printed, "bits/token");
    assert_printed(printed, "1.922  'a' 40.0%  '\\n' 20.0%  'b' 20.0%"); /* 0.4 log2 2.5 + 3 x 0.2 log2 5 */
    assert_printed(printed, "aab\\nc\n");
    assert_printed(printed, "train-00001.bin");
    assert_printed(printed, "validation-00000.bin");
    assert_printed(printed, "'\\xff' 60.0%");
    assert_printed(printed, "a\\xff\\xff\\xff\\t\n");
    int lines = 0;
    for (; *printed; printed++) lines += *printed == '\n';
    assert_int_equal(lines, 1 + report.train_shards + report.validation_shards);

    write_counting_shard(test_path("numbers.bin"), 0, 1024, 1024);
    patch_file(test_path("numbers.bin"), 32, "other", 5);
    printed = inspect(test_path("numbers.bin"));
    assert_printed(printed, "numbers.bin");
    assert_printed(printed, "other");
    assert_printed(printed, "10.000  '<0>' 0.1%"); /* log2 1024 */
    assert_printed(printed, "<0><1><2>");
}

static void test_inspect_refuses(void **state) {
    (void)state;
    struct error e;
    assert_int_equal(corpus_inspect(test_path("nowhere"), &e), -1);
    assert_message(e, "nowhere", "No such file");
    assert_int_equal(mkdir(test_path("bare"), 0700), 0);
    assert_int_equal(corpus_inspect(test_path("bare"), &e), -1);
    assert_message(e, "bare has no shards", "tandem data build TEXT... --out DIR");
    write_file(test_path("bare/train-00000.bin"), "nonsense", 8);
    assert_int_equal(corpus_inspect(test_path("bare"), &e), -1);
    assert_message(e, "train-00000.bin is not a shard");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),         cmocka_unit_test(test_several_texts),
        cmocka_unit_test(test_earlier_build), cmocka_unit_test(test_failed_build),
        cmocka_unit_test(test_refused_plans), cmocka_unit_test(test_bytes_tokenizer),
        cmocka_unit_test(test_inspect),       cmocka_unit_test(test_inspect_refuses),
    };
    return cmocka_run_group_tests_name("corpus", tests, make_test_folder, remove_test_folder);
}
