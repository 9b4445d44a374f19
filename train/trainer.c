#define _GNU_SOURCE
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "train/evaluate.h"

/* Whether the global batch can be shared by the replicas there are. The same answer on every rank. */
static int plan_batch(struct trainer *t, struct error *e) {
    const struct options *o = t->options;
    const int dp = t->mesh.dp;
    if (o->batch_size % dp)
        return error_set(
            e, "--batch-size %lld does not split over %d replicas; expected a multiple of %d, such as %lld",
            (long long)o->batch_size, dp, dp, (long long)((o->batch_size / dp + 1) * dp));
    t->share = o->batch_size / dp;
    t->micro_batch = o->micro_batch ? o->micro_batch : t->share;
    if (t->share % t->micro_batch)
        return error_set(e,
                         "--micro-batch %lld does not divide a replica's share of the batch, %lld sequences",
                         (long long)t->micro_batch, (long long)t->share);
    if (o->channels % o->heads)
        return error_set(e, "--heads %lld does not divide --channels %lld", (long long)o->heads,
                         (long long)o->channels);
    if (o->chunks > 1 && t->mesh.pp == 1)
        return error_set(
            e,
            "--chunks %lld cuts the model of a pipeline stage, but there is one stage; expected --chunks 1, "
            "or --pp of at least 2",
            (long long)o->chunks);
    if (o->recompute && strcmp(o->schedule, "zb-h1") == 0)
        return error_set(
            e, "--schedule zb-h1 puts off gradients of weights, for which it keeps the activations that "
               "--recompute drops; expected --recompute off, or another --schedule");
    return 0;
}

static int open_data(struct trainer *t, struct error *e) {
    const struct options *o = t->options;
    if (loader_open(&t->train, o->data, "train", (int)o->context, o->batch_size, (uint64_t)o->seed, e))
        return -1;
    if (loader_open(&t->validation, o->data, "validation", (int)o->context, 1, (uint64_t)o->seed, e))
        return -1;
    if (t->validation.vocab != t->train.vocab)
        return error_set(e, "'%s': the train split has vocabulary %d, validation %d; build both together",
                         o->data, t->train.vocab, t->validation.vocab);
    if (o->vocab && o->vocab < t->train.vocab)
        return error_set(e,
                         "--vocab %lld is smaller than the data's vocabulary %d; expected 0 or at least that",
                         (long long)o->vocab, t->train.vocab);
    return 0;
}

/* The rate of a large matrix product on this rank, while the others do the same: what 100 % of mfu means. */
static double measure_peak_flops(const struct device *d) {
    enum { SIZE = 1024, REPEATS = 3 };
    struct arena a = {.device = d};
    struct tensor m[3];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < 3; i++) m[i] = arena_take(&a, DTYPE_F32, SIZE, SIZE);
        if (pass == 0) arena_commit(&a);
    }
    double best = INFINITY;
    for (int i = 0; i <= REPEATS; i++) {
        double start = clock_seconds();
        d->matmul(NULL, m[0], m[1], false, m[2], false, 0.0f);
        d->synchronize(NULL);
        if (i > 0) best = fmin(best, clock_seconds() - start);
    }
    arena_free(&a);
    return 2.0 * SIZE * SIZE * SIZE / best;
}

static int create_model(struct trainer *t, struct error *e) {
    const struct options *o = t->options;
    struct gpt_config config = {
        .layers = (int)o->layers,
        .heads = (int)o->heads,
        .channels = (int)o->channels,
        .context = (int)o->context,
        .vocab = o->vocab ? (int)o->vocab : t->train.vocab,
        .tied = o->tie_embeddings,
        .recompute = o->recompute,
        .dropout = (float)o->dropout,
    };
    if (device_find_precision(t->device, o->precision, &config.precision, e)) return -1;
    const struct optimizer_options rule = {
        .rule = o->optimizer,
        .beta1 = (float)o->beta1,
        .beta2 = (float)o->beta2,
        .eps = (float)o->eps,
        .momentum = (float)o->momentum,
        .weight_decay = (float)o->weight_decay,
        .clip = o->clip,
    };
    const struct pipeline_options cut = {o->schedule, (int)o->chunks, (int)(t->share / t->micro_batch),
                                         t->micro_batch};
    if (pipeline_create(&t->pipeline, &t->gpt, &config, t->device, t->mesh.pipe, &cut, e)) return -1;
    gpt_initialise(&t->gpt, (uint64_t)o->seed);
    optimizer_create(&t->optimizer, &rule, &t->gpt);
    t->schedule = (struct lr_schedule){o->lr_schedule, o->lr, o->min_lr, o->warmup, o->steps};
    t->tokens = memory_alloc(2 * sizeof *t->tokens * (size_t)(t->share * o->context));
    t->targets = t->tokens + t->share * o->context;
    return reducer_create(&t->reducer, o, &t->mesh, &t->gpt, e);
}

