/* The bits of a float as an integer, and back: no instruction, and no undefined behaviour. */
#ifndef TANDEM_BITS_H
#define TANDEM_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
