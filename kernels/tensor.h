/* A tensor is a value: pointer, dtype, up to four dimensions. Contiguous, row-major, never owns memory.
 * An arena owns one allocation; the same layout function runs twice on it, once to count, once to place. */
#ifndef TANDEM_TENSOR_H
#define TANDEM_TENSOR_H

#include "kernels/base.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_COUNT };

struct dtype_info {
    const char *name;        /* as in options and messages */
    const char *safetensors; /* as in a safetensors header */
    size_t size;             /* bytes of one element */
};
extern const struct dtype_info dtype_table[DTYPE_COUNT];

/* The dtype of that name; it must be one. */
enum dtype dtype_find(const char *name);

struct tensor {
    void *data; /* NULL: absent, or an arena that only counts */
    enum dtype dtype;
    int ndim;
    int64_t dim[4];
};

/* tensor_of(data, dtype, dims...): a view of memory somebody else owns. */
#define tensor_of(data, dtype, ...)                                                         \
    tensor_make((data), (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                (const int64_t[]){__VA_ARGS__})
struct tensor tensor_make(void *data, enum dtype dtype, int ndim, const int64_t *dim);

/* Elements in all. */
int64_t tensor_count(struct tensor t);

/* Length of the last dimension, and how many rows of it there are. */
int64_t tensor_columns(struct tensor t);
int64_t tensor_rows(struct tensor t);

/* Entries first .. first+count-1 along the first dimension; same memory. */
struct tensor tensor_slice(struct tensor t, int64_t first, int64_t count);

/* The same elements as a (rows, columns) matrix; count must not change. */
struct tensor tensor_matrix(struct tensor t, int64_t rows, int64_t columns);

/* The elements, with the dtype checked. NULL data stays NULL. */
float *tensor_f32(struct tensor t);
int32_t *tensor_i32(struct tensor t);

struct device;
struct arena {
    const struct device *device;
    char *base;        /* NULL: planning, arena_take only counts */
    size_t used, size; /* bytes */
};

/* arena_take(arena, dtype, dims...): the next tensor, 64-byte aligned; data is NULL while planning. */
#define arena_take(arena, dtype, ...)                                                            \
    arena_take_dims((arena), (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                    (const int64_t[]){__VA_ARGS__})
struct tensor arena_take_dims(struct arena *a, enum dtype dtype, int ndim, const int64_t *dim);

/* Ends planning: allocates what was counted, and starts placing from the beginning. Memory is zeroed. */
void arena_commit(struct arena *a);
void arena_free(struct arena *a);

#endif
