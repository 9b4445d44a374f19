/* ranks: 1 2 3 4
 * The overlap engine: what it reduces, in which order, and what it reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine.h"

static struct comm *comm;
enum { TOTAL = 300007 };
static const int64_t watermarks[] = {0, 1, 1, 12345, 99999, 100000, 250001, TOTAL};
enum { WATERMARKS = sizeof watermarks / sizeof *watermarks };

/* Not inlined: no multiplication may fuse into the sum. */
static __attribute__((noinline)) float gradient_value(int rank, int64_t i) {
    return (float)((i * 7919 + rank * 104729) % 10007 - 5003) * (i % 3 ? 1e-3f : 17.0f);
}

/* A backward pass: gradients are written up to a watermark, then marked ready, and so on. Until written they
 * hold what no sum may contain. */
static void run_step(struct bucket_engine *engine, float *gradient, struct bucket_stats *stats) {
    for (int64_t i = 0; i < TOTAL; i++) gradient[i] = 1e30f;
    bucket_engine_begin(engine, 0);
    int64_t written = 0;
    for (int w = 0; w < WATERMARKS; w++) {
        for (; written < watermarks[w]; written++) gradient[written] = gradient_value(comm->rank, written);
        bucket_engine_mark_ready(engine, written);
        usleep((unsigned)((comm->rank + w) % 3) * 500);
    }
    bucket_engine_finish(engine, stats);
    bucket_engine_commit(engine, true);
}

static void check_sum(const float *gradient) {
    for (int64_t i = 0; i < TOTAL; i++) {
        float expected = gradient_value(0, i);
        for (int r = 1; r < comm->size; r++) expected += gradient_value(r, i);
        if (memcmp(&gradient[i], &expected, sizeof expected)) fail_msg("element %ld", (long)i);
    }
}

/* Two steps with each size: an engine is used again. The sums have the bits of additions in the order of
 * ranks, so no size and no overlap changes any. */
static void test_sums_do_not_depend_on_buckets_or_overlap(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {
        {TOTAL, TOTAL}, {1 << 30, 1 << 30}, {65536, 1000}, {9973, 1}, {100000, 100000}};
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int overlap = 0; overlap < 2; overlap++) {
            struct bucket_engine *engine =
                engine_dense(comm, tensor_of(gradient, DTYPE_F32, TOTAL), sizes[s][0], sizes[s][1], overlap);
            for (int step = 0; step < 2; step++) {
                struct bucket_stats stats;
                run_step(engine, gradient, &stats);
                check_sum(gradient);
            }
            bucket_engine_free(engine);
        }
    free(gradient);
}

static void test_buckets_cover_the_range(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{10, 3, 4}, {7, 100, 1}, {100, 100, 1}, {31, 8, 4}, {1, 1, TOTAL}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t total = sizes[s][2] == TOTAL ? TOTAL : 25;
        struct bucket_engine *engine =
            engine_dense(comm, tensor_of(NULL, DTYPE_F32, total), sizes[s][0], sizes[s][1], true);
        int64_t end = 0;
        for (int i = 0; i < engine->buckets; i++) {
            assert_int_equal(engine->bucket[i].view.offset, end);
            int64_t full = i == 0 ? sizes[s][1] : sizes[s][0], count = engine->bucket[i].view.count;
            assert_true(count == full || (i == engine->buckets - 1 && count > 0 && count < full));
            end += count;
        }
        assert_int_equal(end, total);
        bucket_engine_free(engine);
    }
}

static void test_nothing_to_reduce(void **state) {
    (void)state;
    struct bucket_engine *engine = engine_dense(comm, tensor_of(NULL, DTYPE_F32, 0), 100, 10, true);
    struct bucket_stats stats;
    assert_int_equal(engine->buckets, 0);
    bucket_engine_begin(engine, 0);
    bucket_engine_mark_ready(engine, 0);
    bucket_engine_finish(engine, &stats);
    bucket_engine_commit(engine, true);
    assert_true(stats.comm_ms == 0 && stats.exposed_ms == 0 && stats.bytes_sent == 0);
    bucket_engine_free(engine);
    bucket_engine_free(NULL);
}

static void test_times_and_bytes(void **state) {
    (void)state;
    float *gradient = memory_alloc(sizeof *gradient * TOTAL);
    for (int overlap = 0; overlap < 2; overlap++) {
        struct bucket_engine *engine =
            engine_dense(comm, tensor_of(gradient, DTYPE_F32, TOTAL), 40000, 1000, overlap);
        struct bucket_stats stats;
        double before = clock_seconds();
        run_step(engine, gradient, &stats);
        double whole_ms = 1e3 * (clock_seconds() - before);
        int64_t p = comm->size;
        double sent = (double)stats.bytes_sent;
        comm_reduce(comm, &sent, 1, REDUCE_SUM);
        assert_true(sent == 2.0 * (double)(p - 1) * 4 * TOTAL);
        assert_int_equal(stats.bytes_dense, 2 * (p - 1) * 4 * TOTAL / p);
        assert_true(stats.comm_ms <= whole_ms && stats.exposed_ms <= whole_ms);
        if (p == 1) assert_true(stats.comm_ms == 0 && stats.exposed_ms == 0);
        if (p > 1) assert_true(stats.comm_ms > 0);
        if (p > 1 && !overlap) assert_true(stats.exposed_ms >= stats.comm_ms); /* nothing is hidden */
        double last_ready = engine->bucket[engine->buckets - 1].ready;
        for (int i = 0; p > 1 && i < engine->buckets; i++) {
            struct bucket *b = &engine->bucket[i];
            assert_true(b->ready <= b->start && b->start <= b->end);
            assert_true(i == 0 || (b[-1].ready <= b->ready && b[-1].start <= b->start));
            if (!overlap) assert_true(b->start >= last_ready);
        }
        bucket_engine_free(engine);
    }
    free(gradient);
}

static jmp_buf aborted;
static void catch_abort(int code) {
    longjmp(aborted, code);
}

/* Runs on one rank only, with a handler that returns here in place of the one that ends the job; so it is
 * last. */
static void test_misuse_is_caught(void **state) {
    (void)state;
    float gradient[20] = {0};
    struct bucket_stats stats;
    job_set_abort_handler(catch_abort);
    for (volatile int misuse = 0; misuse < 6; misuse++) {
        struct bucket_engine *engine = engine_dense(comm, tensor_of(gradient, DTYPE_F32, 20), 50, 50, false);
        if (setjmp(aborted) == 0) {
            if (misuse == 0) bucket_engine_mark_ready(engine, 5);
            if (misuse == 1) bucket_engine_finish(engine, &stats);
            bucket_engine_begin(engine, 0);
            if (misuse == 2) bucket_engine_begin(engine, 0);
            bucket_engine_mark_ready(engine, 10);
            if (misuse == 3) bucket_engine_mark_ready(engine, 9);
            if (misuse == 4) bucket_engine_mark_ready(engine, 21);
            if (misuse == 5) bucket_engine_finish(engine, &stats);
            fail_msg("misuse %d went unnoticed", misuse);
        }
        bucket_engine_free(engine);
    }
}

int main(void) {
    struct error e;
    struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    CHECK(comm_open(&comm, "auto", &options, &e) == 0, "%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_do_not_depend_on_buckets_or_overlap),
        cmocka_unit_test(test_buckets_cover_the_range),
        cmocka_unit_test(test_nothing_to_reduce),
        cmocka_unit_test(test_times_and_bytes),
        cmocka_unit_test(test_misuse_is_caught),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_close(comm);
    return failed;
}
