#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpoint.h"
#include "train/command.h"
#include "train/progress.h"
#include "train/signals.h"
#include "train/trainer.h"

/* One run, from its first step to its summary. */
struct run {
    const struct options *options;
    struct trainer trainer;
    struct metrics metrics;
    struct progress progress;
    struct eval_record eval;
    bool speaks; /* rank 0 */
};

static void print_usage(void) {
    printf("usage: [mpirun -np N] tandem train [OPTIONS]\n\nTrains a GPT-2 model on token shards. Options, "
           "with their "
           "defaults:\n\n");
    options_print_help(TRAIN, stdout);
    printf("\nSIGUSR1, SIGTERM or SIGINT end the run after the step and save the model. mpirun kills its "
           "ranks one second\n"
           "after a SIGTERM; send it SIGUSR1 when steps are longer than that.\n");
}

/* The first rank whose cores are overloaded says so for all of them. Collective. */
static void warn_of_overload(const struct trainer *t) {
    char text[256], others[48] = "";
    double first = t->threads.overloaded ? t->comm->rank : t->comm->size, count = t->threads.overloaded;
    comm_reduce(t->comm, &first, 1, REDUCE_MIN);
    comm_reduce(t->comm, &count, 1, REDUCE_SUM);
    if (first != t->comm->rank) return;
    threads_remedy(&t->threads, text, sizeof text);
    if (count > 1)
        snprintf(others, sizeof others, " (so do %.0f rank%s more)", count - 1, count == 2 ? "" : "s");
    log_line("warning: %s%s", text, others);
}

/* Says what runs where. Collective. */
static void announce(struct run *run, const struct run_facts *f) {
    const struct trainer *t = &run->trainer;
    const struct options *o = run->options;
    char text[256];
    warn_of_overload(t);
    if (!run->speaks) return;
    printf("tandem %s: %.2f M parameters (%d layers, %d heads, %d channels, context %d, vocabulary %d)\n",
           f->version, 1e-6 * (double)f->parameters, t->gpt.config.layers, t->gpt.config.heads,
           t->gpt.config.channels, t->gpt.config.context, t->gpt.config.vocab);
    printf("data    %s: %lld training and %lld validation tokens (%s)\n", o->data, (long long)f->train_tokens,
           (long long)f->validation_tokens, f->tokenizer);
    threads_describe(&t->threads, text, sizeof text);
    printf("ranks   %d on %d host%s; rank 0: %s, %s\n", f->ranks, f->hosts, f->hosts == 1 ? "" : "s",
           f->device, text);
    printf("comm    %s; %d bucket%s, overlap %s\n", f->communication, f->buckets, f->buckets == 1 ? "" : "s",
           o->overlap ? "on" : "off");
    if (t->gpt.config.precision != DTYPE_F32)
        printf("numbers %s in products and activations, fp32 in weights and updates; loss scale %.0f%s\n",
               o->precision, t->loss_scale.scale, t->loss_scale.dynamic ? ", dynamic" : "");
    printf("batch   %lld sequences = %lld rank%s x %lld micro-batch%s x %lld\n", (long long)o->batch_size,
           (long long)f->ranks, f->ranks == 1 ? "" : "s", (long long)(t->share / t->micro_batch),
           t->share == t->micro_batch ? "" : "es", (long long)t->micro_batch);
    fflush(stdout);
}

static void start_run(struct run *run) {
    const struct run_facts facts = trainer_facts(&run->trainer);
    announce(run, &facts);
    metrics_start(&run->metrics, run->options, &facts);
    progress_create(&run->progress, run->speaks, run->options->steps);
}

/* Collective; `done` steps have been made. */
static void evaluate_now(struct run *run, int64_t done) {
    run->eval = trainer_evaluate(&run->trainer, done);
    metrics_eval(&run->metrics, &run->eval);
    progress_eval(&run->progress, &run->eval);
}

/* Rank 0 writes, all agree on how it went. Collective. */
static int save_now(struct run *run, int64_t done, struct error *e) {
    struct trainer *t = &run->trainer;
    int status =
        run->speaks ? checkpoint_save(run->options->run_dir, done, &t->gpt, t->train.tokenizer, e) : 0;
    return comm_agree(t->comm, status, e);
}

static bool due(int64_t every, int64_t done) {
    return every > 0 && done % every == 0;
}

