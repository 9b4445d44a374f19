/* Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473): each stage has v chunks of 1/v the size, so that filling and
 * draining the pipeline take 1/v the time, for v times the messages and somewhat more activations.
 *
 * Forward passes go in groups of micro-batches: chunk 0 of the group, chunk 1 of it, ...; backward passes the same with the
 * chunks from last to first. A group of p keeps every stage busy; of fewer, the ring of p stages would run empty between two
 * chunks. So groups are of p, and the last takes what is left over, p to 2p - 1 (or all m, if they are fewer than p): any m
 * works. Stage i is 2 (p - 1 - i) + (v - 1) g passes ahead, g being the largest group: the way to the end of the first
 * micro-batch and back. */
#include "train/schedule/generate.h"

/* The n-th forward or backward pass of a stage; backward counts the chunks from the last. */
static void emit_pass(struct schedule *s, int stage, enum action_kind kind, int n) {
    const int p = s->stages, v = s->chunks, m = s->micro_batches;
    const int last_group = m < p ? 0 : m / p - 1;
    const int group = n / (p * v) < last_group ? n / (p * v) : last_group;
    const int size = group < last_group ? p : m - group * p;
    const int in_group = n - group * p * v, chunk = in_group / size;
    schedule_emit(s, stage, kind, kind == ACTION_FORWARD ? chunk : v - 1 - chunk,
                  group * p + in_group % size);
}

void interleaved_generate(struct schedule *s) {
    const int p = s->stages, v = s->chunks, m = s->micro_batches, passes = v * m;
    const int largest_group = m < p ? m : p + m % p;
    for (int stage = 0; stage < p; stage++) {
        const int to_end = p - 1 - stage;
        const int ahead = v == 1 ? to_end : 2 * to_end + (v - 1) * largest_group; /* v = 1 is 1F1B */
        for (int n = 0; n < passes + ahead; n++) {
            if (n < passes) emit_pass(s, stage, ACTION_FORWARD, n);
            if (n >= ahead) emit_pass(s, stage, ACTION_BACKWARD, n - ahead);
        }
    }
}
