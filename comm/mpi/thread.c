/* The communication thread. It makes every MPI call from MPI_Init to MPI_Finalize, so that MPI never has to lock anything;
 * only MPI_Abort may come from another thread, the one whose CHECK failed.
 *
 * It takes what callers begin, starts what may start, looks at all messages under way, and sleeps until the next look or
 * the next begin. Sends and receives start at once. Collectives of a communicator start in order: several all-reduces and
 * broadcasts share exchange.c's window, any other one runs alone. */
#include <stdlib.h>

#include "comm/mpi/mpi_comm.h"

/* A function for the communication thread. */
struct call {
    struct work work; /* first, so that a work is a call */
    void (*function)(void *argument);
    void *argument;
};

bool thread_call(struct mpi_thread *thread, const char *what, void (*function)(void *argument),
                 void *argument, double timeout_s) {
    struct call call = {
        .work = {.kind = WORK_CALL, .what = what}, .function = function, .argument = argument};
    queue_post(&thread->queue, &call.work);
    return queue_wait(&thread->queue, &call.work, timeout_s);
}

static void append(struct mpi *mpi, struct work *work) {
    work->next = NULL;
    if (mpi->first)
        mpi->last->next = work;
    else
        mpi->first = work;
    mpi->last = work;
}

static struct work *take_first(struct mpi *mpi) {
    struct work *work = mpi->first;
    mpi->first = work->next;
    return work;
}

static bool is_exchange(const struct mpi *mpi, const struct work *work) {
    const bool by_library =
        mpi->thread->options.all_reduce == ALL_REDUCE_MPI && work->data.dtype == DTYPE_F32;
    return work->kind == WORK_BROADCAST || (work->kind == WORK_ALL_REDUCE && !by_library);
}

static void accept(struct mpi_thread *thread, struct work *work) {
    struct mpi *mpi = (struct mpi *)work->comm;
    struct call *call = (struct call *)work;
    if (work->kind == WORK_CALL) {
        call->function(call->argument);
        queue_complete(&thread->queue, work);
    } else if (work->kind == WORK_SEND || work->kind == WORK_RECEIVE) {
        work->start = clock_seconds();
        mpi->pairs++;
        pair_start(mpi, work);
    } else {
        append(mpi, work);
    }
}

struct work *thread_take_exchange(struct mpi *mpi) {
    if (!mpi->first || !is_exchange(mpi, mpi->first)) return NULL;
    mpi->exchanges++;
    return take_first(mpi);
}

static void start_alone(struct mpi *mpi, struct work *work) {
    work->start = clock_seconds();
    mpi->alone = work;
    switch ((enum work_kind)work->kind) {
    case WORK_ALL_REDUCE:
        library_start(mpi, work);
        break;
    case WORK_ALL_GATHER:
    case WORK_ALL_TO_ALL:
        rows_start(mpi, work);
        break;
    case WORK_GATHER:
        gather_start(mpi, work);
        break;
    case WORK_BROADCAST:
    case WORK_SEND:
    case WORK_RECEIVE:
    case WORK_CALL:
        CHECK(false, "%s never runs alone", work->what);
    }
}

void work_complete(struct mpi *mpi, struct work *work) {
    if (work->kind == WORK_SEND || work->kind == WORK_RECEIVE)
        mpi->pairs--;
    else if (work == mpi->alone)
        mpi->alone = NULL;
    else
        mpi->exchanges--;
    queue_complete(&mpi->thread->queue, work);
}

static void start_collectives(struct mpi *mpi) {
    while (!mpi->alone) {
        exchange_fill(mpi->exchange);
        if (mpi->exchanges || !mpi->first) return;
        start_alone(mpi, take_first(mpi)); /* may be complete at once */
    }
}

static void start_all(struct mpi_thread *thread) {
    for (struct mpi *mpi = thread->communicators; mpi; mpi = mpi->next) start_collectives(mpi);
}

static void *communication_thread(void *context) {
    struct mpi_thread *thread = context;
    for (;;) {
        const bool idle = thread->messages.count == 0;
        struct work *work = queue_take(&thread->queue, idle);
        if (idle && !work) return NULL;
        if (idle) poll_start(&thread->poll);
        for (; work; work = queue_take(&thread->queue, false)) accept(thread, work);
        start_all(thread);
        messages_look(thread);
        start_all(thread);
        if (thread->messages.count == 0) continue;
        messages_watch(thread);
        poll_sleep(thread);
    }
}

struct mpi_thread *thread_create(const struct comm_options *options) {
    struct mpi_thread *thread = memory_alloc_zeroed(sizeof *thread);
    thread->options = *options;
    queue_open(&thread->queue, communication_thread, thread);
    return thread;
}

void thread_free(struct mpi_thread *thread) {
    queue_close(&thread->queue);
    messages_free(&thread->messages);
    free(thread->heard);
    free(thread);
}
