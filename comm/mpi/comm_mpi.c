/* The communicator over MPI. One thread makes every MPI call from MPI_Init to MPI_Finalize, so that MPI never
 * has to lock anything; only MPI_Abort may come from another thread, the one whose CHECK failed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"

/* A function for the communication thread. */
struct call {
    struct work work; /* first, so that a work is a call */
    void (*function)(struct mpi *mpi, void *argument);
    void *argument;
};

/* Runs it there and waits for it. False if that takes longer than timeout_s. */
static bool call_wait(struct mpi *mpi, const char *what, void (*function)(struct mpi *mpi, void *argument),
                      void *argument, double timeout_s) {
    struct call call = {
        .work = {.kind = WORK_CALL, .what = what}, .function = function, .argument = argument};
    queue_post(&mpi->queue, &call.work);
    return queue_wait(&mpi->queue, &call.work, timeout_s);
}

static bool is_exchange(const struct mpi *mpi, const struct work *work) {
    const bool by_library = mpi->options.all_reduce == ALL_REDUCE_MPI && work->data.dtype == DTYPE_F32;
    return work->kind == WORK_BROADCAST || (work->kind == WORK_ALL_REDUCE && !by_library);
}

static void run_alone(struct mpi *mpi, struct work *work) {
    struct call *call = (struct call *)work;
    switch ((enum work_kind)work->kind) {
    case WORK_ALL_REDUCE:
        library_all_reduce(mpi, work);
        break;
    case WORK_ALL_GATHER:
    case WORK_ALL_TO_ALL:
        rows_exchange(mpi, work);
        break;
    case WORK_CALL:
        call->function(mpi, call->argument);
        break;
    case WORK_BROADCAST:
        CHECK(false, "a broadcast is an exchange");
    }
}

static void *communication_thread(void *context) {
    struct mpi *mpi = context;
    for (struct work *work; (work = queue_take(&mpi->queue));) {
        if (is_exchange(mpi, work)) {
            exchange_run(mpi->exchange, work); /* completes the work itself */
            continue;
        }
        work->start = clock_seconds();
        run_alone(mpi, work);
        queue_complete(&mpi->queue, work);
    }
    return NULL;
}

static void abort_job(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_begin(struct comm *comm, struct work *work) {
    queue_post(&((struct mpi *)comm)->queue, work);
}

/* The thread ends the job if the work makes no progress; so this need not look at the clock. */
static void mpi_end(struct comm *comm, struct work *work) {
    queue_wait(&((struct mpi *)comm)->queue, work, INFINITY);
}

static bool mpi_done(struct comm *comm, struct work *work) {
    return queue_done(&((struct mpi *)comm)->queue, work);
}

struct gather {
    const char *what;
    const void *record;
    size_t bytes;
    char *all;
};

static void gather(struct mpi *mpi, void *argument) {
    struct gather *g = argument;
    int size = mpi->comm.size, me = mpi->comm.rank, bytes = (int)g->bytes, count = 0;
    MPI_Request *request = memory_alloc(sizeof *request * 2 * (size_t)size);
    int *peer = memory_alloc(sizeof *peer * 2 * (size_t)size);
    for (int r = 0; r < size; r++) {
        char *place = g->all + (size_t)r * g->bytes;
        if (r == me) continue;
        peer[count] = peer[count + 1] = r;
        MPI_CALL(MPI_Irecv(place, bytes, MPI_BYTE, r, GATHER_TAG, mpi->world, &request[count++]));
        MPI_CALL(MPI_Isend(g->record, bytes, MPI_BYTE, r, GATHER_TAG, mpi->world, &request[count++]));
    }
    memcpy(g->all + (size_t)me * g->bytes, g->record, g->bytes);
    poll_wait(mpi, request, peer, count, g->what, bytes);
    free(request);
    free(peer);
}

static void mpi_gather(struct comm *comm, const char *what, const void *record, size_t bytes, void *all) {
    struct gather g = {.what = what, .record = record, .bytes = bytes, .all = all};
    CHECK(bytes < 1 << 30, "%s of %zu bytes: small records only", what, bytes);
    call_wait((struct mpi *)comm, what, gather, &g, INFINITY);
}

static void mpi_describe(const struct comm *comm, char *text, size_t size) {
    const struct mpi *mpi = (const struct mpi *)comm;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(library, &length); /* any thread may ask, at any time */
    library[strcspn(library, ",\n")] = '\0';
    snprintf(text, size, "%s, %s, %d rank%s on %d host%s, all-reduce %s", library,
             mpi->thread_level == MPI_THREAD_MULTIPLE ? "thread multiple" : "thread serialized", comm->size,
             comm->size == 1 ? "" : "s", comm->hosts, comm->hosts == 1 ? "" : "s",
             mpi->options.all_reduce == ALL_REDUCE_DIRECT ? "direct" : "by MPI");
}

/* Hosts are counted by their lowest rank. */
static void find_topology(struct mpi *mpi) {
    MPI_Comm host;
    MPI_CALL(MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, mpi->comm.rank, MPI_INFO_NULL, &host));
    MPI_CALL(MPI_Comm_rank(host, &mpi->comm.local_rank));
    MPI_CALL(MPI_Comm_size(host, &mpi->comm.local_size));
    MPI_CALL(MPI_Comm_free(&host));
    int lowest = mpi->comm.local_rank == 0;
    MPI_CALL(MPI_Allreduce(&lowest, &mpi->comm.hosts, 1, MPI_INT, MPI_SUM, mpi->world));
}

