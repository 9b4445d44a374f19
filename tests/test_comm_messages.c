/* ranks: 1 2 3 4
 * Messages between two ranks, and communicators that split others: any dtype and length, in order, beside collectives,
 * whoever comes late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/comm.h"

static struct comm *comm;

/* Around one element, the eager limit, a piece (256 KiB), and several pieces. */
static const int64_t counts[] = {0, 1, 3, 1000, 65536, 131073, 700001};
enum { COUNTS = sizeof counts / sizeof *counts };

static uint32_t hash(uint32_t a, uint32_t b) {
    uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u + (a << 6));
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    return h * 3266489917u ^ h >> 16;
}

static void delay(uint32_t seed) {
    if (seed % 4 == 0) usleep(seed / 4 % 2000);
}

static void fill(unsigned char *data, int64_t bytes, uint32_t seed) {
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((uint64_t)(i * 131) + (uint64_t)(i >> 9) + seed);
}

static void check_filled(const unsigned char *data, int64_t bytes, uint32_t seed) {
    for (int64_t i = 0; i < bytes; i++)
        if (data[i] != (unsigned char)((uint64_t)(i * 131) + (uint64_t)(i >> 9) + seed))
            fail_msg("byte %ld of %ld, message %u", (long)i, (long)bytes, seed);
}

/* A pair swaps `count` elements; both may begin with the same half. */
static void swap(struct comm *c, int peer, enum dtype dtype, int64_t count, bool send_first) {
    const int64_t bytes = count * (int64_t)dtype_table[dtype].size;
    unsigned char *out = memory_alloc((size_t)bytes), *in = memory_alloc((size_t)bytes + 1);
    struct work sending, receiving;
    fill(out, bytes, (uint32_t)(c->rank * 17 + peer));
    in[bytes] = 99;
    if (send_first) comm_send_begin(c, tensor_of(out, dtype, count), peer, &sending);
    comm_receive_begin(c, tensor_of(in, dtype, count), peer, &receiving);
    if (!send_first) comm_send_begin(c, tensor_of(out, dtype, count), peer, &sending);
    comm_end(c, &sending);
    comm_end(c, &receiving);
    check_filled(in, bytes, (uint32_t)(peer * 17 + c->rank));
    assert_int_equal(in[bytes], 99);
    assert_true(sending.bytes_sent == bytes && receiving.bytes_sent == 0);
    assert_true(sending.posted <= sending.start && sending.start <= sending.end);
    free(out);
    free(in);
}

static void test_every_dtype_and_length_between_every_pair(void **state) {
    (void)state;
    for (int n = 0; n < COUNTS; n++)
        for (int peer = 0; peer < comm->size; peer++) {
            if (peer == comm->rank) continue;
            delay(hash((uint32_t)n, (uint32_t)(comm->rank * 10 + peer)));
            swap(comm, peer, (enum dtype)((n + comm->rank + peer) % DTYPE_COUNT), counts[n], n % 2);
        }
}

/* More than 64 pieces would be: pieces become longer. */
static void test_long_message(void **state) {
    (void)state;
    const int peer = comm->rank ^ 1;
    if (peer < comm->size) swap(comm, peer, DTYPE_BF16, (37 << 19) + 5, true);
}

/* All of a rank's messages to its neighbour are begun before the neighbour begins to receive; lengths differ. */
static void test_messages_of_a_pair_keep_their_order(void **state) {
    (void)state;
    enum { MESSAGES = 40, MOST = 90000 };
    if (comm->size == 1) return;
    const int next = (comm->rank + 1) % comm->size, previous = (comm->rank + comm->size - 1) % comm->size;
    static float out[MESSAGES][MOST], in[MESSAGES][MOST];
    static struct work sending[MESSAGES], receiving[MESSAGES];
    for (int k = 0; k < MESSAGES; k++) {
        const int64_t bytes = 4 * (int64_t)(hash((uint32_t)k, 5) % MOST);
        fill((unsigned char *)out[k], bytes, (uint32_t)(comm->rank * 100 + k));
        comm_send_begin(comm, tensor_of(out[k], DTYPE_F32, bytes / 4), next, &sending[k]);
    }
    delay(4u * (uint32_t)comm->rank * 200u);
    for (int k = 0; k < MESSAGES; k++)
        comm_receive_begin(comm, tensor_of(in[k], DTYPE_F32, hash((uint32_t)k, 5) % MOST), previous,
                           &receiving[k]);
    for (int k = MESSAGES - 1; k >= 0; k--) {
        comm_end(comm, &receiving[k]);
        comm_end(comm, &sending[k]);
        check_filled((unsigned char *)in[k], 4 * (int64_t)(hash((uint32_t)k, 5) % MOST),
                     (uint32_t)(previous * 100 + k));
    }
}

