/* Work in the background: one thread, for one job at a time. It must not communicate. */
#ifndef TANDEM_WRITER_H
#define TANDEM_WRITER_H

#include <pthread.h>

#include "kernels/base.h"

struct writer {
    int (*job)(void *context, struct error *e);
    void *context;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool busy, finished; /* a job was started and not ended; it is through */
    int status;
    struct error error;
};

void writer_create(struct writer *writer);

/* Waits for a job under way, however it goes. */
void writer_free(struct writer *writer);

/* Runs job(context) in the background; the one before must have been ended. */
void writer_start(struct writer *writer, int (*job)(void *context, struct error *e), void *context);

/* Whether no job is under way; after waiting at most so many seconds for that. */
bool writer_wait(struct writer *writer, double seconds);

/* After writer_wait has said true: what the job returned, with its message. 0 if there was none. */
int writer_end(struct writer *writer, struct error *e);

#endif
