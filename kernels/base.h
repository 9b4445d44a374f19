/* What every room uses: failures in two tiers, diagnostics, the clock, memory, the smaller of two.
 *
 * Tier one, a broken invariant or a failed system call: CHECK ends the whole job.
 * Tier two, a bad file, option or value: the function returns -1 and fills a struct error, and its caller
 * decides; ranks agree on it before they stop (comm_agree). No user mistake may reach a CHECK. */
#ifndef TANDEM_BASE_H
#define TANDEM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of the program; mpirun passes them on. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_DIVERGED = 3,
    EXIT_CHECKPOINT = 4,
    EXIT_PEER_LOST = 5,
    EXIT_STOPPED = 75,
};

/* A message for the user: what was found, what was expected, what to do. */
struct error {
    char text[768];
};

/* Formats into e->text and returns -1, so that `return error_set(e, ...)` reads as what it does. */
int error_set(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* CHECK(condition, format, ...): prints `[rank r host] file:line: message` and ends the job if it is false. */
#define CHECK(condition, ...)                                                                           \
    do {                                                                                                \
        if (__builtin_expect(!(condition), 0)) job_abort(EXIT_FAILED, __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

/* Ends the whole job with `code`; not collective. Calls the handler, which must not return. */
_Noreturn void job_abort(int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Replaces the last act of job_abort (default: _exit(code)); comm installs MPI_Abort here, tests a longjmp. */
void job_set_abort_handler(void (*handler)(int code));

/* Who speaks in diagnostics; rank -1 (the default) leaves the prefix out. */
void log_set_rank(int rank);

/* One line to stderr, as `[rank r host] ...`. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Seconds on the monotonic clock. */
double clock_seconds(void);

/* Of whole numbers; those of reals are fmin and fmax. */
static inline int64_t minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t maximum(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* malloc that does not return NULL (tier one). Free with free(). */
void *memory_alloc(size_t bytes);
void *memory_alloc_zeroed(size_t bytes);

#endif
