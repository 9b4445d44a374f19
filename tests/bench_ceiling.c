/* What this machine can do at most: the rate of dnnl_sgemm on 2048^3 and the bandwidth of a triad, as one JSON line.
 *
 *     bench_ceiling [THREADS [SECONDS]]        best and median over SECONDS (default 2) of each */
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/device.h"

enum { SIZE = 2048, TRIAD = 1 << 25, MOST = 1000 };

static float *a, *b, *c;

static void sgemm(void) {
    dnnl_sgemm('N', 'N', SIZE, SIZE, SIZE, 1.0f, a, SIZE, b, SIZE, 0.0f, c, SIZE);
}

static void triad(void) {
#pragma omp parallel for simd
    for (int64_t i = 0; i < TRIAD; i++) a[i] = b[i] + 0.5f * c[i];
}

static int by_value(const void *x, const void *y) {
    double d = *(const double *)x - *(const double *)y;
    return (d > 0) - (d < 0);
}

/* Seconds of one call: best and median. */
static void measure(void (*work)(void), double seconds, double *best, double *median) {
    double times[MOST], start = clock_seconds();
    int count = 0;
    work();
    do {
        double t = clock_seconds();
        work();
        times[count++] = clock_seconds() - t;
    } while (count < MOST && (count < 3 || clock_seconds() - start < seconds));
    qsort(times, (size_t)count, sizeof *times, by_value);
    *best = times[0];
    *median = times[count / 2];
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    const double seconds = argc > 2 ? atof(argv[2]) : 2.0;
    struct error e;
    CHECK(device_cpu.open(threads, &e) == 0, "%s", e.text);
    float **arrays[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        *arrays[i] = device_cpu.memory_alloc(TRIAD * sizeof(float));
#pragma omp parallel for
        for (int64_t k = 0; k < TRIAD; k++) (*arrays[i])[k] = 0.01f * (float)(k % 97);
    }
    double sgemm_best, sgemm_median, triad_best, triad_median;
    measure(sgemm, seconds, &sgemm_best, &sgemm_median);
    measure(triad, seconds, &triad_best, &triad_median);
    const double flop = 2.0 * SIZE * SIZE * SIZE, bytes = 3.0 * TRIAD * sizeof(float);
    printf("{\"threads\": %d, \"sgemm_gflops\": %.2f, \"sgemm_gflops_best\": %.2f, \"triad_gbs\": %.2f, "
           "\"triad_gbs_best\": %.2f}\n",
           threads, 1e-9 * flop / sgemm_median, 1e-9 * flop / sgemm_best, 1e-9 * bytes / triad_median,
           1e-9 * bytes / triad_best);
    return 0;
}
