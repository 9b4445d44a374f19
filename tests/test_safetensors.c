/* The file format of weights: round trip, and that no damage to a file is read as if it were whole. */
#include "tests/data_files.h"

#include <signal.h>
#include <sys/resource.h>

#include "train/files.h"
#include "train/safetensors.h"

static const char *const names[] = {"transformer.wte.weight", "b", "c", "d"};
enum { TENSORS = 4 };
static float matrix[15], vector[3], cube[8];
static int32_t whole[6];
static struct tensor tensors[TENSORS];

static struct file_sum sum; /* of what was written last */

static const char *write_sample(const char *name) {
    struct error e;
    for (int i = 0; i < 15; i++) matrix[i] = 1.5f * (float)i;
    for (int i = 0; i < 3; i++) vector[i] = -1.0f / (float)(i + 1);
    for (int i = 0; i < 8; i++) cube[i] = (float)i;
    for (int i = 0; i < 6; i++) whole[i] = -i;
    tensors[0] = tensor_of(matrix, DTYPE_F32, 5, 3);
    tensors[1] = tensor_of(vector, DTYPE_F32, 3);
    tensors[2] = tensor_of(whole, DTYPE_I32, 2, 3);
    tensors[3] = tensor_of(cube, DTYPE_F32, 2, 2, 2);
    const char *path = test_path("%s", name);
    assert_int_equal(safetensors_write(path, names, tensors, TENSORS, &sum, &e), 0);
    return path;
}

static void test_round_trip(void **state) {
    (void)state;
    struct safetensors f;
    struct error e;
    assert_int_equal(safetensors_open(&f, write_sample("round"), &e), 0);
    for (int i = 0; i < TENSORS; i++) {
        struct tensor t;
        assert_true(safetensors_has(&f, names[i]));
        assert_int_equal(safetensors_find(&f, names[i], &t, &e), 0);
        assert_int_equal(t.dtype, tensors[i].dtype);
        assert_int_equal(t.ndim, tensors[i].ndim);
        for (int d = 0; d < t.ndim; d++) assert_int_equal(t.dim[d], tensors[i].dim[d]);
        assert_memory_equal(t.data, tensors[i].data, 4 * (size_t)tensor_count(t));
        assert_int_equal((uintptr_t)t.data % 4, 0);
    }
    assert_int_equal((f.data - (const uint8_t *)f.map) % 8, 0);
    struct tensor t;
    assert_false(safetensors_has(&f, "e"));
    assert_int_equal(safetensors_find(&f, "e", &t, &e), -1);
    assert_message(e, f.path, "no tensor 'e'");
    safetensors_close(&f);
    safetensors_close(&f);
}

static uint8_t *read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

/* How many of the sample's tensors can be had from a file; each must lie within it, each refusal have its
 * message. */
static int readable(const char *path) {
    struct safetensors f;
    struct error e;
    int found = 0;
    if (safetensors_open(&f, path, &e)) {
        assert_message(e, path);
        return 0;
    }
    for (int i = 0; i < TENSORS; i++) {
        struct tensor t;
        if (safetensors_find(&f, names[i], &t, &e)) {
            assert_message(e, path, names[i]);
            continue;
        }
        found++;
        const uint8_t *data = t.data;
        assert_true(data >= f.data && data + 4 * tensor_count(t) <= (const uint8_t *)f.map + f.bytes);
    }
    safetensors_close(&f);
    return found;
}

static void test_every_truncation_is_noticed(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = read_bytes(write_sample("whole"), &size);
    const char *path = test_path("cut");
    for (size_t cut = 0; cut < size; cut++) {
        write_file(path, bytes, cut);
        assert_true(readable(path) < TENSORS);
    }
    write_file(path, bytes, size);
    assert_int_equal(readable(path), TENSORS);
    free(bytes);
}

static void test_every_flipped_bit_of_the_header_is_survived(void **state) {
    (void)state;
    size_t size;
    uint64_t header;
    uint8_t *bytes = read_bytes(write_sample("flipped"), &size);
    const char *path = test_path("flipped");
    memcpy(&header, bytes, 8);
    for (size_t bit = 0; bit < 8 * (8 + header); bit++) {
        uint8_t flipped = bytes[bit / 8] ^ (uint8_t)(1 << bit % 8);
        patch_file(path, (long)(bit / 8), &flipped, 1);
        readable(path);
        patch_file(path, (long)(bit / 8), &bytes[bit / 8], 1);
    }
    assert_int_equal(readable(path), TENSORS);
    free(bytes);
}

