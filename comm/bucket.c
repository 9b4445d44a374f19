#include "comm/bucket.h"

#include <math.h>
#include <stdlib.h>

#include "comm/plan.h"

/* A method of several rounds goes on with bucket i when bucket i + LAG is ready: its messages have had time to travel. The
 * rule looks at nothing but numbers of buckets, so that every rank begins the same messages in the same order. */
enum { LAG = 2 };

static const float fp16_scale =
    1024.0f; /* gradients are small: keeps them away from fp16's smallest numbers */

static void cut(struct bucket_engine *engine) {
    struct cut *cuts;
    const int64_t total = tensor_count(engine->gradient);
    engine->buckets = plan_cut(&engine->plan, engine->compressor->method, total, &cuts, &engine->units);
    engine->bucket = memory_alloc_zeroed(sizeof *engine->bucket * (size_t)engine->buckets);
    for (int i = 0; i < engine->buckets; i++)
        engine->bucket[i].view = (struct bucket_view){
            .index = i,
            .unit = cuts[i].unit,
            .offset = cuts[i].offset,
            .count = cuts[i].count,
            .gradient = tensor_slice(engine->gradient, cuts[i].offset, cuts[i].count),
        };
    free(cuts);
}

int bucket_engine_create(struct bucket_engine **out, struct comm *comm, const struct device *device,
                         struct tensor gradient, const struct bucket_plan *plan, struct error *e) {
    const int64_t total = tensor_count(gradient);
    CHECK(gradient.dtype == DTYPE_F32, "the gradient range is fp32, not %s",
          dtype_table[gradient.dtype].name);
    CHECK(plan->bucket_elements > 0 && plan->first_elements > 0,
          "buckets of %lld elements, the first of %lld", (long long)plan->bucket_elements,
          (long long)plan->first_elements);
    struct bucket_engine *engine = memory_alloc_zeroed(sizeof *engine);
    engine->comm = comm;
    engine->device = device;
    engine->gradient = tensor_of(gradient.data, DTYPE_F32, total);
    engine->plan = *plan;
    *out = engine;
    engine->compressor =
        compressor_create(&engine->plan.compress, comm, device, total, plan->matrix, plan->matrices, e);
    if (!engine->compressor) {
        bucket_engine_free(engine);
        *out = NULL;
        return -1;
    }
    engine->wire.device = device;
    if (engine->compressor->options.wire != DTYPE_F32) {
        arena_take(&engine->wire, engine->compressor->options.wire, total);
        arena_commit(&engine->wire);
        engine->wire_half = arena_take(&engine->wire, engine->compressor->options.wire, total);
    }
    cut(engine);
    return 0;
}

void bucket_engine_replan(struct bucket_engine *engine, const struct bucket_plan *plan) {
    CHECK(!engine->in_step, "buckets are cut anew within a step");
    free(engine->bucket);
    engine->plan = *plan;
    compressor_set_options(engine->compressor, &plan->compress);
    cut(engine);
}

void bucket_engine_free(struct bucket_engine *engine) {
    if (!engine) return;
    compressor_free(engine->compressor);
    arena_free(&engine->wire);
    free(engine->bucket);
    free(engine);
}

void bucket_engine_begin(struct bucket_engine *engine, int64_t step) {
    CHECK(!engine->in_step, "a step of the bucket engine begins before the last one was finished");
    engine->in_step = engine->finite = true;
    engine->step = step;
    engine->ready = engine->bytes_sent = 0;
    engine->ready_buckets = engine->begun = 0;
    engine->compress_seconds = 0;
    for (int i = 0; i < engine->buckets; i++) {
        struct bucket *b = &engine->bucket[i];
        b->round = 0;
        b->sent = b->complete = false;
        b->start = b->end = 0;
        b->view.gradients = 1;
    }
}

/* While a run begins, gradients change too fast for what a method keeps of them. */
static bool is_dense_step(const struct bucket_engine *engine) {
    return engine->step < engine->plan.compress.start_step && !engine->compressor->method->starts_itself;
}

/* A lossy method could hide a bad gradient from the other ranks, or keep it for ever: it is taken out here, and reported. */
static void look_at_gradient(struct bucket_engine *engine, struct bucket *b) {
    double squares;
    if (engine->compressor->method->dense || is_dense_step(engine))
        return; /* the sum shows it to everybody */
    engine->device->sum_squares(NULL, &squares, b->view.gradient);
    if (isfinite(squares)) return;
    engine->finite = false;
    engine->device->fill_zero(NULL, b->view.gradient);
}

static struct tensor wire_of(struct bucket_engine *engine, const struct bucket *b) {
    const struct tensor mine = b->payload.mine;
    if (b->payload.how != SEND_SUM || mine.dtype != DTYPE_F32 || !engine->wire_half.data) return mine;
    /* A payload is never longer than its bucket. */
    return tensor_slice(engine->wire_half, b->view.offset, tensor_count(mine));
}

static float wire_scale(const struct bucket_engine *engine) {
    return engine->wire_half.dtype == DTYPE_F16 ? fp16_scale : 1.0f;
}

