#include "train/progress.h"

#include <math.h>
#include <stdlib.h>

#include "train/statistics.h"

void progress_create(struct progress *p, bool shown, int64_t first, int64_t steps) {
    *p = (struct progress){.shown = shown, .first = first, .steps = steps, .started = clock_seconds()};
}

void progress_free(struct progress *p) {
    free(p->step_ms);
    free(p->exposed_ms);
    free(p->comm_ms);
    free(p->bubble_ms);
    *p = (struct progress){0};
}

static double median(const double *values, int64_t count) {
    if (count == 0) return NAN;
    /* the first step pays for page faults and library start-up */
    return count > 1 ? statistics_median(values + 1, count - 1) : statistics_median(values, count);
}

double progress_median_step_ms(const struct progress *p) {
    return median(p->step_ms, p->done);
}

/* Remaining time from the median of the last few steps, which follows a machine that gets slower or faster. */
static double remaining_seconds(const struct progress *p) {
    enum { WINDOW = 50 };
    int64_t count = p->done < WINDOW ? p->done : WINDOW;
    return 1e-3 * median(p->step_ms + p->done - count, count) * (double)(p->steps - p->first - p->done);
}

/* Room for one entry more: the steps made count, not those planned, which may be a number that only means "very long". */
static void make_room(struct progress *p) {
    if (p->done < p->room) return;
    p->room = 2 * p->room + 1000;
    double **arrays[] = {&p->step_ms, &p->exposed_ms, &p->comm_ms, &p->bubble_ms};
    for (int i = 0; i < 4; i++) {
        *arrays[i] = realloc(*arrays[i], sizeof(double) * (size_t)p->room);
        CHECK(*arrays[i], "out of memory: %lld times of steps", (long long)p->room);
    }
}

void progress_step(struct progress *p, int64_t step, const struct step_record *r, bool show) {
    make_room(p);
    p->step_ms[p->done] = r->step_ms;
    p->exposed_ms[p->done] = r->comm_exposed_ms;
    p->comm_ms[p->done] = r->comm_ms;
    p->bubble_ms[p->done] = r->bubble_ms;
    p->done++;
    p->last = *r;
    p->bytes_sent += (int64_t)r->bytes_sent;
    p->skipped += (int64_t)r->skipped;
    if (!p->shown || !show) return;
    const long long left = (long long)remaining_seconds(p);
    printf("step %6lld/%lld  loss %7.4f  accuracy %.3f  lr %.2e  %8.1f ms/step  %8.0f tokens/s  comm exposed "
           "%5.1f ms "
           "(%4.1f %%)  ETA %lld:%02lld\n",
           (long long)step + 1, (long long)p->steps, r->loss, r->accuracy, r->lr, r->step_ms, r->tokens_per_s,
           r->comm_exposed_ms, 100.0 * r->comm_exposed_ms / r->step_ms, left / 60, left % 60);
    fflush(stdout);
}

void progress_eval(const struct progress *p, const struct eval_record *r) {
    if (!p->shown) return;
    printf("eval %6lld/%lld  validation loss %.4f  accuracy %.3f  perplexity %.2f", (long long)r->step,
           (long long)p->steps, r->val_loss, r->val_accuracy, r->perplexity);
    if (!isnan(r->bits_per_byte)) printf("  bits/byte %.3f", r->bits_per_byte);
    printf("\n");
    fflush(stdout);
}

static void row(const char *name, const char *format, double value) {
    printf("  %-28s ", name);
    if (isnan(value))
        printf("not measured\n");
    else
        printf(format, value), printf("\n");
}

void progress_summary(const struct progress *p, const struct eval_record *e, const struct mesh *mesh,
                      const char *run_dir) {
    if (!p->shown) return;
    const int ranks = mesh->world->size;
    const double step_ms = median(p->step_ms, p->done), comm_ms = median(p->comm_ms, p->done),
                 exposed_ms = median(p->exposed_ms, p->done);
    printf("\nSummary\n");
    row("steps", "%.0f", (double)p->done);
    if (p->skipped) row("  of them skipped", "%.0f: not finite", (double)p->skipped);
    row("wall time", "%.1f s", clock_seconds() - p->started);
    row("step time, median", "%.2f ms", step_ms);
    row("tokens/s, median", "%.0f", p->last.tokens_per_s * p->last.step_ms / step_ms);
    row("model FLOP utilisation", "%.1f %% of a large matrix product's rate",
        100.0 * p->last.mfu * p->last.step_ms / step_ms);
    row("communication, median", ranks > 1 ? "%.2f ms a step" : "%.0f ms: one rank", comm_ms);
    if (ranks > 1) {
        row("  of it exposed", "%.2f ms", exposed_ms);
        row("  of it hidden", "%.1f %%", comm_ms > 0 ? 100.0 * (1.0 - fmin(1.0, exposed_ms / comm_ms)) : NAN);
        row("sent, all ranks", "%.1f MB", 1e-6 * (double)p->bytes_sent);
    }
    if (mesh->pp > 1) row("waiting for other stages", "%.2f ms a step", median(p->bubble_ms, p->done));
    row("peak memory of a rank", "%.0f MB", 1e-6 * p->last.memory_bytes);
    row("training loss, last step", "%.4f", p->last.loss);
    row("validation loss", "%.4f", e->val_loss);
    row("validation accuracy", "%.4f", e->val_accuracy);
    row("perplexity", "%.3f", e->perplexity);
    row("bits per byte", "%.4f", e->bits_per_byte);
    printf("  %-28s %s/metrics.jsonl\n  %-28s %s/checkpoints\n", "metrics", run_dir, "model", run_dir);
    fflush(stdout);
}
