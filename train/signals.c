#define _GNU_SOURCE
#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include "kernels/base.h"

static volatile sig_atomic_t received, save;

static void on_signal(int number) {
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

void signals_install(void) {
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    received = save = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
    action.sa_handler = on_save;
    sigaction(SIGUSR2, &action, NULL);
}

bool signals_stop(void) {
    return received != 0;
}

bool signals_take_save(void) {
    const bool asked = save != 0;
    if (asked) save = 0; /* one that comes in between is the same wish */
    return asked;
}
