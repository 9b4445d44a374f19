/* How the CPU computes in 16 bits: an operation widens what it reads to fp32, runs as it does on fp32 tensors, and rounds
 * what it writes, once. Its first lines say which tensors it reads and writes; fp32 ones pass through untouched:
 *
 *     struct wide wide = {0};
 *     y = wide_write(&wide, y), x = wide_read(&wide, x);
 *     ... the operation ...
 *     wide_finish(&wide);
 *
 * Operations may call each other in between. Not within parallel regions. Private to kernels/cpu. */
#ifndef TANDEM_CPU_WIDE_H
#define TANDEM_CPU_WIDE_H

#include "kernels/tensor.h"

enum { WIDE_MOST = 8 }; /* 16-bit tensors of operations that call each other */

struct wide {
    int count; /* 16-bit tensors among those given */
    struct {
        struct tensor half, wide;
        bool written;
    } entry[WIDE_MOST];
};

/* fp32 stand-ins for t, which is returned as it is if it has another dtype than bf16 or fp16: with its values; for values
 * to come, all of them; for both. A tensor given twice has two stand-ins. */
struct tensor wide_read(struct wide *wide, struct tensor t);
struct tensor wide_write(struct wide *wide, struct tensor t);
struct tensor wide_update(struct wide *wide, struct tensor t);

/* Rounds what was written into the tensors it belongs to; the stand-ins are gone. */
void wide_finish(struct wide *wide);

#endif
