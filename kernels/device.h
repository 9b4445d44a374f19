/* The one interface to what computes. Two implementations: kernels/cpu and kernels/cuda; a program finds one by
 * name. A struct device is a table of functions; operations come from ops.def, where each is documented. */
#ifndef TANDEM_DEVICE_H
#define TANDEM_DEVICE_H

#include "kernels/tensor.h"

/* A queue of operations; NULL is the device's default. The CPU runs everything at once and has no other. */
struct stream;

/* Inverted dropout: keep an element with probability 1 - rate and scale it by 1/(1 - rate).
 * The draw for row i, column j is word j % 4 of Philox4x32-10 (Salmon et al. 2011) with counter (first_row + i, j / 4);
 * kept if draw >= rate * 2^32, that product rounded down. */
struct dropout {
    float rate;   /* 0: off, nothing is drawn */
    uint64_t key; /* from seed, step and place in the network */
    int64_t
        first_row; /* global index of the tensor's first row; for attention, of its first (sequence, head, query) */
};

struct adamw_step {
    float lr, beta1, beta2, eps, decay, grad_scale;
    int64_t step;      /* of the last gradient that is in, from 1 */
    int64_t gradients; /* so many steps' gradients are in the sum: 1 or more */
};

struct sgd_step {
    float lr, momentum, decay, grad_scale;
};

struct device {
    const char *name;
    const char *precisions; /* separated by |: what matrix products and activations can be in */

    /* Makes the device ready: `threads` computing threads (CPU). Once per process, before anything else.
     * -1 with a message if it cannot be had here. Synchronous, not collective. */
    int (*open)(int threads, struct error *e);
    /* One line for people: what it is, its libraries and threads. */
    void (*describe)(char *text, size_t size);

    /* Zeroed memory, aligned to a page. bytes is the one count here that is not in elements. */
    void *(*memory_alloc)(size_t bytes);
    void (*memory_free)(void *memory, size_t bytes);

    /* Between host and device memory; counts and dtypes must match. Synchronous for the host. */
    void (*copy_in)(struct stream *s, struct tensor device, const void *host);
    void (*copy_out)(struct stream *s, void *host, struct tensor device);
    void (*fill_zero)(struct stream *s, struct tensor t);

    /* Waits until everything queued on s is done. */
    void (*synchronize)(struct stream *s);

#define OP(name, arguments) void(*name) arguments;
#include "kernels/ops.def"
#undef OP
};

extern const struct device device_cpu, device_cuda;

/* NULL with a message that names the valid devices. */
const struct device *device_find(const char *name, struct error *e);

/* The dtype of tensors of a precision by name; -1 with a message if the device does not compute in it. */
int device_find_precision(const struct device *device, const char *name, enum dtype *dtype, struct error *e);

#endif
