/* A first-in first-out queue of work between callers and one communication thread. Both sides sleep while
 * they wait. */
#ifndef TANDEM_COMM_QUEUE_H
#define TANDEM_COMM_QUEUE_H

#include <pthread.h>

#include "comm/comm.h"

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t posted, completed;
    struct work *first, *last;
    bool closed;
    int waiting; /* callers in queue_wait */
    pthread_t thread;
};

/* Starts the thread, which runs body(context) with all signals blocked. queue_close lets it take what is left and end
 * what is under way. */
void queue_open(struct queue *queue, void *(*body)(void *context), void *context);
void queue_close(struct queue *queue);

/* The callers' side. queue_wait returns false if the work has not completed within timeout_s; it wakes the thread, which
 * may have a longer sleep before it than a caller who waits wants. */
void queue_post(struct queue *queue, struct work *work);
bool queue_wait(struct queue *queue, struct work *work, double timeout_s);
bool queue_done(struct queue *queue, struct work *work);

/* The thread's side. queue_take: the next work; NULL if there is none or, if it may sleep until there is one, once the
 * queue is closed. queue_sleep sleeps for so long, or until work is posted or a caller begins to wait. queue_is_waited_for:
 * does a caller wait, and so not compute? */
struct work *queue_take(struct queue *queue, bool may_sleep);
void queue_sleep(struct queue *queue, double seconds);
bool queue_is_waited_for(struct queue *queue);
void queue_complete(struct queue *queue, struct work *work);

#endif
