/* ranks: 1 2 3 4
 * Collectives against results known beforehand; begin and end in any mixture; ranks that come late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/comm.h"

static struct comm *comm;

/* Around the edges of one element per rank, of a message (64 Ki elements) and of several blocks of messages.
 */
static const int64_t counts[] = {0, 1, 2, 3, 7, 1000, 65537, 262147, 2100003};
enum { COUNTS = sizeof counts / sizeof *counts };

static void random_delay(int seed) {
    usleep((unsigned)(((comm->rank + 1) * 7919 + seed * 104729) % 5 * 700));
}

/* Values whose sum depends on the order of the additions. Not inlined: no multiplication may fuse into the
 * sum. */
static __attribute__((noinline)) float rough_value(int rank, int64_t i) {
    uint32_t h = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503u + 12345u);
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    return ((float)(h & 0xffff) - 32768.0f) * (h & 0x10000 ? 1e-4f : 37.0f);
}

static void all_reduce(float *data, int64_t count, struct work *work) {
    comm_all_reduce_begin(comm, tensor_of(data, DTYPE_F32, count), work);
    comm_end(comm, work);
}

static void test_sum_of_integers(void **state) {
    (void)state;
    for (int n = 0; n < COUNTS; n++) {
        int64_t count = counts[n], p = comm->size;
        float *data = memory_alloc(sizeof *data * (size_t)(count + 1));
        for (int64_t i = 0; i < count; i++) data[i] = (float)((comm->rank + 1) * (i % 1013 + 1));
        data[count] = -1.0f;
        random_delay(n);
        struct work work;
        all_reduce(data, count, &work);
        for (int64_t i = 0; i < count; i++)
            if (data[i] != (float)(p * (p + 1) / 2 * (i % 1013 + 1)))
                fail_msg("element %ld of %ld", (long)i, (long)count);
        assert_true(data[count] == -1.0f);
        assert_true(work.posted <= work.start && work.start <= work.end);
        free(data);
    }
}

static void test_sum_in_rank_order_whatever_the_cut(void **state) {
    (void)state;
    int64_t count = 700001;
    static const int64_t cuts[] = {700001, 300007, 65536, 9999};
    float *data = memory_alloc(sizeof *data * (size_t)count),
          *expected = memory_alloc(sizeof *data * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        expected[i] = rough_value(0, i);
        for (int r = 1; r < comm->size; r++) expected[i] += rough_value(r, i);
    }
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        for (int64_t i = 0; i < count; i++) data[i] = rough_value(comm->rank, i);
        int works = (int)((count + cuts[c] - 1) / cuts[c]);
        struct work *work = memory_alloc(sizeof *work * (size_t)works);
        struct tensor whole = tensor_of(data, DTYPE_F32, count);
        for (int w = 0; w < works; w++) {
            int64_t first = w * cuts[c], left = count - first;
            comm_all_reduce_begin(comm, tensor_slice(whole, first, left < cuts[c] ? left : cuts[c]),
                                  &work[w]);
            if (w % 3 == 0) random_delay(w);
        }
        for (int w = works - 1; w >= 0; w--) comm_end(comm, &work[w]);
        assert_memory_equal(data, expected, sizeof *data * (size_t)count);
        free(work);
    }
    free(data);
    free(expected);
}

/* Every rank sends its piece of the others' chunks and p-1 times its own sum: 2 (p-1) N elements over all
 * ranks. */
static void test_bytes_sent(void **state) {
    (void)state;
    for (int n = 0; n < COUNTS; n++) {
        float *data = memory_alloc_zeroed(sizeof *data * (size_t)(counts[n] + 1));
        struct work work;
        all_reduce(data, counts[n], &work);
        double sent = (double)work.bytes_sent, p = comm->size, most = sent;
        comm_reduce(comm, &sent, 1, REDUCE_SUM);
        comm_reduce(comm, &most, 1, REDUCE_MAX);
        double expected = 2 * (p - 1) * 4 * (double)counts[n];
        assert_true(sent == expected);
        assert_true(most <= expected / p + 8 * p); /* shared evenly, up to one element of every chunk */
        free(data);
    }
}

static void test_broadcast(void **state) {
    (void)state;
    for (int n = 0; n < COUNTS; n++)
        for (int root = 0; root < comm->size; root++) {
            int64_t count = counts[n];
            int32_t *data = memory_alloc(sizeof *data * (size_t)(count + 1));
            for (int64_t i = 0; i <= count; i++) data[i] = comm->rank == root ? (int32_t)(i * 31 + root) : -7;
            data[count] = -7;
            struct work work;
            random_delay(n + root);
            comm_broadcast_begin(comm, tensor_of(data, DTYPE_I32, count), root, &work);
            comm_end(comm, &work);
            for (int64_t i = 0; i < count; i++)
                if (data[i] != (int32_t)(i * 31 + root)) fail_msg("element %ld from root %d", (long)i, root);
            assert_int_equal(data[count], -7);
            double sent = (double)work.bytes_sent;
            comm_reduce(comm, &sent, 1, REDUCE_SUM);
            assert_true(sent == 4.0 * (double)count * (comm->size - 1));
            free(data);
        }
}

