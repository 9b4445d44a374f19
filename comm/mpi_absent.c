/* Stands in for comm/mpi in a build without MPI. */
#include "comm/ops.h"

int mpi_open(struct comm **comm, const struct comm_options *options, struct error *e) {
    (void)comm, (void)options;
    return error_set(e, "this build has no MPI (it was made with MPI=0): install Open MPI (Debian: "
                        "libopenmpi-dev openmpi-bin) and build again with `make`, or use --comm self");
}
