/* Parameter updates: one pass over memory each, in blocks, so that no element's place among the vectors
 * depends on the number of threads. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { BLOCK = 4096 };

void cpu_adamw(struct stream *s, struct tensor p, struct tensor g, struct tensor m, struct tensor v,
               struct adamw_step step) {
    (void)s;
    const int64_t count = tensor_count(p);
    float *restrict param = tensor_f32(p), *restrict first = cpu_matrix(m, count, 1);
    float *restrict second = cpu_matrix(v, count, 1);
    const float *restrict gradient = cpu_matrix(g, count, 1);
    const double n = (double)step.gradients, seen = (double)step.step;
    const float keep1 = (float)pow(step.beta1, n), keep2 = (float)pow(step.beta2, n);
    const float correction1 = (float)(1.0 / (1.0 - pow(step.beta1, seen)));
    const float correction2 = (float)(1.0 / (1.0 - pow(step.beta2, seen)));
    const float correction_before = seen > n ? (float)(1.0 / (1.0 - pow(step.beta1, seen - n))) : 0.0f;
    const float times = (float)n, others = (float)(n - 1.0), lr = step.lr * times;
    const float scale = step.grad_scale / times;
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t i = block; i < min_i64(count, block + BLOCK); i++) {
            const float d = scale * gradient[i], before = correction_before * first[i];
            const float squared = fmaxf(d * d / times, d * (times * d - others * before));
            const float mean = keep1 * first[i] + (1.0f - keep1) * d;
            const float square = keep2 * second[i] + (1.0f - keep2) * squared;
            const float update = mean * correction1 / (sqrtf(square * correction2) + step.eps);
            param[i] -= lr * (update + step.decay * param[i]);
            first[i] = mean;
            second[i] = square;
        }
}

void cpu_sgd(struct stream *s, struct tensor p, struct tensor g, struct tensor m, struct sgd_step step) {
    (void)s;
    const int64_t count = tensor_count(p);
    float *restrict param = tensor_f32(p), *restrict momentum = cpu_matrix(m, count, 1);
    const float *restrict gradient = cpu_matrix(g, count, 1);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MINIMUM)
    for (int64_t block = 0; block < count; block += BLOCK)
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
