/* Times every operation at the shapes of one training step of a small GPT-2 (6 layers, 6 heads, 384 channels,
 * 8 sequences of 256 bytes), and adds them up to a step. Usage: bench_kernels [threads [optimizer elements]].
 */
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 6, B = 8, T = 256, N = B * T, C = 384, H = 6, V = 256, F = 4 * C, SQUARE = 2048 };
enum { PARAMETERS = LAYERS * (12 * C * C + 13 * C) + (2 * V + T + 2) * C };

static const struct device *dev = &device_cpu;
static struct tensor hidden, wide, wide2, saturated, x, y, dx, qkv, dqkv, lse, stats, w_qkv, w_proj, w_up,
    w_down, wte, wpe;
static struct tensor vector, vector2, vector3, logits, loss, correct, tokens, square[3], p, g, m, v;
static struct dropout drop;

/* floats(dims...): small values that differ. */
#define floats(...) fill(tensor_of(NULL, DTYPE_F32, __VA_ARGS__))

static struct tensor fill(struct tensor t) {
    const int64_t count = tensor_count(t);
    t.data = dev->memory_alloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        ((float *)t.data)[i] = 0.02f * (float)((i * 7919 + i / 97) % 101 - 50);
    return t;
}

static void create(int64_t elements) {
    x = floats(B, T, C), y = floats(B, T, C), dx = floats(B, T, C), hidden = floats(N, C);
    wide = floats(N, F), wide2 = floats(N, F), qkv = floats(B, T, 3 * C), dqkv = floats(B, T, 3 * C);
    lse = floats(B, H, T), stats = floats(N, 2), logits = floats(N, V), loss = floats(N), correct = floats(N);
    w_qkv = floats(C, 3 * C), w_proj = floats(C, C), w_up = floats(C, F), w_down = floats(F, C);
    wte = floats(V, C), wpe = floats(T, C), vector = floats(F), vector2 = floats(C), vector3 = floats(C);
    tokens = tensor_of(dev->memory_alloc(N * sizeof(int32_t)), DTYPE_I32, B, T);
    for (int i = 0; i < N; i++) tensor_i32(tokens)[i] = i * 31 % V;
    for (int i = 0; i < 3; i++) square[i] = floats(SQUARE, SQUARE);
    p = floats(elements), g = floats(elements), m = floats(elements), v = floats(elements);
    saturated = floats(N, F); /* gelu' = 1 there: repeated, the gradient must not fade into denormals */
    for (int64_t i = 0; i < N * F; i++) tensor_f32(saturated)[i] = 12.0f;
    dev->fill_zero(NULL, v); /* second moments are not negative */
}

static struct tensor columns(struct tensor t, int64_t count) {
    t.dim[0] = count;
    return t;
}

