#include "train/command.h"

#include <stdio.h>
#include <string.h>

int command_refuse(const char *name, const struct comm *comm, const struct error *e) {
    if (comm->rank == 0) fprintf(stderr, "tandem %s: %s\n", name, e->text);
    return EXIT_USAGE;
}

int command_on_ranks(enum option_command command, int argc, char **argv, void (*print_usage)(void),
                     int (*work)(const struct options *options, struct comm *comm)) {
    struct options o;
    struct error e;
    bool help;
    int status = options_parse(&o, command, argc, argv, &help, &e);
    if (help) return print_usage(), EXIT_OK;
    if (!status && o.word_count)
        status = error_set(&e, "found '%s', expected options only; --help lists them", o.words[0]);
    /* The ranks meet even when their options are bad, so that one of them speaks for all. */
    const struct comm_options comm_options = {
        .all_reduce = !status && strcmp(o.all_reduce, "mpi") == 0 ? ALL_REDUCE_MPI : ALL_REDUCE_DIRECT,
        .timeout_s = status ? 60.0 : o.timeout,
    };
    struct comm *comm;
    struct error comm_error;
    if (comm_open(&comm, status ? "auto" : o.comm, &comm_options, &comm_error)) {
        fprintf(stderr, "tandem %s: %s\n", argv[0], status ? e.text : comm_error.text);
        return EXIT_USAGE;
    }
    if (comm->size > 1) log_set_rank(comm->rank);
    const int code = comm_agree(comm, status, &e) ? command_refuse(argv[0], comm, &e) : work(&o, comm);
    comm_close(comm);
    return code;
}
