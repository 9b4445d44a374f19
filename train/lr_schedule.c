#include "train/lr_schedule.h"

#include <math.h>
#include <string.h>

/* Each shape: how much of the way from lr down to min_lr has been gone at fraction f of the steps after warm-up. */
static double fall_cosine(double f) {
    return 0.5 * (1.0 - cos(M_PI * f));
}

static double fall_linear(double f) {
    return f;
}

static double fall_constant(double f) {
    return 0.0 * f;
}

static const struct {
    const char *shape;
    double (*fall)(double f);
    double tail; /* share of all steps over which it falls; 0: all of them after warm-up */
} shapes[] = {
    {"cosine", fall_cosine, 0.0},
    {"linear", fall_linear, 0.0},
    {"constant", fall_constant, 0.0},
    {"wsd", fall_linear, 0.2},
};

double lr_schedule_rate(const struct lr_schedule *s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)(s->warmup + 1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].shape, s->shape) != 0) continue;
        double first = (double)s->warmup, last = (double)s->steps - 1.0;
        if (shapes[i].tail > 0.0) first = fmax(first, floor((double)s->steps * (1.0 - shapes[i].tail)));
        const double at = (double)step; /* first and last are one step where the fall is as short as that */
        double f = at >= last ? 1.0 : at <= first ? 0.0 : (at - first) / (last - first);
        return s->lr + (s->min_lr - s->lr) * shapes[i].fall(f);
    }
    CHECK(false, "no learning-rate schedule '%s'", s->shape);
}
