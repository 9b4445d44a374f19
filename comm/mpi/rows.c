/* All-gather, all-to-all and the gather of small records: rows of equal length between all pairs of ranks. */
#include <string.h>

#include "comm/mpi/mpi_comm.h"

static void piece_done(const struct message *message) {
    if (--message->work->open == 0) work_complete(message->mpi, message->work);
}

/* Row r of `all` comes from rank r. Rank r gets the row at mine + r * stride. */
static void exchange_rows(struct mpi *mpi, struct work *work, char *mine, int64_t stride, char *all,
                          int64_t bytes, int tag) {
    const int size = mpi->comm.size, me = mpi->comm.rank;
    struct message message = {.mpi = mpi, .work = work, .done = piece_done, .tag = tag, .bytes = bytes};
    if (bytes) memcpy(all + me * bytes, mine + me * stride, (size_t)bytes);
    work->open = 1; /* until all are posted */
    for (int n = 1; n < size; n++) {
        message.peer = (me + n) % size;
        message.kind = PIECE_RECEIVE;
        work->open += message_post(&message, all + message.peer * bytes);
        message.kind = PIECE_SEND;
        work->open += message_post(&message, mine + message.peer * stride);
    }
    if (--work->open == 0) work_complete(mpi, work);
}

void rows_start(struct mpi *mpi, struct work *work) {
    const int64_t bytes =
        tensor_count(work->all) / mpi->comm.size * (int64_t)dtype_table[work->all.dtype].size;
    exchange_rows(mpi, work, work->data.data, work->kind == WORK_ALL_TO_ALL ? bytes : 0, work->all.data,
                  bytes, ROWS_TAG);
}

void gather_start(struct mpi *mpi, struct work *work) {
    struct gather *g = (struct gather *)work;
    exchange_rows(mpi, work, (char *)g->record, 0, g->all, (int64_t)g->bytes, GATHER_TAG);
}
