/* exp and what is made of it, written so that loops over them vectorise: no branch, no call, no table. */
#ifndef TANDEM_VECTOR_MATH_H
#define TANDEM_VECTOR_MATH_H

#include <math.h>

#include "kernels/bits.h"

/* exp(x) to 2e-7 relative. Below -87.3, where the result would be denormal, 0; above 88.72, infinity; NaN
 * stays. x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer and leaves it in the low
 * bits. */
static inline float vector_exp(float x) {
    const float magic = 12582912.0f;
    float shifted = x * 1.44269504f + magic, n = shifted - magic;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* 2^n as 2 * 2^(n-1): n = 128 has no float of its own. */
    float power = float_from_bits((bits_from_float(shifted) << 23) + (126u << 23));
    float y = p * power * 2.0f;
    y = x < -86.9f ? 0.0f : y;
    return x > 88.7228f ? INFINITY : y;
}

/* gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). Past |x| = 12 the sigmoid is
 * 0 or 1. */
static inline float gelu_gate(float x) {
    float c = x < -12.0f ? -12.0f : x;
    c = c > 12.0f ? 12.0f : c;
    return 1.0f / (1.0f + vector_exp(-1.5957691216f * c * (1.0f + 0.044715f * c * c)));
}

static inline float gelu(float x) {
    return x * gelu_gate(x);
}

static inline float gelu_derivative(float x) {
    float c = x < -12.0f ? -12.0f : x;
    c = c > 12.0f ? 12.0f : c;
    float gate = gelu_gate(x);
    return gate + c * gate * (1.0f - gate) * (1.5957691216f + 0.2140644488f * c * c);
}

#endif
