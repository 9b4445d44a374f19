/* GPipe (Huang et al. 2019, arXiv 1811.06965): all forward passes, then all backward passes. Every stage holds the
 * activations of all m micro-batches. */
#include "train/schedule/generate.h"

void gpipe_generate(struct schedule *s) {
    for (int stage = 0; stage < s->stages; stage++) {
        for (int m = 0; m < s->micro_batches; m++) schedule_emit(s, stage, ACTION_FORWARD, 0, m);
        for (int m = 0; m < s->micro_batches; m++) schedule_emit(s, stage, ACTION_BACKWARD, 0, m);
    }
}
