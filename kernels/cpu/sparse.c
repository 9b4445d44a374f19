/* Elements by index. */
#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"

void cpu_select_random(struct stream *s, struct tensor index, int64_t elements, uint64_t key) {
    (void)s;
    const int64_t k = tensor_count(index);
    int32_t *at = tensor_i32(index);
    CHECK(k <= elements && elements <= INT32_MAX, "%lld of %lld elements", (long long)k, (long long)elements);
#pragma omp parallel for schedule(static) if (k > PARALLEL_MINIMUM)
    for (int64_t j = 0; j < k; j += 4) {
        const struct philox draw = philox_draw(key, (uint64_t)j / 4, 0);
        for (int64_t i = j; i < min_i64(k, j + 4); i++) {
            const int64_t first = i * elements / k, end = (i + 1) * elements / k;
            at[i] = (int32_t)(first + (int64_t)((uint64_t)draw.word[i - j] * (uint64_t)(end - first) >> 32));
        }
    }
}

void cpu_gather_at(struct stream *s, struct tensor value, struct tensor x, struct tensor index) {
    (void)s;
    const int64_t k = tensor_count(index);
    const int32_t *at = tensor_i32(index);
    const float *from = tensor_f32(x);
    float *to = cpu_matrix(value, k, 1);
    for (int64_t i = 0; i < k; i++) to[i] = at[i] < 0 ? 0.0f : from[at[i]];
}

void cpu_scatter_add(struct stream *s, struct tensor y, struct tensor index, struct tensor value) {
    (void)s;
    const int64_t k = tensor_count(index);
    const int32_t *at = tensor_i32(index);
    const float *from = cpu_matrix(value, k, 1);
    float *to = tensor_f32(y);
    for (int64_t i = 0; i < k; i++)
        if (at[i] >= 0) to[at[i]] += from[i];
}

void cpu_clear_at(struct stream *s, struct tensor x, struct tensor index, struct tensor mask) {
    (void)s;
    const int64_t k = tensor_count(index);
    const int32_t *at = tensor_i32(index);
    const float *where = mask.data;
    float *data = tensor_f32(x);
    for (int64_t i = 0; i < k; i++)
        if (at[i] >= 0 && (!where || where[at[i]] != 0.0f)) data[at[i]] = 0.0f;
}
