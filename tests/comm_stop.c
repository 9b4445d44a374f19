/* One rank goes away in the middle of a job: what do the others do? For test_comm.py.
 *
 *     mpirun -np 3 comm_stop OPERATION RANK stop|sleep
 *
 * OPERATION: all-reduce, all-reduce-mpi, broadcast, reduce, barrier, close. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"

enum { COUNT = 3000000 };

static void run_operation(struct comm *comm, const char *operation, float *data) {
    struct work work;
    double value = 1;
    if (strncmp(operation, "all-reduce", 10) == 0) {
        comm_all_reduce_begin(comm, tensor_of(data, DTYPE_F32, COUNT), &work);
        comm_end(comm, &work);
    }
    if (strcmp(operation, "broadcast") == 0) {
        comm_broadcast_begin(comm, tensor_of(data, DTYPE_F32, COUNT), 1, &work);
        comm_end(comm, &work);
    }
    if (strcmp(operation, "reduce") == 0) comm_reduce(comm, &value, 1, REDUCE_SUM);
    if (strcmp(operation, "barrier") == 0) comm_barrier(comm);
}

int main(int argc, char **argv) {
    struct error e;
    struct comm *comm;
    CHECK(argc == 4, "comm_stop OPERATION RANK stop|sleep");
    bool by_mpi = strcmp(argv[1], "all-reduce-mpi") == 0;
    struct comm_options options = {.all_reduce = by_mpi ? ALL_REDUCE_MPI : ALL_REDUCE_DIRECT,
                                   .timeout_s = 1.5};
    CHECK(comm_open(&comm, "mpi", &options, &e) == 0, "%s", e.text);
    float *data = memory_alloc_zeroed(COUNT * sizeof *data);
    run_operation(comm, argv[1], data);
    comm_barrier(comm);
    if (comm->rank == atoi(argv[2])) {
        if (strcmp(argv[3], "stop") == 0) raise(SIGSTOP);
        sleep(120);
    }
    run_operation(comm, argv[1], data);
    comm_close(comm);
    return 0;
}
