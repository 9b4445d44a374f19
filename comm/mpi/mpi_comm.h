/* The MPI communicator's parts, all of them run by the communication thread:
 * comm_mpi.c opens, serves the queue and closes; exchange.c is the all-reduce and the broadcast; library.c
 * the same all-reduce by MPI's own algorithm; rows.c all-gather and all-to-all; poll.c how the thread waits. */
#ifndef TANDEM_COMM_MPI_H
#define TANDEM_COMM_MPI_H

#include <mpi.h>

#include "comm/ops.h"
#include "comm/queue.h"

/* How long to sleep between two looks at the messages under way. */
struct poll {
    double interval;       /* seconds; doubles from one fruitless look to the next */
    double rate;           /* bytes per second, in and out together, as last observed; 0: not yet */
    double counted_since;  /* the rate is taken anew from here, */
    int64_t counted_bytes; /* over these bytes */
    double heard;          /* clock_seconds() of the last progress */
};

enum { GATHER_TAG = 8192, ROWS_TAG }; /* above the tags of exchange.c */

struct exchange;
struct mpi {
    struct comm comm; /* first, so that a comm is an mpi */
    struct comm_options options;
    struct queue queue;
    MPI_Comm world;
    struct poll poll;
    struct exchange *exchange;
    int thread_level;
};

/* MPI_CALL(MPI_Xxx(...)): a failed call ends the job with MPI's own message. */
#define MPI_CALL(call)                                                                  \
    do {                                                                                \
        int mpi_code = (call);                                                          \
        char mpi_text[MPI_MAX_ERROR_STRING] = "";                                       \
        int mpi_length = 0;                                                             \
        if (mpi_code != MPI_SUCCESS) MPI_Error_string(mpi_code, mpi_text, &mpi_length); \
        CHECK(mpi_code == MPI_SUCCESS, "%s: %s", #call, mpi_text);                      \
    } while (0)

/* Messages under way begin; some bytes of them arrived or left; nothing did: sleep a while. poll_silence says
 * for how long nothing has happened. */
void poll_start(struct poll *poll);
void poll_progress(struct poll *poll, int64_t bytes);
void poll_sleep(struct mpi *mpi);
double poll_silence(const struct poll *poll);

/* Sleeps until all requests are complete. `peer` (NULL: not known) tells whose messages the requests are, for
 * the message if they do not complete in time. */
void poll_wait(struct mpi *mpi, MPI_Request *request, const int *peer, int count, const char *what,
               int64_t bytes);

/* Ends the job with EXIT_PEER_LOST. silent[size] marks the ranks that are waited for. */
_Noreturn void peers_lost(const struct mpi *mpi, const char *what, int64_t bytes, const bool *silent);

/* All-reduce and broadcast by direct messages: runs `work`, and whatever exchanges follow it in the queue. */
struct exchange *exchange_create(struct mpi *mpi);
void exchange_free(struct exchange *exchange);
void exchange_run(struct exchange *exchange, struct work *work);

/* All-gather and all-to-all. */
void rows_exchange(struct mpi *mpi, struct work *work);

/* All-reduce by MPI_Iallreduce, fp32. */
void library_all_reduce(struct mpi *mpi, struct work *work);

#endif
