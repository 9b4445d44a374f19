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

static struct bucket_plan plan_for(const struct reducer *r, int64_t total, int64_t interval) {
    const struct options *o = r->options;
    int64_t bucket =
        (int64_t)fmax(1.0, (o->bucket_mib > 0 ? o->bucket_mib : default_bucket_mib) * (double)MIB_ELEMENTS);
    int64_t first = bucket < MIB_ELEMENTS ? bucket : MIB_ELEMENTS;
    if (strcmp(o->compress, "covap") == 0 && interval > 1 && o->bucket_mib == 0) {
        const int64_t units = UNITS_PER_INTERVAL * interval;
        bucket = first = r->tuner.bucket_elements ? r->tuner.bucket_elements : (total + units - 1) / units;
    }
    return (struct bucket_plan){
        .bucket_elements = bucket,
        .first_elements = first,
        .overlap = o->overlap,
        .matrix = r->matrix,
        .matrices = r->engine ? r->engine->plan.matrices : 0,
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

static void list_matrices(struct reducer *r, const struct gpt *g) {
    r->matrix = memory_alloc(sizeof *r->matrix * (size_t)g->table.params);
    for (int i = 0; i < g->table.params; i++) {
        const struct param *p = &g->table.param[i];
        r->matrix[i] = (struct flat_matrix){p->offset, p->ndim == 2 ? p->dim[0] : 1,
                                            p->count / (p->ndim == 2 ? p->dim[0] : 1)};
    }
}

static void make_ranges(struct reducer *r) {
    free(r->range);
    free(r->norm_squared);
    r->norm_squared = memory_alloc_zeroed(sizeof *r->norm_squared * (size_t)r->engine->buckets);
    r->range = memory_alloc_zeroed(sizeof *r->range * (size_t)r->engine->buckets);
}

int reducer_create(struct reducer *r, const struct options *o, struct comm *comm, const struct gpt *g,
                   struct error *e) {
    *r = (struct reducer){.options = o};
    int64_t interval = 1;
    if (has_interval(o) && parse_interval(o, &interval, e)) return -1;
    r->tuner = tuner_create(interval == 0, interval ? interval : 1, o->retune);
    list_matrices(r, g);
    struct bucket_plan plan = plan_for(r, g->table.elements, tuner_interval(&r->tuner, 0));
    plan.matrices = g->table.params;
    if (bucket_engine_create(&r->engine, comm, g->device, g->gradient, &plan, e)) return -1;
    make_ranges(r);
    return 0;
}

void reducer_free(struct reducer *r) {
    bucket_engine_free(r->engine);
    free(r->matrix);
    free(r->range);
    free(r->norm_squared);
    *r = (struct reducer){0};
}

double reducer_gradient_norm(struct reducer *r, const struct gpt *g) {
    struct bucket_engine *engine = r->engine;
    if (!has_interval(r->options)) return optimizer_gradient_norm(g);
    double sum = 0;
    for (int i = 0; i < engine->buckets; i++) {
        const struct bucket_view *b = &engine->bucket[i].view;
        const double n = (double)b->gradients;
        if (n > 0) {
            g->device->sum_squares(g->stream, &r->norm_squared[i], b->gradient);
            r->norm_squared[i] /= n * n;
        }
        sum += r->norm_squared[i];
    }
    return sqrt(sum);
}

void reducer_update(struct reducer *r, struct optimizer *optimizer, struct gpt *g, double lr, double norm) {
    const struct bucket_engine *engine = r->engine;
    r->updates++;
    if (!catches_up(r->options)) {
        optimizer_update(optimizer, g, lr, norm, NULL, 0, r->updates);
        return;
    }
    for (int i = 0; i < engine->buckets; i++) {
        const struct bucket_view *v = &engine->bucket[i].view;
        r->range[i] = (struct optimizer_range){v->offset, v->count, v->gradients};
    }
    optimizer_update(optimizer, g, lr, norm, r->range, engine->buckets, r->updates);
}

void reducer_visit(struct reducer *r, kept_take *take, void *context) {
    struct compressor *c = r->engine->compressor;
    take(context, &(struct kept){.name = "updates", .type = NUMBER_WHOLE, .number = &r->updates, .count = 1});
    char name[48]; /* norms fit the buckets they were taken of only */
    snprintf(name, sizeof name, "norm_squared_%lld", (long long)r->engine->plan.bucket_elements);
    if (has_interval(r->options))
        take(context,
             &(struct kept){
                 .name = name, .type = NUMBER_REAL, .number = r->norm_squared, .count = r->engine->buckets});
    if (c->method->visit) c->method->visit(c, take, context);
}

void reducer_replan(struct reducer *r, int64_t step) {
    const struct bucket_plan plan =
        plan_for(r, tensor_count(r->engine->gradient), tuner_interval(&r->tuner, step));
    bucket_engine_replan(r->engine, &plan);
    make_ranges(r);
}

void reducer_tune(struct reducer *r, int64_t step) {
    struct tuner *t = &r->tuner;
    const bool was_measuring = t->measuring;
    if (!tuner_observe(t, r->engine, step)) return;
    reducer_replan(r, step + 1);
    if (was_measuring && r->engine->comm->rank == 0)
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
