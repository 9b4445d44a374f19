#include "data/tokenizer.h"

#include <stdio.h>
#include <string.h>

static int64_t bytes_encode(const uint8_t *text, int64_t bytes, int32_t *tokens) {
    for (int64_t i = 0; i < bytes; i++) tokens[i] = text[i];
    return bytes;
}

static int64_t bytes_decode(int32_t token, uint8_t *text) {
    text[0] = (uint8_t)token;
    return 1;
}

static const struct tokenizer tokenizers[] = {
    {"bytes", "one token per byte, so any text in any encoding", 256, bytes_encode, bytes_decode},
};
enum { TOKENIZERS = sizeof tokenizers / sizeof *tokenizers };

const struct tokenizer *tokenizer_find(const char *name, struct error *e) {
    char names[256] = "";
    for (int i = 0; i < TOKENIZERS; i++) {
        if (strcmp(tokenizers[i].name, name) == 0) return &tokenizers[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", tokenizers[i].name);
    }
    error_set(e, "there is no tokenizer \"%s\"; the tokenizers are: %s", name, names);
    return NULL;
}
