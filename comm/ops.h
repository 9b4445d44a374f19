/* What a kind of communicator implements; private to comm/ and its tests. */
#ifndef TANDEM_COMM_OPS_H
#define TANDEM_COMM_OPS_H

#include "comm/comm.h"

enum work_kind {
    WORK_ALL_REDUCE,
    WORK_BROADCAST,
    WORK_ALL_GATHER,
    WORK_ALL_TO_ALL,
    WORK_GATHER, /* of small records, for the operation `gather` */
    WORK_SEND,
    WORK_RECEIVE,
    WORK_CALL, /* a function for the communication thread */
};
enum work_state { WORK_UNDER_WAY, WORK_DONE };

struct comm_ops {
    /* Starts what work->kind says on work->data. */
    void (*begin)(struct comm *comm, struct work *work);
    void (*end)(struct comm *comm, struct work *work);
    bool (*done)(struct comm *comm, struct work *work);
    /* all[size][bytes] = the record of every rank, in the order of ranks. Synchronous, collective. */
    void (*gather)(struct comm *comm, const char *what, const void *record, size_t bytes, void *all);
    /* NULL for COMM_NO_COLOR. Synchronous, collective. */
    struct comm *(*split)(struct comm *comm, int color, int key);
    void (*close)(struct comm *comm);
    void (*describe)(const struct comm *comm, char *text, size_t size);
};

/* place[size], which stays the caller's to free, and what follows from it: local_rank, local_size, hosts. */
void comm_set_places(struct comm *comm, const struct comm_place *place);

/* One opener for each kind. mpi_open lives in comm/mpi, or in comm/mpi_absent.c where MPI was left out. */
int self_open(struct comm **comm, const struct comm_options *options, struct error *e);
int mpi_open(struct comm **comm, const struct comm_options *options, struct error *e);

#endif
