/* Files for the tests of data/: a folder that goes away with the program, shards and damaged shards in it. */
#ifndef TANDEM_TESTS_DATA_FILES_H
#define TANDEM_TESTS_DATA_FILES_H

#define _GNU_SOURCE
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/shard.h"

static char test_folder[] = "/tmp/tandem-test-XXXXXX";

static inline int make_test_folder(void **state) {
    (void)state;
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info, (void)type, (void)where;
    return remove(path);
}

static inline int remove_test_folder(void **state) {
    (void)state;
    return nftw(test_folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A path in the test's folder; the last 64 stay valid. */
static inline const char *test_path(const char *format, ...) {
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    int used = snprintf(path, sizeof paths[0], "%s/", test_folder);
    va_list args;
    va_start(args, format);
    vsnprintf(path + used, sizeof paths[0] - (size_t)used, format, args);
    va_end(args);
    return path;
}

static inline void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Overwrites bytes of a file in place. */
static inline void patch_file(const char *path, long at, const void *bytes, size_t size) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* A shard of count tokens first, first + 1, ... modulo the vocabulary. */
static inline void write_counting_shard(const char *path, int64_t first, int64_t count, int vocab) {
    struct error e = {""};
    int32_t *tokens = memory_alloc((size_t)count * sizeof *tokens);
    for (int64_t i = 0; i < count; i++) tokens[i] = (int32_t)((first + i) % vocab);
    if (shard_write(path, tokens, count, vocab, "bytes", &e) != 0) fail_msg("%s", e.text);
    free(tokens);
}

/* The message must hold every one of the words, and fit. */
#define assert_message(e, ...) \
    check_message(&(e), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)
static inline void check_message(const struct error *e, const char *const *words, const char *file,
                                 int line) {
    for (; *words; words++)
        if (!strstr(e->text, *words)) {
            print_error("%s:%d: no \"%s\" in the message: %s\n", file, line, *words, e->text);
            fail();
        }
    assert_true(strlen(e->text) < sizeof e->text - 1);
}

#endif
