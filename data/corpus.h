/* From text files to shards: what `tandem data` does. */
#ifndef TANDEM_CORPUS_H
#define TANDEM_CORPUS_H

#include "data/tokenizer.h"

struct corpus_plan {
    const char *const *texts; /* [text_count] files, joined in this order */
    int text_count;
    const char *out; /* folder, made if it is not there */
    const char *tokenizer;
    double
        validation; /* share of the tokens, taken from the end, to the nearest token; 0 <= validation < 1 */
    int64_t shard_tokens; /* a new shard every so many tokens */
};

struct corpus_report {
    int64_t text_bytes, train_tokens, validation_tokens;
    int train_shards, validation_shards, vocab;
};

/* Writes train-NNNNN.bin and validation-NNNNN.bin into plan->out. -1 with a message on an unreadable or empty text, an
 * unwritable folder or a bad share. Shards of an earlier build in that folder are replaced, once all new ones are
 * written; a build that fails before leaves them as they were. Memory: 4 bytes per token of one shard. */
int corpus_build(const struct corpus_plan *plan, struct corpus_report *report, struct error *e);

/* Prints what is in a shard, or in every shard of a folder, to stdout: format, tokenizer, vocabulary, count, the most
 * frequent tokens, entropy in bits per token, and the first bytes of text. */
int corpus_inspect(const char *path, struct error *e);

#endif
