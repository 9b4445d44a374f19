#include <stdio.h>

#include "comm/comm.h"
#include "train/command.h"
#include "train/options.h"
#include "kernels/device.h"
#include "train/threads.h"

int command_info(int argc, char **argv) {
    (void)argv;
    if (argc > 1) return fprintf(stderr, "tandem info: takes no options\n"), EXIT_USAGE;
    const struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60.0};
    struct comm *comm;
    struct error e;
    char text[256];
    if (comm_open(&comm, "auto", &options, &e))
        return fprintf(stderr, "tandem info: %s\n", e.text), EXIT_USAGE;
    const struct thread_plan plan = threads_plan(0, comm);
    if (comm->rank == 0) {
        printf("tandem    %s\n", TANDEM_VERSION);
        const struct device *const devices[] = {&device_cpu, &device_cuda};
        for (int i = 0; i < 2; i++) {
            if (devices[i]->open(plan.threads, &e))
                snprintf(text, sizeof text, "%.200s", e.text);
            else
                devices[i]->describe(text, sizeof text);
            printf("device    %s\n", text);
        }
        threads_describe(&plan, text, sizeof text);
        printf("threads   %s\n", text);
        comm_describe(comm, text, sizeof text);
        printf("comm      %s; %d rank%s on %d host%s\n", text, comm->size, comm->size == 1 ? "" : "s",
               comm->hosts, comm->hosts == 1 ? "" : "s");
    }
    comm_close(comm);
    return EXIT_OK;
}
