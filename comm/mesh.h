/* The mesh of ranks: dp replicas of the model, each cut into pp stages, and the communicators that follow from it.
 *
 *                  stage 0   stage 1   stage 2
 *     replica 0       0         1         2      <- pipe: ranks of one replica, rank in it = stage
 *     replica 1       3         4         5
 *                     ^ data: ranks of one stage, rank in it = data_rank
 *
 * Ranks of one host fill whole replicas first, so that neighbours in a pipeline share a host wherever they can; what is
 * left over on the hosts makes up the last replicas. */
#ifndef TANDEM_COMM_MESH_H
#define TANDEM_COMM_MESH_H

#include <stdio.h>

#include "comm/comm.h"

struct mesh {
    int dp, pp;           /* replicas, stages */
    int data_rank, stage; /* where this rank is */
    struct comm *world;   /* not owned */
    struct comm *data;    /* ranks of the same stage */
    struct comm *pipe;    /* ranks of the same replica */
    struct comm *
        embedding; /* first (rank 0) and last (rank 1) stage of the same replica; NULL in between, or if pp is 1 */
    int *rank; /* [dp][pp], ranks in world */
};

/* Lays out the ranks of world and opens the communicators. dp 0: as many replicas as the ranks allow. -1 with a message
 * that lists the valid choices, on all ranks alike, where dp x pp is not the number of ranks, or where ranks were given
 * different values. Collective over world. */
int mesh_create(struct mesh *mesh, struct comm *world, int64_t dp, int64_t pp, struct error *e);

/* Closes the communicators, not world. Every operation must have ended. Collective over world. */
void mesh_free(struct mesh *mesh);

/* Draws it: a row for each replica (the middle ones left out above 16), a column for each stage, rank@host in each cell. Not
 * collective. */
void mesh_print(const struct mesh *mesh, FILE *out);

#endif
