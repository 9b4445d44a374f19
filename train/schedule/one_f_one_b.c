/* 1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503): as few forward passes as keep the stages behind busy, then one
 * backward pass for each forward pass. Takes as long as GPipe, but stage i holds min(m, p - i) micro-batches only. */
#include "train/schedule/generate.h"

void one_f_one_b_generate(struct schedule *s) {
    for (int stage = 0; stage < s->stages; stage++) {
        const int ahead = s->stages - 1 - stage;
        for (int m = 0; m < s->micro_batches + ahead; m++) {
            if (m < s->micro_batches) schedule_emit(s, stage, ACTION_FORWARD, 0, m);
            if (m >= ahead) schedule_emit(s, stage, ACTION_BACKWARD, 0, m - ahead);
        }
    }
}
