/* The command line, the option file, the environment and the presets, all from one table: train/options.def. */
#ifndef TANDEM_OPTIONS_H
#define TANDEM_OPTIONS_H

#include <stdio.h>

#include "kernels/base.h"

/* Commands an option belongs to, and FIXED: bits. Compare has all options of train besides its own. */
enum option_command {
    TRAIN = 1,
    GENERATE = 2,
    DATA = 4,
    INFO = 8,
    COMPARE = 16,
    PLAN = 32,
    FIXED = 64, /* beside TRAIN: a resumed run must have the value it began with */
};

#define OPTION_C_TEXT const char *
#define OPTION_C_INTEGER int64_t
#define OPTION_C_REAL double
#define OPTION_C_SWITCH bool
#define OPTION_C_CHOICE const char *

struct options {
#define OPTION(type, field, ...) OPTION_C_##type field;
#include "train/options.def"
#undef OPTION
    char **words; /* what is left on the command line */
    int word_count;
};

/* Fills o for a command from (weakest first) the defaults, the model preset, TANDEM_* variables, the option file and the
 * command line argv[1..]. -1 with a message that names what was found, and the nearest valid name or the valid values.
 * *help is set and nothing else done when --help was asked for. Texts belong to the options until the program ends. */
int options_parse(struct options *o, enum option_command command, int argc, char **argv, bool *help,
                  struct error *e);

/* Sets one option of train by name, as the command line would; `value` need not stay. -1 with a message. A model preset
 * does not change the sizes. */
int options_set(struct options *o, const char *name, const char *value, struct error *e);

/* The options of a command with their defaults and meaning. */
void options_print_help(enum option_command command, FILE *out);

/* Calls visit for each option of the command with its value as text, for records of a run. */
void options_visit(const struct options *o, enum option_command command,
                   void (*visit)(void *context, const char *name, const char *value, bool is_text),
                   void *context);

/* Whether the option of that name is FIXED. */
bool options_are_fixed(const char *name);

/* The word of `words` (separated by |) that is nearest to `word` by edit distance; for messages. */
void options_nearest(const char *word, const char *words, char *nearest, size_t size);

#endif
