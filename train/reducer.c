#include "train/reducer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MIB_ELEMENTS = (1 << 20) / 4;
static const double default_bucket_mib = 4.0;
enum { UNITS_PER_INTERVAL = 8 }; /* enough that what is sent in a step is spread over the backward pass */

static bool has_interval(const struct options *o) {
    return strcmp(o->compress, "covap") == 0 || strcmp(o->compress, "accumulate") == 0;
}

/* Whether dropped units wait for their gradients, instead of being updated with zero. */
static bool catches_up(const struct options *o) {
    return strcmp(o->compress, "accumulate") == 0 ||
           (has_interval(o) && strcmp(o->covap_dropped, "catch-up") == 0);
}

/* N, or 0 for auto. */
static int parse_interval(const struct options *o, int64_t *interval, struct error *e) {
    char *end;
    *interval = strtoll(o->interval, &end, 10);
    if (strcmp(o->interval, "auto") == 0) return *interval = 0, 0;
    if (end != o->interval && !*end && *interval >= 1 && *interval <= 1000) return 0;
    return error_set(e, "--interval: found '%s', expected auto or a whole number from 1 to 1000",
                     o->interval);
}

int64_t reducer_start_step(const struct options *o) {
    return o->compress_start >= 0 ? o->compress_start : (o->steps + 9) / 10;
}

/* The plan of one of the two engines for its range of `total` elements. */
static struct bucket_plan plan_for(const struct reducer *r, bool shared, int64_t total, int64_t interval) {
    const struct options *o = r->options;
    int64_t bucket =
        (int64_t)fmax(1.0, (o->bucket_mib > 0 ? o->bucket_mib : default_bucket_mib) * (double)MIB_ELEMENTS);
    int64_t first = bucket < MIB_ELEMENTS ? bucket : MIB_ELEMENTS;
    if (strcmp(o->compress, "covap") == 0 && interval > 1 && o->bucket_mib == 0) {
        const int64_t units = r->tuner.units ? r->tuner.units : UNITS_PER_INTERVAL * interval;
        bucket = first = (total + units - 1) / units;
    }
    return (struct bucket_plan){
        .bucket_elements = bucket,
        .first_elements = first,
        .overlap = o->overlap,
        .matrix = shared ? r->matrix + r->gpt->table.params - 1 : r->matrix,
        .matrices = shared ? 1 : r->gpt->table.params - (r->own < r->gpt->table.elements),
        .compress = {.method = o->compress,
                     .interval = interval,
                     .ef_initial = o->ef_initial,
                     .ef_increment = o->ef_increment,
                     .ef_period = o->ef_period,
                     .density = o->density,
                     .rank = o->rank,
                     .start_step = reducer_start_step(o),
                     .levels = o->levels,
                     .momentum = o->momentum,
                     .wire = dtype_find(o->wire),
                     .seed = (uint64_t)o->seed},
    };
}

static void list_matrices(struct reducer *r) {
    const struct param_table *table = &r->gpt->table;
    r->matrix = memory_alloc(sizeof *r->matrix * (size_t)table->params);
    for (int i = 0; i < table->params; i++) {
        const struct param *p = &table->param[i];
        const int64_t start = p->offset < r->own ? 0 : r->own; /* of its engine's range */
        r->matrix[i] = (struct flat_matrix){p->offset - start, p->ndim == 2 ? p->dim[0] : 1,
                                            p->count / (p->ndim == 2 ? p->dim[0] : 1)};
    }
}

static int buckets_of(const struct reducer *r) {
    return r->engine->buckets + (r->shared ? r->shared->buckets : 0);
}

/* Bucket i of both engines, and where its engine's range begins. */
static struct bucket *bucket_at(const struct reducer *r, int i, int64_t *start) {
    const bool own = i < r->engine->buckets;
    *start = own ? 0 : r->own;
    return own ? &r->engine->bucket[i] : &r->shared->bucket[i - r->engine->buckets];
}

static void make_ranges(struct reducer *r) {
    const size_t buckets = (size_t)buckets_of(r);
    free(r->range);
    free(r->norm_squared);
    r->range = memory_alloc_zeroed(sizeof *r->range * buckets);
    r->norm_squared = memory_alloc_zeroed(sizeof *r->norm_squared * buckets);
}

static int create_engine(struct reducer *r, bool shared, struct error *e) {
    const int64_t first = shared ? r->own : 0, end = shared ? r->gpt->table.elements : r->own;
    const struct bucket_plan plan = plan_for(r, shared, end - first, tuner_interval(&r->tuner, 0));
    return bucket_engine_create(shared ? &r->shared : &r->engine, r->mesh->data, r->gpt->device,
                                tensor_slice(r->gpt->gradient, first, end - first), &plan, e);
}

