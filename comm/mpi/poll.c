/* Waiting without spinning. This thread shares its core with the one that computes, and a look at the
 * messages costs tens of microseconds in Open MPI over TCP, so it looks as seldom as the link allows: between
 * two looks the kernel's socket buffers keep the link busy, for their size divided by the link's rate. */
#include <math.h>

#include "comm/mpi/mpi_comm.h"

static const double interval_min = 20e-6;             /* seconds */
static const double interval_max_beside = 6e-3;       /* while a caller computes on this core, */
static const double interval_max_waited_for = 500e-6; /* and while it only waits for us */
static const double growth_beside = 2;                /* of the interval, after each look; */
static const double growth_waited_for = 1.25; /* a reply is found late by a quarter of its time, no more */
static const double rate_window = 10e-3;      /* seconds over which the rate is taken */
static const double silence_min = 20e-3;      /* after which nothing moves: no rate is this low */
static const double bytes_per_look = 3 << 17; /* in and out; less than what the socket buffers hold */

void poll_start(struct poll *poll) {
    poll->heard = poll->counted_since = clock_seconds();
    poll->counted_bytes = 0;
    poll->interval = interval_min;
}

/* Silence is no property of the link: the rate is taken from after it. */
void poll_progress(struct poll *poll, int64_t bytes) {
    const double before = poll->heard;
    poll->heard = clock_seconds();
    if (poll->heard - before > silence_min) {
        poll->counted_since = poll->heard;
        poll->counted_bytes = 0;
        return;
    }
    poll->counted_bytes += bytes;
    double elapsed = poll->heard - poll->counted_since;
    if (elapsed < rate_window || poll->counted_bytes == 0) return;
    double rate = (double)poll->counted_bytes / elapsed;
    poll->rate = poll->rate > 0 ? 0.5 * (poll->rate + rate) : rate;
    poll->counted_since = poll->heard;
    poll->counted_bytes = 0;
}

/* While nothing moves, a peer is awaited, not the link. */
void poll_sleep(struct mpi_thread *thread) {
    struct poll *poll = &thread->poll;
    const bool moving = clock_seconds() - poll->heard < silence_min;
    const bool waited_for = queue_is_waited_for(&thread->queue);
    double limit = waited_for ? interval_max_waited_for : interval_max_beside;
    if (moving && poll->rate > 0) limit = fmin(limit, fmax(bytes_per_look / poll->rate, interval_min));
    queue_sleep(&thread->queue, fmin(poll->interval, limit));
    poll->interval = fmin((waited_for ? growth_waited_for : growth_beside) * poll->interval, limit);
}
