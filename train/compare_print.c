#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/compare.h"

/* A cell of a table: right-aligned, - for what is not known. */
static void cell(int width, const char *format, double value) {
    char text[64] = "-";
    if (isfinite(value)) snprintf(text, sizeof text, format, value);
    printf("  %*s", width, text);
}

static int word_width(const struct compare_plan *p) {
    size_t width = strlen("method");
    for (int m = 0; m < p->methods; m++)
        if (strlen(p->method[m].word) > width) width = strlen(p->method[m].word);
    return (int)width;
}

static void print_losses(const struct compare_result *r, int width) {
    const struct compare_plan *p = r->plan;
    printf("\n%-*s  %8s  %8s  %10s  %10s  %10s  %9s  %8s  %10s  %s\n", width, "method", "val loss", "sd",
           "difference", "lower 95%", "upper 95%", "accuracy", "sd", "difference", "verdict");
    for (int m = 0; m < p->methods; m++) {
        const struct compare_summary *s = &r->summary[m];
        printf("%-*s", width, p->method[m].word);
        cell(8, "%.4f", s->val_loss.mean);
        cell(8, "%.4f", s->val_loss.sd);
        cell(10, "%+.4f", s->loss_difference.sample.mean);
        cell(10, "%+.4f", s->loss_difference.lower);
        cell(10, "%+.4f", s->loss_difference.upper);
        cell(9, "%.4f", s->val_accuracy.mean);
        cell(8, "%.4f", s->val_accuracy.sd);
        cell(10, "%+.4f", s->accuracy_difference.sample.mean);
        printf("  %s\n", compare_verdict_name(r, m));
    }
}

static void print_target(const struct compare_result *r, int method) {
    const struct compare_summary *s = &r->summary[method];
    char text[64] = "not reached";
    if (r->plan->options->target_loss == 0) strcpy(text, "-");
    if (isfinite(s->target_s)) snprintf(text, sizeof text, "%.2f s", s->target_s);
    printf("  %14s", text);
}

static void print_times(const struct compare_result *r, int width) {
    const struct compare_plan *p = r->plan;
    printf("\n%-*s  %9s  %9s  %9s  %7s  %9s  %7s  %14s  %8s\n", width, "method", "ms/step", "exposed",
           "compress", "share", "MB/step", "ratio", "time to target", "speed-up");
    for (int m = 0; m < p->methods; m++) {
        const struct compare_summary *s = &r->summary[m];
        printf("%-*s", width, p->method[m].word);
        cell(9, "%.2f", s->step_ms);
        cell(9, "%.2f", s->exposed_ms);
        cell(9, "%.2f", s->compress_ms);
        cell(7, "%.1f %%", 100 * s->compress_share);
        cell(9, "%.3f", 1e-6 * s->bytes_sent);
        cell(7, "%.3f", s->bytes_ratio);
        print_target(r, m);
        cell(8, "%.2f x", compare_speedup(r, m, p->reference));
        printf("\n");
    }
}

/* Each method's speed (rows) relative to each (columns). */
static void print_speedups(const struct compare_result *r, int width) {
    const struct compare_plan *p = r->plan;
    printf("\nSpeed relative to\n%-*s", width, "");
    for (int m = 0; m < p->methods; m++) printf("  %*s", 8, p->method[m].word);
    printf("\n");
    for (int m = 0; m < p->methods; m++) {
        printf("%-*s", width, p->method[m].word);
        for (int k = 0; k < p->methods; k++)
            cell(strlen(p->method[k].word) > 8 ? (int)strlen(p->method[k].word) : 8, "%.2f x",
                 compare_speedup(r, m, k));
        printf("\n");
    }
}

void compare_print(const struct compare_result *r) {
    const struct compare_plan *p = r->plan;
    const struct options *o = p->options;
    const int width = word_width(p);
    printf("\nComparison: %d seed%s on %d rank%s, reference %s, margin %g nats per token", p->seeds,
           p->seeds == 1 ? "" : "s", r->ranks, r->ranks == 1 ? "" : "s", p->method[p->reference].word,
           o->margin);
    if (o->target_loss > 0) printf(", target loss %g", o->target_loss);
    printf("\n");
    print_losses(r, width);
    print_times(r, width);
    if (p->methods > 2) print_speedups(r, width);
    printf("\n");
    for (int i = 0; i < r->warnings; i++) printf("warning: %s\n", r->warning[i]);
    printf("written  %s/compare.json and compare.csv; plots: scripts/plot_compare.py %s\n", o->run_dir,
           o->run_dir);
    fflush(stdout);
}
