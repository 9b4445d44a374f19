/* What attention's forward and backward pass share: shapes, and where a head's rows lie. Private to
 * kernels/cpu. */
#ifndef TANDEM_CPU_ATTENTION_H
#define TANDEM_CPU_ATTENTION_H

#include "kernels/cpu/cpu.h"

#include <math.h>

enum {
    TILE = 64,            /* queries, and keys, of one tile of scores: 16 KiB */
    HEAD_WIDTH_MAX = 256, /* channels of a head */
};

struct attention_shape {
    int64_t sequences, positions, channels, heads, width; /* B, T, C, H, C/H */
    float scale;                                          /* 1/sqrt(C/H) */
};

/* Checks qkv (B,T,3C), lse (B,H,T) and out (B,T,C) against each other. */
struct attention_shape attention_shape_of(struct tensor qkv, struct tensor lse, struct tensor out);

/* Rows from `position` on of head `head` of sequence `sequence`, in a (B,T,C) tensor or, with `part` 0 to 2
 * for queries, keys, values, in a (B,T,3C) one. */
static inline struct strided head_rows(const struct attention_shape *a, float *out, int64_t sequence,
                                       int64_t head, int64_t position) {
    return (struct strided){out + (sequence * a->positions + position) * a->channels + head * a->width,
                            a->channels};
}

static inline struct strided head_part_rows(const struct attention_shape *a, float *qkv, int part,
                                            int64_t sequence, int64_t head, int64_t position) {
    return (struct strided){qkv + ((sequence * a->positions + position) * 3 + part) * a->channels +
                                head * a->width,
                            3 * a->channels};
}

/* Keys of the tile that starts at first_key which the query at `query` may see. */
static inline int64_t visible_keys(int64_t query, int64_t first_key, int64_t keys) {
    return min_i64(keys, query - first_key + 1);
}

#endif
