#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpointer.h"
#include "train/command.h"
#include "train/progress.h"
#include "train/resume.h"
#include "train/signals.h"
#include "train/trainer.h"

/* One run, from its first step to its summary. */
struct run {
    const struct options *options;
    struct trainer trainer;
    struct resume resume;
    struct checkpointer checkpointer;
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
    printf("\nSIGUSR1, SIGTERM or SIGINT end the run after the step with a checkpoint, from which --resume "
           "auto goes on; "
           "SIGUSR2\nsaves one and goes on. mpirun kills its ranks one second after a SIGTERM; send it "
           "SIGUSR1 when steps "
           "are longer\nthan that.\n");
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
    if (t->mesh.pp > 1) {
        mesh_print(&t->mesh, stdout);
        pipeline_print(&t->pipeline, stdout);
    }
    printf("batch   %lld sequences = %d replica%s x %lld micro-batch%s x %lld\n", (long long)o->batch_size,
           t->mesh.dp, t->mesh.dp == 1 ? "" : "s", (long long)(t->share / t->micro_batch),
           t->share == t->micro_batch ? "" : "es", (long long)t->micro_batch);
    if (*run->resume.checkpoint)
        printf("resume  after step %lld, from %s\n", (long long)run->resume.step, run->resume.checkpoint);
    fflush(stdout);
}

static void start_run(struct run *run) {
    const struct resume *r = &run->resume;
    const struct run_facts facts = trainer_facts(&run->trainer);
    announce(run, &facts);
    if (*r->checkpoint)
        metrics_resume(&run->metrics, r->step, r->checkpoint, run->options, &facts);
    else
        metrics_start(&run->metrics, run->options, &facts);
    progress_create(&run->progress, run->speaks, r->step, run->options->steps);
    checkpointer_create(&run->checkpointer, &run->trainer, r->same_run ? r->step : -1);
}

/* Collective; `done` steps have been made. */
static void evaluate_now(struct run *run, int64_t done) {
    run->eval = trainer_evaluate(&run->trainer, done);
    metrics_eval(&run->metrics, &run->eval);
    progress_eval(&run->progress, &run->eval);
}

static bool due(int64_t every, int64_t done) {
    return every > 0 && done % every == 0;
}

static int checkpoint_failed(struct run *run, const struct error *e) {
    if (run->speaks) log_line("the checkpoint could not be saved: %s", e->text);
    return EXIT_CHECKPOINT;
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
    struct error e; /* one that was under way is of sound weights */
    if (checkpointer_finish(&run->checkpointer, &e)) checkpoint_failed(run, &e);
    return EXIT_DIVERGED;
}

/* A signal leaves little time: no evaluation then. Else it goes on beside the writing. */
static int finish_run(struct run *run, int64_t done, bool stopped) {
    const struct options *o = run->options;
    struct error e;
    if (checkpointer_begin(&run->checkpointer, done, &e)) return checkpoint_failed(run, &e);
    if (!stopped && run->eval.step != done) evaluate_now(run, done);
    if (checkpointer_finish(&run->checkpointer, &e)) return checkpoint_failed(run, &e);
    if (stopped && run->speaks)
        log_line("stopped by a signal after step %lld; the checkpoint is saved in %s/checkpoints, and "
                 "--resume auto goes on "
                 "from it",
                 (long long)done, o->run_dir);
    metrics_end(&run->metrics, done, progress_median_step_ms(&run->progress), &run->eval,
                stopped ? "signal" : "finished");
    progress_summary(&run->progress, &run->eval, &run->trainer.mesh, o->run_dir);
    return stopped ? EXIT_STOPPED : EXIT_OK;
}

/* What is done between two steps about checkpoints. Collective. */
static int save_if_due(struct run *run, int64_t done, const struct step_votes *agreed, struct error *e) {
    if (agreed->written && checkpointer_advance(&run->checkpointer, e)) return -1;
    if (!agreed->save && !due(run->options->checkpoint_every, done)) return 0;
    return checkpointer_begin(&run->checkpointer, done, e);
}

