/* The MPI communicators' parts, all of them run by the communication thread, one for all communicators of a process:
 * thread.c is that thread, which takes works from the queue, starts them and looks at what is under way; messages.c the
 * messages under way, of all works; poll.c how long to sleep between two looks; comm_mpi.c opens, splits and closes.
 * Kinds of work: exchange.c all-reduce and broadcast; library.c all-reduce by MPI's own algorithm; rows.c all-gather,
 * all-to-all and small records; pair.c send and receive. */
#ifndef TANDEM_COMM_MPI_H
#define TANDEM_COMM_MPI_H

#include <mpi.h>

#include "comm/ops.h"
#include "comm/queue.h"

/* How long to sleep between two looks at the messages under way. */
struct poll {
    double interval;       /* seconds; grows from one look to the next */
    double rate;           /* bytes per second, in and out together, as last observed; 0: not yet */
    double counted_since;  /* the rate is taken anew from here, */
    int64_t counted_bytes; /* over these bytes */
    double heard;          /* clock_seconds() of the last progress */
};

enum { GATHER_TAG = 8192, ROWS_TAG, PAIR_TAG }; /* above the tags of exchange.c */

/* What a peer owes that does not answer. Where several peers are silent the first in this order is named: a piece is late
 * because of its sender, where a result, and a message between two ranks, may be late because its sender waits itself. */
enum message_kind { PIECE_RECEIVE, PIECE_SEND, RESULT_RECEIVE, RESULT_SEND };

/* One message under way, part of a work. */
struct message {
    struct mpi *mpi;
    struct work *work;
    void (*done)(const struct message *message); /* called when it is complete; may post others */
    void *context;                               /* for done */
    enum message_kind kind;
    int peer; /* rank in mpi; ANY_PEER: the library's own affair */
    int tag;
    int64_t bytes; /* of this one; of all pieces in a call of message_post */
    double posted;
};
enum { ANY_PEER = -1 };

/* All messages under way, of all communicators: one look costs one call of MPI, however many they are. */
struct messages {
    int count, capacity, done_capacity;
    MPI_Request *request;    /* [capacity] */
    struct message *message; /* [capacity] */
    struct message *done;    /* [done_capacity], what a look has found to be complete */
    MPI_Status *status;      /* [done_capacity] */
    int *index;              /* [done_capacity] */
};

struct exchange;

struct mpi {
    struct comm comm; /* first, so that a comm is an mpi */
    struct mpi_thread *thread;
    MPI_Comm handle;
    struct exchange *exchange;
    struct work *first, *last; /* collectives begun and not started yet */
    struct work *alone;        /* the collective under way that lets no other start; NULL: none */
    int exchanges;             /* under way: these may be several */
    int pairs;                 /* sends and receives under way */
    struct mpi *next;          /* of the thread's communicators */
};

struct mpi_thread {
    struct comm_options options;
    struct queue queue;
    struct messages messages;
    struct poll poll;
    struct mpi *communicators;
    int level;     /* of thread support that MPI gives */
    double *heard; /* [world size], clock_seconds() of the last message to or from this rank */
};

/* MPI_CALL(MPI_Xxx(...)): a failed call ends the job with MPI's own message. */
#define MPI_CALL(call) mpi_check((call), #call)
void mpi_check(int code, const char *call);

/* thread.c. thread_call runs function(argument) on the thread and waits for it; false if that takes longer than timeout_s.
 * work_complete is what each kind of work ends with. */
struct mpi_thread *thread_create(const struct comm_options *options);
void thread_free(struct mpi_thread *thread);
bool thread_call(struct mpi_thread *thread, const char *what, void (*function)(void *argument),
                 void *argument, double timeout_s);
void work_complete(struct mpi *mpi, struct work *work);

/* messages.c. message_post starts message->bytes at `memory` in pieces, each of which calls `done`, and returns how many;
 * none for 0 bytes. Up to MESSAGE_PIECE bytes are one piece. A send is counted in work->bytes_sent. */
enum { MESSAGE_PIECE = 256 << 10 };
int message_post(const struct message *message, void *memory);
void message_post_request(const struct message *message, MPI_Request request);
/* Looks once at all of them. messages_watch ends the job with EXIT_PEER_LOST if one has waited too long. */
void messages_look(struct mpi_thread *thread);
void messages_watch(const struct mpi_thread *thread);
void messages_free(struct messages *messages);

/* poll.c: messages begin where there were none; bytes of them arrived or left; nothing to do: sleep a while. */
void poll_start(struct poll *poll);
void poll_progress(struct poll *poll, int64_t bytes);
void poll_sleep(struct mpi_thread *thread);

/* Puts as much as fits of the all-reduces and broadcasts at the head of mpi's collectives under way. */
struct exchange *exchange_create(struct mpi *mpi);
void exchange_free(struct exchange *exchange);
void exchange_fill(struct exchange *exchange);
/* The next collective, if it is one for exchange.c; NULL otherwise. */
struct work *thread_take_exchange(struct mpi *mpi);

/* Start a work of the kind; each ends with work_complete, at once where there is nothing to send. */
void rows_start(struct mpi *mpi, struct work *work);
void gather_start(struct mpi *mpi, struct work *work);
void pair_start(struct mpi *mpi, struct work *work);
void library_start(struct mpi *mpi, struct work *work);

/* Small records; as WORK_GATHER. */
struct gather {
    struct work work; /* first, so that a work is a gather */
    const void *record;
    size_t bytes;
    char *all; /* [size][bytes] */
};

#endif
