/* The CPU device: its table, its memory, its threads. */
#define _GNU_SOURCE
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const size_t page = 4096, huge_page = 2 << 20;

static int cpu_open(int threads, struct error *e) {
    if (threads < 1) return error_set(e, "the CPU computes with at least 1 thread, not %d", threads);
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    return 0;
}

static const char *vector_extension(void) {
    static const struct {
        dnnl_cpu_isa_t isa;
        const char *name;
    } known[] = {
        {dnnl_cpu_isa_avx512_core, "AVX-512"}, {dnnl_cpu_isa_avx2, "AVX2"}, {dnnl_cpu_isa_avx, "AVX"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((dnnl_get_effective_cpu_isa() & known[i].isa) == known[i].isa) return known[i].name;
    return "SSE";
}

static void cpu_describe(char *text, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    const int threads = omp_get_max_threads();
    snprintf(text, size, "cpu: %d thread%s, oneDNN %d.%d.%d, %s", threads, threads == 1 ? "" : "s",
             version->major, version->minor, version->patch, vector_extension());
}

static size_t mapped_size(size_t bytes) {
    size_t unit = bytes < huge_page ? page : huge_page;
    return (bytes + (bytes == 0) + unit - 1) / unit * unit;
}

/* Large memory starts on a huge page and asks for more of them: page-table misses cost the element-wise
 * passes. */
static void *cpu_memory_alloc(size_t bytes) {
    size_t size = mapped_size(bytes), slack = size < huge_page ? 0 : huge_page;
    char *mapped = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "out of memory: %zu bytes asked for: %s", bytes, strerror(errno));
    if (slack == 0) return mapped;
    size_t before = (huge_page - (uintptr_t)mapped % huge_page) % huge_page;
    if (before > 0) munmap(mapped, before);
    munmap(mapped + before + size, slack - before);
    madvise(mapped + before, size, MADV_HUGEPAGE); /* a wish: without it the memory is only slower */
    return mapped + before;
}

static void cpu_memory_free(void *memory, size_t bytes) {
    if (memory == NULL) return;
    CHECK(munmap(memory, mapped_size(bytes)) == 0, "cannot unmap %zu bytes: %s", bytes, strerror(errno));
}

static size_t bytes_of(struct tensor t) {
    return (size_t)tensor_count(t) * dtype_table[t.dtype].size;
}

static void cpu_copy_in(struct stream *s, struct tensor device, const void *host) {
    (void)s;
    memcpy(device.data, host, bytes_of(device));
}

static void cpu_copy_out(struct stream *s, void *host, struct tensor device) {
    (void)s;
    memcpy(host, device.data, bytes_of(device));
}

static void cpu_fill_zero(struct stream *s, struct tensor t) {
    (void)s;
    const size_t total = bytes_of(t), block = 1 << 20;
#pragma omp parallel for schedule(static) if (total > block)
    for (size_t i = 0; i < total; i += block)
        memset((char *)t.data + i, 0, total - i < block ? total - i : block);
}

static void cpu_synchronize(struct stream *s) {
    (void)s; /* every call has finished when it returns */
}

float *cpu_matrix(struct tensor t, int64_t rows, int64_t columns) {
    CHECK(tensor_count(t) == rows * columns, "a tensor has %lld elements where %lld x %lld were expected",
          (long long)tensor_count(t), (long long)rows, (long long)columns);
    return tensor_f32(t);
}

float *cpu_scratch(int64_t count) {
    static float *scratch;
    static size_t size;
    size_t bytes = (size_t)count * sizeof *scratch;
    if (bytes > size) {
        cpu_memory_free(scratch, size);
        scratch = cpu_memory_alloc(bytes);
        size = bytes;
    }
    return scratch;
}

const struct device device_cpu = {
    .name = "cpu",
    .precisions = "fp32|bf16|fp16",
    .open = cpu_open,
    .describe = cpu_describe,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .fill_zero = cpu_fill_zero,
    .synchronize = cpu_synchronize,
#define OP(name, arguments) .name = cpu_##name,
#include "kernels/ops.def"
#undef OP
};
