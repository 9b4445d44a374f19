/* RUN_DIR/metrics.jsonl: one JSON object a line, flushed as it goes. Written by rank 0 alone; on other ranks every
 * function here does nothing. What was not measured is null, never 0. */
#ifndef TANDEM_METRICS_H
#define TANDEM_METRICS_H

#include <stdio.h>

#include "comm/bucket.h"
#include "train/options.h"

struct step_record {
#define FIELD(name, reduction, help) double name;
#include "train/step_fields.def"
#undef FIELD
};

struct eval_record {
    int64_t step;
    double val_loss, val_accuracy, perplexity, bits_per_byte; /* NaN: not known for this tokenizer */
};

/* Reduces the fields of one kind over all ranks, and extra[count] in the same message. Collective. */
void step_record_reduce(struct step_record *record, struct comm *comm, enum reduction reduction,
                        double *extra, int count);

struct metrics {
    FILE *file; /* NULL: this rank writes nothing */
};

/* What a run is, beyond its options. */
struct run_facts {
    const char *version, *tokenizer;
    char host[64], device[128], communication[256];
    int ranks, hosts, threads, vocab, buckets;
    int64_t parameters, train_tokens, validation_tokens;
    double peak_flops; /* of one rank */
};

/* Starts RUN_DIR/metrics.jsonl anew if `write`. -1 with a message if it cannot. */
int metrics_open(struct metrics *m, const char *run_dir, bool write, struct error *e);

/* The same, for a run that goes on after `step`: lines of later steps, the end of the run before and what was written half are
 * taken out of the file first. *last: the newest evaluation in it, if there is one. */
int metrics_reopen(struct metrics *m, const char *run_dir, bool write, int64_t step, struct eval_record *last,
                   struct error *e);
void metrics_close(struct metrics *m);

/* The first event of a run; and of one that goes on after `step` from a checkpoint. */
void metrics_start(struct metrics *m, const struct options *o, const struct run_facts *facts);
void metrics_resume(struct metrics *m, int64_t step, const char *checkpoint, const struct options *o,
                    const struct run_facts *facts);
void metrics_step(struct metrics *m, int64_t step, const struct step_record *record);

/* The life of each bucket in the step that began at `started` (clock_seconds): elements, and when its gradients were
 * ready, its reduction begun and done, in ms from there; of rank 0. */
void metrics_buckets(struct metrics *m, int64_t step, const struct bucket_engine *engine, double started);
void metrics_eval(struct metrics *m, const struct eval_record *record);
void metrics_end(struct metrics *m, int64_t steps, double median_step_ms, const struct eval_record *last,
                 const char *reason);

#endif
