#define _GNU_SOURCE
#include "train/threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/philox.h"

static int permitted_cores(cpu_set_t *set) {
    CHECK(sched_getaffinity(0, sizeof *set, set) == 0, "sched_getaffinity failed");
    return CPU_COUNT(set);
}

static int64_t environment_threads(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    return text ? atoll(text) : 0; /* 0 for anything that is not a number: as if it were not set */
}

/* Identifies (host, permitted cores) in the 53 bits that a double carries. */
static double place_of(const cpu_set_t *permitted) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    uint64_t key = philox_key(0, host, 0, 0);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, permitted)) key = philox_key(key, "core", (uint64_t)core, 0);
    return (double)(key >> 11);
}

/* How many ranks compute on exactly these cores, and how many of them come before this one. */
static void count_sharers(struct comm *comm, const cpu_set_t *permitted, int *sharers, int *before) {
    double *place = memory_alloc_zeroed(sizeof *place * (size_t)comm->size);
    place[comm->rank] = place_of(permitted);
    comm_reduce(comm, place, comm->size, REDUCE_SUM);
    *sharers = *before = 0;
    for (int r = 0; r < comm->size; r++) {
        if (place[r] != place[comm->rank]) continue;
        *before += r < comm->rank;
        ++*sharers;
    }
    free(place);
}

/* Keeps cores number first .. first+count-1 of the permitted ones. */
static void bind_to_part(const cpu_set_t *permitted, int first, int count) {
    cpu_set_t part;
    CPU_ZERO(&part);
    for (int core = 0, seen = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, permitted)) continue;
        if (seen >= first && seen < first + count) CPU_SET(core, &part);
        seen++;
    }
    sched_setaffinity(0, sizeof part, &part); /* a machine that refuses leaves us unbound, which also works */
}

struct thread_plan threads_plan(int64_t requested, struct comm *comm) {
    cpu_set_t permitted;
    int before;
    struct thread_plan plan = {.cores = permitted_cores(&permitted)};
    count_sharers(comm, &permitted, &plan.sharers, &before);
    const int part = plan.cores / plan.sharers;
    const int64_t wanted = requested > 0 ? requested : environment_threads();
    plan.threads = wanted > 0 ? (int)wanted : part > 0 ? part : 1;
    plan.overloaded = plan.threads * plan.sharers > plan.cores;
    if (plan.sharers > 1 && !plan.overloaded) {
        bind_to_part(&permitted, before * part, part);
        plan.cores = part;
        plan.sharers = 1;
    }
    return plan;
}

void threads_describe(const struct thread_plan *plan, char *text, size_t size) {
    cpu_set_t set;
    int count = permitted_cores(&set), used = 0;
    used += snprintf(text, size, "%d thread%s on core%s", plan->threads, plan->threads == 1 ? "" : "s",
                     count == 1 ? "" : "s");
    for (int core = 0, first; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &set)) continue;
        for (first = core; core + 1 < CPU_SETSIZE && CPU_ISSET(core + 1, &set);) core++;
        if ((size_t)used + 24 > size) return;
        used += snprintf(text + used, size - (size_t)used, first == core ? " %d" : " %d-%d", first, core);
    }
}

void threads_remedy(const struct thread_plan *plan, char *text, size_t size) {
    const char *plural = plan->cores == 1 ? "" : "s";
    const bool bound = plan->cores < sysconf(_SC_NPROCESSORS_ONLN);
    if (plan->sharers == 1 && bound)
        snprintf(text, size,
                 "%d threads compute on the %d core%s this rank is bound to, and slow each other down; give "
                 "mpirun "
                 "--map-by slot:PE=%d or --bind-to none, or set --threads %d",
                 plan->threads, plan->cores, plural, plan->threads, plan->cores);
    else if (plan->sharers == 1)
        snprintf(text, size, "%d threads compute on %d core%s, and slow each other down; set --threads %d",
                 plan->threads, plan->cores, plural, plan->cores);
    else
        snprintf(text, size,
                 plan->threads > 1
                     ? "%d threads (%d ranks x %d) compute on %d core%s, and slow each other down; start "
                       "fewer ranks, or set --threads %d"
                     : "%d threads (%d ranks x %d) compute on %d core%s, and slow each other down; start "
                       "fewer ranks",
                 plan->threads * plan->sharers, plan->sharers, plan->threads, plan->cores, plural,
                 plan->cores > plan->sharers ? plan->cores / plan->sharers : 1);
}