static void report_skipped(const struct run *run, int64_t step, const struct step_record *r) {
    if (run->speaks)
        log_line(
            "step %lld is skipped: not everything in it is finite; the loss scale goes from %.0f to %.0f",
            (long long)step + 1, r->loss_scale, run->trainer.loss_scale.scale);
}

static int report_divergence(struct run *run, int64_t step, const struct step_record *r) {
    if (run->speaks)
        log_line("step %lld: the loss is %g and the gradient norm %g: training has diverged and ends here, "
                 "before the "
                 "update; try a smaller --lr or a longer --warmup%s. Models saved earlier are untouched",
                 (long long)step + 1, r->loss, r->grad_norm,
                 strcmp(run->options->precision, "fp16") != 0 ? ""
                 : run->trainer.loss_scale.dynamic            ? ", or --precision bf16"
                                                              : ", or --loss-scale dynamic");
    metrics_end(&run->metrics, step, progress_median_step_ms(&run->progress), &run->eval, "diverged");
    return EXIT_DIVERGED;
}

static int checkpoint_failed(struct run *run, const struct error *e) {
    if (run->speaks) log_line("the model could not be saved: %s", e->text);
    return EXIT_CHECKPOINT;
}

static int finish_run(struct run *run, int64_t done, bool stopped) {
    const struct options *o = run->options;
    struct error e;
    /* A signal leaves little time: save first, and do not evaluate. */
    if (!stopped && run->eval.step != done) evaluate_now(run, done);
    if (save_now(run, done, &e)) return checkpoint_failed(run, &e);
    if (stopped && run->speaks)
        log_line("stopped by a signal after step %lld; the model is saved in %s/checkpoints", (long long)done,
                 o->run_dir);
    metrics_end(&run->metrics, done, progress_median_step_ms(&run->progress), &run->eval,
                stopped ? "signal" : "finished");
    progress_summary(&run->progress, &run->eval, run->trainer.comm->size, o->run_dir);
    return stopped ? EXIT_STOPPED : EXIT_OK;
}

static int run_steps(struct run *run) {
    struct trainer *t = &run->trainer;
    const struct options *o = run->options;
    struct error e;
    for (int64_t step = 0; step < o->steps; step++) {
        trainer_read_batch(t, step);
        const struct step_outcome outcome = trainer_step(t, step, signals_received() != 0);
        const int64_t done = step + 1;
        const bool show = due(o->log_every, done) || done == o->steps || done == 1;
        metrics_step(&run->metrics, done, &outcome.record);
        if (show) metrics_buckets(&run->metrics, done, t->reducer.engine, t->step_started);
        progress_step(&run->progress, step, &outcome.record, show);
        if (outcome.verdict == STEP_SKIPPED) report_skipped(run, step, &outcome.record);
        if (outcome.verdict == STEP_DIVERGED) return report_divergence(run, step, &outcome.record);
        if (due(o->check_every, done)) trainer_check_ranks(t, step);
        if (outcome.stop) return finish_run(run, done, true);
        if (due(o->eval_every, done)) evaluate_now(run, done);
        if (due(o->checkpoint_every, done) && done < o->steps && save_now(run, done, &e))
            return checkpoint_failed(run, &e);
    }
    return finish_run(run, o->steps, false);
}

static int train(const struct options *o, struct comm *comm) {
    struct run run = {.options = o, .speaks = comm->rank == 0};
    struct error e;
    run.eval = (struct eval_record){-1, NAN, NAN, NAN, NAN};
    if (trainer_create(&run.trainer, o, comm, &e)) return command_refuse("train", comm, &e);
    int status = run.speaks ? checkpoint_prepare(o->run_dir, &e) : 0;
    status = status || metrics_open(&run.metrics, o->run_dir, run.speaks, &e);
    int code = EXIT_USAGE;
    if (comm_agree(comm, status ? -1 : 0, &e)) {
        command_refuse("train", comm, &e);
    } else {
        signals_install();
        start_run(&run);
        code = run_steps(&run);
    }
    metrics_close(&run.metrics);
    progress_free(&run.progress);
    trainer_free(&run.trainer);
    return code;
}

int command_train(int argc, char **argv) {
    return command_on_ranks(TRAIN, argc, argv, print_usage, train);
}
