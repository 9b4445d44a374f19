/* bf16 and fp16 as 16-bit words: conversions with rounding to the nearest, ties to even. Without branches, so that loops
 * over them vectorise. NaN stays NaN; fp16 overflows to infinity. */
#ifndef TANDEM_HALF_H
#define TANDEM_HALF_H

#include "kernels/bits.h"

static inline float half_from_bf16(uint16_t h) {
    return float_from_bits((uint32_t)h << 16);
}

static inline uint16_t half_to_bf16(float x) {
    const uint32_t bits = bits_from_float(x);
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000u; /* rounding could carry a NaN into infinity */
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

/* The exponents of the formats differ by 112: a product with 2^112 or its inverse moves between them, and the hardware
 * takes care of subnormal numbers. */
static inline float half_from_fp16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    const float finite = float_from_bits(rest) * 0x1p112f;
    const uint32_t special = rest | 0x7f800000u; /* infinity and NaN */
    return float_from_bits(sign | (rest >= 0x0f800000u ? special : bits_from_float(finite)));
}

static inline uint16_t half_to_fp16(float x) {
    const uint32_t bits = bits_from_float(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    /* Subnormal: adding 1/2 puts the last bit of fp16, 2^-24, where fp32 rounds. */
    const uint32_t small = bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t finite = magnitude < 0x38800000u ? small : normal;
    return (uint16_t)(sign | (magnitude >= 0x477ff000u ? large : finite));
}

#endif
