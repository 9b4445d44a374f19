#include "comm/plan.h"

#include <stdlib.h>
#include <string.h>

struct list {
    struct cut *cut;
    int count, room;
};

static void list_add(struct list *l, int64_t offset, int64_t count, int unit) {
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->cut = realloc(l->cut, sizeof *l->cut * (size_t)l->room);
        CHECK(l->cut, "out of memory for %d buckets", l->room);
    }
    l->cut[l->count++] = (struct cut){offset, count, unit};
}

/* Where the bucket that begins at `from` ends. */
static int64_t bucket_end(const struct bucket_plan *plan, bool whole, int64_t from, int64_t total) {
    const int64_t end = minimum(total, from + (from == 0 ? plan->first_elements : plan->bucket_elements));
    if (!whole || !plan->matrices) return end;
    for (int i = 0; i < plan->matrices; i++) {
        /* A parameter takes the gap behind it along. */
        const int64_t next = i + 1 < plan->matrices ? plan->matrix[i + 1].offset : total;
        if (next >= end) return next;
    }
    return total;
}

static int by_size(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Of an even number of sizes: the whole mean of the middle two. */
static int64_t median_count(const struct list *l) {
    if (l->count == 0) return 1;
    int64_t *sizes = memory_alloc(sizeof *sizes * (size_t)l->count);
    for (int i = 0; i < l->count; i++) sizes[i] = l->cut[i].count;
    qsort(sizes, (size_t)l->count, sizeof *sizes, by_size);
    const int64_t median = (sizes[(l->count - 1) / 2] + sizes[l->count / 2]) / 2;
    free(sizes);
    return median;
}

static int64_t shards_of(int64_t count, int64_t median, int64_t interval) {
    const int64_t t = (int64_t)((double)count / (double)median - 0.3);
    return t <= 0 ? 1 : minimum(t + 1, interval);
}

/* Equal parts of [offset, offset + count): part i of n. */
static int64_t part_edge(int64_t offset, int64_t count, int64_t i, int64_t n) {
    return offset + count * i / n;
}

static struct list cut_units(const struct list *buckets, int64_t interval, int *units) {
    struct list pieces = {0};
    const int64_t median = median_count(buckets);
    *units = 0;
    for (int b = 0; b < buckets->count; b++) {
        const struct cut *c = &buckets->cut[b];
        const int64_t shards = minimum(shards_of(c->count, median, interval), c->count);
        for (int64_t s = 0; s < shards; s++, ++*units) {
            const int64_t first = part_edge(c->offset, c->count, s, shards);
            const int64_t end = part_edge(c->offset, c->count, s + 1, shards);
            const int64_t parts = (end - first + PLAN_PIECE - 1) / PLAN_PIECE;
            for (int64_t p = 0; p < parts; p++) {
                const int64_t at = part_edge(first, end - first, p, parts);
                list_add(&pieces, at, part_edge(first, end - first, p + 1, parts) - at, *units);
            }
        }
    }
    return pieces;
}

int plan_cut(const struct bucket_plan *plan, const struct compressor_method *method, int64_t total,
             struct cut **cuts, int *units) {
    struct list buckets = {0};
    for (int64_t from = 0, end; from < total; from = end) {
        end = bucket_end(plan, method->whole_matrices, from, total);
        list_add(&buckets, from, end - from, buckets.count);
    }
    *units = buckets.count;
    if (method->units) {
        struct list pieces = cut_units(&buckets, plan->compress.interval, units);
        free(buckets.cut);
        buckets = pieces;
    }
    *cuts = buckets.cut;
    return buckets.count;
}
