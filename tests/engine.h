/* Makes bucket engines for tests: one that sends everything, and one with a given compressor. */
#ifndef TANDEM_TEST_ENGINE_H
#define TANDEM_TEST_ENGINE_H

#include "comm/bucket.h"

static inline struct bucket_engine *engine_with(struct comm *comm, struct tensor gradient,
                                                const struct bucket_plan *plan) {
    struct bucket_engine *engine;
    struct error e;
    CHECK(bucket_engine_create(&engine, comm, &device_cpu, gradient, plan, &e) == 0, "%s", e.text);
    return engine;
}

static inline struct bucket_engine *engine_dense(struct comm *comm, struct tensor gradient, int64_t bucket,
                                                 int64_t first, bool overlap) {
    const struct bucket_plan plan = {
        .bucket_elements = bucket, .first_elements = first, .overlap = overlap, .compress.method = "none"};
    return engine_with(comm, gradient, &plan);
}

#endif