static void test_many_kinds_at_once(void **state) {
    (void)state;
    enum { ROUNDS = 20, COUNT = 5003 };
    float *sum = memory_alloc(sizeof *sum * ROUNDS * COUNT);
    int32_t *copy = memory_alloc(sizeof *copy * ROUNDS * COUNT);
    struct work summing[ROUNDS], copying[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        float *s = sum + k * COUNT;
        int32_t *c = copy + k * COUNT;
        for (int i = 0; i < COUNT; i++) s[i] = (float)(comm->rank + k), c[i] = comm->rank * 100 + k;
        comm_all_reduce_begin(comm, tensor_of(s, DTYPE_F32, COUNT), &summing[k]);
        comm_broadcast_begin(comm, tensor_of(c, DTYPE_I32, COUNT), k % comm->size, &copying[k]);
        if (k % 5 == comm->rank) random_delay(k);
        double values[2] = {comm->rank, k};
        comm_reduce(comm, values, 2, REDUCE_MAX);
        assert_true(values[0] == comm->size - 1 && values[1] == k);
    }
    for (int k = ROUNDS - 1; k >= 0; k--) {
        comm_end(comm, &copying[k]);
        comm_end(comm, &summing[k]);
        assert_true(comm_done(comm, &summing[k]) && comm_done(comm, &copying[k]));
        int p = comm->size;
        for (int i = 0; i < COUNT; i++) {
            assert_true(sum[k * COUNT + i] == (float)(p * (p - 1) / 2 + p * k));
            assert_int_equal(copy[k * COUNT + i], k % p * 100 + k);
        }
    }
    free(sum);
    free(copy);
}

static void test_done_turns_true(void **state) {
    (void)state;
    float value = 1;
    struct work work;
    comm_all_reduce_begin(comm, tensor_of(&value, DTYPE_F32, 1), &work);
    while (!comm_done(comm, &work)) usleep(100);
    assert_true(value == (float)comm->size);
}

static void test_reduce(void **state) {
    (void)state;
    int p = comm->size;
    double r = comm->rank, rough[3] = {1.0 / (r + 3), r == 0 ? 1e16 : 1, -r};
    double expected[3] = {1.0 / 3, 1e16, -0.0};
    for (int k = 1; k < p; k++) expected[0] += 1.0 / (k + 3), expected[1] += 1, expected[2] -= k;
    comm_reduce(comm, rough, 3, REDUCE_SUM);
    assert_memory_equal(rough, expected, sizeof rough);
    double most = r, least = r + 3;
    comm_reduce(comm, &most, 1, REDUCE_MAX);
    comm_reduce(comm, &least, 1, REDUCE_MIN);
    assert_true(most == p - 1 && least == 3);
    comm_reduce(comm, NULL, 0, REDUCE_SUM);
}

/* The ranks in `failing`, a set of bits, fail, each with a message of its own; all get that of the lowest. */
static void check_agreement(int failing) {
    struct error e = {"untouched"};
    int status = failing >> comm->rank & 1 ? error_set(&e, "rank %d has no such file", comm->rank) : 0;
    random_delay(failing);
    int agreed = comm_agree(comm, status, &e);
    failing &= (1 << comm->size) - 1;
    assert_int_equal(agreed, failing ? -1 : 0);
    char expected[64] = "untouched";
    if (failing)
        snprintf(expected, sizeof expected, "rank %d has no such file", __builtin_ctz((unsigned)failing));
    assert_string_equal(e.text, expected);
}

static void test_agree(void **state) {
    (void)state;
    for (int failing = 0; failing < 1 << comm->size; failing++) check_agreement(failing);
}

static void test_barrier_waits_for_the_last(void **state) {
    (void)state;
    comm_barrier(comm);
    if (comm->rank == comm->size - 1) usleep(50000);
    double latest = clock_seconds(); /* one clock for all ranks: they are on one host */
    comm_barrier(comm);
    double left = clock_seconds();
    comm_reduce(comm, &latest, 1, REDUCE_MAX);
    assert_true(left >= latest);
}

/* However the ranks lie on hosts: every host has one rank 0, and counts its ranks. */
static void test_topology(void **state) {
    (void)state;
    assert_in_range(comm->local_rank, 0, comm->local_size - 1);
    double sums[2] = {comm->local_rank == 0, comm->local_rank == 0 ? comm->local_size : 0};
    comm_reduce(comm, sums, 2, REDUCE_SUM);
    assert_true(sums[0] == comm->hosts && sums[1] == comm->size);
    char text[256], ranks[64];
    comm_describe(comm, text, sizeof text);
    snprintf(ranks, sizeof ranks, "%d rank%s on %d host%s", comm->size, comm->size == 1 ? "" : "s",
             comm->hosts, comm->hosts == 1 ? "" : "s");
    assert_non_null(strstr(text, ranks));
}

static void test_unknown_kind(void **state) {
    (void)state;
    struct comm *other = NULL;
    struct error e;
    assert_int_equal(comm_open(&other, "smoke", &(struct comm_options){0}, &e), -1);
    assert_null(other);
    assert_non_null(strstr(e.text, "smoke"));
    assert_non_null(strstr(e.text, "auto, self or mpi"));
}

int main(void) {
    struct error e;
    struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    CHECK(comm_open(&comm, "auto", &options, &e) == 0, "%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_of_integers),
        cmocka_unit_test(test_sum_in_rank_order_whatever_the_cut),
        cmocka_unit_test(test_bytes_sent),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_many_kinds_at_once),
        cmocka_unit_test(test_done_turns_true),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_barrier_waits_for_the_last),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_unknown_kind),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_close(comm);
    return failed;
}
