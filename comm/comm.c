#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/ops.h"

/* Any of these is set by an MPI launcher: Open MPI's mpirun, MPICH's and Slurm's PMI, PMIx. */
static bool under_mpi_launcher(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return true;
    return false;
}

int comm_open(struct comm **comm, const char *kind, const struct comm_options *options, struct error *e) {
    *comm = NULL;
    if (strcmp(kind, "auto") == 0) kind = under_mpi_launcher() ? "mpi" : "self";
    if (strcmp(kind, "self") == 0) return self_open(comm, options, e);
    if (strcmp(kind, "mpi") == 0) return mpi_open(comm, options, e);
    return error_set(e, "unknown communicator '%s': expected auto, self or mpi", kind);
}

void comm_set_places(struct comm *comm, const struct comm_place *place) {
    const int here = place[comm->rank].host;
    comm->place = place;
    comm->local_rank = comm->local_size = comm->hosts = 0;
    for (int r = 0; r < comm->size; r++) {
        bool first = true;
        for (int q = 0; q < r && first; q++) first = place[q].host != place[r].host;
        comm->hosts += first;
        if (place[r].host != here) continue;
        if (r < comm->rank) comm->local_rank++;
        comm->local_size++;
    }
}

void comm_split(struct comm *comm, int color, int key, struct comm **child) {
    *child = comm->ops->split(comm, color < 0 ? COMM_NO_COLOR : color, key);
}

void comm_close(struct comm *comm) {
    if (comm) comm->ops->close(comm);
}

static void begin(struct comm *comm, struct work *work, enum work_kind kind, const char *what,
                  struct tensor data, int root) {
    *work = (struct work){
        .kind = kind, .what = what, .data = data, .root = root, .comm = comm, .posted = clock_seconds()};
    comm->ops->begin(comm, work);
}

void comm_all_reduce_begin(struct comm *comm, struct tensor data, struct work *work) {
    CHECK(data.dtype != DTYPE_I32, "all-reduce adds floating-point numbers, not %s",
          dtype_table[data.dtype].name);
    begin(comm, work, WORK_ALL_REDUCE, "all-reduce", data, 0);
}

static void begin_rows(struct comm *comm, struct work *work, enum work_kind kind, const char *what,
                       struct tensor mine, struct tensor all, int64_t expected) {
    CHECK(all.dtype == mine.dtype && tensor_count(all) == expected,
          "%s of %lld elements into %lld, expected %lld", what, (long long)tensor_count(mine),
          (long long)tensor_count(all), (long long)expected);
    *work = (struct work){
        .kind = kind, .what = what, .data = mine, .all = all, .comm = comm, .posted = clock_seconds()};
    comm->ops->begin(comm, work);
}

void comm_all_gather_begin(struct comm *comm, struct tensor mine, struct tensor all, struct work *work) {
    begin_rows(comm, work, WORK_ALL_GATHER, "all-gather", mine, all, comm->size * tensor_count(mine));
}

void comm_all_to_all_begin(struct comm *comm, struct tensor mine, struct tensor all, struct work *work) {
    begin_rows(comm, work, WORK_ALL_TO_ALL, "all-to-all", mine, all, tensor_count(mine));
}

void comm_broadcast_begin(struct comm *comm, struct tensor data, int root, struct work *work) {
    CHECK(root >= 0 && root < comm->size, "broadcast from rank %d of %d", root, comm->size);
    begin(comm, work, WORK_BROADCAST, "broadcast", data, root);
}

static void check_peer(const struct comm *comm, const char *what, int peer) {
    CHECK(peer >= 0 && peer < comm->size && peer != comm->rank,
          "rank %d of %d begins a %s with rank %d: the peer must be another rank of the communicator",
          comm->rank, comm->size, what, peer);
}

void comm_send_begin(struct comm *comm, struct tensor data, int to, struct work *work) {
    check_peer(comm, "send", to);
    begin(comm, work, WORK_SEND, "send", data, to);
}

void comm_receive_begin(struct comm *comm, struct tensor data, int from, struct work *work) {
    check_peer(comm, "receive", from);
    begin(comm, work, WORK_RECEIVE, "receive", data, from);
}

void comm_end(struct comm *comm, struct work *work) {
    comm->ops->end(comm, work);
}

bool comm_done(struct comm *comm, struct work *work) {
    return comm->ops->done(comm, work);
}

static double combine(double a, double b, enum reduction reduction) {
    switch (reduction) {
    case REDUCE_SUM:
        return a + b;
    case REDUCE_MAX:
        return a > b ? a : b;
    case REDUCE_MIN:
        return a < b ? a : b;
    }
    CHECK(false, "unknown reduction %d", (int)reduction);
    return 0;
}

void comm_reduce(struct comm *comm, double *values, int count, enum reduction reduction) {
    if (count == 0) return;
    double *all = memory_alloc(sizeof *all * (size_t)count * (size_t)comm->size);
    comm->ops->gather(comm, "reduce", values, sizeof *values * (size_t)count, all);
    memcpy(values, all, sizeof *values * (size_t)count);
    for (int r = 1; r < comm->size; r++)
        for (int i = 0; i < count; i++)
            values[i] = combine(values[i], all[r * (int64_t)count + i], reduction);
    free(all);
}

void comm_barrier(struct comm *comm) {
    char here = 0, *all = memory_alloc((size_t)comm->size);
    comm->ops->gather(comm, "barrier", &here, 1, all);
    free(all);
}

bool comm_same(struct comm *comm, double value) {
    double range[] = {value, -value};
    comm_reduce(comm, range, 2, REDUCE_MAX);
    return range[0] == -range[1];
}

int comm_agree(struct comm *comm, int status, struct error *e) {
    double first = status ? comm->rank : comm->size;
    comm_reduce(comm, &first, 1, REDUCE_MIN);
    if ((int)first == comm->size) return 0;
    /* Messages travel only in the rare case that there is one. */
    struct error *all = memory_alloc(sizeof *all * (size_t)comm->size);
    comm->ops->gather(comm, "agree", e, sizeof *e, all);
    *e = all[(int)first];
    free(all);
    return -1;
}

void comm_describe(const struct comm *comm, char *text, size_t size) {
    comm->ops->describe(comm, text, size);
}
