/* SIGINT, SIGTERM and SIGUSR1 ask for a clean end after the step; a second one ends at once. */
#ifndef TANDEM_SIGNALS_H
#define TANDEM_SIGNALS_H

void signals_install(void);

/* The signal that asked, or 0. */
int signals_received(void);

#endif
