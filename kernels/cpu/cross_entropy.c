/* Softmax, cross-entropy and its gradient in place: the logits are the largest tensor of a small model. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

/* NaN compares false and is passed over here; the sum of exponentials brings it back. */
static float row_maximum(const float *x, int64_t count) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < count; j++) largest = x[j] > largest ? x[j] : largest;
    return largest;
}

static float sum_exponentials(const float *x, int64_t count, float largest) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; j++) sum += vector_exp(x[j] - largest);
    return sum;
}

static float exponentiate(float *x, int64_t count, float largest) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; j++) {
        x[j] = vector_exp(x[j] - largest);
        sum += x[j];
    }
    return sum;
}

/* Among equals the first logit counts as the largest. */
static bool is_first_largest(const float *x, int64_t target, float largest) {
    if (x[target] != largest) return false;
    for (int64_t j = 0; j < target; j++)
        if (x[j] == largest) return false;
    return true;
}

void cpu_cross_entropy(struct stream *s, struct tensor loss, struct tensor correct, struct tensor logits,
                       struct tensor targets, float scale) {
    (void)s;
    struct wide wide = {0};
    logits = scale == 0.0f ? wide_read(&wide, logits) : wide_update(&wide, logits);
    const int64_t rows = tensor_rows(logits), columns = tensor_columns(logits);
    CHECK(tensor_count(targets) == rows, "%lld targets for %lld rows", (long long)tensor_count(targets),
          (long long)rows);
    const int32_t *target = tensor_i32(targets);
    float *losses = cpu_matrix(loss, rows, 1), *hits = cpu_matrix(correct, rows, 1), *x = tensor_f32(logits);
#pragma omp parallel for schedule(static) if (rows * columns > PARALLEL_MINIMUM)
    for (int64_t i = 0; i < rows; i++) {
        float *row = x + i * columns;
        const int64_t t = target[i];
        CHECK(t >= 0 && t < columns, "target %lld is outside a vocabulary of %lld", (long long)t,
              (long long)columns);
        const float largest = row_maximum(row, columns), chosen = row[t];
        hits[i] = is_first_largest(row, t, largest) ? 1.0f : 0.0f;
        const float sum =
            scale == 0.0f ? sum_exponentials(row, columns, largest) : exponentiate(row, columns, largest);
        losses[i] = logf(sum) + (largest - chosen);
        if (scale == 0.0f) continue;
        const float factor = scale / sum;
        for (int64_t j = 0; j < columns; j++) row[j] *= factor;
        row[t] -= scale;
    }
    wide_finish(&wide);
}
