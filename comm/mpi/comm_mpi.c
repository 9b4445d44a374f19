/* Communicators over MPI: the world, and the children that split it. All of a process share one communication thread,
 * which lives as long as any of them; what a function here does with MPI it does by a call on that thread. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/mpi/mpi_comm.h"

void mpi_check(int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code != MPI_SUCCESS) MPI_Error_string(code, text, &length);
    CHECK(code == MPI_SUCCESS, "%s: %s", call, text);
}

/* Ranks that wait for a rank that waits for a lost one give up at about the same time: each gets to say for whom it waits,
 * before the first to do so ends them all. */
static void abort_job(int code) {
    const struct timespec moment = {.tv_sec = 1};
    if (code == EXIT_PEER_LOST) nanosleep(&moment, NULL);
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_begin(struct comm *comm, struct work *work) {
    queue_post(&((struct mpi *)comm)->thread->queue, work);
}

/* The thread ends the job if the work makes no progress; so this need not look at the clock. */
static void mpi_end(struct comm *comm, struct work *work) {
    queue_wait(&((struct mpi *)comm)->thread->queue, work, INFINITY);
}

static bool mpi_done(struct comm *comm, struct work *work) {
    return queue_done(&((struct mpi *)comm)->thread->queue, work);
}

static void mpi_gather(struct comm *comm, const char *what, const void *record, size_t bytes, void *all) {
    struct gather g = {.work = {.kind = WORK_GATHER, .what = what, .comm = comm},
                       .record = record,
                       .bytes = bytes,
                       .all = all};
    mpi_begin(comm, &g.work);
    mpi_end(comm, &g.work);
}

static void mpi_describe(const struct comm *comm, char *text, size_t size) {
    const struct mpi_thread *thread = ((const struct mpi *)comm)->thread;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(library, &length); /* any thread may ask, at any time */
    library[strcspn(library, ",\n")] = '\0';
    snprintf(text, size, "%s, %s, %d rank%s on %d host%s, all-reduce %s", library,
             thread->level == MPI_THREAD_MULTIPLE ? "thread multiple" : "thread serialized", comm->size,
             comm->size == 1 ? "" : "s", comm->hosts, comm->hosts == 1 ? "" : "s",
             thread->options.all_reduce == ALL_REDUCE_DIRECT ? "direct" : "by MPI");
}

/* On the thread, as all that follows: makes mpi, whose handle and places are there, one of the thread's communicators. */
static void enter(struct mpi *mpi, struct comm_place *place) {
    MPI_CALL(MPI_Comm_set_errhandler(mpi->handle, MPI_ERRORS_RETURN));
    comm_set_places(&mpi->comm, place);
    mpi->exchange = exchange_create(mpi);
    mpi->next = mpi->thread->communicators;
    mpi->thread->communicators = mpi;
}

static struct comm_place *find_places(const struct mpi *world) {
    struct comm_place mine = {.world_rank = world->comm.rank, .host = world->comm.rank};
    struct comm_place *place = memory_alloc(sizeof *place * (size_t)world->comm.size);
    MPI_Comm host;
    gethostname(mine.host_name, sizeof mine.host_name - 1);
    MPI_CALL(
        MPI_Comm_split_type(world->handle, MPI_COMM_TYPE_SHARED, world->comm.rank, MPI_INFO_NULL, &host));
    MPI_CALL(MPI_Bcast(&mine.host, 1, MPI_INT, 0, host));
    MPI_CALL(MPI_Comm_free(&host));
    MPI_CALL(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, place, sizeof mine, MPI_BYTE, world->handle));
    return place;
}

/* Open MPI over TCP reads these when it starts; what the user has set stays. Every piece of a message fits into the eager
 * limit, very long messages aside: sent at once, it keeps the link full, where the handshake of larger messages waits for
 * a look of either side and leaves a quarter of the link unused. */
static void tune_library(void) {
    setenv("OMPI_MCA_btl_tcp_eager_limit", "524288", 0);
    setenv("OMPI_MCA_btl_tcp_max_send_size", "524288", 0);
}

static void start(void *argument) {
    struct mpi *mpi = argument;
    struct mpi_thread *thread = mpi->thread;
    tune_library();
    MPI_CALL(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &thread->level));
    if (thread->level < MPI_THREAD_SERIALIZED) {
        MPI_CALL(MPI_Finalize());
        return;
    }
    job_set_abort_handler(abort_job);
    MPI_CALL(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->handle));
    MPI_CALL(MPI_Comm_rank(mpi->handle, &mpi->comm.rank));
    MPI_CALL(MPI_Comm_size(mpi->handle, &mpi->comm.size));
    log_set_rank(mpi->comm.size > 1 ? mpi->comm.rank : -1);
    thread->heard = memory_alloc_zeroed(sizeof *thread->heard * (size_t)mpi->comm.size);
    enter(mpi, find_places(mpi));
}