static void begin_message(struct bucket_engine *engine, struct bucket *b) {
    const struct payload *p = &b->payload;
    const struct tensor wire = wire_of(engine, b);
    if (wire.dtype != p->mine.dtype) engine->device->cast(NULL, wire, p->mine, wire_scale(engine));
    switch (p->how) {
    case SEND_SUM:
        comm_all_reduce_begin(engine->comm, wire, &b->work);
        break;
    case SEND_GATHER:
        comm_all_gather_begin(engine->comm, p->mine, p->all, &b->work);
        break;
    case SEND_EXCHANGE:
        comm_all_to_all_begin(engine->comm, p->mine, p->all, &b->work);
        break;
    }
    b->sent = true;
}

/* Lets the compressor say what the bucket's next round sends, and sends it. */
static void begin_round(struct bucket_engine *engine, struct bucket *b) {
    const double started = clock_seconds();
    const struct compressor_method *method = engine->compressor->method;
    if (b->round == 0) look_at_gradient(engine, b);
    if (is_dense_step(engine)) {
        b->payload = (struct payload){.how = SEND_SUM, .mine = b->view.gradient};
        b->complete = b->round == 1;
    } else {
        b->complete = b->round == method->rounds ||
                      !method->compress(engine->compressor, &b->view, engine->step, b->round, &b->payload);
    }
    engine->compress_seconds += clock_seconds() - started;
    if (!b->complete) begin_message(engine, b);
}

/* Waits for the bucket's round under way, takes in what it brought and begins the next. */
static void advance(struct bucket_engine *engine, struct bucket *b) {
    if (b->complete) return;
    comm_end(engine->comm, &b->work);
    if (b->start == 0) b->start = b->work.start;
    b->end = b->work.end;
    engine->bytes_sent += b->work.bytes_sent;
    const double started = clock_seconds();
    const struct tensor wire = wire_of(engine, b);
    if (wire.dtype != b->payload.mine.dtype)
        engine->device->cast(NULL, b->payload.mine, wire, 1.0f / wire_scale(engine));
    const struct compressor_method *method = engine->compressor->method;
    if (method->decompress && !is_dense_step(engine))
        method->decompress(engine->compressor, &b->view, engine->step, b->round, &b->payload);
    engine->compress_seconds += clock_seconds() - started;
    b->round++;
    begin_round(engine, b);
}

/* Bucket `begun` starts; those LAG, 2 LAG, ... before it go on with their next rounds. */
static void begin_reductions(struct bucket_engine *engine) {
    for (; engine->begun < engine->ready_buckets; engine->begun++) {
        begin_round(engine, &engine->bucket[engine->begun]);
        for (int round = 1; round < engine->compressor->method->rounds; round++) {
            const int i = engine->begun - round * LAG;
            if (i >= 0 && engine->bucket[i].round < round) advance(engine, &engine->bucket[i]);
        }
    }
}

void bucket_engine_mark_ready(struct bucket_engine *engine, int64_t ready) {
    CHECK(engine->in_step, "gradients marked ready outside of a step");
    CHECK(ready >= engine->ready && ready <= tensor_count(engine->gradient),
          "gradients [0, %lld) marked ready after [0, %lld), of %lld", (long long)ready,
          (long long)engine->ready, (long long)tensor_count(engine->gradient));
    engine->ready = ready;
    for (; engine->ready_buckets < engine->buckets; engine->ready_buckets++) {
        struct bucket *b = &engine->bucket[engine->ready_buckets];
        if (b->view.offset + b->view.count > ready) break;
        b->ready = clock_seconds();
    }
    if (engine->plan.overlap) begin_reductions(engine);
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
    CHECK(engine->in_step, "a step of the bucket engine is finished that was not begun");
    CHECK(engine->ready == tensor_count(engine->gradient),
          "the step is finished with gradients [0, %lld) of %lld marked ready", (long long)engine->ready,
          (long long)tensor_count(engine->gradient));
    const int64_t ranks = engine->comm->size;
    const double waiting_since = clock_seconds();
    begin_reductions(engine);
    /* Round by round, so that the messages of one bucket travel while another's are taken in. */
    for (int round = 1; round <= engine->compressor->method->rounds; round++)
        for (int i = 0; i < engine->buckets; i++)
            if (engine->bucket[i].round < round) advance(engine, &engine->bucket[i]);
    *stats = (struct bucket_stats){
        .compress_ms = 1e3 * engine->compress_seconds,
        .bytes_sent = engine->bytes_sent,
        .bytes_dense = 2 * (ranks - 1) * 4 * tensor_count(engine->gradient) / ranks,
        .finite = engine->finite,
    };
    if (ranks == 1) return;
    stats->exposed_ms = engine->buckets ? 1e3 * (clock_seconds() - waiting_since) : 0;
    stats->comm_ms = 1e3 * time_under_way(engine);
}

void bucket_engine_commit(struct bucket_engine *engine, bool accepted) {
    CHECK(engine->in_step, "a step of the bucket engine is committed that was not begun");
    engine->in_step = false;
    const struct compressor_method *method = engine->compressor->method;
    if (!method->commit || is_dense_step(engine)) return;
    for (int i = 0; i < engine->buckets; i++)
        method->commit(engine->compressor, &engine->bucket[i].view, engine->step, accepted);
}
