/* Who talks to whom. Communicators and their operations, each as begin and end, so that a message travels while the
 * caller computes. Counts are elements. Two kinds: `self` (one rank) and `mpi` (host memory).
 *
 * All MPI calls of a process are made by one communication thread, whatever the number of communicators. It keeps many
 * operations under way at once and sleeps between its looks at them. Rules of order:
 *   - collective operations of one communicator start in the order in which they were begun, which must be the same on
 *     all of its ranks; those of different communicators do not wait for each other;
 *   - messages from one rank to another in one communicator arrive in the order in which they were begun; a receive that
 *     waits for its peer holds up nothing else.
 * No wait is endless: a message under way for `timeout_s` to or from a peer that was not heard from meanwhile ends the job
 * with EXIT_PEER_LOST, naming the operation, the peer's world rank and its host. */
#ifndef TANDEM_COMM_H
#define TANDEM_COMM_H

#include "kernels/tensor.h"

enum all_reduce_algorithm {
    ALL_REDUCE_DIRECT, /* reduce-scatter + all-gather over point-to-point messages, in segments (comm/mpi/exchange.c) */
    ALL_REDUCE_MPI, /* MPI_Iallreduce, tested and slept on */
};

struct comm_options {
    enum all_reduce_algorithm all_reduce;
    double timeout_s;
};

/* One operation under way. Owned by the caller, untouched by it between begin and end. */
struct work {
    double posted, start, end; /* clock_seconds() of begin, of the first message, of completion */
    int64_t bytes_sent; /* by this rank, to other ranks; ALL_REDUCE_MPI: what the best algorithm sends */
    const char *what;   /* for the watchdog's message */
    struct tensor data, all;
    int root;              /* of a broadcast; of a message, the peer */
    int kind, state, open; /* private to comm/ */
    struct comm *comm;
    struct work *next;
};

enum reduction { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN };

/* Where a rank runs. */
struct comm_place {
    int world_rank; /* its rank in the communicator of comm_open */
    int host;       /* the lowest world rank on its host: equal for ranks that share memory */
    char host_name[64];
};

struct comm_ops;
struct comm {
    const struct comm_ops *ops;
    int rank, size;                 /* in this communicator */
    int local_rank, local_size;     /* among its ranks on this host */
    int hosts;                      /* that its ranks are on */
    const struct comm_place *place; /* [size], of every rank */
};

/* Opens the world: kind `self` (always one rank), `mpi`, or `auto` (mpi under an MPI launcher, else self). Collective.
 * -1 with a message where the kind is unknown, not in this build, or MPI lacks the thread level needed. */
int comm_open(struct comm **comm, const char *kind, const struct comm_options *options, struct error *e);

/* Cuts comm into one child for each color >= 0: *child has the ranks of the same color, ordered by key, then by rank in
 * comm; NULL on ranks of color COMM_NO_COLOR. Served by the same communication thread; operations of the child and of
 * comm know nothing of each other. Operations may be under way meanwhile. Close it with comm_close. Collective. */
enum { COMM_NO_COLOR = -1 };
void comm_split(struct comm *comm, int color, int key, struct comm **child);

/* Every operation must have ended. Communicators may be closed in any order that is the same on all their ranks, parents
 * before children too; MPI ends with the last. NULL is fine. Collective. */
void comm_close(struct comm *comm);

/* data (fp32; or bf16, fp16: added in fp32, the sum rounded once) = element-wise sum over all ranks, added in the order of ranks 0, 1, 2, ... whatever the number of
 * elements, so that cutting a tensor into pieces does not change a bit of it (ALL_REDUCE_DIRECT). In place. Collective. */
void comm_all_reduce_begin(struct comm *comm, struct tensor data, struct work *work);

/* all (size,n) = the n elements of mine of every rank, in the order of ranks. Any dtype; n equal on all ranks. Collective. */
void comm_all_gather_begin(struct comm *comm, struct tensor mine, struct tensor all, struct work *work);

/* all (size,n): row r is row `rank` of mine (size,n) on rank r. Any dtype. Collective. */
void comm_all_to_all_begin(struct comm *comm, struct tensor mine, struct tensor all, struct work *work);

/* data of rank `root` to all. Any dtype. Collective. */
void comm_broadcast_begin(struct comm *comm, struct tensor data, int root, struct work *work);

/* data goes to rank `to`, or comes from rank `from`, which must begin the other half with the same dtype and count; another
 * length ends the job. Any dtype, any length. A send may be complete before its receive is begun, or only after it: rely on
 * neither. Only between different ranks: a message to oneself fails a CHECK. Not collective. */
void comm_send_begin(struct comm *comm, struct tensor data, int to, struct work *work);
void comm_receive_begin(struct comm *comm, struct tensor data, int from, struct work *work);

/* Waits for completion; the times in work are set. Not collective. True/false without waiting: comm_done. */
void comm_end(struct comm *comm, struct work *work);
bool comm_done(struct comm *comm, struct work *work);

/* Small host-side collectives, synchronous: values[count] reduced on all ranks (sums in the order of ranks); a barrier. */
void comm_reduce(struct comm *comm, double *values, int count, enum reduction reduction);
void comm_barrier(struct comm *comm);

/* Whether all ranks have the same value. Collective. */
bool comm_same(struct comm *comm, double value);

/* All ranks learn whether any failed: returns 0 if status is 0 everywhere, else -1 on every rank, with the message of
 * the lowest rank that failed in e. Collective. */
int comm_agree(struct comm *comm, int status, struct error *e);

/* What MPI library, which thread level, hosts and ranks; one line for people. */
void comm_describe(const struct comm *comm, char *text, size_t size);

#endif
