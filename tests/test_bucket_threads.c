/* The overlap engine and the queue between two threads, without MPI: the communicator is a thread that
 * pretends to have a second rank with the same gradients. Meant for SAN=thread, where any unordered access
 * ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine.h"
#include "comm/ops.h"
#include "comm/queue.h"

struct twin {
    struct comm comm; /* first, so that a comm is a twin */
    struct queue queue;
};

static void *twin_thread(void *context) {
    struct twin *twin = context;
    for (struct work *work; (work = queue_take(&twin->queue, true));) {
        do {
            work->start = clock_seconds();
            float *data = tensor_f32(work->data);
            for (int64_t i = 0; i < tensor_count(work->data); i++) data[i] += data[i];
            work->bytes_sent = 4 * tensor_count(work->data);
            if (work->data.dim[0] % 2) queue_sleep(&twin->queue, 300e-6);
            queue_complete(&twin->queue, work);
        } while ((work = queue_take(&twin->queue, false)));
    }
    return NULL;
}

static void twin_begin(struct comm *comm, struct work *work) {
    queue_post(&((struct twin *)comm)->queue, work);
}

static void twin_end(struct comm *comm, struct work *work) {
    while (!queue_wait(&((struct twin *)comm)->queue, work, 0.0001)) continue;
}

static bool twin_done(struct comm *comm, struct work *work) {
    return queue_done(&((struct twin *)comm)->queue, work);
}

static const struct comm_ops twin_ops = {.begin = twin_begin, .end = twin_end, .done = twin_done};

static void run_steps(struct comm *comm, int64_t total, int64_t bucket, int64_t first, bool overlap) {
    float *gradient = memory_alloc(sizeof *gradient * (size_t)total);
    struct bucket_engine *engine =
        engine_dense(comm, tensor_of(gradient, DTYPE_F32, total), bucket, first, overlap);
    for (int step = 0; step < 3; step++) {
        struct bucket_stats stats;
        bucket_engine_begin(engine, step);
        for (int64_t i = 0; i < total; i++) {
            gradient[i] = (float)(i % 977 + step);
            if (i % 701 == 0) bucket_engine_mark_ready(engine, i + 1);
        }
        bucket_engine_mark_ready(engine, total);
        bucket_engine_finish(engine, &stats);
        bucket_engine_commit(engine, true);
        for (int64_t i = 0; i < total; i++) assert_true(gradient[i] == (float)(2 * (i % 977 + step)));
        assert_int_equal(stats.bytes_sent, 4 * total);
        assert_int_equal(stats.bytes_dense, 4 * total);
    }
    bucket_engine_free(engine);
    free(gradient);
}

static void test_engine_over_a_thread(void **state) {
    (void)state;
    struct twin twin = {.comm = {.ops = &twin_ops, .size = 2, .local_size = 2, .hosts = 1}};
    queue_open(&twin.queue, twin_thread, &twin);
    for (int overlap = 0; overlap < 2; overlap++) {
        run_steps(&twin.comm, 50021, 4096, 100, overlap);
        run_steps(&twin.comm, 50021, 333, 1, overlap);
        run_steps(&twin.comm, 100, 1 << 20, 1 << 20, overlap);
    }
    queue_close(&twin.queue);
}

/* What was begun before queue_close is still done. */
static void test_close_finishes_what_was_begun(void **state) {
    (void)state;
    enum { WORKS = 50 };
    static float value[WORKS];
    struct work work[WORKS];
    struct twin twin = {.comm = {.ops = &twin_ops, .size = 2, .local_size = 2, .hosts = 1}};
    queue_open(&twin.queue, twin_thread, &twin);
    for (int i = 0; i < WORKS; i++) {
        value[i] = (float)i;
        comm_all_reduce_begin(&twin.comm, tensor_of(&value[i], DTYPE_F32, 1), &work[i]);
    }
    queue_close(&twin.queue);
    for (int i = 0; i < WORKS; i++) {
        assert_int_equal(work[i].state, WORK_DONE);
        assert_true(value[i] == (float)(2 * i));
    }
}

static void test_wait_ends_in_time(void **state) {
    (void)state;
    struct work never = {.kind = WORK_CALL, .what = "nothing"};
    struct queue queue = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_cond_init(&queue.completed, NULL);
    double before = clock_seconds();
    assert_false(queue_wait(&queue, &never, 0));
    assert_true(clock_seconds() - before < 60);
    pthread_cond_destroy(&queue.completed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_over_a_thread),
        cmocka_unit_test(test_close_finishes_what_was_begun),
        cmocka_unit_test(test_wait_ends_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
