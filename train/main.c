#include <stdio.h>
#include <string.h>

#include "train/command.h"
#include "train/options.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"train", command_train, "train a model; under mpirun on all its ranks"},
    {"compare", command_compare, "train methods x seeds: is accuracy kept, and what is it worth?"},
    {"generate", command_generate, "sample text from a trained model"},
    {"data", command_data, "build token shards from text, or look into them"},
    {"plan", command_plan, "draw a pipeline schedule and simulate its cost"},
    {"info", command_info, "devices, libraries, threads and ranks found here"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *out) {
    fprintf(out,
            "tandem %s: a small, complete, distributed transformer trainer\n\nusage: tandem COMMAND "
            "[OPTIONS]\n\n",
            TANDEM_VERSION);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\ntandem COMMAND --help lists a command's options; tandem --version prints the version.\n");
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    if (strcmp(word, "--version") == 0) return printf("tandem %s\n", TANDEM_VERSION), EXIT_OK;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return print_help(stdout), EXIT_OK;
    if (!*word) return print_help(stderr), EXIT_USAGE;
    char names[128] = "", nearest[32] = "";
    for (int i = 0; i < COMMANDS; i++) strcat(strcat(names, i ? "|" : ""), commands[i].name);
    options_nearest(word, names, nearest, sizeof nearest);
    fprintf(stderr, "tandem: command '%s' is not known; did you mean '%s'? tandem --help lists all\n", word,
            nearest);
    return EXIT_USAGE;
}
