/* How many threads a rank computes with, on which cores, and whether that is sensible. */
#ifndef TANDEM_THREADS_H
#define TANDEM_THREADS_H

#include "comm/comm.h"

struct thread_plan {
    int threads;     /* computing threads of this rank */
    int cores;       /* that this rank may use; shared with the other sharers unless they have been divided */
    int sharers;     /* ranks that may use exactly these cores, this one included */
    bool overloaded; /* more threads than cores */
};

/* requested > 0 is taken as it is; else OMP_NUM_THREADS; else this rank's share of the permitted cores, at least 1.
 * Where several ranks may use the same cores (mpirun bound nothing) and there are enough, binds the calling process, and
 * every thread it starts later, to its own part of them. Collective. */
struct thread_plan threads_plan(int64_t requested, struct comm *comm);

/* "2 threads on cores 0-1", for people. */
void threads_describe(const struct thread_plan *plan, char *text, size_t size);

/* What is wrong on an overloaded host and what to do about it: one sentence, naming the option to give mpirun. */
void threads_remedy(const struct thread_plan *plan, char *text, size_t size);

#endif
