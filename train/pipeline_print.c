#include <math.h>
#include <stdlib.h>

#include "model/partition.h"
#include "train/pipeline.h"

static void print_chunk(const struct gpt_chunk *c, FILE *out) {
    const int last = c->first_layer + c->layers - 1;
    if (c->embedding) fprintf(out, "embedding%s", c->layers || c->head ? ", " : "");
    if (c->layers == 1) fprintf(out, "layer %d", last);
    if (c->layers > 1) fprintf(out, "layers %d-%d", c->first_layer, last);
    if (c->head) fprintf(out, "%shead", c->layers ? ", " : "");
}

void pipeline_print(const struct pipeline *p, FILE *out) {
    const struct schedule *s = &p->schedule;
    /* The usual rule of thumb: a backward pass takes two forward passes, half for the input, half for the weights. */
    const double bubble = schedule_bubble_formula(s, &(struct schedule_costs){1, 1, 1, 0});
    struct gpt_chunk *all = memory_alloc(sizeof *all * (size_t)(s->stages * s->chunks));
    struct error e;
    CHECK(partition_model(&p->gpt->config, s->stages * s->chunks, all, &e) == 0, "%s", e.text);
    fprintf(out, "stages  schedule %s, %d micro-batch%s a step", s->name, s->micro_batches,
            s->micro_batches == 1 ? "" : "es");
    if (!isnan(bubble)) fprintf(out, ", bubble %.1f %% where all stages take as long", 100 * bubble);
    for (int stage = 0; stage < s->stages; stage++) {
        fprintf(out, "\n        stage %-4d  ", stage);
        for (int c = 0; c < s->chunks; c++) {
            if (c) fprintf(out, "; ");
            print_chunk(&all[c * s->stages + stage], out);
        }
    }
    fputc('\n', out);
    free(all);
}