static void run_ceiling(void) {
    dev->matmul(NULL, square[0], square[1], false, square[2], false, 0);
}
static void run_qkv(void) {
    dev->linear_forward(NULL, qkv, x, w_qkv, columns(vector, 3 * C));
}
static void run_proj(void) {
    dev->linear_forward(NULL, y, x, w_proj, vector2);
}
static void run_up(void) {
    dev->linear_gelu_forward(NULL, wide, wide2, x, w_up, vector);
}
static void run_down(void) {
    dev->linear_forward(NULL, y, wide, w_down, vector2);
}
static void run_qkv_dx(void) {
    dev->matmul(NULL, dx, dqkv, false, w_qkv, true, 0);
}
static void run_qkv_dw(void) {
    dev->matmul(NULL, w_qkv, x, true, dqkv, false, 0);
}
static void run_proj_dx(void) {
    dev->matmul(NULL, dx, y, false, w_proj, true, 0);
}
static void run_proj_dw(void) {
    dev->matmul(NULL, w_proj, x, true, y, false, 0);
}
static void run_up_dx(void) {
    dev->matmul(NULL, dx, wide, false, w_up, true, 0);
}
static void run_up_dw(void) {
    dev->matmul(NULL, w_up, x, true, wide, false, 0);
}
static void run_down_dx(void) {
    dev->matmul(NULL, wide, y, false, w_down, true, 0);
}
static void run_down_dw(void) {
    dev->matmul(NULL, w_down, wide, true, y, false, 0);
}
static void run_head(void) {
    dev->matmul(NULL, logits, x, false, wte, true, 0);
}
static void run_head_dx(void) {
    dev->matmul(NULL, dx, logits, false, wte, false, 0);
}
static void run_head_dw(void) {
    dev->matmul(NULL, wte, logits, true, x, false, 0);
}
static void run_attention(void) {
    dev->attention_forward(NULL, y, lse, qkv, drop);
}
static void run_attention_backward(void) {
    dev->attention_backward(NULL, dqkv, x, y, lse, qkv, drop);
}
static void run_bias(void) {
    dev->bias_backward(NULL, vector2, x, 0);
}
static void run_bias_qkv(void) {
    dev->bias_backward(NULL, columns(vector, 3 * C), dqkv, 0);
}
static void run_gelu_backward(void) {
    dev->gelu_backward(NULL, wide, vector, saturated, 0);
}
static void run_norm(void) {
    dev->residual_layernorm_forward(NULL, hidden, y, stats, x, dx, vector2, vector3, drop);
}
static void run_norm_backward(void) {
    dev->layernorm_backward(NULL, dx, vector2, vector3, x, y, stats, vector2, 0);
}
static void run_embedding(void) {
    dev->embedding_forward(NULL, x, tokens, wte, wpe, drop);
}
static void run_embedding_backward(void) {
    dev->embedding_backward(NULL, wte, wpe, dx, tokens, 1, 0);
}
static void run_cross_entropy(void) {
    dev->cross_entropy(NULL, loss, correct, logits, tokens, 0.001f);
}
static void run_dropout(void) {
    dev->dropout_apply(NULL, y, x, (struct dropout){.rate = 0.1f, .key = 1});
}
static void run_attention_dropout(void) {
    dev->attention_forward(NULL, y, lse, qkv, (struct dropout){.rate = 0.1f, .key = 1});
}
static void run_triad(void) {
    float *restrict a = tensor_f32(p);
    const float *restrict b = tensor_f32(g), *restrict c = tensor_f32(m);
    const int64_t count = tensor_count(p);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) a[i] = b[i] + 1e-6f * c[i];
}
static void run_adamw(void) {
    dev->adamw(NULL, p, g, m, v, (struct adamw_step){1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 10, 1});
}
static void run_sum_squares(void) {
    double sum;
    dev->sum_squares(NULL, &sum, g);
}

struct bench {
    const char *name;
    void (*run)(void);
    int calls;     /* in a step; 0: not part of it */
    double gflop;  /* or */
    double floats; /* read and written */
};