/* Every rank waits for every other while collectives of two communicators, small ones and messages of others complete. */
static void test_a_receive_that_waits_holds_up_nothing(void **state) {
    (void)state;
    enum { COUNT = 300000 };
    const int size = comm->size, me = comm->rank;
    struct comm *child;
    comm_split(comm, 0, -me, &child);
    int32_t late[8] = {0}, mine = me + 1000;
    struct work receiving[8], sending[8], world_sum, child_sum;
    for (int r = 0; r < size; r++)
        if (r != me) comm_receive_begin(comm, tensor_of(&late[r], DTYPE_I32, 1), r, &receiving[r]);
    float *a = memory_alloc(sizeof *a * COUNT), *b = memory_alloc(sizeof *b * COUNT);
    for (int i = 0; i < COUNT; i++) a[i] = (float)(i % 100 + me), b[i] = (float)(i % 77 - me);
    /* Begun in opposite orders by even and odd ranks: one must not wait for the other. */
    if (me % 2) comm_all_reduce_begin(child, tensor_of(b, DTYPE_F32, COUNT), &child_sum);
    if (me % 2) comm_end(child, &child_sum);
    comm_all_reduce_begin(comm, tensor_of(a, DTYPE_F32, COUNT), &world_sum);
    if (me % 2 == 0) comm_all_reduce_begin(child, tensor_of(b, DTYPE_F32, COUNT), &child_sum);
    if (me % 2 == 0) comm_end(child, &child_sum);
    comm_end(comm, &world_sum);
    for (int i = 0; i < COUNT; i++) {
        assert_true(a[i] == (float)(size * (i % 100) + size * (size - 1) / 2));
        assert_true(b[i] == (float)(size * (i % 77) - size * (size - 1) / 2));
    }
    comm_barrier(comm);
    if ((child->rank ^ 1) < size) swap(child, child->rank ^ 1, DTYPE_F32, 200000, true);
    for (int r = 0; r < size; r++)
        if (r != me) assert_false(comm_done(comm, &receiving[r]));
    comm_barrier(comm);
    for (int r = 0; r < size; r++)
        if (r != me) comm_send_begin(comm, tensor_of(&mine, DTYPE_I32, 1), r, &sending[r]);
    for (int r = 0; r < size; r++) {
        if (r == me) continue;
        comm_end(comm, &sending[r]);
        comm_end(comm, &receiving[r]);
        assert_int_equal(late[r], r + 1000);
    }
    comm_close(child);
    free(a);
    free(b);
}

/* Random traffic. Event k is the same on all ranks that take part: an operation of one of three communicators. */
enum kind { MESSAGE, ALL_REDUCE, ALL_GATHER, BROADCAST };
struct event {
    enum kind kind;
    int where, from, to; /* communicator; world ranks of a message */
    int64_t count;
};
enum { EVENTS = 400, WINDOW = 24, MOST = 30000, COMMUNICATORS = 3 };

static struct comm *where[COMMUNICATORS];

static int rank_in(const struct comm *c, int world_rank) {
    for (int r = 0; r < c->size; r++)
        if (c->place[r].world_rank == world_rank) return r;
    return -1;
}

static struct event event_at(int k) {
    const uint32_t h = hash((uint32_t)k, 77), p = (uint32_t)comm->size;
    struct event e = {.kind = h % 8 < 5 ? MESSAGE : (enum kind)(h % 8 - 4),
                      .where = (int)(h >> 8) % COMMUNICATORS};
    e.from = (int)((h >> 12) % p);
    e.to = (int)((h >> 16) % p);
    e.count = hash((uint32_t)k, 78) % (h % 3 ? 200 : MOST);
    return e;
}

