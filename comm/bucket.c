#include "comm/bucket.h"

#include <stdlib.h>

struct bucket_engine *bucket_engine_create(struct comm *comm, struct tensor gradient, int64_t bucket_elements,
                                           int64_t first_elements, bool overlap) {
    int64_t total = tensor_count(gradient);
    CHECK(gradient.dtype == DTYPE_F32, "the gradient range is fp32, not %s",
          dtype_table[gradient.dtype].name);
    CHECK(bucket_elements > 0 && first_elements > 0, "buckets of %lld elements, the first of %lld",
          (long long)bucket_elements, (long long)first_elements);
    struct bucket_engine *engine = memory_alloc(sizeof *engine);
    *engine = (struct bucket_engine){
        .comm = comm, .gradient = tensor_of(gradient.data, DTYPE_F32, total), .overlap = overlap};
    int64_t rest = total > first_elements ? total - first_elements : 0;
    engine->buckets = (int)((total > 0) + (rest + bucket_elements - 1) / bucket_elements);
    engine->bucket = memory_alloc_zeroed(sizeof *engine->bucket * (size_t)engine->buckets);
    int64_t offset = 0;
    for (int i = 0; i < engine->buckets; i++) {
        int64_t most = i == 0 ? first_elements : bucket_elements, left = total - offset;
        engine->bucket[i] = (struct bucket){.offset = offset, .count = left < most ? left : most};
        offset += engine->bucket[i].count;
    }
    return engine;
}

void bucket_engine_free(struct bucket_engine *engine) {
    if (!engine) return;
    free(engine->bucket);
    free(engine);
}

void bucket_engine_begin(struct bucket_engine *engine) {
    CHECK(!engine->in_step, "a step of the bucket engine begins before the last one was finished");
    engine->in_step = true;
    engine->ready = 0;
    engine->complete = engine->begun = 0;
}

/* Reductions begin in the order of the range, each for gradients that will not change any more. */
static void begin_reductions(struct bucket_engine *engine) {
    if (engine->comm->size == 1) return;
    for (; engine->begun < engine->complete; engine->begun++) {
        struct bucket *b = &engine->bucket[engine->begun];
        comm_all_reduce_begin(engine->comm, tensor_slice(engine->gradient, b->offset, b->count), &b->work);
    }
}

void bucket_engine_mark_ready(struct bucket_engine *engine, int64_t ready) {
    CHECK(engine->in_step, "gradients marked ready outside of a step");
    CHECK(ready >= engine->ready && ready <= tensor_count(engine->gradient),
          "gradients [0, %lld) marked ready after [0, %lld), of %lld", (long long)ready,
          (long long)engine->ready, (long long)tensor_count(engine->gradient));
    engine->ready = ready;
    for (; engine->complete < engine->buckets; engine->complete++) {
        struct bucket *b = &engine->bucket[engine->complete];
        if (b->offset + b->count > ready) break;
        b->ready = clock_seconds();
    }
    if (engine->overlap) begin_reductions(engine);
}

/* Length of the union of the buckets' [start, end] intervals, which begin in order. */
static double time_under_way(const struct bucket_engine *engine) {
    double sum = 0, covered = 0;
    for (int i = 0; i < engine->buckets; i++) {
        const struct bucket *b = &engine->bucket[i];
        double from = b->start > covered ? b->start : covered;
        if (b->end <= from) continue;
        sum += b->end - from;
        covered = b->end;
    }
    return sum;
}

void bucket_engine_finish(struct bucket_engine *engine, struct bucket_stats *stats) {
    *stats = (struct bucket_stats){0};
    CHECK(engine->in_step, "a step of the bucket engine is finished that was not begun");
    CHECK(engine->ready == tensor_count(engine->gradient),
          "the step is finished with gradients [0, %lld) of %lld marked ready", (long long)engine->ready,
          (long long)tensor_count(engine->gradient));
    engine->in_step = false;
    int64_t ranks = engine->comm->size;
    if (ranks == 1) return;
    double waiting_since = clock_seconds();
    begin_reductions(engine);
    for (int i = 0; i < engine->buckets; i++) {
        struct bucket *b = &engine->bucket[i];
        comm_end(engine->comm, &b->work);
        b->start = b->work.start;
        b->end = b->work.end;
        stats->bytes_sent += b->work.bytes_sent;
    }
    stats->exposed_ms = engine->buckets ? 1e3 * (clock_seconds() - waiting_since) : 0;
    stats->comm_ms = 1e3 * time_under_way(engine);
    stats->bytes_dense = 2 * (ranks - 1) * 4 * tensor_count(engine->gradient) / ranks;
}
