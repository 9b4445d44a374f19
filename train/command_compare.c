#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpointer.h"
#include "train/command.h"
#include "train/compare.h"
#include "train/files.h"
#include "train/progress.h"
#include "train/signals.h"
#include "train/trainer.h"

struct comparison {
    struct compare_plan plan;
    struct comm *comm;
    bool speaks; /* rank 0 */
    double
        *complete; /* [methods * seeds]: 1 for runs there is nothing left to do for; the same on all ranks */
    struct compare_run *run; /* [methods * seeds], on rank 0 */
};

static void print_usage(void) {
    printf(
        "usage: [mpirun -np N] tandem compare [OPTIONS]\n\nTrains every method with every seed, one run "
        "after the "
        "other, and says whether its loss\nis that of the reference (`none`, or the first method) and what "
        "it is "
        "worth in time and bytes.\nThe same command on the same --run-dir goes on where it was interrupted. "
        "Options, with their\ndefaults:\n\n");
    options_print_help(COMPARE, stdout);
    printf("\nSIGUSR1, SIGTERM or SIGINT end the comparison after the step.\n");
}

static int runs(const struct comparison *c) {
    return c->plan.methods * c->plan.seeds;
}

/* Reads what is there on rank 0; all ranks learn what is left to do. Collective. */
static int look(struct comparison *c, struct error *e) {
    char path[COMPARE_LONGEST_PATH];
    int status = 0;
    for (int i = 0; i < runs(c) && c->speaks && !status; i++) {
        const struct options o = compare_run_options(&c->plan, i / c->plan.seeds, i % c->plan.seeds, path);
        status = compare_run_read(&c->run[i], &o, c->comm->size, c->plan.options->target_loss, e);
        c->complete[i] = c->run[i].complete;
    }
    if (comm_agree(c->comm, status, e)) return -1;
    comm_reduce(c->comm, c->complete, runs(c), REDUCE_MAX);
    return 0;
}

static bool has_work(const struct comparison *c, int method) {
    for (int s = 0; s < c->plan.seeds; s++)
        if (!c->complete[method * c->plan.seeds + s]) return true;
    return false;
}

/* Options that do not fit are found before the first run, not when the method's turn comes. Collective. */
static int try_methods(struct comparison *c, struct error *e) {
    char path[COMPARE_LONGEST_PATH];
    for (int m = 0; m < c->plan.methods; m++) {
        struct trainer trainer;
        const struct options o = compare_run_options(&c->plan, m, 0, path);
        if (!has_work(c, m)) continue;
        if (trainer_create(&trainer, &o, c->comm, e)) {
            const struct error inner = *e;
            return error_set(e, "method '%s': %.600s", c->plan.method[m].word, inner.text);
        }
        trainer_free(&trainer);
    }
    return 0;
}

/* One run under way. */
struct run {
    struct trainer trainer;
    struct checkpointer checkpointer;
    struct metrics metrics;
    struct progress progress;
    struct eval_record eval;
};

static bool due(int64_t every, int64_t done, int64_t steps) {
    return every > 0 && (done % every == 0 || done == steps);
}

/* Collective. */
static int save_if_due(struct run *run, int64_t done, struct error *e) {
    const struct options *o = run->trainer.options;
    if (!due(o->checkpoint_every, done, o->steps)) return 0;
    return checkpointer_begin(&run->checkpointer, done, e) || checkpointer_finish(&run->checkpointer, e) ? -1
                                                                                                         : 0;
}

static int train(struct run *run, struct error *e) {
    struct trainer *t = &run->trainer;
    const struct options *o = t->options;
    const char *reason = "finished";
    int64_t done = 0;
    while (done < o->steps) {
        trainer_read_batch(t, done);
        const struct step_outcome outcome =
            trainer_step(t, done, (struct step_votes){.stop = signals_stop()});
        metrics_step(&run->metrics, done + 1, &outcome.record);
        progress_step(&run->progress, done, &outcome.record, false);
        if (outcome.verdict == STEP_DIVERGED) reason = "diverged";
        if (outcome.verdict == STEP_DIVERGED) break;
        done++;
        if (outcome.agreed.stop) reason = "signal";
        if (outcome.agreed.stop) break;
        if (done == o->steps || due(o->eval_every, done, o->steps)) {
            run->eval = trainer_evaluate(t, done);
            metrics_eval(&run->metrics, &run->eval);
            progress_eval(&run->progress, &run->eval);
        }
        if (save_if_due(run, done, e)) return EXIT_CHECKPOINT;
    }
    metrics_end(&run->metrics, done, progress_median_step_ms(&run->progress), &run->eval, reason);
    return strcmp(reason, "signal") == 0 ? EXIT_STOPPED : EXIT_OK;
}