struct slot {
    int event; /* -1: free */
    struct work work;
    float *data, *all; /* [MOST], [size][MOST] */
};

/* False where this rank has no part in it. */
static bool begin_event(struct slot *slot, int k) {
    const struct event e = event_at(k);
    struct comm *c = where[e.where];
    const int from = rank_in(c, e.from), to = rank_in(c, e.to), me = comm->rank;
    const struct tensor data = tensor_of(slot->data, DTYPE_F32, e.count);
    if (e.kind == MESSAGE && (from < 0 || to < 0 || from == to || (me != e.from && me != e.to))) return false;
    const bool receives =
        (e.kind == MESSAGE && me == e.to) || (e.kind == BROADCAST && c->rank != k % c->size);
    for (int64_t i = 0; i < e.count; i++) slot->data[i] = receives ? -1 : (float)((i + k) % 1009 + me);
    switch (e.kind) {
    case MESSAGE:
        if (me == e.from)
            comm_send_begin(c, data, to, &slot->work);
        else
            comm_receive_begin(c, data, from, &slot->work);
        break;
    case ALL_REDUCE:
        comm_all_reduce_begin(c, data, &slot->work);
        break;
    case ALL_GATHER:
        comm_all_gather_begin(c, data, tensor_of(slot->all, DTYPE_F32, c->size, e.count), &slot->work);
        break;
    default:
        comm_broadcast_begin(c, data, k % c->size, &slot->work);
    }
    slot->event = k;
    return true;
}

static void check_event(const struct slot *slot) {
    const int k = slot->event;
    const struct event e = event_at(k);
    const struct comm *c = where[e.where];
    int sum = 0;
    for (int r = 0; r < c->size; r++) sum += c->place[r].world_rank;
    for (int64_t i = 0; i < e.count; i++) {
        const int64_t value = (i + k) % 1009;
        bool good = true;
        if (e.kind == MESSAGE) good = slot->data[i] == (float)(value + e.from);
        if (e.kind == ALL_REDUCE) good = slot->data[i] == (float)(value * c->size + sum);
        if (e.kind == BROADCAST) good = slot->data[i] == (float)(value + c->place[k % c->size].world_rank);
        for (int r = 0; e.kind == ALL_GATHER && r < c->size; r++)
            good = good && slot->all[r * e.count + i] == (float)(value + c->place[r].world_rank);
        if (!good) fail_msg("event %d, kind %d, element %ld of %ld", k, e.kind, (long)i, (long)e.count);
    }
}

static void end_event(struct slot *slot) {
    comm_end(where[event_at(slot->event).where], &slot->work);
    check_event(slot);
    slot->event = -1;
}

static struct slot *oldest(struct slot *slots) {
    struct slot *found = NULL;
    for (int i = 0; i < WINDOW; i++)
        if (slots[i].event >= 0 && (!found || slots[i].event < found->event)) found = &slots[i];
    return found;
}

/* Those that happen to be complete, in no order. */
static void end_some(struct slot *slots, uint32_t draw) {
    for (int i = 0; i < WINDOW; i++) {
        struct slot *s = &slots[(i * 7 + draw) % WINDOW];
        if (s->event >= 0 && comm_done(where[event_at(s->event).where], &s->work)) end_event(s);
    }
}

/* Ranks may begin operations of different communicators in different orders: each rank swaps neighbours of its own choice. */
static int nth_event(int n) {
    const int k = n ^ 1;
    if (k >= EVENTS || event_at(n).where == event_at(k).where) return n;
    return hash((uint32_t)(n / 2), (uint32_t)comm->rank) % 2 ? k : n;
}

