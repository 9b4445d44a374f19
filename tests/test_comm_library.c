/* ranks: 1 2 3 4
 * The all-reduce by MPI's own algorithm, alone and among other operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/comm.h"

static struct comm *comm;

static void test_sum_of_integers(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 7, 1000, 65537, 4500001}; /* the last in several calls */
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        int64_t count = counts[n], p = comm->size;
        float *data = memory_alloc(sizeof *data * (size_t)(count + 1));
        for (int64_t i = 0; i < count; i++) data[i] = (float)((comm->rank + 1) * (i % 1013 + 1));
        data[count] = -1.0f;
        usleep((unsigned)comm->rank * 1000);
        struct work work;
        comm_all_reduce_begin(comm, tensor_of(data, DTYPE_F32, count), &work);
        comm_end(comm, &work);
        for (int64_t i = 0; i < count; i++)
            if (data[i] != (float)(p * (p + 1) / 2 * (i % 1013 + 1))) fail_msg("element %ld", (long)i);
        assert_true(data[count] == -1.0f);
        assert_int_equal(work.bytes_sent, 2 * (p - 1) * 4 * count / p);
        free(data);
    }
}

static void test_among_other_operations(void **state) {
    (void)state;
    enum { ROUNDS = 12, COUNT = 3001 };
    static float sum[ROUNDS][COUNT], copy[ROUNDS][COUNT];
    struct work summing[ROUNDS], copying[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < COUNT; i++) sum[k][i] = (float)comm->rank, copy[k][i] = (float)(comm->rank + k);
        comm_all_reduce_begin(comm, tensor_of(sum[k], DTYPE_F32, COUNT), &summing[k]);
        comm_broadcast_begin(comm, tensor_of(copy[k], DTYPE_F32, COUNT), 0, &copying[k]);
        double one = 1;
        comm_reduce(comm, &one, 1, REDUCE_SUM);
        assert_true(one == comm->size);
    }
    for (int k = 0; k < ROUNDS; k++) {
        comm_end(comm, &summing[k]);
        comm_end(comm, &copying[k]);
        for (int i = 0; i < COUNT; i++) {
            assert_true(sum[k][i] == (float)(comm->size * (comm->size - 1) / 2));
            assert_true(copy[k][i] == (float)k);
        }
    }
}

int main(void) {
    struct error e;
    struct comm_options options = {.all_reduce = ALL_REDUCE_MPI, .timeout_s = 60};
    CHECK(comm_open(&comm, "mpi", &options, &e) == 0, "%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_of_integers),
        cmocka_unit_test(test_among_other_operations),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_close(comm);
    return failed;
}
