/* SIGINT, SIGTERM and SIGUSR1 ask for a checkpoint and a clean end after the step; a second one of them ends at once. SIGUSR2
 * asks for a checkpoint only. */
#ifndef TANDEM_SIGNALS_H
#define TANDEM_SIGNALS_H

#include <stdbool.h>

/* Called before the threads that compute are started: they must not be interrupted. */
void signals_install(void);

/* Whether a signal asked for the end. */
bool signals_stop(void);

/* Whether SIGUSR2 has come since the last call. */
bool signals_take_save(void);

#endif
