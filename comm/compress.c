#include "comm/compress.h"

#include <stdlib.h>
#include <string.h>

extern const struct compressor_method compress_none, compress_bf16, compress_fp16, compress_covap,
    compress_accumulate, compress_topk, compress_randomk, compress_dgc, compress_efsignsgd, compress_powersgd,
    compress_oktopk, compress_qsgd;

static const struct compressor_method *const methods[] = {
    &compress_none,       &compress_bf16,     &compress_fp16,    &compress_covap,
    &compress_accumulate, &compress_topk,     &compress_randomk, &compress_dgc,
    &compress_efsignsgd,  &compress_powersgd, &compress_oktopk,  &compress_qsgd,
};
enum { METHODS = sizeof methods / sizeof *methods };

const struct compressor_method *compressor_find(const char *name) {
    for (int i = 0; i < METHODS; i++)
        if (strcmp(methods[i]->name, name) == 0) return methods[i];
    return NULL;
}

const char *compressor_names(void) {
    static char names[256];
    if (*names) return names;
    for (int i = 0; i < METHODS; i++) strcat(strcat(names, i ? "|" : ""), methods[i]->name);
    return names;
}

static void layout(struct compressor *c) {
    if (c->method->layout) c->method->layout(c);
}

struct compressor *compressor_create(const struct compress_options *options, const struct comm *comm,
                                     const struct device *device, int64_t elements,
                                     const struct flat_matrix *matrix, int matrices, struct error *e) {
    const struct compressor_method *method = compressor_find(options->method);
    if (!method) {
        error_set(e, "found compressor '%s', expected one of %s", options->method, compressor_names());
        return NULL;
    }
    if (method->check && method->check(options, e) != 0) return NULL;
    struct compressor *c = memory_alloc_zeroed(sizeof *c);
    *c = (struct compressor){.method = method,
                             .options = *options,
                             .device = device,
                             .rank = comm->rank,
                             .size = comm->size,
                             .elements = elements,
                             .matrix = matrix,
                             .matrices = matrices,
                             .keep.device = device,
                             .scratch.device = device};
    compressor_set_options(c, options);
    c->state = memory_alloc_zeroed(method->state_bytes);
    layout(c);
    arena_commit(&c->keep);
    arena_commit(&c->scratch);
    layout(c);
    return c;
}

void compressor_set_options(struct compressor *c, const struct compress_options *options) {
    const struct compress_options made = c->options;
    c->options = *options;
    c->options.density = made.density;
    c->options.rank = made.rank;
    if (c->method->wire != DTYPE_F32) c->options.wire = c->method->wire;
}

void compressor_free(struct compressor *c) {
    if (!c) return;
    arena_free(&c->keep);
    arena_free(&c->scratch);
    free(c->state);
    free(c);
}
