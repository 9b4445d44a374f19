#define _GNU_SOURCE
#include "train/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };
static const int64_t MOST_ELEMENTS = (int64_t)1 << 48;

static int map_file(struct safetensors *f, struct error *e) {
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(e, "'%s' cannot be opened: %s", f->path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_size < LENGTH_BYTES + 2) {
        close(fd);
        return error_set(e, "'%s' is no safetensors file: it is too short to hold a header", f->path);
    }
    f->bytes = (size_t)info.st_size;
    f->map = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        return error_set(e, "'%s' cannot be mapped: %s", f->path, strerror(errno));
    }
    return 0;
}

int safetensors_open(struct safetensors *f, const char *path, struct error *e) {
    *f = (struct safetensors){0};
    snprintf(f->path, sizeof f->path, "%s", path);
    if (map_file(f, e)) return -1;
    uint64_t length;
    memcpy(&length, f->map, LENGTH_BYTES);
    if (length > f->bytes - LENGTH_BYTES) {
        safetensors_close(f);
        return error_set(
            e, "'%s' is truncated or no safetensors file: its header should take %llu bytes of %lld", path,
            (unsigned long long)length, (long long)f->bytes);
    }
    f->header = cJSON_ParseWithLength((const char *)f->map + LENGTH_BYTES, length);
    if (!cJSON_IsObject(f->header)) {
        safetensors_close(f);
        return error_set(e, "'%s' is no safetensors file: its header is not a JSON object", path);
    }
    f->data = (const uint8_t *)f->map + LENGTH_BYTES + length;
    f->data_bytes = f->bytes - LENGTH_BYTES - length;
    return 0;
}

void safetensors_close(struct safetensors *f) {
    if (f->map) munmap(f->map, f->bytes);
    cJSON_Delete(f->header);
    *f = (struct safetensors){0};
}

bool safetensors_has(const struct safetensors *f, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(f->header, name) != NULL;
}

static int find_dtype(const char *text) {
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (text && strcmp(dtype_table[d].safetensors, text) == 0) return d;
    return -1;
}

/* Whole numbers, and few enough elements that they can be counted. */
static bool read_shape(const cJSON *shape, int64_t *dim, int64_t *count) {
    const cJSON *item;
    *count = 1;
    cJSON_ArrayForEach(item, shape) {
        const double size = cJSON_GetNumberValue(item);
        if (!(size >= 0 && size <= (double)MOST_ELEMENTS) || size != (double)(int64_t)size) return false;
        if (size > 0 && *count > MOST_ELEMENTS / (int64_t)size) return false;
        *count *= *dim++ = (int64_t)size;
    }
    return cJSON_IsArray(shape);
}

int safetensors_find(const struct safetensors *f, const char *name, struct tensor *t, struct error *e) {
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(f->header, name);
    if (!entry) return error_set(e, "'%s' has no tensor '%s'", f->path, name);
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const char *dtype_text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
    int dtype = find_dtype(dtype_text);
    if (dtype < 0)
        return error_set(e, "'%s': tensor '%s' has dtype %s; expected F32, BF16 or F16", f->path, name,
                         dtype_text ? dtype_text : "(none)");
    int dims = cJSON_GetArraySize(shape);
    int64_t dim[4] = {1}, count;
    if (dims > 4)
        return error_set(e, "'%s': tensor '%s' has %d dimensions; at most 4 are expected", f->path, name,
                         dims);
    if (!read_shape(shape, dim, &count))
        return error_set(e, "'%s' is damaged: tensor '%s' has no shape that makes sense", f->path, name);
    double begin = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 0));
    double end = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 1));
    double bytes = (double)count * (double)dtype_table[dtype].size;
    if (!(begin >= 0 && begin == floor(begin) && end <= (double)f->data_bytes && end - begin == bytes))
        return error_set(e,
                         "'%s' is truncated or damaged: tensor '%s' should lie at bytes %.0f to %.0f of %zu",
                         f->path, name, begin, end, f->data_bytes);
    *t = tensor_make((void *)(f->data + (size_t)begin), (enum dtype)dtype, dims ? dims : 1, dim);
    return 0;
}

/* "fp32 (8, 3)" */
static void describe(struct tensor t, char *text, size_t size) {
    int used = snprintf(text, size, "%s (", dtype_table[t.dtype].name);
    for (int d = 0; d < t.ndim; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? ", " : "", (long long)t.dim[d]);
    snprintf(text + used, size - (size_t)used, ")");
}

int safetensors_find_like(const struct safetensors *f, const char *name, struct tensor like, struct tensor *t,
                          struct error *e) {
    char found[128], expected[128];
    if (safetensors_find(f, name, t, e)) return -1;
    bool fits = t->dtype == like.dtype && t->ndim == like.ndim;
    for (int d = 0; fits && d < like.ndim; d++) fits = t->dim[d] == like.dim[d];
    if (fits) return 0;
    describe(*t, found, sizeof found);
    describe(like, expected, sizeof expected);
    return error_set(e, "'%s': tensor '%s' is %s; expected %s", f->path, name, found, expected);
}

static char *build_header(const char *const *names, const struct tensor *tensors, int count) {
    cJSON *header = cJSON_CreateObject();
    double offset = 0;
    for (int i = 0; i < count; i++) {
        cJSON *entry = cJSON_AddObjectToObject(header, names[i]);
        cJSON_AddStringToObject(entry, "dtype", dtype_table[tensors[i].dtype].safetensors);
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        for (int d = 0; d < tensors[i].ndim; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensors[i].dim[d]));
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(offset));
        offset += (double)tensor_count(tensors[i]) * (double)dtype_table[tensors[i].dtype].size;
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(offset));
    }
    char *text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    return text;
}

int safetensors_write(const char *path, const char *const *names, const struct tensor *tensors, int count,
                      struct file_sum *sum, struct error *e) {
    struct file_output out;
    if (files_output_open(&out, path, sum, e)) return -1;
    char *header = build_header(names, tensors, count);
    /* Padding with spaces to 8 bytes is allowed, and keeps the data aligned for those who map the file. */
    const size_t text_bytes = strlen(header), pad = (8 - text_bytes % 8) % 8;
    const uint64_t length = text_bytes + pad;
    files_output_write(&out, &length, LENGTH_BYTES);
    files_output_write(&out, header, text_bytes);
    files_output_write(&out, "        ", pad);
    free(header);
    for (int i = 0; i < count; i++)
        files_output_write(&out, tensors[i].data,
                           (size_t)tensor_count(tensors[i]) * dtype_table[tensors[i].dtype].size);
    return files_output_close(&out, e);
}
