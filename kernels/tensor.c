#include "kernels/tensor.h"

#include "kernels/device.h"

#include <string.h>

const struct dtype_info dtype_table[DTYPE_COUNT] = {
    [DTYPE_F32] = {"fp32", "F32", 4},
    [DTYPE_BF16] = {"bf16", "BF16", 2},
    [DTYPE_F16] = {"fp16", "F16", 2},
    [DTYPE_I32] = {"int32", "I32", 4},
};

enum dtype dtype_find(const char *name) {
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        if (strcmp(dtype_table[dtype].name, name) == 0) return (enum dtype)dtype;
    CHECK(false, "no dtype is called '%s'", name);
    return DTYPE_F32;
}

struct tensor tensor_make(void *data, enum dtype dtype, int ndim, const int64_t *dim) {
    CHECK(ndim >= 1 && ndim <= 4, "a tensor has 1 to 4 dimensions, not %d", ndim);
    struct tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++) t.dim[i] = dim[i];
    return t;
}

int64_t tensor_count(struct tensor t) {
    int64_t count = 1;
    for (int i = 0; i < t.ndim; i++) count *= t.dim[i];
    return count;
}

int64_t tensor_columns(struct tensor t) {
    return t.dim[t.ndim - 1];
}

int64_t tensor_rows(struct tensor t) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < t.ndim; i++) rows *= t.dim[i];
    return rows;
}

struct tensor tensor_slice(struct tensor t, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && first + count <= t.dim[0], "slice %lld+%lld of %lld entries",
          (long long)first, (long long)count, (long long)t.dim[0]);
    int64_t stride = t.dim[0] ? tensor_count(t) / t.dim[0] : 0;
    if (t.data) t.data = (char *)t.data + (size_t)(first * stride) * dtype_table[t.dtype].size;
    t.dim[0] = count;
    return t;
}

struct tensor tensor_matrix(struct tensor t, int64_t rows, int64_t columns) {
    CHECK(rows * columns == tensor_count(t), "%lld elements are no %lld x %lld matrix",
          (long long)tensor_count(t), (long long)rows, (long long)columns);
    return tensor_of(t.data, t.dtype, rows, columns);
}

float *tensor_f32(struct tensor t) {
    CHECK(t.dtype == DTYPE_F32, "an fp32 tensor was expected, not %s", dtype_table[t.dtype].name);
    return t.data;
}

int32_t *tensor_i32(struct tensor t) {
    CHECK(t.dtype == DTYPE_I32, "an int32 tensor was expected, not %s", dtype_table[t.dtype].name);
    return t.data;
}

struct tensor arena_take_dims(struct arena *a, enum dtype dtype, int ndim, const int64_t *dim) {
    struct tensor t = tensor_make(a->base ? a->base + a->used : NULL, dtype, ndim, dim);
    size_t bytes = (size_t)tensor_count(t) * dtype_table[dtype].size;
    a->used += (bytes + 63) / 64 * 64;
    CHECK(!a->base || a->used <= a->size, "the arena was planned smaller than it is used");
    return t;
}

void arena_commit(struct arena *a) {
    CHECK(!a->base, "an arena is committed once");
    a->size = a->used;
    a->used = 0;
    a->base = a->device->memory_alloc(a->size);
}

void arena_free(struct arena *a) {
    if (a->base) a->device->memory_free(a->base, a->size);
    *a = (struct arena){.device = a->device};
}
