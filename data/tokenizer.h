/* Text to tokens and back. One table row per tokenizer; `bytes` (vocabulary 256) is the default. */
#ifndef TANDEM_TOKENIZER_H
#define TANDEM_TOKENIZER_H

#include "kernels/base.h"

struct tokenizer {
    const char *name, *help;
    int vocab;
    /* Both write at most one token per byte, or as many bytes as documented, and return the count. */
    int64_t (*encode)(const uint8_t *text, int64_t bytes, int32_t *tokens); /* tokens[bytes] */
    int64_t (*decode)(int32_t token, uint8_t *text);                        /* text[16] */
};

/* NULL with a message that names the valid ones. */
const struct tokenizer *tokenizer_find(const char *name, struct error *e);

#endif
