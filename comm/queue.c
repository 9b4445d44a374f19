#include "comm/queue.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "comm/ops.h"

void queue_open(struct queue *queue, void *(*body)(void *context), void *context) {
    *queue = (struct queue){0};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->posted, &monotonic);
    pthread_cond_init(&queue->completed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    /* This thread begins before the one that takes signals (train/signals.h), and none may interrupt MPI. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&queue->thread, NULL, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(error == 0, "cannot start the communication thread: %s", strerror(error));
}

void queue_close(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_signal(&queue->posted);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->posted);
    pthread_cond_destroy(&queue->completed);
    pthread_mutex_destroy(&queue->lock);
}

void queue_post(struct queue *queue, struct work *work) {
    pthread_mutex_lock(&queue->lock);
    CHECK(!queue->closed, "%s begun on a closed communicator", work->what);
    work->state = WORK_UNDER_WAY;
    work->next = NULL;
    if (queue->first)
        queue->last->next = work;
    else
        queue->first = work;
    queue->last = work;
    pthread_cond_signal(&queue->posted);
    pthread_mutex_unlock(&queue->lock);
}

/* On the monotonic clock; INFINITY: never, within what a timespec holds. */
static struct timespec deadline_in(double seconds) {
    double until = clock_seconds() + fmin(seconds, 1e9);
    return (struct timespec){.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until)))};
}

bool queue_wait(struct queue *queue, struct work *work, double timeout_s) {
    const struct timespec deadline = deadline_in(timeout_s);
    pthread_mutex_lock(&queue->lock);
    int error = 0;
    queue->waiting++;
    if (work->state != WORK_DONE) pthread_cond_signal(&queue->posted);
    while (work->state != WORK_DONE && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&queue->completed, &queue->lock, &deadline);
    queue->waiting--;
    bool done = work->state == WORK_DONE;
    pthread_mutex_unlock(&queue->lock);
    return done;
}

bool queue_done(struct queue *queue, struct work *work) {
    pthread_mutex_lock(&queue->lock);
    bool done = work->state == WORK_DONE;
    pthread_mutex_unlock(&queue->lock);
    return done;
}

static struct work *pop(struct queue *queue) {
    struct work *work = queue->first;
    if (work) queue->first = work->next;
    return work;
}

struct work *queue_take(struct queue *queue, bool may_sleep) {
    pthread_mutex_lock(&queue->lock);
    while (may_sleep && !queue->first && !queue->closed) pthread_cond_wait(&queue->posted, &queue->lock);
    struct work *work = pop(queue);
    pthread_mutex_unlock(&queue->lock);
    return work;
}

void queue_sleep(struct queue *queue, double seconds) {
    const struct timespec deadline = deadline_in(seconds);
    pthread_mutex_lock(&queue->lock);
    if (!queue->first) pthread_cond_timedwait(&queue->posted, &queue->lock, &deadline);
    pthread_mutex_unlock(&queue->lock);
}

bool queue_is_waited_for(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    bool waited_for = queue->waiting > 0;
    pthread_mutex_unlock(&queue->lock);
    return waited_for;
}

void queue_complete(struct queue *queue, struct work *work) {
    pthread_mutex_lock(&queue->lock);
    work->end = clock_seconds();
    work->state = WORK_DONE;
    pthread_cond_broadcast(&queue->completed);
    pthread_mutex_unlock(&queue->lock);
}
