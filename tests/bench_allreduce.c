/* All-reduce beside computation: how much of the link it uses, and how much computing it costs on the same
 * core.
 *
 *     mpirun ... bench_allreduce LINK_MBIT [direct|mpi] [MB] [STEP_PRODUCTS] [REPEATS]
 *     scripts/virtual_cluster.sh --hosts 2 --rate 250mbit -- build/tests/bench_allreduce 250 direct
 *
 * The all-reduce is of 43.4 MB, in pieces of 8 MiB begun together. The computation is a fixed number of
 * 1024^3 matrix products, about one training step. Legs alternate: all-reduce alone, products alone, both at
 * once. Medians of the repeats, of the slowest rank. Bus bandwidth: 2 (p-1)/p x bytes / time. LINK_MBIT 0: no
 * link to compare with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <dnnl.h>

#include "comm/comm.h"

enum { SIDE = 1024, PIECE = 2 << 20, REPEATS_MAX = 64 };

static struct comm *comm;
static float *data, *a, *b, *c;
static int64_t count;

static int begin(struct work *work) {
    int works = 0;
    struct tensor whole = tensor_of(data, DTYPE_F32, count);
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t left = count - first;
        comm_all_reduce_begin(comm, tensor_slice(whole, first, left < PIECE ? left : PIECE), &work[works++]);
    }
    return works;
}

static void end(struct work *work, int works) {
    for (int i = 0; i < works; i++) comm_end(comm, &work[i]);
}

static void multiply(int products) {
    for (int i = 0; i < products; i++)
        dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE, 0, c, SIDE);
}

static double slowest(double seconds) {
    comm_reduce(comm, &seconds, 1, REDUCE_MAX);
    return seconds;
}

static int compare(const void *x, const void *y) {
    double d = *(const double *)x - *(const double *)y;
    return (d > 0) - (d < 0);
}

static double median(double *value, int n) {
    qsort(value, (size_t)n, sizeof *value, compare);
    return n % 2 ? value[n / 2] : 0.5 * (value[n / 2 - 1] + value[n / 2]);
}

static double argument(int argc, char **argv, int i, double otherwise) {
    return argc > i ? atof(argv[i]) : otherwise;
}

int main(int argc, char **argv) {
    double link_mbit = argument(argc, argv, 1, 0), bytes = 1e6 * argument(argc, argv, 3, 43.4);
    bool by_mpi = argc > 2 && strcmp(argv[2], "mpi") == 0;
    int products = (int)argument(argc, argv, 4, 50), repeats = (int)argument(argc, argv, 5, 5);
    struct error e;
    struct comm_options options = {.all_reduce = by_mpi ? ALL_REDUCE_MPI : ALL_REDUCE_DIRECT,
                                   .timeout_s = 60};
    CHECK(comm_open(&comm, "mpi", &options, &e) == 0, "%s", e.text);
    CHECK(repeats >= 1 && repeats <= REPEATS_MAX && bytes >= 4, "1 to %d repeats of at least 4 bytes",
          REPEATS_MAX);
    count = (int64_t)bytes / 4;
    data = memory_alloc_zeroed(sizeof *data * (size_t)count);
    a = memory_alloc_zeroed(4 * SIDE * SIDE), b = memory_alloc_zeroed(4 * SIDE * SIDE);
    c = memory_alloc_zeroed(4 * SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++) a[i] = b[i] = 1e-3f * (float)(i % 997);
    struct work *work = memory_alloc(sizeof *work * (size_t)(count / PIECE + 1));
    end(work, begin(work));
    multiply(10);

    double alone[REPEATS_MAX], computing[REPEATS_MAX], both[REPEATS_MAX], beside[REPEATS_MAX],
        cpu[REPEATS_MAX];
    for (int k = 0; k < repeats; k++) {
        comm_barrier(comm);
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        double t0 = clock_seconds();
        end(work, begin(work));
        double t1 = clock_seconds();
        getrusage(RUSAGE_SELF, &after);
        alone[k] = slowest(t1 - t0);
        cpu[k] = slowest((double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
                                  before.ru_stime.tv_sec) +
                         1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                                         after.ru_stime.tv_usec - before.ru_stime.tv_usec));

        comm_barrier(comm);
        t0 = clock_seconds();
        multiply(products);
        computing[k] = slowest(clock_seconds() - t0);

        comm_barrier(comm);
        t0 = clock_seconds();
        int works = begin(work);
        multiply(products);
        beside[k] = slowest(clock_seconds() - t0);
        end(work, works);
        both[k] = slowest(work[works - 1].end - t0);
    }
    if (comm->rank == 0) {
        double t = median(alone, repeats), t_both = median(both, repeats),
               t_compute = median(computing, repeats);
        double traffic = 2.0 * (comm->size - 1) / comm->size * 8e-6 * 4 * (double)count; /* Mbit */
        double link = link_mbit > 0 ? link_mbit : NAN;
        char text[256];
        comm_describe(comm, text, sizeof text);
        printf("%s: %.1f MB, link %g Mbit/s\n", text, 4e-6 * (double)count, link_mbit);
        printf("all-reduce alone   %8.1f ms  %8.1f Mbit/s  %5.1f %% of the link  cpu %.1f ms\n", 1e3 * t,
               traffic / t, 100 * traffic / t / link, 1e3 * median(cpu, repeats));
        printf("all-reduce beside  %8.1f ms  %8.1f Mbit/s  %5.1f %% of the link\n", 1e3 * t_both,
               traffic / t_both, 100 * traffic / t_both / link);
        printf("products alone     %8.1f ms\n", 1e3 * t_compute);
        printf("products beside    %8.1f ms  slower by %.1f %%\n", 1e3 * median(beside, repeats),
               100 * (median(beside, repeats) / t_compute - 1));
    }
    comm_close(comm);
    return 0;
}
