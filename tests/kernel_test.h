/* What the kernel tests share: tensors on the device under test (TANDEM_TEST_DEVICE, default cpu), comparison
 * with plain loops in double, and central finite differences of those. Memory lives until release_all. */
#ifndef TANDEM_KERNEL_TEST_H
#define TANDEM_KERNEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "kernels/philox.h"

static const struct device *dev;
static struct {
    void *memory;
    size_t bytes; /* on the device; 0: on the host */
} owned[4096];
static int owned_count;
static uint64_t random_position;

static inline void *own(void *memory, size_t bytes) {
    assert_true(owned_count < 4096);
    owned[owned_count].memory = memory;
    owned[owned_count++].bytes = bytes;
    return memory;
}

static inline int release_all(void **state) {
    (void)state;
    while (owned_count-- > 0)
        if (owned[owned_count].bytes)
            dev->memory_free(owned[owned_count].memory, owned[owned_count].bytes);
        else
            free(owned[owned_count].memory);
    owned_count = 0;
    random_position = 0;
    return 0;
}

static inline int open_device(void **state) {
    (void)state;
    struct error e;
    const char *name = getenv("TANDEM_TEST_DEVICE");
    dev = device_find(name ? name : "cpu", &e);
    if (dev == NULL || dev->open(2, &e) != 0) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static inline float *host_floats(int64_t count) {
    return own(memory_alloc((size_t)count * sizeof(float)), 0);
}

static inline double *host_doubles(int64_t count) {
    return own(memory_alloc_zeroed((size_t)count * sizeof(double)), 0);
}

/* Uniform in -scale .. scale; the same sequence in every test. */
static inline float *random_floats(int64_t count, double scale) {
    float *x = host_floats(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(scale * (philox_draw(42, random_position++, 0).word[0] / 2147483648.0 - 1.0));
    return x;
}

static inline int32_t *random_indices(int64_t count, int32_t bound) {
    int32_t *x = own(memory_alloc((size_t)count * sizeof *x), 0);
    for (int64_t i = 0; i < count; i++)
        x[i] = (int32_t)(philox_draw(43, random_position++, 0).word[0] % (uint32_t)bound);
    return x;
}

static inline double *widened(const float *x, int64_t count) {
    double *wide = host_doubles(count);
    for (int64_t i = 0; i < count; i++) wide[i] = x[i];
    return wide;
}

/* device_tensor(values, dims...): NULL values poison it with NaN. index_tensor: the same for int32. */
#define device_tensor(values, ...) place_tensor((values), tensor_of(NULL, DTYPE_F32, __VA_ARGS__))
#define index_tensor(values, ...) place_tensor((values), tensor_of(NULL, DTYPE_I32, __VA_ARGS__))

static inline struct tensor place_tensor(const void *values, struct tensor t) {
    const int64_t count = tensor_count(t);
    t.data = own(dev->memory_alloc((size_t)count * 4), (size_t)count * 4);
    float *poison = values ? NULL : host_floats(count);
    for (int64_t i = 0; poison && i < count; i++) poison[i] = NAN;
    dev->copy_in(NULL, t, values ? values : poison);
    return t;
}

static inline float *host_of(struct tensor t) {
    float *x = host_floats(tensor_count(t));
    dev->copy_out(NULL, x, t);
    return x;
}

/* NaN is never close to anything. */
static inline void assert_close(const char *what, const float *got, const double *want, int64_t count,
                                double tolerance) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1.0 + fabs(want[i]))))
            fail_msg("%s: element %lld of %lld is %.9g, expected %.9g", what, (long long)i, (long long)count,
                     got[i], want[i]);
}

static inline void assert_tensor_close(const char *what, struct tensor got, const double *want,
                                       double tolerance) {
    assert_close(what, host_of(got), want, tensor_count(got), tolerance);
}

static inline void assert_same_bits(const char *what, const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: element %lld of %lld is %.9g and %.9g", what, (long long)i, (long long)count, a[i],
                     b[i]);
}

/* A plain-loop operation in double: out = forward(in[0], in[1], ...). */
struct oracle {
    void (*forward)(const struct oracle *o, double *const *in, double *out);
    int64_t rows, inner, columns;        /* N, I, O or N, -, C */
    int64_t sequences, positions, heads; /* B, T, H */
    const float *mask;                   /* what dropout multiplies by; NULL: 1 */
    const int32_t *index;                /* tokens or targets */
};

static inline double oracle_loss(const struct oracle *o, double *const *in, const double *cotangent,
                                 double *out, int64_t out_count) {
    double loss = 0.0;
    o->forward(o, in, out);
    for (int64_t i = 0; i < out_count; i++) loss += cotangent[i] * out[i];
    return loss;
}

/* got (count) = old + d(cotangent . forward)/d in[which], at up to 97 elements spread over it. NULL old: 0.
 */
static inline void assert_gradient(const char *what, const struct oracle *o, double *const *in, int which,
                                   int64_t count, const float *cotangent, int64_t out_count, const float *got,
                                   const float *old, double tolerance) {
    double *out = host_doubles(out_count), *weight = widened(cotangent, out_count), *x = in[which];
    const int64_t step = count / 97 + 1;
    for (int64_t i = 0; i < count; i += step) {
        const double kept = x[i], h = 1e-5;
        x[i] = kept + h;
        double slope = oracle_loss(o, in, weight, out, out_count);
        x[i] = kept - h;
        slope = (slope - oracle_loss(o, in, weight, out, out_count)) / (2 * h);
        x[i] = kept;
        if (old) slope += old[i];
        if (!(fabs(got[i] - slope) <= tolerance * (1.0 + fabs(slope))))
            fail_msg("%s: gradient %lld of %lld is %.9g, finite differences say %.9g", what, (long long)i,
                     (long long)count, got[i], slope);
    }
}

static const struct dropout no_dropout = {.rate = 0.0f};

/* The documented mask, drawn one element at a time. */
static inline float *dropout_mask(struct dropout drop, int64_t rows, int64_t columns) {
    float *mask = host_floats(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t row = i / columns, column = i % columns;
        const struct philox draw = philox_draw(drop.key, drop.first_row + row, column / 4);
        const double uniform = draw.word[column % 4] / 4294967296.0;
        mask[i] = uniform < drop.rate ? 0.0f : 1.0f / (1.0f - drop.rate);
    }
    return mask;
}

#endif