#define PRODUCT(m, n, k) (2e-9 * (m) * (n) * (k))
static const struct bench benches[] = {
    {"matmul 2048^3", run_ceiling, 0, PRODUCT(SQUARE, SQUARE, SQUARE), 0},
    {"qkv", run_qkv, LAYERS, PRODUCT(N, 3 * C, C), 0},
    {"proj", run_proj, LAYERS, PRODUCT(N, C, C), 0},
    {"up, gelu", run_up, LAYERS, PRODUCT(N, F, C), 0},
    {"down", run_down, LAYERS, PRODUCT(N, F, C), 0},
    {"head", run_head, 1, PRODUCT(N, V, C), 0},
    {"qkv dx", run_qkv_dx, LAYERS, PRODUCT(N, 3 * C, C), 0},
    {"qkv dw", run_qkv_dw, LAYERS, PRODUCT(N, 3 * C, C), 0},
    {"proj dx", run_proj_dx, LAYERS, PRODUCT(N, C, C), 0},
    {"proj dw", run_proj_dw, LAYERS, PRODUCT(N, C, C), 0},
    {"up dx", run_up_dx, LAYERS, PRODUCT(N, F, C), 0},
    {"up dw", run_up_dw, LAYERS, PRODUCT(N, F, C), 0},
    {"down dx", run_down_dx, LAYERS, PRODUCT(N, F, C), 0},
    {"down dw", run_down_dw, LAYERS, PRODUCT(N, F, C), 0},
    {"head dx", run_head_dx, 1, PRODUCT(N, V, C), 0},
    {"head dw", run_head_dw, 1, PRODUCT(N, V, C), 0},
    {"attention", run_attention, LAYERS, 2 * PRODUCT(N, (T + 1) / 2.0, C), 0},
    {"attention backward", run_attention_backward, LAYERS, 5 * PRODUCT(N, (T + 1) / 2.0, C), 0},
    {"attention, dropout", run_attention_dropout, 0, 2 * PRODUCT(N, (T + 1) / 2.0, C), 0},
    {"residual, norm", run_norm, 2 * LAYERS + 1, 0, 4.0 * N *C},
    {"norm backward", run_norm_backward, 2 * LAYERS + 1, 0, 4.0 * N *C},
    {"bias backward", run_bias, 2 * LAYERS, 0, 1.0 * N *C},
    {"bias backward qkv", run_bias_qkv, LAYERS, 0, 3.0 * N *C},
    {"gelu backward", run_gelu_backward, LAYERS, 0, 3.0 * N *F},
    {"embedding", run_embedding, 1, 0, 2.0 * N *C},
    {"embedding backward", run_embedding_backward, 1, 0, 3.0 * N *C},
    {"cross entropy", run_cross_entropy, 1, 0, 2.0 * N *V},
    {"dropout", run_dropout, 0, 0, 2.0 * N *C},
};

/* Seconds of one run: the fastest of a fifth of a second's worth. */
static double best_seconds(void (*run)(void)) {
    double best = 1e9;
    run();
    for (double end = clock_seconds() + 0.2, start; (start = clock_seconds()) < end;) {
        run();
        const double seconds = clock_seconds() - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void bench_step(void) {
    double step = 0.0, ceiling = 0.0;
    printf("%-22s %10s %9s %8s %7s %9s\n", "operation", "us", "GFLOP/s", "GB/s", "calls", "ms a step");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
        const struct bench *b = &benches[i];
        const double seconds = best_seconds(b->run);
        if (i == 0) ceiling = b->gflop / seconds;
        step += b->calls * seconds;
        printf("%-22s %10.1f %9.1f %8.1f %7d %9.2f\n", b->name, 1e6 * seconds, b->gflop / seconds,
               4e-9 * b->floats / seconds, b->calls, 1e3 * b->calls * seconds);
    }
    /* 6 for each weight of a product, and attention counted as if it were not causal: the usual convention.
     */
    const double gflop = 1e-9 * N * (6.0 * (LAYERS * 12.0 * C * C + V * C) + 12.0 * LAYERS * C * T);
    printf("step without optimizer: %.1f ms, %.1f GFLOP, %.1f GFLOP/s, %.1f %% of matmul 2048^3\n",
           1e3 * step, gflop, gflop / step, 100 * gflop / step / ceiling);
}

static void bench_optimizer(int64_t elements) {
    const double triad = 12e-9 * elements / best_seconds(run_triad);
    const double update = best_seconds(run_adamw), norm = best_seconds(run_sum_squares);
    printf("%.1f million elements: triad %.1f GB/s, adamw %.1f ms (%.1f GB/s), sum_squares %.1f ms (%.1f "
           "GB/s)\n",
           1e-6 * elements, triad, 1e3 * update, 28e-9 * elements / update, 1e3 * norm,
           4e-9 * elements / norm);
    printf("adamw and sum_squares take %.2f times 28 bytes an element at the triad's rate\n",
           (update + norm) / (28e-9 * elements / triad));
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    const int64_t elements = argc > 2 ? atoll(argv[2]) : PARAMETERS;
    struct error e;
    char text[128];
    if (dev->open(threads, &e) != 0) {
        fprintf(stderr, "bench_kernels: %s\n", e.text);
        return EXIT_USAGE;
    }
    dev->describe(text, sizeof text);
    printf("%s\n", text);
    create(elements);
    bench_step();
    bench_optimizer(elements);
    return EXIT_OK;
}
