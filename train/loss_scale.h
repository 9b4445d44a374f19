/* Loss scaling (Micikevicius et al. 2018): the loss gradient is multiplied by a power of two, so that activations' gradients
 * stay within fp16's range, and parameters' gradients are divided by it when they are final. Both are exact.
 *
 * A dynamic scale is halved by every step that is not finite, which is skipped, and doubled after `window` steps in a row that
 * are. It never falls below 1: what is not finite there has diverged, as it has without scaling. */
#ifndef TANDEM_LOSS_SCALE_H
#define TANDEM_LOSS_SCALE_H

#include "comm/compress.h"
#include "train/options.h"

struct loss_scale {
    bool dynamic;
    double scale;   /* of the step to come: a power of two, at least 1 */
    int64_t window; /* good steps in a row before the scale grows */
    int64_t good;   /* since it last changed */
    int64_t lost;   /* steps in a row whose loss itself was not finite */
};

enum step_verdict {
    STEP_ACCEPTED,
    STEP_SKIPPED, /* not finite: weights, moments and residuals stay as they are, the scale has been halved */
    STEP_DIVERGED, /* not finite, and no smaller scale would help */
};

/* From --loss-scale, --initial-loss-scale and --loss-scale-window; auto is dynamic for fp16 and 1 otherwise. -1 with a
 * message for what is no scale. */
int loss_scale_create(struct loss_scale *scale, const struct options *options, struct error *e);

/* Shows its state to a checkpoint. */
void loss_scale_visit(struct loss_scale *scale, kept_take *take, void *context);

/* After a step: whether everything was finite on all ranks, and whether the loss was. The same answers on all ranks must give
 * the same scale. */
enum step_verdict loss_scale_judge(struct loss_scale *scale, bool finite, bool loss_finite);

#endif
