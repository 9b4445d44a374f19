/* Every gradient, every step: as it is, or with fewer bits on the wire. The engine converts (compress_options.wire); the sum
 * is taken in fp32, in the order of ranks, and rounded once. */
#include "comm/compress.h"

static bool send_all(struct compressor *c, struct bucket_view *b, int64_t step, int round,
                     struct payload *p) {
    (void)c, (void)step, (void)round;
    *p = (struct payload){.how = SEND_SUM, .mine = b->gradient};
    return true;
}

const struct compressor_method compress_none = {
    .name = "none",
    .help = "every gradient in fp32",
    .dense = true,
    .lossless = true,
    .rounds = 1,
    .compress = send_all,
};

const struct compressor_method compress_bf16 = {
    .name = "bf16",
    .help = "every gradient in bf16, summed in fp32",
    .dense = true,
    .wire = DTYPE_BF16,
    .rounds = 1,
    .compress = send_all,
};

const struct compressor_method compress_fp16 = {
    .name = "fp16",
    .help = "every gradient in fp16, summed in fp32",
    .dense = true,
    .wire = DTYPE_F16,
    .rounds = 1,
    .compress = send_all,
};
