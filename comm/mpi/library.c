/* All-reduce by the MPI library's own algorithm, for comparison. Separate send and receive buffers: in place,
 * Open MPI's MPI_Iallreduce always falls back to a binomial reduce and broadcast. */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"

enum { PIECE = 2 << 20 }; /* elements a call: bounds the scratch memory, and keeps counts below INT_MAX */

void library_all_reduce(struct mpi *mpi, struct work *work) {
    float *data = tensor_f32(work->data), *sum = memory_alloc(PIECE * sizeof *sum);
    int64_t total = tensor_count(work->data), ranks = mpi->comm.size;
    for (int64_t first = 0; first < total; first += PIECE) {
        int count = (int)(total - first < PIECE ? total - first : PIECE);
        MPI_Request request;
        MPI_CALL(MPI_Iallreduce(data + first, sum, count, MPI_FLOAT, MPI_SUM, mpi->world, &request));
        poll_wait(mpi, &request, NULL, 1, "all-reduce by MPI", (int64_t)sizeof *data * count);
        poll_progress(&mpi->poll, 2 * (int64_t)sizeof *data * count);
        memcpy(data + first, sum, sizeof *data * (size_t)count);
    }
    free(sum);
    /* What the library sends is its own business; this is what the best algorithm does. */
    work->bytes_sent = 2 * (ranks - 1) * (int64_t)sizeof *data * total / ranks;
}
