/* Send and receive. MPI keeps the order of messages between two ranks that have the same tag, and so that of pieces. */
#include "comm/mpi/mpi_comm.h"

static void piece_done(const struct message *message) {
    if (--message->work->open == 0) work_complete(message->mpi, message->work);
}

void pair_start(struct mpi *mpi, struct work *work) {
    const struct message message = {
        .mpi = mpi,
        .work = work,
        .done = piece_done,
        .kind = work->kind == WORK_SEND ? RESULT_SEND : RESULT_RECEIVE,
        .peer = work->root,
        .tag = PAIR_TAG,
        .bytes = tensor_count(work->data) * (int64_t)dtype_table[work->data.dtype].size,
    };
    work->open = message_post(&message, work->data.data);
    if (work->open == 0) work_complete(mpi, work);
}
