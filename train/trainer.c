#define _GNU_SOURCE
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "train/evaluate.h"

/* Whether the global batch can be shared by the ranks there are. The same answer on every rank. */
static int plan_batch(struct trainer *t, struct error *e) {
    const struct options *o = t->options;
    const int ranks = t->comm->size;
    if (o->dp && o->dp != ranks)
        return error_set(
            e, "--dp %lld does not match the %d rank%s started; expected --dp %d, or mpirun -np %lld",
            (long long)o->dp, ranks, ranks == 1 ? "" : "s", ranks, (long long)o->dp);
    if (o->batch_size % ranks)
        return error_set(
            e, "--batch-size %lld does not split over %d ranks; expected a multiple of %d, such as %lld",
            (long long)o->batch_size, ranks, ranks, (long long)((o->batch_size / ranks + 1) * ranks));
    t->share = o->batch_size / ranks;
    t->micro_batch = o->micro_batch ? o->micro_batch : t->share;
    if (t->share % t->micro_batch)
        return error_set(e, "--micro-batch %lld does not divide a rank's share of the batch, %lld sequences",
                         (long long)t->micro_batch, (long long)t->share);
    if (o->channels % o->heads)
        return error_set(e, "--heads %lld does not divide --channels %lld", (long long)o->heads,
                         (long long)o->channels);
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
    gpt_create(&t->gpt, &config, t->device, t->micro_batch, true);
    gpt_initialise(&t->gpt, (uint64_t)o->seed);
    optimizer_create(&t->optimizer, &rule, &t->gpt);
    t->schedule = (struct lr_schedule){o->lr_schedule, o->lr, o->min_lr, o->warmup, o->steps};
    t->tokens = memory_alloc(2 * sizeof *t->tokens * (size_t)(t->share * o->context));
    t->targets = t->tokens + t->share * o->context;
    return reducer_create(&t->reducer, o, t->comm, &t->gpt, e);
}