static void test_random_traffic(void **state) {
    (void)state;
    where[0] = comm;
    comm_split(comm, comm->rank % 2, comm->rank, &where[1]);
    comm_split(comm, comm->rank / 2, -comm->rank, &where[2]);
    struct slot slots[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        slots[i].event = -1;
        slots[i].data = memory_alloc(sizeof(float) * MOST);
        slots[i].all = memory_alloc(sizeof(float) * MOST * (size_t)comm->size);
    }
    for (int n = 0; n < EVENTS; n++) {
        const uint32_t draw = hash((uint32_t)n, (uint32_t)(comm->rank + 1000));
        if (draw % 16 == 0) usleep(draw / 16 % 3000);
        if (draw % 3 == 0) end_some(slots, draw);
        struct slot *slot = slots;
        while (slot < slots + WINDOW && slot->event >= 0) slot++;
        if (slot == slots + WINDOW) end_event(slot = oldest(slots));
        begin_event(slot, nth_event(n));
    }
    for (struct slot *slot; (slot = oldest(slots));) end_event(slot);
    for (int i = 0; i < WINDOW; i++) free(slots[i].data), free(slots[i].all);
    comm_close(where[2]);
    comm_close(where[1]);
}

static void test_split(void **state) {
    (void)state;
    const int size = comm->size, me = comm->rank;
    struct comm *odd, *reversed, *inner;
    comm_split(comm, me % 2 ? 7 : COMM_NO_COLOR, 0, &odd);
    assert_true((odd != NULL) == (me % 2));
    comm_split(comm, 3, size - me, &reversed);
    assert_int_equal(reversed->rank, size - 1 - me);
    comm_split(reversed, reversed->rank / 2, 0, &inner);
    assert_int_equal(inner->rank, reversed->rank % 2);
    for (int r = 0; r < size; r++) assert_int_equal(reversed->place[r].world_rank, size - 1 - r);
    if (odd) {
        assert_int_equal(odd->size, size / 2);
        assert_int_equal(odd->place[odd->rank].world_rank, me);
    }
    assert_int_equal(reversed->hosts, comm->hosts);
    assert_int_equal(reversed->local_size, comm->local_size);
    assert_in_range(inner->local_rank, 0, inner->local_size - 1);
    double sum = me;
    comm_reduce(inner, &sum, 1, REDUCE_SUM);
    assert_true(sum == (inner->size == 2 ? 2 * me + (inner->rank ? 1 : -1) : me));
    comm_close(reversed); /* before its child */
    comm_barrier(inner);
    comm_close(odd);
    comm_close(inner);
}

static jmp_buf refused;
static void on_abort(int code) {
    (void)code;
    longjmp(refused, 1);
}

/* Before MPI is there, whose handler would end the job. */
static void test_message_to_oneself_is_refused(void) {
    struct error e;
    struct comm *alone;
    struct work work;
    float value = 1;
    CHECK(comm_open(&alone, "self", &(struct comm_options){0}, &e) == 0, "%s", e.text);
    job_set_abort_handler(on_abort);
    volatile int refusals = 0;
    for (volatile int peer = -1; peer <= 1; peer++) {
        if (setjmp(refused) == 0)
            comm_send_begin(alone, tensor_of(&value, DTYPE_F32, 1), peer, &work);
        else
            refusals++;
        if (setjmp(refused) == 0)
            comm_receive_begin(alone, tensor_of(&value, DTYPE_F32, 1), peer, &work);
        else
            refusals++;
    }
    job_set_abort_handler(NULL);
    CHECK(refusals == 6, "%d of 6 messages to nobody were refused", refusals);
    comm_close(alone);
}

/* The communication thread lives as long as any communicator does. */
static void close_world_before_child(void) {
    struct comm *child;
    comm_split(comm, 0, 0, &child);
    comm_close(comm);
    double sum = 1;
    comm_reduce(child, &sum, 1, REDUCE_SUM);
    CHECK(sum == child->size, "the sum is %g", sum);
    comm_close(child);
}

int main(void) {
    struct error e;
    struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    test_message_to_oneself_is_refused();
    CHECK(comm_open(&comm, "auto", &options, &e) == 0, "%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype_and_length_between_every_pair),
        cmocka_unit_test(test_long_message),
        cmocka_unit_test(test_messages_of_a_pair_keep_their_order),
        cmocka_unit_test(test_a_receive_that_waits_holds_up_nothing),
        cmocka_unit_test(test_random_traffic),
        cmocka_unit_test(test_split),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_world_before_child();
    return failed;
}
