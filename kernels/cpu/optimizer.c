/* Parameter updates: one pass over memory each, in blocks, so that no element's place among the vectors
 * depends on the number of threads. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { BLOCK = 4096 };

static int repeats_of(int repeats) {
    CHECK(repeats >= 0 && repeats <= ADAMW_REPEATS_MAX, "%d updates at once; at most %d", repeats,
          ADAMW_REPEATS_MAX);
    return repeats ? repeats : 1;
}

/* 1 / (1 - beta^step) for each of the updates. */
static void corrections(float *correction, float beta, int64_t last, int repeats) {
    for (int r = 0; r < repeats; r++)
        correction[r] = (float)(1.0 / (1.0 - pow(beta, (double)(last - repeats + 1 + r))));
}

void cpu_adamw(struct stream *s, struct tensor p, struct tensor g, struct tensor m, struct tensor v,
               struct adamw_step step) {
    (void)s;
    const int64_t count = tensor_count(p);
    const int repeats = repeats_of(step.repeats);
    float *restrict param = tensor_f32(p), *restrict first = cpu_matrix(m, count, 1);
    float *restrict second = cpu_matrix(v, count, 1);
    const float *restrict gradient = cpu_matrix(g, count, 1);
    float correction1[ADAMW_REPEATS_MAX], correction2[ADAMW_REPEATS_MAX];
    corrections(correction1, step.beta1, step.step, repeats);
    corrections(correction2, step.beta2, step.step, repeats);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int r = 0; r < repeats; r++) /* a block stays in the cache for all its updates */
            for (int64_t i = block; i < min_i64(count, block + BLOCK); i++) {
                const float d = step.grad_scale * gradient[i];
                const float mean = step.beta1 * first[i] + (1.0f - step.beta1) * d;
                const float square = step.beta2 * second[i] + (1.0f - step.beta2) * d * d;
                const float update = mean * correction1[r] / (sqrtf(square * correction2[r]) + step.eps);
                param[i] -= step.lr * (update + step.decay * param[i]);
                first[i] = mean;
                second[i] = square;
            }
}

void cpu_sgd(struct stream *s, struct tensor p, struct tensor g, struct tensor m, struct sgd_step step) {
    (void)s;
    const int64_t count = tensor_count(p);
    float *restrict param = tensor_f32(p), *restrict momentum = cpu_matrix(m, count, 1);
    const float *restrict gradient = cpu_matrix(g, count, 1);
    const int repeats = repeats_of(step.repeats);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int r = 0; r < repeats; r++)
            for (int64_t i = block; i < min_i64(count, block + BLOCK); i++) {
                const float d = step.grad_scale * gradient[i] + step.decay * param[i];
                momentum[i] = step.momentum * momentum[i] + d;
                param[i] -= step.lr * momentum[i];
            }
}

void cpu_axpy(struct stream *s, struct tensor y, float a, struct tensor x) {
    (void)s;
    const int64_t count = tensor_count(y);
    float *restrict out = tensor_f32(y);
    const float *restrict in = cpu_matrix(x, count, 1);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t i = block; i < min_i64(count, block + BLOCK); i++) out[i] += a * in[i];
}

void cpu_scale_add(struct stream *s, struct tensor out, float a, struct tensor x, struct tensor y) {
    (void)s;
    const int64_t count = tensor_count(out);
    float *restrict result = tensor_f32(out);
    const float *restrict first = cpu_matrix(x, count, 1), *restrict second = cpu_matrix(y, count, 1);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t i = block; i < min_i64(count, block + BLOCK); i++) result[i] = a * first[i] + second[i];
}
