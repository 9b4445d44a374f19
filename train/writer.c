#define _GNU_SOURCE
#include "train/writer.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void writer_create(struct writer *w) {
    pthread_condattr_t attributes;
    *w = (struct writer){0};
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void *run_job(void *context) {
    struct writer *w = context;
    /* Of the cores it takes what training leaves; where training waits for it, that is all of them. */
    setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    const int status = w->job(w->context, &w->error);
    pthread_mutex_lock(&w->mutex);
    w->status = status;
    w->finished = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

void writer_start(struct writer *w, int (*job)(void *context, struct error *e), void *context) {
    CHECK(!w->busy, "a job is started while another is under way");
    w->job = job;
    w->context = context;
    w->busy = true;
    w->finished = false;
    const int code = pthread_create(&w->thread, NULL, run_job, w);
    CHECK(code == 0, "the thread that writes checkpoints cannot be started: error %d", code);
}

bool writer_wait(struct writer *w, double seconds) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)seconds;
    end.tv_nsec += (long)(1e9 * (seconds - (double)(time_t)seconds));
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    pthread_mutex_lock(&w->mutex);
    int code = 0;
    while (w->busy && !w->finished && code == 0) code = pthread_cond_timedwait(&w->changed, &w->mutex, &end);
    const bool idle = !w->busy || w->finished;
    pthread_mutex_unlock(&w->mutex);
    return idle;
}

int writer_end(struct writer *w, struct error *e) {
    if (!w->busy) return 0;
    pthread_join(w->thread, NULL);
    w->busy = false;
    if (w->status) *e = w->error;
    return w->status;
}

void writer_free(struct writer *w) {
    if (w->busy) pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    *w = (struct writer){0};
}
