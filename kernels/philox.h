/* Philox4x32-10, a counter-based random generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). The same (key, counter) gives the same numbers on any rank, thread or device. */
#ifndef TANDEM_PHILOX_H
#define TANDEM_PHILOX_H

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

/* Four independent uniform 32-bit words for (key, counter). */
static inline struct philox philox_draw(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0;
        c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (struct philox){{c0, c1, c2, c3}};
}

/* A key for a named use: mixes the seed with up to two numbers (step, layer, ...). FNV-1a over the name and numbers. */
static inline uint64_t philox_key(uint64_t seed, const char *name, uint64_t a, uint64_t b) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    const uint64_t numbers[3] = {seed, a, b};
    for (int i = 0; i < 3; i++)
        for (int byte = 0; byte < 8; byte++) h = (h ^ (uint8_t)(numbers[i] >> (8 * byte))) * 0x100000001b3u;
    return h;
}

#endif
