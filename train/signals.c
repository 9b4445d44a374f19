#define _GNU_SOURCE
#include "train/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "kernels/base.h"

static volatile sig_atomic_t received, save;

static void on_stop(int number) {
    /* mpirun and the shell may both pass on one Ctrl-C: what comes at the same moment is the same wish. */
    static double first;
    if (received && clock_seconds() - first > 0.5) _exit(128 + number);
    if (!received) first = clock_seconds();
    received = number;
}

static void on_save(int number) {
    (void)number;
    save = 1;
}

static const struct {
    int number;
    void (*handler)(int number);
} handlers[] = {{SIGINT, on_stop}, {SIGTERM, on_stop}, {SIGUSR1, on_stop}, {SIGUSR2, on_save}};
enum { HANDLERS = sizeof handlers / sizeof *handlers };

static void *sleep_for_signals(void *set) {
    pthread_sigmask(SIG_UNBLOCK, set, NULL);
    for (;;) pause();
    return NULL;
}

/* A thread that only sleeps takes the signals: oneDNN's generated code keeps data where a handler that interrupts it would put
 * its frame. Threads that compute inherit the mask of the one that calls this. */
static void start_thread(void) {
    static sigset_t set;
    static bool started;
    pthread_t thread;
    if (started) return;
    started = true;
    sigemptyset(&set);
    for (int i = 0; i < HANDLERS; i++) sigaddset(&set, handlers[i].number);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    const int code = pthread_create(&thread, NULL, sleep_for_signals, &set);
    CHECK(code == 0, "the thread that takes signals cannot be started: error %d", code);
    pthread_detach(thread);
}

void signals_install(void) {
    received = save = 0;
    for (int i = 0; i < HANDLERS; i++) {
        const struct sigaction action = {.sa_handler = handlers[i].handler, .sa_flags = SA_RESTART};
        sigaction(handlers[i].number, &action, NULL);
    }
    start_thread();
}

bool signals_stop(void) {
    return received != 0;
}

bool signals_take_save(void) {
    const bool asked = save != 0;
    if (asked) save = 0; /* one that comes in between is the same wish */
    return asked;
}
