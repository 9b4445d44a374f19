/* Waiting without spinning. This thread shares its core with the one that computes, and a look at the
 * messages costs tens of microseconds in Open MPI over TCP, so it looks as seldom as the link allows: between
 * two looks the kernel's socket buffers keep the link busy, for their size divided by the link's rate. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/mpi/mpi_comm.h"

static const double interval_min = 20e-6;             /* seconds */
static const double interval_max_beside = 6e-3;       /* while a caller computes on this core, */
static const double interval_max_waited_for = 500e-6; /* and while it only waits for us */
static const double rate_window = 10e-3;              /* seconds over which the rate is taken */
static const double bytes_per_look = 3 << 17;         /* in and out; less than what the socket buffers hold */

void poll_start(struct poll *poll) {
    poll->heard = poll->counted_since = clock_seconds();
    poll->counted_bytes = 0;
    poll->interval = interval_min;
}

void poll_progress(struct poll *poll, int64_t bytes) {
    poll->heard = clock_seconds();
    poll->counted_bytes += bytes;
    double elapsed = poll->heard - poll->counted_since;
    if (elapsed < rate_window || poll->counted_bytes == 0) return;
    double rate = (double)poll->counted_bytes / elapsed;
    poll->rate = poll->rate > 0 ? 0.5 * (poll->rate + rate) : rate;
    poll->counted_since = poll->heard;
    poll->counted_bytes = 0;
}

void poll_sleep(struct mpi *mpi) {
    struct poll *poll = &mpi->poll;
    double limit = queue_is_waited_for(&mpi->queue) ? interval_max_waited_for : interval_max_beside;
    if (poll->rate > 0) limit = fmin(limit, fmax(bytes_per_look / poll->rate, interval_min));
    struct timespec pause = {.tv_nsec = (long)(1e9 * fmin(poll->interval, limit))};
    nanosleep(&pause, NULL);
    poll->interval = fmin(2 * poll->interval, limit);
}

double poll_silence(const struct poll *poll) {
    return clock_seconds() - poll->heard;
}

void poll_wait(struct mpi *mpi, MPI_Request *request, const int *peer, int count, const char *what,
               int64_t bytes) {
    int *done = memory_alloc(sizeof *done * (size_t)count);
    poll_start(&mpi->poll);
    for (;;) {
        int completed = 0;
        MPI_CALL(MPI_Testsome(count, request, &completed, done, MPI_STATUSES_IGNORE));
        if (completed == MPI_UNDEFINED) break;
        if (completed > 0) {
            poll_progress(&mpi->poll, 0);
            continue;
        }
        if (poll_silence(&mpi->poll) > mpi->options.timeout_s) {
            bool *silent = memory_alloc_zeroed((size_t)mpi->comm.size);
            for (int i = 0; peer && i < count; i++)
                if (request[i] != MPI_REQUEST_NULL) silent[peer[i]] = true;
            peers_lost(mpi, what, bytes, silent);
        }
        poll_sleep(mpi);
    }
    free(done);
}

void peers_lost(const struct mpi *mpi, const char *what, int64_t bytes, const bool *silent) {
    char names[256] = "";
    size_t used = 0;
    int lost = 0;
    for (int r = 0; r < mpi->comm.size; r++) {
        if (!silent[r] || used > sizeof names - 16) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", lost ? ", " : "", r);
        lost++;
    }
    job_abort(
        EXIT_PEER_LOST, __FILE__, __LINE__,
        "%s of %lld bytes: nothing heard for %g s from rank%s %s: that process has died or stopped, its host "
        "or the network is down, or it is slower than --timeout allows",
        what, (long long)bytes, mpi->options.timeout_s, lost == 1 ? "" : "s",
        lost ? names : "(any of the others)");
}