int reducer_create(struct reducer *r, const struct options *o, const struct mesh *mesh, const struct gpt *g,
                   struct error *e) {
    const struct param_table *table = &g->table;
    const bool shares = table->shares_embedding;
    *r = (struct reducer){.options = o, .mesh = mesh, .gpt = g};
    r->own = shares ? table->param[table->params - 1].offset : table->elements;
    int64_t interval = 1;
    if (has_interval(o) && parse_interval(o, &interval, e)) return -1;
    r->tuner = tuner_create(interval == 0, interval ? interval : 1, o->retune);
    list_matrices(r);
    if (create_engine(r, false, e) || (shares && create_engine(r, true, e))) return -1;
    make_ranges(r);
    return 0;
}

void reducer_free(struct reducer *r) {
    bucket_engine_free(r->engine);
    bucket_engine_free(r->shared);
    free(r->matrix);
    free(r->range);
    free(r->norm_squared);
    free(r->all_norms);
    *r = (struct reducer){0};
}

/* Steps that were skipped are none to a compressor: what was due in one is due again. */
void reducer_begin(struct reducer *r, double loss_scale) {
    r->loss_scale = (float)loss_scale;
    bucket_engine_begin(r->engine, r->updates);
    if (r->shared) bucket_engine_begin(r->shared, r->updates);
}

/* What has become final loses the loss scale before anything else looks at it. */
static struct tensor unscale(struct reducer *r, int64_t first, int64_t end) {
    const struct tensor fresh = tensor_slice(r->gpt->gradient, first, end - first);
    if (r->loss_scale != 1.0f) r->gpt->device->cast(r->gpt->stream, fresh, fresh, 1.0f / r->loss_scale);
    return fresh;
}

void reducer_mark_ready(struct reducer *r, int64_t elements) {
    const int64_t own = elements < r->own ? elements : r->own;
    if (own == r->engine->ready) return; /* a shared embedding waits for the other stage's part */
    unscale(r, r->engine->ready, own);
    bucket_engine_mark_ready(r->engine, own);
}

/* The first and the last stage add their parts of a shared embedding's gradient. */
static void share_embedding(struct reducer *r, struct step_record *record) {
    struct work work;
    const struct tensor part = unscale(r, r->own, r->gpt->table.elements);
    const double since = clock_seconds();
    comm_all_reduce_begin(r->mesh->embedding, part, &work);
    comm_end(r->mesh->embedding, &work);
    record->bubble_ms += 1e3 * (clock_seconds() - since);
    record->bytes_sent += (double)work.bytes_sent;
    record->bytes_dense += (double)work.bytes_sent;
    bucket_engine_mark_ready(r->shared, tensor_count(part));
}

static bool finish_engine(struct bucket_engine *engine, struct step_record *record) {
    struct bucket_stats stats;
    bucket_engine_finish(engine, &stats);
    record->comm_ms += stats.comm_ms;
    record->comm_exposed_ms += stats.exposed_ms;
    record->compress_ms += stats.compress_ms;
    record->bytes_sent += (double)stats.bytes_sent;
    record->bytes_dense += (double)stats.bytes_dense;
    return stats.finite;
}

bool reducer_finish(struct reducer *r, struct step_record *record) {
    if (r->shared) share_embedding(r, record);
    const bool finite = finish_engine(r->engine, record);
    return (!r->shared || finish_engine(r->shared, record)) && finite;
}

void reducer_commit(struct reducer *r, bool accepted) {
    bucket_engine_commit(r->engine, accepted);
    if (r->shared) bucket_engine_commit(r->shared, accepted);
}

/* Adds over the stages. It is here that those which are done first wait for the others. */
static void add_over_stages(const struct reducer *r, double *values, int count, double *bubble_ms) {
    const double since = clock_seconds();
    comm_reduce(r->mesh->pipe, values, count, REDUCE_SUM);
    if (r->mesh->pp > 1) *bubble_ms += 1e3 * (clock_seconds() - since);
}

/* Dense: part by part, so that the sum's order is the same on any number of stages. */
static double dense_norm(const struct reducer *r, double *bubble_ms) {
    const int parts = r->gpt->config.layers + OPTIMIZER_OTHER_PARTS;
    double *squares = memory_alloc(sizeof *squares * (size_t)parts), sum = 0;
    optimizer_gradient_squares(r->gpt, squares);
    add_over_stages(r, squares, parts, bubble_ms);
    for (int i = 0; i < parts; i++) sum += squares[i];
    free(squares);
    return sqrt(sum);
}

