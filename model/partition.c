#include "model/partition.h"

#include <math.h>
#include <stdlib.h>

double partition_cost(const struct gpt_config *c, int unit) {
    const double C = c->channels;
    if (unit == 0) return 2.0 * C;
    if (unit == c->layers + 1) return 2.0 * C * c->vocab;
    return 24.0 * C * C + 4.0 * C * c->context;
}

/* best[k * (units + 1) + i]: the least value of a cut of the first i units into k chunks; from[...]: where its last chunk
 * begins. The value is the largest cost, or, with `limit` on that, the sum of squares. */
static void solve(const double *before, int units, int chunks, double limit, double *best, int *from) {
    const int row = units + 1;
    for (int i = 0; i < row * (chunks + 1); i++) best[i] = INFINITY;
    best[0] = 0;
    for (int k = 1; k <= chunks; k++)
        for (int i = k; i <= units; i++) {
            double *value = &best[k * row + i];
            for (int j = i - 1; j >= k - 1; j--) {
                const double cost = before[i] - before[j], earlier = best[(k - 1) * row + j];
                if (cost > limit || (isinf(limit) && cost >= *value)) break; /* longer chunks cost more */
                const double all = isinf(limit) ? fmax(earlier, cost) : earlier + cost * cost;
                if (all < *value) *value = all, from[k * row + i] = j;
            }
        }
}

int partition_model(const struct gpt_config *c, int chunks, struct gpt_chunk *chunk, struct error *e) {
    const int units = c->layers + 2, row = units + 1;
    if (chunks > units)
        return error_set(
            e,
            "a model of %d layers has %d parts (embedding, layers, head), which do not make %d pipeline "
            "chunks; expected --pp x --chunks to be at most %d, or more --layers",
            c->layers, units, chunks, units);
    const size_t cells = (size_t)row * (size_t)(chunks + 1);
    double *before = memory_alloc(sizeof *before * (size_t)row), *best = memory_alloc(sizeof *best * cells);
    int *from = memory_alloc(sizeof *from * cells);
    before[0] = 0;
    for (int unit = 0; unit < units; unit++) before[unit + 1] = before[unit] + partition_cost(c, unit);
    solve(before, units, chunks, INFINITY, best, from);
    solve(before, units, chunks, best[chunks * row + units], best, from);
    for (int k = chunks, end = units; k > 0; k--) {
        const int first = from[k * row + end];
        const int first_block = first > 0 ? first : 1, end_block = end < units ? end : units - 1;
        chunk[k - 1] = (struct gpt_chunk){.embedding = first == 0,
                                          .first_layer = first_block - 1,
                                          .layers = end_block - first_block,
                                          .head = end == units};
        end = first;
    }
    free(before);
    free(best);
    free(from);
    return 0;
}
