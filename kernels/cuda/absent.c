/* Stands in for the CUDA back end where it was not compiled in: same symbol, and an answer instead of a kernel. */
#include "kernels/device.h"

static int absent_open(int threads, struct error *e) {
    (void)threads;
    return error_set(e, "device 'cuda' is not in this build of tandem; use --device cpu");
}

const struct device device_cuda = {.name = "cuda", .open = absent_open};
