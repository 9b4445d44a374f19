/* Sealed JSON: comes back as it was; any bit that is flipped and any cut is noticed. */
#include "tests/data_files.h"

#include <cjson/cJSON.h>

#include "train/files.h"
#include "train/sealed_json.h"

static const char *const contents[] = {"{\"a\":1}",
                                       "{\"a\":[1,2.5],\"b\":{\"crc32\":\"00000000\"},\"text\":\"x\\ny\"}"};

static const char *written(const char *content) {
    struct error e;
    const char *path = test_path("sealed.json");
    cJSON *object = cJSON_Parse(content);
    assert_int_equal(sealed_json_write(path, object, &e), 0);
    cJSON_Delete(object);
    return path;
}

static void test_round_trip(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        struct error e;
        cJSON *found = sealed_json_read(written(contents[i]), &e), *expected = cJSON_Parse(contents[i]);
        assert_non_null(found);
        cJSON_DeleteItemFromObject(found, "crc32");
        assert_true(cJSON_Compare(found, expected, true));
        cJSON_Delete(found);
        cJSON_Delete(expected);
    }
}

static void assert_damaged(const char *path) {
    struct error e;
    assert_null(sealed_json_read(path, &e));
    assert_message(e, path);
}

static void test_any_change_is_noticed(void **state) {
    (void)state;
    struct error e;
    const char *path = written(contents[1]);
    char *whole = files_read_text(path, &e);
    const size_t length = strlen(whole);
    for (size_t at = 0; at < length; at++) {
        for (int bit = 0; bit < 8; bit++) {
            const char changed = (char)(whole[at] ^ 1 << bit);
            patch_file(path, (long)at, &changed, 1);
            assert_damaged(path);
        }
        patch_file(path, (long)at, &whole[at], 1);
    }
    for (size_t size = length; size-- > 0;) {
        assert_int_equal(truncate(path, (off_t)size), 0);
        assert_damaged(path);
    }
    assert_damaged(test_path("missing.json"));
    free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_change_is_noticed),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