/* MPI ends with the last communicator. */
static void leave(void *argument) {
    struct mpi *mpi = argument, **link = &mpi->thread->communicators;
    CHECK(!mpi->first && !mpi->alone && !mpi->exchanges && !mpi->pairs,
          "a communicator is closed while operations are under way: comm_end each of them first");
    while (*link != mpi) link = &(*link)->next;
    *link = mpi->next;
    MPI_CALL(MPI_Comm_free(&mpi->handle));
    if (mpi->thread->communicators) return;
    job_set_abort_handler(NULL);
    MPI_CALL(MPI_Finalize());
}

static void mpi_free(struct mpi *mpi) {
    exchange_free(mpi->exchange);
    free((void *)mpi->comm.place);
    free(mpi);
}

/* The barrier finds a rank that is gone, and names it, where MPI_Finalize would wait for it for ever. */
static void mpi_close(struct comm *comm) {
    struct mpi *mpi = (struct mpi *)comm;
    struct mpi_thread *thread = mpi->thread;
    const double timeout_s = thread->options.timeout_s;
    comm_barrier(comm);
    if (!thread_call(thread, "close", leave, mpi, timeout_s))
        job_abort(EXIT_PEER_LOST, __FILE__, __LINE__, "MPI_Finalize does not return after %g s", timeout_s);
    if (!thread->communicators) thread_free(thread);
    mpi_free(mpi);
}

struct split {
    struct mpi *parent, *child; /* child NULL: none for this rank */
    int color, key;
    struct comm_place *place;
};

static void split(void *argument) {
    struct split *s = argument;
    MPI_Comm handle;
    MPI_CALL(MPI_Comm_split(s->parent->handle, s->child ? s->color : MPI_UNDEFINED, s->key, &handle));
    if (!s->child) return;
    s->child->handle = handle;
    enter(s->child, s->place);
}

/* The ranks of my color, in the order of their keys: records are {color, key}. */
static struct mpi *create_child(const struct mpi *parent, const int (*record)[2], struct comm_place *place) {
    const struct comm *comm = &parent->comm;
    const int *mine = record[comm->rank];
    struct mpi *child = memory_alloc_zeroed(sizeof *child);
    child->comm.ops = comm->ops;
    child->thread = parent->thread;
    for (int r = 0; r < comm->size; r++) {
        int before = 0;
        if (record[r][0] != mine[0]) continue;
        for (int q = 0; q < comm->size; q++)
            before += record[q][0] == mine[0] &&
                      (record[q][1] < record[r][1] || (record[q][1] == record[r][1] && q < r));
        place[before] = comm->place[r];
        child->comm.size++;
        if (r == comm->rank) child->comm.rank = before;
    }
    return child;
}

/* When the records are here all ranks have come, and the library's own split, which blocks the thread, lasts a moment. */
static struct comm *mpi_split(struct comm *comm, int color, int key) {
    struct mpi *parent = (struct mpi *)comm;
    const double timeout_s = parent->thread->options.timeout_s;
    const int mine[2] = {color, key};
    int(*record)[2] = memory_alloc(sizeof *record * (size_t)comm->size);
    struct split s = {.parent = parent, .color = color, .key = key};
    comm->ops->gather(comm, "split", mine, sizeof mine, record);
    if (color != COMM_NO_COLOR) {
        s.place = memory_alloc(sizeof *s.place * (size_t)comm->size);
        s.child = create_child(parent, (const int(*)[2])record, s.place);
    }
    free(record);
    if (!thread_call(parent->thread, "split", split, &s, timeout_s))
        job_abort(EXIT_PEER_LOST, __FILE__, __LINE__, "MPI_Comm_split does not return after %g s", timeout_s);
    return s.child ? &s.child->comm : NULL;
}

static const struct comm_ops mpi_ops = {
    .begin = mpi_begin,
    .end = mpi_end,
    .done = mpi_done,
    .gather = mpi_gather,
    .split = mpi_split,
    .close = mpi_close,
    .describe = mpi_describe,
};

int mpi_open(struct comm **comm, const struct comm_options *options, struct error *e) {
    struct mpi *mpi = memory_alloc_zeroed(sizeof *mpi);
    mpi->comm.ops = &mpi_ops;
    mpi->thread = thread_create(options);
    if (!thread_call(mpi->thread, "open", start, mpi, options->timeout_s))
        job_abort(EXIT_PEER_LOST, __FILE__, __LINE__,
                  "MPI_Init does not return after %g s: are all ranks started, and can their hosts reach "
                  "each other?",
                  options->timeout_s);
    const int level = mpi->thread->level;
    if (level >= MPI_THREAD_SERIALIZED) {
        *comm = &mpi->comm;
        return 0;
    }
    thread_free(mpi->thread);
    free(mpi);
    return error_set(
        e,
        "this MPI library gives thread level %d only, and MPI_THREAD_SERIALIZED (%d) is needed: its "
        "calls are made by a communication thread; use an MPI built with thread support",
        level, MPI_THREAD_SERIALIZED);
}
