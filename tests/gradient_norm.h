/* The gradient norm of a whole model. */
#ifndef TANDEM_TEST_GRADIENT_NORM_H
#define TANDEM_TEST_GRADIENT_NORM_H

#include <math.h>
#include <stdlib.h>

#include "train/optimizer.h"

static inline double gradient_norm(const struct gpt *g) {
    const int parts = g->config.layers + OPTIMIZER_OTHER_PARTS;
    double *squares = memory_alloc(sizeof *squares * (size_t)parts), sum = 0;
    optimizer_gradient_squares(g, squares);
    for (int i = 0; i < parts; i++) sum += squares[i];
    free(squares);
    return sqrt(sum);
}

#endif
