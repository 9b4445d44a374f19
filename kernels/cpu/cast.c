#include "kernels/cpu/cpu.h"
#include "kernels/half.h"

/* One loop for each pair of dtypes; strips keep threads busy and each loop simple enough to vectorise. Not `restrict`: fp32
 * may be scaled in place. */
#define CAST(name, to_type, from_type, expression)                                                       \
    static void name(void *out, const void *in, int64_t count, float scale) {                            \
        to_type *y = out;                                                                                \
        const from_type *x = in;                                                                         \
        _Pragma("omp parallel for simd schedule(static) if (parallel : count > PARALLEL_MINIMUM)") for ( \
            int64_t i = 0; i < count; i++) y[i] = expression;                                            \
    }
CAST(f32_from_f32, float, float, scale *x[i])
CAST(bf16_from_f32, uint16_t, float, half_to_bf16(scale *x[i]))
CAST(f16_from_f32, uint16_t, float, half_to_fp16(scale *x[i]))
CAST(f32_from_bf16, float, uint16_t, scale *half_from_bf16(x[i]))
CAST(f32_from_f16, float, uint16_t, scale *half_from_fp16(x[i]))

void cpu_cast(struct stream *s, struct tensor out, struct tensor in, float scale) {
    (void)s;
    static void (*const table[DTYPE_COUNT][DTYPE_COUNT])(void *, const void *, int64_t, float) = {
        [DTYPE_F32][DTYPE_F32] = f32_from_f32, [DTYPE_BF16][DTYPE_F32] = bf16_from_f32,
        [DTYPE_F16][DTYPE_F32] = f16_from_f32, [DTYPE_F32][DTYPE_BF16] = f32_from_bf16,
        [DTYPE_F32][DTYPE_F16] = f32_from_f16,
    };
    CHECK(tensor_count(out) == tensor_count(in) && table[out.dtype][in.dtype],
          "no cast of %lld %s to %lld %s", (long long)tensor_count(in), dtype_table[in.dtype].name,
          (long long)tensor_count(out), dtype_table[out.dtype].name);
    table[out.dtype][in.dtype](out.data, in.data, tensor_count(in), scale);
}

void cpu_residual_fold(struct stream *s, struct tensor residual, struct tensor gradient, float keep) {
    (void)s;
    float *restrict r = tensor_f32(residual), *restrict g = tensor_f32(gradient);
    const int64_t count = tensor_count(residual);
    CHECK(count == tensor_count(gradient), "a residual of %lld elements for a gradient of %lld",
          (long long)count, (long long)tensor_count(gradient));
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) {
        r[i] = (keep == 0.0f ? 0.0f : keep * r[i]) + g[i];
        g[i] = 0.0f;
    }
}
