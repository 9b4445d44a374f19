/* Shards: what is written comes back, and every damaged file has its own message. */
#include "tests/data_files.h"

static void check_round_trip(int vocab, int token_bytes) {
    enum { COUNT = 150000 }; /* more than two of the pieces in which shards are written and checked */
    const char *path = test_path("round.bin");
    int32_t *tokens = memory_alloc(COUNT * sizeof *tokens);
    for (int i = 0; i < COUNT; i++) tokens[i] = (int32_t)((int64_t)i * 7919 * 104729 % vocab);
    tokens[0] = 0, tokens[COUNT - 1] = vocab - 1;

    struct error e;
    struct shard s;
    assert_int_equal(shard_write(path, tokens, COUNT, vocab, "sixteen-letters!", &e), 0);
    assert_false(file_exists(test_path("round.bin.tmp")));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 64 + (int64_t)COUNT * token_bytes);

    assert_int_equal(shard_open(&s, path, &e), 0);
    assert_int_equal(s.count, COUNT);
    assert_int_equal(s.token_bytes, token_bytes);
    assert_int_equal(s.vocab, vocab);
    assert_string_equal(s.tokenizer, "sixteen-letters!");
    for (int i = 0; i < COUNT; i++) assert_int_equal(shard_token(&s, i), tokens[i]);
    shard_close(&s);
    assert_null(s.tokens);
    free(tokens);
}