double reducer_gradient_norm(struct reducer *r, double *bubble_ms) {
    if (!has_interval(r->options)) return dense_norm(r, bubble_ms);
    double sum = 0;
    for (int i = 0; i < buckets_of(r); i++) {
        int64_t start;
        const struct bucket_view *v = &bucket_at(r, i, &start)->view;
        const double n = (double)v->gradients;
        if (n > 0) {
            r->gpt->device->sum_squares(r->gpt->stream, &r->norm_squared[i], v->gradient);
            r->norm_squared[i] /= n * n;
        }
        if (start == 0 || r->mesh->stage == 0) sum += r->norm_squared[i]; /* a shared embedding counts once */
    }
    add_over_stages(r, &sum, 1, bubble_ms);
    return sqrt(sum);
}

void reducer_update(struct reducer *r, struct optimizer *optimizer, struct gpt *g, double lr, double norm) {
    r->updates++;
    if (!catches_up(r->options)) {
        optimizer_update(optimizer, g, lr, norm, NULL, 0, r->updates);
        return;
    }
    for (int i = 0; i < buckets_of(r); i++) {
        int64_t start;
        const struct bucket_view *v = &bucket_at(r, i, &start)->view;
        r->range[i] = (struct optimizer_range){start + v->offset, v->count, v->gradients};
    }
    optimizer_update(optimizer, g, lr, norm, r->range, buckets_of(r), r->updates);
}

static void replan(struct reducer *r, bool shared, int64_t step) {
    struct bucket_engine *engine = shared ? r->shared : r->engine;
    const struct bucket_plan plan =
        plan_for(r, shared, tensor_count(engine->gradient), tuner_interval(&r->tuner, step));
    bucket_engine_replan(engine, &plan);
}

void reducer_gather_norms(struct reducer *r) {
    const int stages = r->mesh->pp, stage = r->mesh->stage;
    double *sizes = memory_alloc_zeroed(sizeof *sizes * 2 * (size_t)stages); /* how many buckets, how large */
    sizes[2 * stage] = buckets_of(r);
    sizes[2 * stage + 1] = (double)r->engine->plan.bucket_elements;
    comm_reduce(r->mesh->pipe, sizes, 2 * stages, REDUCE_SUM);
    r->all_buckets = r->first_bucket = 0;
    r->cut_elements = 0;
    for (int s = 0; s < stages; s++) {
        if (s == stage) r->first_bucket = r->all_buckets;
        r->all_buckets += (int)sizes[2 * s];
        r->cut_elements += (int64_t)sizes[2 * s + 1];
    }
    free(sizes);
    free(r->all_norms);
    r->all_norms = memory_alloc_zeroed(sizeof *r->all_norms * (size_t)r->all_buckets);
    memcpy(r->all_norms + r->first_bucket, r->norm_squared, sizeof *r->norm_squared * (size_t)buckets_of(r));
    comm_reduce(r->mesh->pipe, r->all_norms, r->all_buckets, REDUCE_SUM);
}

void reducer_scatter_norms(struct reducer *r) {
    memcpy(r->norm_squared, r->all_norms + r->first_bucket, sizeof *r->norm_squared * (size_t)buckets_of(r));
}

void reducer_visit(struct reducer *r, kept_take *take, void *context) {
    take(context, &(struct kept){.name = "updates", .type = NUMBER_WHOLE, .number = &r->updates, .count = 1});
    char name[48]; /* norms fit the buckets they were taken of only */
    snprintf(name, sizeof name, "norm_squared_%lld", (long long)r->cut_elements);
    if (has_interval(r->options))
        take(context,
             &(struct kept){
                 .name = name, .type = NUMBER_REAL, .number = r->all_norms, .count = r->all_buckets});
}

void reducer_replan(struct reducer *r, int64_t step) {
    replan(r, false, step);
    if (r->shared) replan(r, true, step);
    make_ranges(r);
}

void reducer_tune(struct reducer *r, int64_t step) {
    struct tuner *t = &r->tuner;
    const bool was_measuring = t->measuring;
    if (!tuner_observe(t, r->engine, r->mesh->world, step)) return;
    reducer_replan(r, step + 1);
    if (was_measuring && r->mesh->world->rank == 0)
        log_line("step %lld: reductions take %.1f ms without waiting, the backward pass can hide %.1f ms "
                 "(medians of "
                 "%d steps): "
                 "interval %lld, %d units of about %.2f MiB",
                 (long long)step + 1, t->comm_ms, t->window_ms, TUNER_SAMPLES, (long long)t->interval,
                 r->engine->units, (double)r->engine->plan.bucket_elements / (double)MIB_ELEMENTS);
}

double reducer_interval(const struct reducer *r, int64_t step) {
    if (!has_interval(r->options)) return NAN;
    return r->updates < r->engine->plan.compress.start_step ? 1.0 : (double)tuner_interval(&r->tuner, step);
}