/* Open MPI over TCP reads these when it starts; what the user has set stays. Every message of exchange.c fits
 * into the eager limit: sent at once, it keeps the link full, where the handshake of larger messages waits
 * for a look of either side and leaves a quarter of the link unused. Receivers hold at most a window of such
 * messages for each peer. */
static void tune_library(void) {
    setenv("OMPI_MCA_btl_tcp_eager_limit", "524288", 0);
    setenv("OMPI_MCA_btl_tcp_max_send_size", "524288", 0);
}

static void start(struct mpi *mpi, void *argument) {
    (void)argument;
    tune_library();
    MPI_CALL(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &mpi->thread_level));
    if (mpi->thread_level < MPI_THREAD_SERIALIZED) return;
    job_set_abort_handler(abort_job);
    MPI_CALL(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world));
    MPI_CALL(MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN));
    MPI_CALL(MPI_Comm_rank(mpi->world, &mpi->comm.rank));
    MPI_CALL(MPI_Comm_size(mpi->world, &mpi->comm.size));
    log_set_rank(mpi->comm.size > 1 ? mpi->comm.rank : -1);
    find_topology(mpi);
    mpi->exchange = exchange_create(mpi);
}

static void stop(struct mpi *mpi, void *argument) {
    (void)argument;
    exchange_free(mpi->exchange);
    if (mpi->world != MPI_COMM_NULL) MPI_CALL(MPI_Comm_free(&mpi->world));
    job_set_abort_handler(NULL);
    MPI_CALL(MPI_Finalize());
}

static void mpi_free(struct mpi *mpi) {
    double timeout_s = mpi->options.timeout_s;
    if (!call_wait(mpi, "close", stop, NULL, timeout_s))
        job_abort(EXIT_PEER_LOST, __FILE__, __LINE__, "MPI_Finalize does not return after %g s", timeout_s);
    queue_close(&mpi->queue);
    free(mpi);
}

/* The barrier finds a rank that is gone, and names it, where MPI_Finalize would wait for it for ever. */
static void mpi_close(struct comm *comm) {
    comm_barrier(comm);
    mpi_free((struct mpi *)comm);
}

static const struct comm_ops mpi_ops = {
    .begin = mpi_begin,
    .end = mpi_end,
    .done = mpi_done,
    .gather = mpi_gather,
    .close = mpi_close,
    .describe = mpi_describe,
};

int mpi_open(struct comm **comm, const struct comm_options *options, struct error *e) {
    struct mpi *mpi = memory_alloc_zeroed(sizeof *mpi);
    mpi->comm.ops = &mpi_ops;
    mpi->options = *options;
    mpi->world = MPI_COMM_NULL;
    queue_open(&mpi->queue, communication_thread, mpi);
    if (!call_wait(mpi, "open", start, NULL, options->timeout_s))
        job_abort(EXIT_PEER_LOST, __FILE__, __LINE__,
                  "MPI_Init does not return after %g s: are all ranks started, and can their hosts reach "
                  "each other?",
                  options->timeout_s);
    if (mpi->thread_level >= MPI_THREAD_SERIALIZED) {
        *comm = &mpi->comm;
        return 0;
    }
    int level = mpi->thread_level;
    mpi_free(mpi);
    return error_set(
        e,
        "this MPI library gives thread level %d only, and MPI_THREAD_SERIALIZED (%d) is needed: its "
        "calls are made by a communication thread; use an MPI built with thread support",
        level, MPI_THREAD_SERIALIZED);
}