int trainer_create(struct trainer *t, const struct options *o, struct comm *comm, struct error *e) {
    *t = (struct trainer){.options = o, .comm = comm};
    t->threads = threads_plan(o->threads, comm);
    t->device = device_find(o->device, e);
    int status = t->device ? t->device->open(t->threads.threads, e) : -1;
    if (comm_agree(comm, status, e) || mesh_create(&t->mesh, comm, o->dp, o->pp, e)) {
        trainer_free(t);
        return -1;
    }
    status = loss_scale_create(&t->loss_scale, o, e) || plan_batch(t, e) || open_data(t, e) ? -1 : 0;
    if (comm_agree(comm, status, e) || comm_agree(comm, create_model(t, e), e)) {
        trainer_free(t);
        return -1;
    }
    t->peak_flops = measure_peak_flops(t->device);
    return 0;
}

void trainer_free(struct trainer *t) {
    reducer_free(&t->reducer);
    if (t->gpt.device) {
        optimizer_free(&t->optimizer);
        gpt_free(&t->gpt);
    }
    pipeline_free(&t->pipeline);
    if (t->mesh.world) mesh_free(&t->mesh);
    loader_close(&t->train);
    loader_close(&t->validation);
    free(t->tokens);
    *t = (struct trainer){0};
}

struct run_facts trainer_facts(const struct trainer *t) {
    struct run_facts facts = {
        .version = TANDEM_VERSION,
        .tokenizer = t->train.tokenizer,
        .ranks = t->comm->size,
        .hosts = t->comm->hosts,
        .threads = t->threads.threads,
        .vocab = t->gpt.config.vocab,
        .buckets = t->reducer.engine->buckets,
        .parameters = gpt_parameters(&t->gpt.config),
        .train_tokens = t->train.tokens,
        .validation_tokens = t->validation.tokens,
        .peak_flops = t->peak_flops,
    };
    gethostname(facts.host, sizeof facts.host - 1);
    t->device->describe(facts.device, sizeof facts.device);
    comm_describe(t->comm, facts.communication, sizeof facts.communication);
    return facts;
}

void trainer_read_batch(struct trainer *t, int64_t step) {
    t->step_started = clock_seconds();
    const int64_t T = t->options->context,
                  first = step * t->options->batch_size + t->mesh.data_rank * t->share;
    for (int64_t i = 0; i < t->share; i++)
        loader_read(&t->train, loader_window(&t->train, first + i), t->tokens + i * T, t->targets + i * T);
    t->data_ms = 1e3 * (clock_seconds() - t->step_started);
}

static void gradients_ready(void *context, int64_t elements) {
    reducer_mark_ready(context, elements);
}

static double milliseconds_since(double *mark) {
    double now = clock_seconds(), passed = now - *mark;
    *mark = now;
    return 1e3 * passed;
}

/* All micro-batches, forward and backward; loss and accuracy come out as this rank's part of the global mean. */
static void run_micro_batches(struct trainer *t, int64_t step, struct step_record *r) {
    const double tokens = (double)(t->options->batch_size * t->options->context);
    const struct pipeline_job job = {
        .share = {.tokens = t->tokens,
                  .targets = t->targets,
                  .sequences = t->share,
                  .positions = t->options->context,
                  .training = true,
                  .seed = (uint64_t)t->options->seed,
                  .step = step,
                  .first_sequence = t->mesh.data_rank * t->share},
        .scale = (float)t->loss_scale.scale / (float)tokens,
        .ready = gradients_ready,
        .context = &t->reducer,
    };
    reducer_begin(&t->reducer, t->loss_scale.scale);
    const struct pipeline_result result = pipeline_train(&t->pipeline, &job);
    r->loss = result.sums.loss / tokens;
    r->accuracy = result.sums.correct / tokens;
    r->forward_ms = result.forward_ms;
    r->backward_ms = result.backward_ms;
    r->bubble_ms = result.bubble_ms;
}

