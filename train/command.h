/* The subcommands. Each takes its own argc and argv (argv[0] its name) and returns an exit code. */
#ifndef TANDEM_COMMAND_H
#define TANDEM_COMMAND_H

#include "comm/comm.h"
#include "train/options.h"

int command_train(int argc, char **argv);
int command_compare(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_data(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_info(int argc, char **argv);

/* Parses the options of a command that runs on all ranks, opens the world and calls `work` there, whose exit code comes back.
 * A mistake is told by one rank for all of them. */
int command_on_ranks(enum option_command command, int argc, char **argv, void (*print_usage)(void),
                     int (*work)(const struct options *options, struct comm *comm));

/* Rank 0 says `tandem NAME: message`. Returns EXIT_USAGE. */
int command_refuse(const char *name, const struct comm *comm, const struct error *e);

#endif
