/* Error feedback, which most methods share: what is not sent stays in a residual and is added to the next gradient,
 *
 *     error = residual + gradient,   send part of it,   residual = error - that part.
 *
 * The error is a second buffer, and becomes the residual only when the step is accepted: a step that is forgotten leaves no
 * trace. Private to comm/compress. A method's state begins with a struct feedback. */
#ifndef TANDEM_FEEDBACK_H
#define TANDEM_FEEDBACK_H

#include "comm/compress.h"

struct feedback {
    struct tensor residual, error; /* [elements], in keep and in scratch */
    struct tensor words; /* int32, in scratch: payloads of the buckets of a step, one behind the other */
    int64_t used;
};

/* Buckets shorter than this are sent whole: a message that short costs its latency, whatever is left out of it. So there
 * are at most elements / WHOLE_BELOW others, which bounds the memory of payloads for every way of cutting the range. */
enum { WHOLE_BELOW = 1024 };
int64_t feedback_most_buckets(const struct compressor *c);

void feedback_layout(struct compressor *c, int64_t words);
struct tensor feedback_residual(const struct compressor *c);

/* Shows the residual to a checkpoint. */
void feedback_visit(struct compressor *c, kept_take *take, void *context);

/* Ends the step: the error becomes the residual if it is accepted, and the words are free again; or only the latter, for a
 * method that keeps no residual. */
void feedback_commit(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted);
void feedback_release(struct compressor *c, const struct bucket_view *b, int64_t step, bool accepted);

/* The bucket's error, made from its gradient; the method takes from it what it sends. */
struct tensor feedback_error(const struct compressor *c, const struct bucket_view *b);
struct tensor feedback_add(struct compressor *c, const struct bucket_view *b);

/* Sends the gradient and all of the residual, in place, and leaves an error of zero. */
bool feedback_send_whole(struct compressor *c, const struct bucket_view *b, struct payload *p);

/* True: p is what feedback_send_whole made, and there is nothing to decompress. */
bool feedback_sent_whole(const struct bucket_view *b, const struct payload *p);

/* Words for a payload until the end of the step. */
struct tensor feedback_words(struct compressor *c, int64_t words);

/* k pairs of index and value in 2k words. */
struct pairs {
    struct tensor index, value;
};
struct pairs pairs_of(struct tensor words);

/* Row r of all[size][n]. */
struct tensor payload_row(struct tensor all, int r);

/* A gather of n words of each rank. */
struct payload feedback_gather(struct compressor *c, int64_t n);

/* How many of n elements are a share of `density`: at least 1. */
int64_t density_count(double density, int64_t n);
int density_check(const struct compress_options *options, struct error *e);

/* gradient = sum over ranks of the pairs gathered. */
void pairs_add_up(struct compressor *c, const struct bucket_view *b, const struct payload *p);

#endif
