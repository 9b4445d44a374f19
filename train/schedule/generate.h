/* What the generators of pipeline schedules share. A generator emits every stage's compute actions in order, for p stages, v
 * chunks, m micro-batches of the schedule; stages and messages meet in the lowering (train/schedule.c). */
#ifndef TANDEM_GENERATE_H
#define TANDEM_GENERATE_H

#include "train/schedule.h"

/* Appends an action to the list of `stage`. */
void schedule_emit(struct schedule *s, int stage, enum action_kind kind, int chunk, int micro_batch);

void gpipe_generate(struct schedule *s);
void one_f_one_b_generate(struct schedule *s);
void interleaved_generate(struct schedule *s);
void zero_bubble_generate(struct schedule *s);

/* The time of the whole schedule when messages take none; NAN where there is no formula. */
double zero_bubble_makespan(const struct schedule *s, const struct schedule_costs *costs);

#endif
