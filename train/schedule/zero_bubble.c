/* ZB-H1 (Qi et al. 2023, arXiv 2401.10241): the backward pass in two. The gradient of a chunk's input goes to the stage before
 * at once; that of its weights, for which nobody waits, fills time that would be idle.
 *
 * Stage i has at most p - i micro-batches between forward pass and input gradient, as in 1F1B, and at most p between forward
 * pass and weight gradient, as many as 1F1B's first stage: later stages can put off more weight gradients, and have the more
 * idle time at the end to fill with them. */
#include <math.h>

#include "train/schedule/generate.h"

static void generate_stage(struct schedule *s, int stage) {
    const int p = s->stages, m = s->micro_batches;
    int forward = 0, input = 0, weight = 0; /* how many there are so far */
    while (weight < m) {
        if (forward < m && forward - input < p - stage && forward - weight < p)
            schedule_emit(s, stage, ACTION_FORWARD, 0, forward++);
        else if (input < forward && input - weight <= stage)
            schedule_emit(s, stage, ACTION_BACKWARD_INPUT, 0, input++);
        else
            schedule_emit(s, stage, ACTION_BACKWARD_WEIGHT, 0, weight++);
    }
}

void zero_bubble_generate(struct schedule *s) {
    for (int stage = 0; stage < s->stages; stage++) generate_stage(s, stage);
}

/* Of 1F1B's idle time (p - 1)(F + B + W) a stage, (p - 1)(F + B - W) are left while m >= p; with fewer micro-batches there are
 * not enough weight gradients to fill the rest. If W takes longer than F or B, what waits behind it comes late. */
double zero_bubble_makespan(const struct schedule *s, const struct schedule_costs *costs) {
    const int p = s->stages, m = s->micro_batches;
    if (p > 1 && costs->backward_weight > fmin(costs->forward, costs->backward_input)) return NAN;
    return (m + p - 1) * (costs->forward + costs->backward_input) +
           (m < p ? 1 : m - p + 1) * costs->backward_weight;
}