static const char *write_header(const char *json, size_t data_bytes) {
    uint8_t bytes[1024] = {0};
    const uint64_t length = strlen(json);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, json, length);
    const char *path = test_path("header");
    write_file(path, bytes, 8 + length + data_bytes);
    return path;
}

static void test_headers_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const char *const entries[] = {
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.5,8.5]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}",
        "{\"dtype\":\"F32\",\"shape\":[2]}",
        "{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[-2,-1],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}",
        "{\"dtype\":\"F32\",\"shape\":[4294967296,1073741824,4],\"data_offsets\":[0,0]}",
        "{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,4]}",
        "{\"dtype\":\"F32\",\"data_offsets\":[0,4]}",
        "{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}",
        "{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"shape\":[2],\"data_offsets\":[0,8]}",
        "7",
        "null",
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        char json[256];
        struct safetensors f;
        struct tensor t;
        struct error e;
        snprintf(json, sizeof json, "{\"b\":%s}", entries[i]);
        const char *path = write_header(json, 8);
        assert_int_equal(safetensors_open(&f, path, &e), 0);
        if (safetensors_find(&f, "b", &t, &e) == 0) fail_msg("accepted: %s", json);
        assert_message(e, path, "'b'");
        safetensors_close(&f);
    }
    static const char *const headers[] = {"[]", "7", "{", "", "x", "\"b\""};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        assert_int_equal(readable(write_header(headers[i], 8)), 0);
}

static void test_the_sum_is_that_of_the_file(void **state) {
    (void)state;
    struct file_sum found;
    struct error e;
    const char *path = write_sample("summed");
    assert_int_equal(files_sum(path, &found, &e), 0);
    assert_true(found.bytes == sum.bytes && found.crc == sum.crc);
    patch_file(path, 3, "x", 1);
    assert_int_equal(files_sum(path, &found, &e), 0);
    assert_true(found.bytes == sum.bytes && found.crc != sum.crc);
    assert_int_equal(files_sum(test_path("missing"), &found, &e), -1);
    assert_message(e, "missing' cannot be opened");
}

static void test_files_that_cannot_be_read_or_written(void **state) {
    (void)state;
    struct safetensors f;
    struct error e;
    assert_int_equal(safetensors_open(&f, test_path("missing"), &e), -1);
    assert_message(e, "missing' cannot be opened: No such file");
    assert_int_equal(safetensors_open(&f, test_folder, &e), -1);
    assert_message(e, test_folder);
    write_sample("kept");
    assert_int_equal(safetensors_write(test_path("kept/inside"), names, tensors, TENSORS, &sum, &e), -1);
    assert_message(e, "kept/inside' cannot be written: Not a directory");
    const struct rlimit small = {100, RLIM_INFINITY}, unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int status = safetensors_write(test_path("part"), names, tensors, TENSORS, &sum, &e);
    setrlimit(RLIMIT_FSIZE, &unlimited);
    assert_int_equal(status, -1);
    assert_message(e, "part' could not be written whole: File too large");
    assert_false(file_exists(test_path("part")));
}

/* A path of any permitted length, though messages may be shorter. */
static void test_long_paths(void **state) {
    (void)state;
    char folder[1100];
    struct safetensors f;
    struct error e;
    snprintf(folder, sizeof folder, "%s", test_folder);
    while (strlen(folder) < 800) {
        snprintf(folder + strlen(folder), 110, "/%0100d", 7);
        assert_int_equal(files_make_folder(folder, &e), 0);
    }
    strcat(folder, "/model.safetensors");
    assert_int_equal(safetensors_write(folder, names, tensors, TENSORS, &sum, &e), 0);
    assert_int_equal(safetensors_open(&f, folder, &e), 0);
    safetensors_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_truncation_is_noticed),
        cmocka_unit_test(test_every_flipped_bit_of_the_header_is_survived),
        cmocka_unit_test(test_headers_that_make_no_sense_are_refused),
        cmocka_unit_test(test_the_sum_is_that_of_the_file),
        cmocka_unit_test(test_files_that_cannot_be_read_or_written),
        cmocka_unit_test(test_long_paths),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
