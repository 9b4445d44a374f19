/* A comparison: methods x seeds. Every run of a seed starts from the same weights and sees the same data and dropout, so that
 * runs are compared in pairs. What each run came to is read back from its metrics.jsonl, whoever trained it and when. */
#ifndef TANDEM_COMPARE_H
#define TANDEM_COMPARE_H

#include "train/options.h"
#include "train/statistics.h"

enum { COMPARE_LONGEST_WORD = 120, COMPARE_LONGEST_PATH = 1200 };

struct compare_method {
    char word[COMPARE_LONGEST_WORD + 1];   /* as given, with its settings: covap:interval=4 */
    char folder[COMPARE_LONGEST_WORD + 1]; /* the word with every sign that is awkward in file names as _ */
    struct options options;                /* for train; seed and run_dir are those of the comparison */
};

struct compare_plan {
    const struct options *options;
    struct compare_method *method; /* [methods] */
    int methods, seeds, reference; /* reference: `none`, or the first */
};

/* -1 with a message for a method or setting that is not known or does not fit. compare_plan_free accepts what is left. */
int compare_plan_create(struct compare_plan *plan, const struct options *options, struct error *e);
void compare_plan_free(struct compare_plan *plan);

/* The options of the run of a method with the seed number `seed` (from 0); its folder RUN_DIR/<folder>-seed<k> is written
 * into `path`, to which run_dir points. */
struct options compare_run_options(const struct compare_plan *plan, int method, int seed,
                                   char path[COMPARE_LONGEST_PATH]);

/* What one run came to. Times in ms unless they say otherwise; NaN: not measured. */
struct compare_run {
    bool complete; /* finished or diverged: nothing is left to do */
    bool diverged;
    char host[64], version[32], device[128];
    int64_t steps;   /* made */
    double interval; /* the largest used */
    double step_ms, exposed_ms,
        compress_ms;                /* medians over windows of `interval` steps, the first step left out */
    double bytes_sent, bytes_dense; /* mean of a step, all ranks */
    double val_loss, val_accuracy;  /* the last evaluation */
    double training_s;              /* sum of all steps: evaluations do not count */
    double target_s;                /* the same up to the target loss; infinite: not reached */
};

/* Reads RUN_DIR/metrics.jsonl of a run; none is not complete. target_loss 0: none. -1 with a message if the file is of a run
 * with other options or another number of ranks. */
int compare_run_read(struct compare_run *run, const struct options *options, int ranks, double target_loss,
                     struct error *e);

/* What a method came to: over its seeds, medians of times and means of losses. */
struct compare_summary {
    int diverged, reached; /* runs */
    bool judged; /* false: it is the reference, or runs of it diverged, and `verdict` means nothing */
    enum verdict verdict;
    struct sample val_loss, val_accuracy;
    struct paired_difference loss_difference, accuracy_difference; /* to the reference */
    double step_ms, exposed_ms, compress_ms, compress_share;
    double bytes_sent, bytes_ratio; /* of a step, and over bytes_dense */
    double training_s, target_s;    /* infinite target_s: most runs did not reach it */
    double interval;
};

struct compare_result {
    const struct compare_plan *plan;
    int ranks;
    const struct compare_run *run;   /* [methods][seeds] */
    struct compare_summary *summary; /* [methods] */
    char **warning;                  /* [warnings] */
    int warnings;
};

/* run[methods * seeds] are complete and outlive the result. */
void compare_result_create(struct compare_result *result, const struct compare_plan *plan,
                           const struct compare_run *run, int ranks);
void compare_result_free(struct compare_result *result);

/* preserved, worse, not shown, reference or diverged. */
const char *compare_verdict_name(const struct compare_result *result, int method);

/* Speed of a method relative to another: the other's step time over its own. */
double compare_speedup(const struct compare_result *result, int method, int relative_to);

/* The table for people, to stdout; RUN_DIR/compare.json and compare.csv. */
void compare_print(const struct compare_result *result);
int compare_write(const struct compare_result *result, struct error *e);

#endif
