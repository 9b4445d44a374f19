/* The subcommands. Each takes its own argc and argv (argv[0] its name) and returns an exit code. */
#ifndef TANDEM_COMMAND_H
#define TANDEM_COMMAND_H

#include "kernels/base.h"

int command_train(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_data(int argc, char **argv);
int command_info(int argc, char **argv);

#endif
