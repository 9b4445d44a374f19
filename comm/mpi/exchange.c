/* All-reduce and broadcast by direct messages between all pairs of ranks.
 *
 * The data is cut into blocks, and a block into one chunk per rank: chunk j belongs to rank j. Two kinds of message:
 *
 *                 pieces                                    results
 *     all-reduce  every rank sends its chunk j to rank j,   rank j sends the sum of chunk j to every rank
 *                 which adds the pieces in the order of ranks
 *     broadcast   the root sends chunk j to rank j          rank j sends chunk j to every rank but the root
 *
 * Cost for N elements on p ranks: each rank sends and receives 2 (p-1)/p N (all-reduce), which is the least possible.
 * Several blocks are under way at once, also across the end of one work and the beginning of the next, so that results of
 * early blocks travel while pieces of later ones do, and the link stays full in both directions. */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"
#include "kernels/half.h"

enum {
    WINDOW = 8,                    /* blocks under way */
    PIECE_MAX = MESSAGE_PIECE / 4, /* elements of a message; and fewer */
    SCRATCH_MAX = 16 << 20, /* with very many ranks, as all received pieces together are at most so many */
    TAGS = 8192,            /* two for each block, used in turn */
};

struct block {
    struct work *work; /* NULL: this slot is free */
    char *data;
    int64_t count;  /* elements */
    size_t element; /* bytes of one */
    int tag;
    int open;           /* messages under way */
    int pieces_missing; /* of our chunk, before it can be added up */
    float *scratch;     /* [size][piece], the pieces of the other ranks */
};

struct exchange {
    struct mpi *mpi;
    int64_t piece;  /* elements of one message, at most */
    float *scratch; /* [WINDOW][size][piece] */
    struct block block[WINDOW];
    int tag;           /* of the next block */
    struct work *work; /* being cut into blocks; NULL: none */
    int64_t next;      /* its first element that is in no block yet */
};

struct exchange *exchange_create(struct mpi *mpi) {
    struct exchange *x = memory_alloc_zeroed(sizeof *x);
    int64_t size = mpi->comm.size;
    int64_t fitting = SCRATCH_MAX / (WINDOW * size);
    x->mpi = mpi;
    x->piece = fitting < PIECE_MAX ? fitting : PIECE_MAX;
    x->scratch = memory_alloc(sizeof *x->scratch * (size_t)(WINDOW * size * x->piece));
    for (int i = 0; i < WINDOW; i++) x->block[i].scratch = x->scratch + i * size * x->piece;
    return x;
}

void exchange_free(struct exchange *x) {
    if (!x) return;
    free(x->scratch);
    free(x);
}

/* Chunk j of a block is elements [edge(j), edge(j + 1)). */
static int64_t edge(const struct exchange *x, const struct block *b, int j) {
    return b->count * j / x->mpi->comm.size;
}

static int64_t chunk_count(const struct exchange *x, const struct block *b, int j) {
    return edge(x, b, j + 1) - edge(x, b, j);
}

static char *chunk(const struct exchange *x, const struct block *b, int j) {
    return b->data + (size_t)edge(x, b, j) * b->element;
}

static void message_done(const struct message *message);

/* Starts one message of `count` elements with `peer`; none if there are no elements. */
static void post(struct exchange *x, struct block *b, enum message_kind kind, int peer, void *memory,
                 int64_t count) {
    const struct message message = {
        .mpi = x->mpi,
        .work = b->work,
        .done = message_done,
        .context = b,
        .kind = kind,
        .peer = peer,
        .tag = b->tag + (kind == RESULT_SEND || kind == RESULT_RECEIVE),
        .bytes = count * (int64_t)b->element,
    };
    b->open += message_post(&message, memory);
}

static bool is_broadcast(const struct block *b) {
    return b->work->kind == WORK_BROADCAST;
}

/* Each rank begins with the next higher one, so that not all send to the same. */
static int nth_peer(const struct exchange *x, int n) {
    return (x->mpi->comm.rank + n) % x->mpi->comm.size;
}

static void send_results(struct exchange *x, struct block *b) {
    int me = x->mpi->comm.rank;
    for (int n = 1; n < x->mpi->comm.size; n++) {
        int peer = nth_peer(x, n);
        if (is_broadcast(b) && peer == b->work->root) continue;
        post(x, b, RESULT_SEND, peer, chunk(x, b, me), chunk_count(x, b, me));
    }
}

static void start_all_reduce(struct exchange *x, struct block *b) {
    int me = x->mpi->comm.rank, size = x->mpi->comm.size;
    int64_t mine = chunk_count(x, b, me);
    b->pieces_missing = mine ? size - 1 : 0;
    for (int n = 1; n < size; n++) {
        int peer = nth_peer(x, n);
        post(x, b, PIECE_RECEIVE, peer, b->scratch + peer * x->piece, mine);
        post(x, b, PIECE_SEND, peer, chunk(x, b, peer), chunk_count(x, b, peer));
    }
}

