#include "train/loss_scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double largest = 4294967296.0;
enum {
    LOST_MOST = 5
}; /* a forward pass that overflows so often in a row does not do so by chance: no scale helps it */

static bool is_scale(double x) {
    int exponent;
    return x >= 1 && x <= largest && frexp(x, &exponent) == 0.5;
}

int loss_scale_create(struct loss_scale *s, const struct options *o, struct error *e) {
    const bool automatic = strcmp(o->loss_scale, "auto") == 0;
    *s = (struct loss_scale){.scale = 1, .window = o->loss_scale_window};
    s->dynamic = strcmp(o->loss_scale, "dynamic") == 0 || (automatic && strcmp(o->precision, "fp16") == 0);
    if (s->dynamic) {
        s->scale = o->initial_loss_scale;
        if (is_scale(s->scale)) return 0;
        return error_set(
            e, "--initial-loss-scale: found %g, expected a power of two from 1 to 2^32, such as 65536",
            s->scale);
    }
    if (automatic || strcmp(o->loss_scale, "off") == 0) return 0;
    char *end;
    s->scale = strtod(o->loss_scale, &end);
    if (end != o->loss_scale && !*end && is_scale(s->scale)) return 0;
    return error_set(e,
                     "--loss-scale: found '%s', expected auto, dynamic, off or a power of two from 1 to 2^32",
                     o->loss_scale);
}

void loss_scale_visit(struct loss_scale *s, kept_take *take, void *context) {
    const struct kept all[] = {
        {.name = "loss_scale", .type = NUMBER_REAL, .number = &s->scale, .count = 1},
        {.name = "loss_scale_good", .type = NUMBER_WHOLE, .number = &s->good, .count = 1},
        {.name = "loss_scale_lost", .type = NUMBER_WHOLE, .number = &s->lost, .count = 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) take(context, &all[i]);
}

enum step_verdict loss_scale_judge(struct loss_scale *s, bool finite, bool loss_finite) {
    s->lost = loss_finite ? 0 : s->lost + 1;
    if (finite) {
        if (s->dynamic && ++s->good >= s->window) {
            s->scale = fmin(2 * s->scale, largest);
            s->good = 0;
        }
        return STEP_ACCEPTED;
    }
    if (!s->dynamic || s->scale <= 1 || s->lost >= LOST_MOST) return STEP_DIVERGED;
    s->scale /= 2;
    s->good = 0;
    return STEP_SKIPPED;
}
