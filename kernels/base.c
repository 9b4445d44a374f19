#define _GNU_SOURCE
#include "kernels/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int speaker_rank = -1;
static void (*abort_handler)(int code) = _exit;

int error_set(struct error *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return -1;
}

void log_set_rank(int rank) {
    speaker_rank = rank;
}

void job_set_abort_handler(void (*handler)(int code)) {
    abort_handler = handler ? handler : _exit;
}

/* One write per line, so that the lines of several ranks do not mix. */
static void write_line(const char *where, const char *format, va_list args) {
    char line[1280] = "";
    size_t used = 0;
    if (speaker_rank >= 0) {
        char host[64] = "";
        gethostname(host, sizeof host - 1);
        used = (size_t)snprintf(line, sizeof line, "[rank %d %s] ", speaker_rank, host);
    }
    used += (size_t)snprintf(line + used, sizeof line - used, "%s", where);
    vsnprintf(line + used, sizeof line - used - 1, format, args);
    strcat(line, "\n");
    fflush(stdout);
    if (write(STDERR_FILENO, line, strlen(line)) < 0) return; /* nobody left to tell */
}

void log_line(const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_line("", format, args);
    va_end(args);
}

void job_abort(int code, const char *file, int line, const char *format, ...) {
    char where[160];
    snprintf(where, sizeof where, "%s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    write_line(where, format, args);
    va_end(args);
    abort_handler(code);
    _exit(code);
}

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *memory_alloc(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    CHECK(p, "out of memory: %zu bytes asked for", bytes);
    return p;
}

void *memory_alloc_zeroed(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    CHECK(p, "out of memory: %zu bytes asked for", bytes);
    return p;
}