static void start_broadcast(struct exchange *x, struct block *b) {
    int me = x->mpi->comm.rank, root = b->work->root;
    b->pieces_missing = 1;
    for (int n = 1; n < x->mpi->comm.size; n++) {
        int peer = nth_peer(x, n);
        enum message_kind kind = me == root ? PIECE_SEND : RESULT_RECEIVE;
        post(x, b, kind, peer, chunk(x, b, peer), chunk_count(x, b, peer));
    }
    if (me == root)
        send_results(x, b);
    else
        post(x, b, PIECE_RECEIVE, root, chunk(x, b, me), chunk_count(x, b, me));
}

/* sum (+)= piece, in fp32 whatever travels. */
static void add_strip(float *restrict sum, const void *piece, int64_t count, enum dtype dtype, bool first) {
    const float *f = piece;
    const uint16_t *h = piece;
    if (first) memset(sum, 0, sizeof *sum * (size_t)count);
    if (dtype == DTYPE_F32)
        for (int64_t i = 0; i < count; i++) sum[i] = first ? f[i] : sum[i] + f[i];
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < count; i++) sum[i] += half_from_bf16(h[i]);
    else
        for (int64_t i = 0; i < count; i++) sum[i] += half_from_fp16(h[i]);
}

static void store_strip(void *out, const float *restrict sum, int64_t count, enum dtype dtype) {
    uint16_t *h = out;
    if (dtype == DTYPE_F32)
        memcpy(out, sum, sizeof *sum * (size_t)count);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < count; i++) h[i] = half_to_bf16(sum[i]);
    else
        for (int64_t i = 0; i < count; i++) h[i] = half_to_fp16(sum[i]);
}

/* Adds the pieces of our chunk in the order of ranks, each in one pass while the sum is in the cache. */
static void add_pieces(struct exchange *x, struct block *b) {
    enum { STRIP = 2048 };
    const enum dtype dtype = b->work->data.dtype;
    const int me = x->mpi->comm.rank, size = x->mpi->comm.size;
    const int64_t count = chunk_count(x, b, me);
    char *data = chunk(x, b, me);
    float sum[STRIP];
    for (int64_t first = 0; first < count; first += STRIP) {
        const int64_t strip = count - first < STRIP ? count - first : STRIP;
        const size_t at = (size_t)first * b->element;
        for (int r = 0; r < size; r++)
            add_strip(sum, (r == me ? data : (char *)(b->scratch + r * x->piece)) + at, strip, dtype, r == 0);
        store_strip(data + at, sum, strip, dtype);
    }
}

/* work->open counts its blocks under way, and one more until it has been cut to the end. */
static void release_work(struct exchange *x, struct work *work) {
    if (--work->open == 0) work_complete(x->mpi, work);
}

static void free_if_done(struct exchange *x, struct block *b) {
    if (b->open > 0) return;
    release_work(x, b->work);
    b->work = NULL;
}

/* What follows the completion of a message. */
static void message_done(const struct message *message) {
    struct exchange *x = message->mpi->exchange;
    struct block *b = message->context;
    const int peer = message->peer;
    if (message->kind == PIECE_RECEIVE && --b->pieces_missing == 0) {
        if (!is_broadcast(b)) add_pieces(x, b);
        send_results(x, b);
    }
    /* Not earlier: the result is received where the piece was sent from. */
    if (message->kind == PIECE_SEND && !is_broadcast(b))
        post(x, b, RESULT_RECEIVE, peer, chunk(x, b, peer), chunk_count(x, b, peer));
    b->open--;
    free_if_done(x, b);
}

static void take_work(struct exchange *x, struct work *work) {
    work->start = clock_seconds();
    work->open = 1;
    x->work = work;
    x->next = 0;
}

/* Is there anything left to put under way, of this work or of one that follows it? */
static bool more_to_start(struct exchange *x) {
    while (!x->work || x->next == tensor_count(x->work->data)) {
        if (x->work) release_work(x, x->work);
        x->work = NULL;
        struct work *next = thread_take_exchange(x->mpi);
        if (!next) return false;
        take_work(x, next);
    }
    return true;
}

static void start_block(struct exchange *x, struct block *b) {
    int64_t left = tensor_count(x->work->data) - x->next, most = x->piece * x->mpi->comm.size;
    b->work = x->work;
    b->element = dtype_table[b->work->data.dtype].size;
    b->data = (char *)b->work->data.data + (size_t)x->next * b->element;
    b->count = left < most ? left : most;
    b->tag = x->tag;
    x->tag = (x->tag + 2) % TAGS;
    x->next += b->count;
    b->work->open++;
    if (is_broadcast(b))
        start_broadcast(x, b);
    else
        start_all_reduce(x, b);
    free_if_done(x, b);
}

void exchange_fill(struct exchange *x) {
    for (int i = 0; i < WINDOW; i++)
        while (!x->block[i].work && more_to_start(x)) start_block(x, &x->block[i]);
}
