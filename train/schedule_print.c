/* The picture of a schedule. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/schedule.h"

enum { COLUMNS = 100, MOST_CELLS = 2000, MOST_CHUNKS = 26, EVERY = 5 /* cells between marks of the time */ };

/* Cells of the grid: what a stage does in a unit of time; NULL: it idles. */
struct grid {
    const struct schedule *s;
    double unit;  /* of time in a cell: the shortest action */
    bool rounded; /* some action begins within a cell */
    int cells;
    int label, digits, width; /* columns of a row's label, of a micro-batch's number, of a cell */
};

static int digits_of(int number) {
    return snprintf(NULL, 0, "%d", number);
}

static void grid_measure(struct grid *g, const struct schedule *s, const struct simulation *run) {
    *g = (struct grid){.s = s, .unit = INFINITY};
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->count[stage]; i++) {
            const double time = run->end[stage][i] - run->start[stage][i];
            if (time > 0 && time < g->unit) g->unit = time;
        }
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->count[stage]; i++) {
            const double at = run->start[stage][i] / g->unit;
            g->rounded |= fabs(at - round(at)) > 1e-6;
        }
    const double cells = ceil(run->makespan / g->unit - 1e-6);
    g->cells = cells <= MOST_CELLS ? (int)cells : MOST_CELLS + 1;
    g->label = 7 + digits_of(s->stages - 1);
    g->digits = digits_of(s->micro_batches - 1);
    /* A letter and the number; with a blank between cells where that fits. */
    g->width = 1 + g->digits + (g->label + g->cells * (2 + g->digits) <= COLUMNS);
}

/* Forward passes have capitals, backward passes of chunks small letters. */
static char letter_of(const struct schedule *s, const struct action *a) {
    if (s->chunks > 1) return (char)((a->kind == ACTION_FORWARD ? 'A' : 'a') + a->chunk);
    return a->kind == ACTION_FORWARD ? 'F' : a->kind == ACTION_BACKWARD_WEIGHT ? 'W' : 'B';
}

static void put(const struct grid *g, char *row, int at, const char *text) {
    memcpy(row + (size_t)at * (size_t)g->width, text, strlen(text));
}

/* The text of all cells of a stage. Free with free(). */
static char *draw_row(const struct grid *g, const struct simulation *run, int stage) {
    const size_t length = (size_t)(g->cells + 1) * (size_t)g->width;
    char *row = memory_alloc(length), text[16];
    memset(row, ' ', length);
    for (int at = 0; at < g->cells; at++) put(g, row, at, ".");
    for (int i = 0; i < g->s->count[stage]; i++) {
        const struct action *a = &g->s->list[stage][i];
        const long first = lround(run->start[stage][i] / g->unit);
        const long end = lround(run->end[stage][i] / g->unit);
        if (a->kind >= ACTION_SEND_FORWARD) continue;
        snprintf(text, sizeof text, "%c%-*d", letter_of(g->s, a), g->digits, a->micro_batch);
        for (long at = first; at < end && at < g->cells; at++) {
            put(g, row, (int)at, text);
            memset(text, '-', 1 + (size_t)g->digits); /* it goes on */
        }
    }
    return row;
}

static void print_band(const struct grid *g, char **rows, int first, int cells, FILE *out) {
    fprintf(out, "%-*s", g->label, "time");
    for (int at = first; at < first + cells; at++)
        if (at % EVERY == 0 || at == first) {
            const int next = (at / EVERY + 1) * EVERY, end = next < first + cells ? next : first + cells;
            fprintf(out, "%-*d", end < first + cells ? (end - at) * g->width : 0, at);
        }
    fprintf(out, "\n");
    for (int stage = 0; stage < g->s->stages; stage++) {
        int length = cells * g->width;
        const char *text = rows[stage] + (size_t)first * (size_t)g->width;
        while (length && text[length - 1] == ' ') length--;
        fprintf(out, "stage %-*d%.*s\n", g->label - 6, stage, length, text);
    }
    fprintf(out, "\n");
}

static void print_legend(const struct grid *g, FILE *out) {
    const struct schedule *s = g->s;
    if (s->chunks > 1) {
        const char last = (char)('A' + s->chunks - 1);
        fprintf(out, "A..%c forward, a..%c backward of chunk 0..%d", last, last - 'A' + 'a', s->chunks - 1);
    } else {
        fprintf(out, schedule_splits_backward(s, 0) ? "F forward, B backward of the input, W of the weights"
                                                    : "F forward, B backward");
    }
    fprintf(out, ", with the micro-batch; - goes on, . idle\n");
    if (g->rounded || g->unit != 1)
        fprintf(out, "a cell is %g%s\n", g->unit, g->rounded ? "; times are rounded to cells" : "");
}

static void print_grid(const struct schedule *s, const struct simulation *run, FILE *out) {
    struct grid g;
    grid_measure(&g, s, run);
    if (g.cells > MOST_CELLS || s->chunks > MOST_CHUNKS) {
        fprintf(out, "no picture: more than %d units of time, or %d chunks\n", MOST_CELLS, MOST_CHUNKS);
        return;
    }
    char **rows = memory_alloc(sizeof *rows * (size_t)s->stages);
    for (int stage = 0; stage < s->stages; stage++) rows[stage] = draw_row(&g, run, stage);
    const int fitting = (COLUMNS - g.label) / g.width / EVERY * EVERY;
    const int band = g.label + g.cells * g.width <= COLUMNS ? g.cells : fitting;
    for (int first = 0; first < g.cells; first += band)
        print_band(&g, rows, first, g.cells - first < band ? g.cells - first : band, out);
    print_legend(&g, out);
    for (int stage = 0; stage < s->stages; stage++) free(rows[stage]);
    free(rows);
}

/* Peaks by stage, as many to a line as fit. */
static void print_peaks(const struct schedule *s, const struct simulation *run, FILE *out) {
    int column =
        fprintf(out, "peak       activations of micro-batches x chunks alive, stages 0..%d:", s->stages - 1);
    for (int stage = 0; stage < s->stages; stage++) {
        const int length = 1 + digits_of(run->peak_activations[stage]);
        if (column + length > COLUMNS) column = fprintf(out, "\n          ") - 1;
        column += fprintf(out, " %d", run->peak_activations[stage]);
    }
    fprintf(out, "\n");
}

void schedule_print(const struct schedule *s, const struct schedule_costs *costs, FILE *out) {
    struct simulation run;
    struct error e;
    CHECK(schedule_simulate(s, costs, MESSAGES_ASYNCHRONOUS, &run, &e) == 0, "%s", e.text);
    const double formula = schedule_bubble_formula(s, costs);
    fprintf(out, "%s: %d stage%s x %d chunk%s, %d micro-batch%s\n\n", s->name, s->stages,
            s->stages == 1 ? "" : "s", s->chunks, s->chunks == 1 ? "" : "s", s->micro_batches,
            s->micro_batches == 1 ? "" : "es");
    print_grid(s, &run, out);
    fprintf(out,
            "makespan   %g, for one chunk's forward %g, backward of input %g and weights %g, message %g\n",
            run.makespan, costs->forward, costs->backward_input, costs->backward_weight, costs->message);
    fprintf(out, "bubble     %.1f %% of the stages' time, simulated; ", 100 * run.bubble_share);
    if (isnan(formula))
        fprintf(out, "there is no formula for these costs\n");
    else
        fprintf(out, "%.1f %% by formula%s\n", 100 * formula,
                costs->message > 0 ? ", which has no messages" : "");
    print_peaks(s, &run, out);
    simulation_free(&run);
}
