/* All-reduce by the MPI library's own algorithm, for comparison. Separate send and receive buffers: in place,
 * Open MPI's MPI_Iallreduce always falls back to a binomial reduce and broadcast. */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"

enum { PIECE = 2 << 20 }; /* elements a call: bounds the scratch memory, and keeps counts below INT_MAX */

struct piece {
    int64_t first; /* element */
    int count;
    float sum[PIECE];
};

static void piece_done(const struct message *message);

static void start_piece(struct mpi *mpi, struct work *work, struct piece *piece) {
    const int64_t left = tensor_count(work->data) - piece->first;
    if (left == 0) {
        free(piece);
        work_complete(mpi, work);
        return;
    }
    piece->count = (int)(left < PIECE ? left : PIECE);
    MPI_Request request;
    MPI_CALL(MPI_Iallreduce(tensor_f32(work->data) + piece->first, piece->sum, piece->count, MPI_FLOAT,
                            MPI_SUM, mpi->handle, &request));
    const struct message message = {
        .mpi = mpi,
        .work = work,
        .done = piece_done,
        .context = piece,
        .peer = ANY_PEER,
        .bytes = 2 * (int64_t)sizeof *piece->sum * piece->count,
    };
    message_post_request(&message, request);
}

static void piece_done(const struct message *message) {
    struct piece *piece = message->context;
    memcpy(tensor_f32(message->work->data) + piece->first, piece->sum,
           sizeof *piece->sum * (size_t)piece->count);
    piece->first += piece->count;
    start_piece(message->mpi, message->work, piece);
}

void library_start(struct mpi *mpi, struct work *work) {
    const int64_t ranks = mpi->comm.size;
    struct piece *piece = memory_alloc(sizeof *piece);
    piece->first = 0;
    /* What the library sends is its own business; this is what the best algorithm does. */
    work->bytes_sent = 2 * (ranks - 1) * (int64_t)sizeof *piece->sum * tensor_count(work->data) / ranks;
    start_piece(mpi, work, piece);
}