/* The folder with the metrics file, and room for models if they are wanted. On rank 0. */
static int open_folder(const struct options *o, struct metrics *metrics, struct error *e) {
    if (files_make_folder(o->run_dir, e)) return -1;
    if (o->checkpoint_every && checkpoint_prepare(o->run_dir, e)) return -1;
    return metrics_open(metrics, o->run_dir, true, e);
}

/* Trains with the options of a run. Collective. */
static int run_one(const struct options *o, struct comm *comm, struct error *e) {
    struct run run = {.eval = {-1, NAN, NAN, NAN, NAN}};
    int code = EXIT_USAGE;
    if (trainer_create(&run.trainer, o, comm, e)) return code;
    const int status = comm->rank == 0 ? open_folder(o, &run.metrics, e) : 0;
    if (!comm_agree(comm, status, e)) {
        const struct run_facts facts = trainer_facts(&run.trainer);
        metrics_start(&run.metrics, o, &facts);
        progress_create(&run.progress, comm->rank == 0, 0, o->steps);
        checkpointer_create(&run.checkpointer, &run.trainer, -1);
        code = train(&run, e);
    }
    metrics_close(&run.metrics);
    progress_free(&run.progress);
    checkpointer_free(&run.checkpointer);
    trainer_free(&run.trainer);
    return code;
}

/* All methods of a seed before the next seed: an interrupted comparison has whole pairs. Collective. */
static int run_all(struct comparison *c, struct error *e) {
    const struct compare_plan *p = &c->plan;
    char path[COMPARE_LONGEST_PATH];
    for (int i = 0; i < runs(c); i++) {
        const int method = i % p->methods, seed = i / p->methods;
        const struct options o = compare_run_options(p, method, seed, path);
        const bool complete = c->complete[method * p->seeds + seed];
        if (c->speaks) {
            printf("run %d of %d: %s, seed %lld%s\n", i + 1, runs(c), p->method[method].word,
                   (long long)o.seed, complete ? ": there already" : "");
            fflush(stdout);
        }
        const int code = complete ? EXIT_OK : run_one(&o, c->comm, e);
        if (code) return code;
    }
    return EXIT_OK;
}

static int report(const struct comparison *c, struct error *e) {
    struct compare_result result;
    if (!c->speaks) return 0;
    compare_result_create(&result, &c->plan, c->run, c->comm->size);
    const int status = compare_write(&result, e);
    if (!status) compare_print(&result);
    compare_result_free(&result);
    return status;
}

static int run_comparison(struct comparison *c, struct error *e) {
    signals_install();
    if (strcmp(c->plan.options->resume, "off") != 0) {
        error_set(e,
                  "--resume: found '%.200s', expected off: the same command goes on by itself with the runs "
                  "that are "
                  "not finished",
                  c->plan.options->resume);
        return EXIT_USAGE;
    }
    if (comm_agree(c->comm, compare_plan_create(&c->plan, c->plan.options, e), e)) return EXIT_USAGE;
    c->complete = memory_alloc_zeroed(sizeof *c->complete * (size_t)runs(c));
    c->run = memory_alloc_zeroed(sizeof *c->run * (size_t)runs(c));
    if (look(c, e) || try_methods(c, e)) return EXIT_USAGE;
    const int code = run_all(c, e);
    if (code) return code;
    if (look(c, e)) return EXIT_USAGE;
    return comm_agree(c->comm, report(c, e), e) ? EXIT_USAGE : EXIT_OK;
}

static int compare(const struct options *o, struct comm *comm) {
    struct comparison c = {.plan = {.options = o}, .comm = comm, .speaks = comm->rank == 0};
    struct error e;
    const int code = run_comparison(&c, &e);
    if (code == EXIT_STOPPED && c.speaks)
        log_line("stopped by a signal; the same command goes on from here, beginning this run anew");
    if (code && code != EXIT_STOPPED) command_refuse("compare", comm, &e);
    compare_plan_free(&c.plan);
    free(c.complete);
    free(c.run);
    return code;
}

int command_compare(int argc, char **argv) {
    return command_on_ranks(COMPARE, argc, argv, print_usage, compare);
}