/* A signal during an evaluation is not left waiting for a step more. Collective. */
static bool asked_to_stop(const struct run *run) {
    double votes = signals_stop();
    comm_reduce(run->trainer.comm, &votes, 1, REDUCE_SUM);
    return votes > 0;
}

/* Rank 0 has read which evaluation was the newest. One that a signal has left out is made up for. Collective. */
static void evaluate_if_missed(struct run *run) {
    const struct resume *r = &run->resume;
    double newest = (double)run->eval.step;
    comm_reduce(run->trainer.comm, &newest, 1, REDUCE_MAX);
    run->eval.step = (int64_t)newest;
    if (r->same_run && r->step < run->options->steps && due(run->options->eval_every, r->step) &&
        run->eval.step != r->step)
        evaluate_now(run, r->step);
}

static int run_steps(struct run *run) {
    struct trainer *t = &run->trainer;
    const struct options *o = run->options;
    struct error e;
    evaluate_if_missed(run);
    for (int64_t step = run->resume.step; step < o->steps; step++) {
        trainer_read_batch(t, step);
        const struct step_outcome outcome =
            trainer_step(t, step,
                         (struct step_votes){
                             .stop = signals_stop(),
                             .save = signals_take_save(),
                             .written = checkpointer_ready(&run->checkpointer),
                         });
        const int64_t done = step + 1;
        const bool show = due(o->log_every, done) || done == o->steps || step == run->resume.step;
        metrics_step(&run->metrics, done, &outcome.record);
        if (show) metrics_buckets(&run->metrics, done, t->reducer.engine, t->step_started);
        progress_step(&run->progress, step, &outcome.record, show);
        if (outcome.verdict == STEP_SKIPPED) report_skipped(run, step, &outcome.record);
        if (outcome.verdict == STEP_DIVERGED) return report_divergence(run, step, &outcome.record);
        if (due(o->check_every, done)) trainer_check_ranks(t, step);
        if (save_if_due(run, done, &outcome.agreed, &e)) return checkpoint_failed(run, &e);
        if (outcome.agreed.stop) return finish_run(run, done, true);
        if (!due(o->eval_every, done) || done == o->steps) continue;
        evaluate_now(run, done);
        if (asked_to_stop(run)) return finish_run(run, done, true);
    }
    return finish_run(run, o->steps, false);
}

/* Rank 0 makes ready what it writes to. */
static int open_files(struct run *run, struct error *e) {
    const struct options *o = run->options;
    const struct resume *r = &run->resume;
    char path[CHECKPOINT_PATH];
    struct error ignored;
    if (checkpoint_prepare(o->run_dir, e)) return -1;
    if (r->same_run) return metrics_reopen(&run->metrics, o->run_dir, true, r->step, &run->eval, e);
    if (checkpoint_locate(o->run_dir, path, sizeof path, &ignored) == 0)
        log_line("note: this run starts anew beside the checkpoints of an earlier one (the newest: %s); "
                 "they stay until it "
                 "saves the same step. To go on from there, use --resume auto",
                 path);
    return metrics_open(&run->metrics, o->run_dir, true, e);
}

static int train(const struct options *o, struct comm *comm) {
    struct run run = {.options = o, .speaks = comm->rank == 0};
    struct error e;
    run.eval = (struct eval_record){-1, NAN, NAN, NAN, NAN};
    signals_install();
    if (trainer_create(&run.trainer, o, comm, &e)) return command_refuse("train", comm, &e);
    int code = EXIT_USAGE;
    if (resume_training(&run.resume, &run.trainer, &e) ||
        comm_agree(comm, run.speaks ? open_files(&run, &e) : 0, &e)) {
        command_refuse("train", comm, &e);
    } else {
        start_run(&run);
        code = run_steps(&run);
    }
    checkpointer_free(&run.checkpointer);
    metrics_close(&run.metrics);
    progress_free(&run.progress);
    trainer_free(&run.trainer);
    return code;
}

int command_train(int argc, char **argv) {
    return command_on_ranks(TRAIN, argc, argv, print_usage, train);
}