static void test_round_trips(void **state) {
    (void)state;
    const struct {
        int vocab, token_bytes;
    } cases[] = {{1, 1}, {255, 1}, {256, 1}, {257, 2}, {50257, 2}, {65536, 2}, {65537, 4}, {INT32_MAX, 4}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        check_round_trip(cases[c].vocab, cases[c].token_bytes);
}

/* The layout is a promise to other programs: byte by byte. */
static void test_layout(void **state) {
    (void)state;
    uint8_t expected[70] = {'T', 'A', 'N', 'D', 'E', 'M', 'S', 'H', 1, 0, 0, 0, 2, 0, 0, 0, 3};
    expected[24] = 0x2c, expected[25] = 1;
    memcpy(expected + 32, "bytes", 5);
    memcpy(expected + 64, "\x00\x00\x01\x00\x2b\x01", 6);
    struct error e;
    assert_int_equal(shard_write(test_path("layout.bin"), (int32_t[]){0, 1, 299}, 3, 300, "bytes", &e), 0);
    FILE *file = fopen(test_path("layout.bin"), "rb");
    assert_non_null(file);
    uint8_t found[100];
    assert_int_equal(fread(found, 1, sizeof found, file), sizeof expected);
    fclose(file);
    assert_memory_equal(found, expected, sizeof expected);
}

/* Opening `path` fails with all of the words in its message, and leaves nothing open. */
#define assert_refused(path, ...)                       \
    do {                                                \
        struct error e;                                 \
        struct shard s;                                 \
        assert_int_equal(shard_open(&s, path, &e), -1); \
        assert_message(e, path, __VA_ARGS__);           \
        assert_null(s.map.bytes);                       \
    } while (0)

static void test_not_a_file(void **state) {
    (void)state;
    assert_refused(test_path("missing.bin"), "No such file", "expected a shard", "check the name");
    assert_refused(test_folder, "is a folder", "expected a shard", "regular file");
    assert_int_equal(mkfifo(test_path("pipe"), 0600), 0);
    assert_refused(test_path("pipe"), "not a regular file", "expected a shard");
    write_file(test_path("empty.bin"), "", 0);
    assert_refused(test_path("empty.bin"), "is empty", "expected a shard");
}

static void test_bad_header(void **state) {
    (void)state;
    const char *path = test_path("header.bin");
    write_file(path, "Call me Ishmael.", 16);
    assert_refused(path, "not a shard", "TANDEMSH", "tandem data build");
    write_file(path, "TANDEMSH", 8);
    assert_refused(path, "not a shard", "64 bytes");
    const struct {
        long at;
        uint32_t value;
        const char *found, *expected;
    } cases[] = {
        {0, 0x44444444, "not a shard", "TANDEMSH"}, {8, 2, "version 2", "expected 1"},
        {12, 3, "3 bytes per token", "1, 2 or 4"},  {12, 0, "0 bytes per token", "1, 2 or 4"},
        {16, 0, "0 tokens", "at least 1"},          {20, 1u << 31, "9223372036854775818 tokens", "damaged"},
        {24, 0, "vocabulary of 0", "at least 1"},   {24, 1u << 31, "vocabulary of 2147483648", "2^31"},
        {16, 11, "cut short", "holds 10 tokens"},   {20, 1, "holds 10 tokens", "promises 4294967306"},
        {16, 9, "too long", "1 bytes follow"},      {12, 4, "cut short", "holds 2 tokens"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        write_counting_shard(path, 0, 10, 256);
        patch_file(path, cases[c].at, &cases[c].value, 4);
        assert_refused(path, cases[c].found, cases[c].expected);
    }
}

static void test_wrong_size(void **state) {
    (void)state;
    const char *path = test_path("size.bin");
    write_counting_shard(path, 0, 1000, 300);
    assert_int_equal(truncate(path, 64 + 2 * 998 + 1), 0);
    assert_refused(path, "cut short", "holds 998 tokens", "promises 1000", "copy or build it again");
    write_counting_shard(path, 0, 1000, 300);
    assert_int_equal(truncate(path, 64 + 2 * 1000 + 1), 0);
    assert_refused(path, "too long", "1 bytes follow", "1000 tokens");
}

static void test_token_outside_vocabulary(void **state) {
    (void)state;
    const char *path = test_path("token.bin");
    for (int token_bytes = 1; token_bytes <= 4; token_bytes *= 2) {
        int vocab = (int[]){200, 60000, 0, 70000}[token_bytes - 1];
        write_counting_shard(path, 0, 200000, vocab);
        patch_file(path, 64 + 199999L * token_bytes, "\xff\xff\xff\xff", (size_t)token_bytes);
        patch_file(path, 64 + 70001L * token_bytes, &vocab, (size_t)token_bytes);
        char found[64], expected[64];
        snprintf(found, sizeof found, "token 70001 is %d", vocab); /* the first of the two */
        snprintf(expected, sizeof expected, "vocabulary is %d (tokens 0 to %d)", vocab, vocab - 1);
        assert_refused(path, found, expected, "damaged");
    }
    write_counting_shard(path, 0, 10, 70000);
    patch_file(path, 64 + 4 * 9, "\xff\xff\xff\xff", 4);
    assert_refused(path, "token 9 is 4294967295");
}

/* A sparse file: the tokens are zeros that take no room on the disk. */
static void test_more_than_4_gib(void **state) {
    (void)state;
    const char *path = test_path("huge.bin");
    const int64_t count = (INT64_C(1) << 32) + 3;
    write_counting_shard(path, 0, 1, 256);
    patch_file(path, 16, &count, 8);
    assert_int_equal(truncate(path, 64 + count), 0);
    patch_file(path, 64 + count - 1, "\x2a", 1);
    struct error e;
    struct shard s;
    assert_int_equal(shard_open(&s, path, &e), 0);
    assert_int_equal(s.count, count);
    assert_int_equal(shard_token(&s, count - 2), 0);
    assert_int_equal(shard_token(&s, count - 1), 42);
    shard_close(&s);
    assert_int_equal(unlink(path), 0);
}

static void test_unwritable(void **state) {
    (void)state;
    struct error e;
    assert_int_equal(shard_write(test_path("no/such/folder.bin"), (int32_t[]){1}, 1, 256, "bytes", &e), -1);
    assert_message(e, "cannot write", "no/such/folder.bin", "No such file");
    assert_int_equal(mkdir(test_path("taken.bin"), 0700), 0);
    assert_int_equal(shard_write(test_path("taken.bin"), (int32_t[]){1}, 1, 256, "bytes", &e), -1);
    assert_message(e, "cannot write", "taken.bin");
    assert_false(file_exists(test_path("taken.bin.tmp")));
    if (!file_exists("/dev/full")) return;
    assert_int_equal(symlink("/dev/full", test_path("full.bin.tmp")), 0);
    assert_int_equal(shard_write(test_path("full.bin"), (int32_t[]){1}, 1, 256, "bytes", &e), -1);
    assert_message(e, "cannot write", "full.bin", "No space left");
    assert_false(file_exists(test_path("full.bin")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),     cmocka_unit_test(test_layout),
        cmocka_unit_test(test_not_a_file),      cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_wrong_size),      cmocka_unit_test(test_token_outside_vocabulary),
        cmocka_unit_test(test_more_than_4_gib), cmocka_unit_test(test_unwritable),
    };
    return cmocka_run_group_tests_name("shard", tests, make_test_folder, remove_test_folder);
}