/* The slowest rank's times, and what follows from them. */
static void finish_record(struct trainer *t, struct step_record *r) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    r->memory_bytes = 1024.0 * (double)usage.ru_maxrss;
    r->data_ms = t->data_ms;
    r->step_ms = 1e3 * (clock_seconds() - t->step_started);
    step_record_reduce(r, t->comm, REDUCE_MAX, NULL, 0);
    const double tokens = (double)(t->options->batch_size * t->options->context);
    r->tokens_per_s = 1e3 * tokens / r->step_ms;
    r->mfu = gpt_flops_per_token(&t->gpt.config, t->options->context) * r->tokens_per_s /
             (t->peak_flops * t->comm->size);
}

struct step_outcome trainer_step(struct trainer *t, int64_t step, struct step_votes wish) {
    struct step_outcome outcome = {0};
    struct step_record *r = &outcome.record;
    run_micro_batches(t, step, r);
    const bool finite = reducer_finish(&t->reducer, r);

    double mark = clock_seconds(), waited_ms = 0;
    r->lr = lr_schedule_rate(&t->schedule, step);
    r->interval = reducer_interval(&t->reducer, step);
    r->grad_norm = reducer_gradient_norm(&t->reducer, &waited_ms);
    r->bubble_ms += waited_ms;
    double votes[] = {!finite || !isfinite(r->loss) || !isfinite(r->grad_norm), wish.stop, wish.save,
                      wish.written};
    step_record_reduce(r, t->comm, REDUCE_SUM, votes, 4);
    outcome.agreed = (struct step_votes){
        .stop = votes[1] > 0, .save = votes[2] > 0, .written = (int)votes[3] == t->comm->size};
    r->loss_scale = t->loss_scale.scale;
    outcome.verdict = loss_scale_judge(&t->loss_scale, votes[0] == 0, isfinite(r->loss));
    r->skipped = outcome.verdict == STEP_SKIPPED;
    reducer_commit(&t->reducer, outcome.verdict == STEP_ACCEPTED);
    if (outcome.verdict == STEP_ACCEPTED)
        reducer_update(&t->reducer, &t->optimizer, &t->gpt, r->lr, r->grad_norm);
    r->optimizer_ms = milliseconds_since(&mark) - waited_ms;
    finish_record(t, r);
    reducer_tune(&t->reducer, step);
    return outcome;
}

/* FNV-1a over the words of a part of the weights, as what a double carries. */
static double hash_weights(const struct trainer *t, int64_t first, int64_t end) {
    uint32_t *bits = memory_alloc(sizeof *bits * (size_t)(end - first));
    t->device->copy_out(t->gpt.stream, bits, tensor_slice(t->gpt.weight, first, end - first));
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < end - first; i++) hash = (hash ^ bits[i]) * 0x100000001b3u;
    free(bits);
    return (double)(hash >> 11);
}

static void check_same(struct comm *comm, double hash, int64_t step, const char *what) {
    CHECK(comm_same(comm, hash), "after step %lld %s; this is a bug in tandem or in the machine",
          (long long)step + 1, what);
}

void trainer_check_ranks(struct trainer *t, int64_t step) {
    const int64_t elements = t->gpt.table.elements;
    check_same(t->mesh.data, hash_weights(t, 0, elements), step, "the ranks do not hold the same weights");
    if (t->gpt.table.shares_embedding)
        check_same(t->mesh.embedding, hash_weights(t, t->reducer.own, elements), step,
                   "the first and the last stage do not hold the same embedding");
}

struct eval_record trainer_evaluate(struct trainer *t, int64_t step) {
    return evaluate(&t->pipeline, &t->validation, &t->mesh, t->options->eval_batches * t->options->batch_size,
                    step);
}
