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
#include <time.h>
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

/* Of all threads of this process. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum leg { REDUCE_ALONE, COMPUTE_ALONE, REDUCE_BESIDE, COMPUTE_BESIDE, LEGS };
static double seconds[LEGS][REPEATS_MAX], cpu[LEGS][REPEATS_MAX];

/* Runs one leg: products (0: none) beside an all-reduce (works 0: none). Times are those of the slowest rank.
 */
static void run_leg(int k, enum leg compute, int products, enum leg reduce, struct work *work) {
    comm_barrier(comm);
    double wall = clock_seconds(), used = cpu_seconds(), end_of_reduce = wall;
    int works = work ? begin(work) : 0;
    multiply(products);
    double computed = clock_seconds() - wall;
    end(work, works);
    double used_in_all = cpu_seconds() - used;
    if (works) end_of_reduce = work[works - 1].end;
    double times[3] = {computed, end_of_reduce - wall, used_in_all};
    comm_reduce(comm, times, 3, REDUCE_MAX);
    if (products) seconds[compute][k] = times[0], cpu[compute][k] = times[2];
    if (works) seconds[reduce][k] = times[1], cpu[reduce][k] = times[2];
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

    for (int k = 0; k < repeats; k++) {
        run_leg(k, COMPUTE_ALONE, 0, REDUCE_ALONE, work);
        run_leg(k, COMPUTE_ALONE, products, REDUCE_ALONE, NULL);
        run_leg(k, COMPUTE_BESIDE, products, REDUCE_BESIDE, work);
    }
    if (comm->rank == 0) {
        double t[LEGS], c[LEGS];
        for (int leg = 0; leg < LEGS; leg++) {
            t[leg] = median(seconds[leg], repeats);
            c[leg] = median(cpu[leg], repeats);
        }
        double traffic = 2.0 * (comm->size - 1) / comm->size * 8e-6 * 4 * (double)count; /* Mbit */
        double link = link_mbit > 0 ? link_mbit : NAN;
        char text[256];
        comm_describe(comm, text, sizeof text);
        printf("%s: %.1f MB, link %g Mbit/s\n", text, 4e-6 * (double)count, link_mbit);
        for (int leg = REDUCE_ALONE; leg <= REDUCE_BESIDE; leg += REDUCE_BESIDE)
            printf("all-reduce %s %8.1f ms  %8.1f Mbit/s  %5.1f %% of the link\n", leg ? "beside" : "alone ",
                   1e3 * t[leg], traffic / t[leg], 100 * traffic / t[leg] / link);
        printf("cpu of the all-reduce alone %.1f ms, beside products %.1f ms\n", 1e3 * c[REDUCE_ALONE],
               1e3 * (c[COMPUTE_BESIDE] - c[COMPUTE_ALONE]));
        printf("products alone %.1f ms, beside %.1f ms: slower by %.1f %%, by cpu time %.1f %%\n",
               1e3 * t[COMPUTE_ALONE], 1e3 * t[COMPUTE_BESIDE],
               100 * (t[COMPUTE_BESIDE] / t[COMPUTE_ALONE] - 1),
               100 * (c[COMPUTE_BESIDE] / c[COMPUTE_ALONE] - 1));
    }
    comm_close(comm);
    return 0;
}
