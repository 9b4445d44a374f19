/* All-gather and all-to-all: rows of equal length between all pairs of ranks, in messages that MPI can count. */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"

static const int64_t message_max = 1 << 28; /* bytes */

/* Row `to` of mine goes to rank `to` (all-to-all), or all of mine to everybody (all-gather). */
static char *row_for(const struct work *work, int rank, size_t row_bytes) {
    return (char *)work->data.data + (work->kind == WORK_ALL_TO_ALL ? (size_t)rank * row_bytes : 0);
}

void rows_exchange(struct mpi *mpi, struct work *work) {
    const int size = mpi->comm.size, me = mpi->comm.rank;
    const size_t row_bytes = (size_t)(tensor_count(work->all) / size) * dtype_table[work->all.dtype].size;
    const int64_t messages = ((int64_t)row_bytes + message_max - 1) / message_max;
    MPI_Request *request = memory_alloc(sizeof *request * 2 * (size_t)(size * messages));
    int *peer = memory_alloc(sizeof *peer * 2 * (size_t)(size * messages));
    int count = 0;
    memcpy((char *)work->all.data + (size_t)me * row_bytes, row_for(work, me, row_bytes), row_bytes);
    for (int n = 1; n < size; n++) {
        const int r = (me + n) % size;
        for (int64_t m = 0; m < messages; m++) {
            const size_t first = (size_t)(m * message_max), left = row_bytes - first;
            const int bytes = (int)(left < (size_t)message_max ? left : (size_t)message_max);
            peer[count] = peer[count + 1] = r;
            MPI_CALL(MPI_Irecv((char *)work->all.data + (size_t)r * row_bytes + first, bytes, MPI_BYTE, r,
                               ROWS_TAG, mpi->world, &request[count++]));
            MPI_CALL(MPI_Isend(row_for(work, r, row_bytes) + first, bytes, MPI_BYTE, r, ROWS_TAG, mpi->world,
                               &request[count++]));
            work->bytes_sent += bytes;
        }
    }
    poll_wait(mpi, request, peer, count, work->what, (int64_t)row_bytes);
    free(request);
    free(peer);
}
