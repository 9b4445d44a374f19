/* One rank goes away in the middle of a job, or sends what nobody expects: what do the others do? For test_comm.py.
 *
 *     mpirun -np 3 comm_stop OPERATION RANK stop|sleep|kill
 *
 * OPERATION: all-reduce, all-reduce-mpi, broadcast, reduce, barrier, split, close; send: rank 0 to rank 1; receive: rank 0
 * from rank 1; chain: rank 0 receives from rank 1, rank 2 from rank 0; child: all-reduce of ranks 1 and 2; short, long:
 * rank 1 sends fewer or more elements to rank 0 than it expects. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"

enum { COUNT = 3000000 };

static bool is(const char *word, const char *operation) {
    return strcmp(word, operation) == 0;
}

static void all_reduce(struct comm *comm, float *data) {
    struct work work;
    comm_all_reduce_begin(comm, tensor_of(data, DTYPE_F32, COUNT), &work);
    comm_end(comm, &work);
}

static void pass(struct comm *comm, int from, int to, float *data, int64_t sent, int64_t expected) {
    struct work work;
    if (comm->rank != from && comm->rank != to) return;
    if (comm->rank == from)
        comm_send_begin(comm, tensor_of(data, DTYPE_F32, sent), to, &work);
    else
        comm_receive_begin(comm, tensor_of(data, DTYPE_F32, expected), from, &work);
    comm_end(comm, &work);
}

static void run_operation(struct comm *comm, struct comm *child, const char *operation, float *data) {
    struct work work;
    struct comm *another;
    double value = 1;
    if (is("all-reduce", operation) || is("all-reduce-mpi", operation)) all_reduce(comm, data);
    if (is("child", operation)) all_reduce(child, data);
    if (is("send", operation)) pass(comm, 0, 1, data, COUNT, COUNT);
    if (is("receive", operation) || is("chain", operation)) pass(comm, 1, 0, data, COUNT, COUNT);
    if (is("chain", operation)) pass(comm, 0, 2, data, COUNT, COUNT);
    if (is("short", operation)) pass(comm, 1, 0, data, 100, 200);
    if (is("long", operation)) pass(comm, 1, 0, data, 200, 100);
    if (is("broadcast", operation)) {
        comm_broadcast_begin(comm, tensor_of(data, DTYPE_F32, COUNT), 1, &work);
        comm_end(comm, &work);
    }
    if (is("reduce", operation)) comm_reduce(comm, &value, 1, REDUCE_SUM);
    if (is("barrier", operation)) comm_barrier(comm);
    if (is("split", operation)) {
        comm_split(comm, 0, 0, &another);
        comm_close(another);
    }
}

static void go_away(const char *how) {
    if (is("stop", how)) raise(SIGSTOP);
    if (is("kill", how)) raise(SIGKILL);
    sleep(120);
}

int main(int argc, char **argv) {
    struct error e;
    struct comm *comm, *child;
    CHECK(argc == 4, "comm_stop OPERATION RANK stop|sleep|kill");
    const bool by_mpi = is("all-reduce-mpi", argv[1]);
    struct comm_options options = {.all_reduce = by_mpi ? ALL_REDUCE_MPI : ALL_REDUCE_DIRECT,
                                   .timeout_s = 1.5};
    CHECK(comm_open(&comm, "mpi", &options, &e) == 0, "%s", e.text);
    comm_split(comm, comm->rank > 0, 0, &child);
    float *data = memory_alloc_zeroed(COUNT * sizeof *data);
    run_operation(comm, child, argv[1], data);
    comm_barrier(comm);
    if (comm->rank == atoi(argv[2])) go_away(argv[3]);
    run_operation(comm, child, argv[1], data);
    comm_close(child);
    comm_close(comm);
    return 0;
}