int trainer_create(struct trainer *t, const struct options *o, struct comm *comm, struct error *e) {
    *t = (struct trainer){.options = o, .comm = comm};
    t->threads = threads_plan(o->threads, comm);
    t->device = device_find(o->device, e);
    int status = t->device ? t->device->open(t->threads.threads, e) : -1;
    status = status || loss_scale_create(&t->loss_scale, o, e) || plan_batch(t, e) || open_data(t, e);
    if (comm_agree(comm, status ? -1 : 0, e)) {
        trainer_free(t);
        return -1;
    }
    if (comm_agree(comm, create_model(t, e), e)) {
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
        .parameters = t->gpt.table.parameters,
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
    const int64_t T = t->options->context, first = step * t->options->batch_size + t->comm->rank * t->share;
    for (int64_t i = 0; i < t->share; i++)
        loader_read(&t->train, loader_window(&t->train, first + i), t->tokens + i * T, t->targets + i * T);
    t->data_ms = 1e3 * (clock_seconds() - t->step_started);
}

/* What has become final loses the loss scale before anything else looks at it. */
static void gradients_ready(void *context, int64_t elements) {
    const struct trainer *t = context;
    struct bucket_engine *engine = t->reducer.engine;
    const struct tensor fresh = tensor_slice(t->gpt.gradient, engine->ready, elements - engine->ready);
    if (t->loss_scale.scale != 1)
        t->device->cast(t->gpt.stream, fresh, fresh, (float)(1 / t->loss_scale.scale));
    bucket_engine_mark_ready(engine, elements);
}

static double milliseconds_since(double *mark) {
    double now = clock_seconds(), passed = now - *mark;
    *mark = now;
    return 1e3 * passed;
}

/* All micro-batches, forward and backward; loss and accuracy come out as this rank's part of the global mean. */
static void run_micro_batches(struct trainer *t, int64_t step, struct step_record *r) {
    const int64_t T = t->options->context, batch_tokens = t->options->batch_size * T;
    for (int64_t first = 0; first < t->share; first += t->micro_batch) {
        const bool last = first + t->micro_batch == t->share;
        const struct gpt_batch batch = {.tokens = t->tokens + first * T,
                                        .targets = t->targets + first * T,
                                        .sequences = t->micro_batch,
                                        .positions = T,
                                        .training = true,
                                        .seed = (uint64_t)t->options->seed,
                                        .step = step,
                                        .first_sequence = t->comm->rank * t->share + first};
        const struct gpt_backward_plan plan = {.scale = (float)t->loss_scale.scale / (float)batch_tokens,
                                               .accumulate = first > 0,
                                               .ready = last ? gradients_ready : NULL,
                                               .context = t};
        double mark = clock_seconds();
        gpt_forward(&t->gpt, &batch);
        r->forward_ms += milliseconds_since(&mark);
        /* Steps that were skipped are none to a compressor: what was due in one is due again. */
        if (last) bucket_engine_begin(t->reducer.engine, t->reducer.updates);
        const struct gpt_loss part = gpt_backward(&t->gpt, &batch, &plan);
        r->backward_ms += milliseconds_since(&mark);
        r->loss += part.loss / (double)batch_tokens;
        r->accuracy += part.correct / (double)batch_tokens;
    }
}

/* Whether every gradient of this rank was finite. */
static bool finish_reduction(struct trainer *t, struct step_record *r) {
    struct bucket_stats stats;
    bucket_engine_finish(t->reducer.engine, &stats);
    r->comm_ms = stats.comm_ms;
    r->comm_exposed_ms = stats.exposed_ms;
    r->compress_ms = stats.compress_ms;
    r->bytes_sent = (double)stats.bytes_sent;
    r->bytes_dense = (double)stats.bytes_dense;
    return stats.finite;
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
    const bool finite = finish_reduction(t, r);

    double mark = clock_seconds();
    r->lr = lr_schedule_rate(&t->schedule, step);
    r->interval = reducer_interval(&t->reducer, step);
    r->grad_norm = reducer_gradient_norm(&t->reducer, &t->gpt);
    double votes[] = {!finite || !isfinite(r->loss) || !isfinite(r->grad_norm), wish.stop, wish.save,
                      wish.written};
    step_record_reduce(r, t->comm, REDUCE_SUM, votes, 4);
    outcome.agreed = (struct step_votes){
        .stop = votes[1] > 0, .save = votes[2] > 0, .written = (int)votes[3] == t->comm->size};
    r->loss_scale = t->loss_scale.scale;
    outcome.verdict = loss_scale_judge(&t->loss_scale, votes[0] == 0, isfinite(r->loss));
    r->skipped = outcome.verdict == STEP_SKIPPED;
    bucket_engine_commit(t->reducer.engine, outcome.verdict == STEP_ACCEPTED);
    if (outcome.verdict == STEP_ACCEPTED)
        reducer_update(&t->reducer, &t->optimizer, &t->gpt, r->lr, r->grad_norm);
    r->optimizer_ms = milliseconds_since(&mark);
    finish_record(t, r);
    reducer_tune(&t->reducer, step);
    return outcome;
}

void trainer_check_ranks(struct trainer *t, int64_t step) {
    const size_t count = (size_t)t->gpt.table.elements;
    uint32_t *bits = memory_alloc(sizeof *bits * count);
    t->device->copy_out(t->gpt.stream, bits, t->gpt.weight);
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over words */
    for (size_t i = 0; i < count; i++) hash = (hash ^ bits[i]) * 0x100000001b3u;
    free(bits);
    double low = (double)(hash >> 11), high = low; /* what a double carries */
    comm_reduce(t->comm, &low, 1, REDUCE_MIN);
    comm_reduce(t->comm, &high, 1, REDUCE_MAX);
    CHECK(low == high,
          "after step %lld the ranks do not hold the same weights; this is a bug in tandem or in the machine",
          (long long)step + 1);
}

struct eval_record trainer_evaluate(struct trainer *t, int64_t step) {
    return evaluate(&t->gpt, &t->validation, t->comm, t->options->eval_batches * t->options->batch_size,
                    t->micro_batch, step);
}
