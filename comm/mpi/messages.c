/* Messages under way: one table for all works of all communicators, so that a receive that waits for its peer holds up
 * nothing, and one look at everything costs one call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"

static void *grown(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    CHECK(memory, "out of memory: %zu bytes asked for", bytes);
    return memory;
}

void message_post_request(const struct message *message, MPI_Request request) {
    struct messages *m = &message->mpi->thread->messages;
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 64;
        m->request = grown(m->request, sizeof *m->request * (size_t)m->capacity);
        m->message = grown(m->message, sizeof *m->message * (size_t)m->capacity);
    }
    m->request[m->count] = request;
    m->message[m->count] = *message;
    m->message[m->count++].posted = clock_seconds();
}

static bool is_send(const struct message *message) {
    return message->kind == PIECE_SEND || message->kind == RESULT_SEND;
}

/* Messages within the eager limit that comm_mpi.c sets leave without waiting for the peer; of very long ones not too many
 * pieces are under way, each of which MPI can count. Both ends cut alike. */
static int64_t piece_bytes(int64_t bytes) {
    enum { PIECES = 64, MOST = 1 << 28 };
    int64_t piece = (bytes + PIECES - 1) / PIECES;
    return piece < MESSAGE_PIECE ? MESSAGE_PIECE : piece > MOST ? MOST : piece;
}

int message_post(const struct message *message, void *memory) {
    const struct mpi *mpi = message->mpi;
    const int64_t total = message->bytes, most = piece_bytes(total);
    int count = 0;
    for (int64_t first = 0; first < total; first += most, count++) {
        struct message piece = *message;
        MPI_Request request;
        char *at = (char *)memory + first;
        piece.bytes = total - first < most ? total - first : most;
        if (is_send(&piece))
            MPI_CALL(MPI_Isend(at, (int)piece.bytes, MPI_BYTE, piece.peer, piece.tag, mpi->handle, &request));
        else
            MPI_CALL(MPI_Irecv(at, (int)piece.bytes, MPI_BYTE, piece.peer, piece.tag, mpi->handle, &request));
        message_post_request(&piece, request);
    }
    if (is_send(message)) message->work->bytes_sent += total;
    return count;
}

static const struct comm_place *place_of(const struct message *m) {
    return &m->mpi->comm.place[m->peer];
}

static void check_received(const struct message *m, const MPI_Status *status, bool errors) {
    if (m->peer == ANY_PEER) return;
    int bytes = 0;
    if (errors && status->MPI_ERROR != MPI_SUCCESS) mpi_check(status->MPI_ERROR, m->work->what);
    if (is_send(m)) return;
    MPI_CALL(MPI_Get_count(status, MPI_BYTE, &bytes));
    CHECK(bytes == m->bytes,
          "%s: %d bytes came from rank %d on %s, expected %lld: both ends must begin the same operations in "
          "the same order, with equal counts",
          m->work->what, bytes, place_of(m)->world_rank, place_of(m)->host_name, (long long)m->bytes);
}

/* Copies what is complete out of the table, and closes the gaps: what follows may post new ones. */
static void take_done(struct messages *m, int done) {
    for (int i = 0; i < done; i++) m->done[i] = m->message[m->index[i]];
    int kept = 0;
    for (int i = 0; i < m->count; i++) {
        if (m->request[i] == MPI_REQUEST_NULL) continue;
        m->request[kept] = m->request[i];
        m->message[kept++] = m->message[i];
    }
    m->count = kept;
}

void messages_look(struct mpi_thread *thread) {
    struct messages *m = &thread->messages;
    int done = 0;
    if (m->count > m->done_capacity) {
        m->done_capacity = m->capacity;
        m->done = grown(m->done, sizeof *m->done * (size_t)m->capacity);
        m->status = grown(m->status, sizeof *m->status * (size_t)m->capacity);
        m->index = grown(m->index, sizeof *m->index * (size_t)m->capacity);
    }
    if (m->count == 0) return;
    const int code = MPI_Testsome(m->count, m->request, &done, m->index, m->status);
    if (code != MPI_ERR_IN_STATUS) mpi_check(code, "MPI_Testsome");
    if (done == 0) return;
    take_done(m, done);
    const double now = clock_seconds();
    for (int i = 0; i < done; i++) {
        const struct message *one = &m->done[i];
        check_received(one, &m->status[i], code == MPI_ERR_IN_STATUS);
        if (one->peer != ANY_PEER) thread->heard[place_of(one)->world_rank] = now;
        poll_progress(&thread->poll, one->bytes);
        one->done(one);
    }
}

static long long work_bytes(const struct work *work) {
    if (work->kind == WORK_GATHER) return (long long)((const struct gather *)work)->bytes;
    return tensor_count(work->data) * (long long)dtype_table[work->data.dtype].size;
}

static bool is_overdue(const struct mpi_thread *thread, const struct message *m, double now) {
    double since = m->posted;
    if (m->peer != ANY_PEER) since = fmax(since, thread->heard[place_of(m)->world_rank]);
    return now - since > thread->options.timeout_s;
}

/* Names the peers whose messages of this kind its work waits for. */
static _Noreturn void give_up(const struct mpi_thread *thread, const struct message *worst, double now) {
    char names[384] = "";
    size_t used = 0;
    const struct comm *comm = &worst->mpi->comm;
    for (int r = 0; r < comm->size; r++) {
        bool silent = false;
        for (int i = 0; i < thread->messages.count && !silent; i++) {
            const struct message *m = &thread->messages.message[i];
            silent = m->work == worst->work && m->kind == worst->kind && m->peer == r &&
                     is_overdue(thread, m, now);
        }
        if (!silent || used > sizeof names - 100) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%srank %d on %s", used ? ", " : "",
                                 comm->place[r].world_rank, comm->place[r].host_name);
    }
    job_abort(
        EXIT_PEER_LOST, __FILE__, __LINE__,
        "%s of %lld bytes: nothing heard for %g s from %s: that process has died or stopped, its host or "
        "the network is down, it waits for another rank itself (and then says so), or it is slower than "
        "--timeout allows",
        worst->work->what, work_bytes(worst->work), thread->options.timeout_s,
        used ? names : "any of the other ranks");
}

void messages_watch(const struct mpi_thread *thread) {
    const struct messages *m = &thread->messages;
    const struct message *worst = NULL;
    const double now = clock_seconds();
    for (int i = 0; i < m->count; i++)
        if (is_overdue(thread, &m->message[i], now) && (!worst || m->message[i].kind < worst->kind))
            worst = &m->message[i];
    if (worst) give_up(thread, worst, now);
}

void messages_free(struct messages *m) {
    free(m->request);
    free(m->message);
    free(m->done);
    free(m->status);
    free(m->index);
}
