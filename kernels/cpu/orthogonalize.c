/* Gram-Schmidt on few long columns; sums in double. */
#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"

#include <math.h>

struct columns {
    float *data;
    int64_t rows, count; /* count is the distance between the entries of a column */
};

static double dot(const struct columns *p, int64_t a, int64_t b) {
    double sum = 0.0;
    for (int64_t i = 0; i < p->rows; i++)
        sum += (double)p->data[i * p->count + a] * p->data[i * p->count + b];
    return sum;
}

/* Column j without what lies along those before it; the second pass takes out what rounding left in the first. Returns the
 * share of its length that remains. */
static double project_out(const struct columns *p, int64_t j) {
    const double before = sqrt(dot(p, j, j));
    for (int pass = 0; pass < 2; pass++)
        for (int64_t k = 0; k < j; k++) {
            const float along = (float)dot(p, k, j);
            for (int64_t i = 0; i < p->rows; i++)
                p->data[i * p->count + j] -= along * p->data[i * p->count + k];
        }
    return before > 0.0 ? sqrt(dot(p, j, j)) / before : 0.0;
}

static void normalize(const struct columns *p, int64_t j, double length) {
    for (int64_t i = 0; i < p->rows; i++)
        p->data[i * p->count + j] = (float)(p->data[i * p->count + j] / length);
}

static void draw_column(const struct columns *p, int64_t j, uint64_t key) {
    for (int64_t i = 0; i < p->rows; i++)
        p->data[i * p->count + j] =
            (float)(int32_t)philox_draw(key, (uint64_t)i, (uint64_t)j).word[0] * 0x1p-31f;
}

void cpu_orthogonalize(struct stream *s, struct tensor p, uint64_t key) {
    (void)s;
    const struct columns c = {tensor_f32(p), tensor_rows(p), tensor_columns(p)};
    CHECK(c.count <= c.rows, "%lld orthogonal columns of %lld entries", (long long)c.count,
          (long long)c.rows);
    for (int64_t j = 0; j < c.count; j++) {
        const double length = sqrt(dot(&c, j, j));
        if (length > 0.0) normalize(&c, j, length); /* so that no product is too small for fp32 */
        if (project_out(&c, j) < 1e-5) {
            draw_column(&c, j, key);
            project_out(&c, j);
        }
        normalize(&c, j, sqrt(dot(&c, j, j)));
    }
}
