/* What the tests of compressors share: a flat range of parameters with odd shapes and gaps, random gradients, steps through
 * the bucket engine, and comparisons between ranks. */
#ifndef TANDEM_COMPRESS_TEST_H
#define TANDEM_COMPRESS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "tests/engine.h"

static struct comm *comm;

enum { TOTAL = 20011 };
static const struct flat_matrix parameters[] = {
    {0, 96, 64}, {6144, 1, 64}, {6208, 64, 32}, {8270, 1, 1}, {8271, 120, 70}, {16671, 1, 3340},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters, GAP = 8256, GAP_END = 8270 };

static inline struct bucket_plan plan_of(const char *method, int64_t bucket, int64_t first, bool overlap) {
    return (struct bucket_plan){.bucket_elements = bucket,
                                .first_elements = first,
                                .overlap = overlap,
                                .matrix = parameters,
                                .matrices = PARAMETERS,
                                .compress = {.method = method,
                                             .interval = 3,
                                             .ef_initial = 1.0,
                                             .ef_period = 1,
                                             .density = 0.05,
                                             .rank = 2,
                                             .start_step = 0,
                                             .levels = 127,
                                             .momentum = 0.5,
                                             .seed = 7}};
}

/* Normal-like, with a size that differs from place to place. */
static inline float random_gradient(int rank, int64_t step, int64_t i) {
    if (i >= GAP && i < GAP_END) return 0.0f;
    const struct philox p = philox_draw((uint64_t)step, (uint64_t)i, (uint64_t)rank);
    double sum = 0.0;
    for (int k = 0; k < 4; k++) sum += (double)p.word[k] * 0x1p-32 - 0.5;
    return (float)(sum * (i % 11 == 0 ? 5.0 : 1.0) * (i < 7000 ? 0.1 : 1.0));
}

/* Marks the gradient that is there ready in pieces and reduces it. */
static inline struct bucket_stats reduce_step(struct bucket_engine *engine, int64_t step, bool accepted) {
    struct bucket_stats stats;
    const int64_t total = tensor_count(engine->gradient);
    bucket_engine_begin(engine, step);
    for (int64_t ready = 0; ready < total; ready += 1 + total / 5) bucket_engine_mark_ready(engine, ready);
    bucket_engine_mark_ready(engine, total);
    bucket_engine_finish(engine, &stats);
    bucket_engine_commit(engine, accepted);
    return stats;
}

static inline void fill_gradient(float *gradient, int64_t step) {
    for (int64_t i = 0; i < TOTAL; i++) gradient[i] = random_gradient(comm->rank, step, i);
}

/* The same on all ranks if the bits are. */
static inline double hash_of(const float *x, int64_t count) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return (double)(h >> 11);
}

static inline void assert_same_on_all_ranks(const char *what, double value) {
    if (!comm_same(comm, value)) fail_msg("%s: ranks differ", what);
}

/* What this rank holds back of element i. */
static inline double residual_at(const struct bucket_engine *engine, int64_t i) {
    const struct compressor *c = engine->compressor;
    return c->method->residual ? tensor_f32(c->method->residual(c))[i] : 0.0;
}

/* Calls test for each method there is. */
static inline void for_each_method(void (*test)(const char *method)) {
    char names[512];
    strcpy(names, compressor_names());
    for (char *save, *name = strtok_r(names, "|", &save); name; name = strtok_r(NULL, "|", &save)) test(name);
}

static inline int run_on_ranks(const struct CMUnitTest *tests, size_t count) {
    struct error e;
    const struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    CHECK(comm_open(&comm, "auto", &options, &e) == 0, "%s", e.text);
    CHECK(device_cpu.open(1, &e) == 0, "%s", e.text);
    const int failed = _cmocka_run_group_tests("compress", tests, count, NULL, NULL);
    comm_close(comm);
    return failed;
}

#endif
