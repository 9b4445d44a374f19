#include "comm/mesh.h"

#include <stdlib.h>
#include <string.h>

/* A rank on its way into the grid. */
struct seat {
    int rank, host;
    bool left_over; /* its host has no whole replica for it */
};

static int seat_order(const void *a, const void *b) {
    const struct seat *x = a, *y = b;
    if (x->left_over != y->left_over) return x->left_over ? 1 : -1;
    if (x->host != y->host) return x->host < y->host ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

/* rank[dp][pp] */
static void lay_out(const struct comm *world, int pp, int *rank) {
    struct seat *seat = memory_alloc(sizeof *seat * (size_t)world->size);
    for (int r = 0; r < world->size; r++) {
        int before = 0, here = 0; /* on the same host */
        for (int q = 0; q < world->size; q++)
            if (world->place[q].host == world->place[r].host) here++, before += q < r;
        seat[r] =
            (struct seat){.rank = r, .host = world->place[r].host, .left_over = before >= here - here % pp};
    }
    qsort(seat, (size_t)world->size, sizeof *seat, seat_order);
    for (int i = 0; i < world->size; i++) rank[i] = seat[i].rank;
    free(seat);
}

static int refuse(const struct comm *world, int64_t dp, int64_t pp, struct error *e) {
    char valid[256] = "", found[64];
    size_t used = 0;
    for (int p = 1; p <= world->size && used < sizeof valid - 32; p++)
        if (world->size % p == 0)
            used += (size_t)snprintf(valid + used, sizeof valid - used, "%s%d x %d", used ? ", " : "",
                                     world->size / p, p);
    if (dp)
        snprintf(found, sizeof found, "--dp %lld x --pp %lld", (long long)dp, (long long)pp);
    else
        snprintf(found, sizeof found, "--pp %lld", (long long)pp);
    return error_set(
        e,
        "%s does not fit %d rank%s: expected replicas x stages that make up all of them (dp x pp: %s); "
        "choose one of these, or another number of ranks (mpirun -np)",
        found, world->size, world->size == 1 ? "" : "s", valid);
}

/* Were all ranks given the same? */
static int check_same(struct comm *world, int64_t dp, int64_t pp, struct error *e) {
    double most[] = {(double)dp, (double)pp, -(double)dp, -(double)pp};
    comm_reduce(world, most, 4, REDUCE_MAX);
    if (most[0] == -most[2] && most[1] == -most[3]) return 0;
    return error_set(
        e,
        "ranks were given different meshes: --dp %.0f to %.0f, --pp %.0f to %.0f; expected the same on all "
        "(an option file or a TANDEM_ variable differs between hosts?)",
        -most[2], most[0], -most[3], most[1]);
}

static void open_communicators(struct mesh *mesh) {
    struct comm *world = mesh->world;
    const bool end = mesh->pp > 1 && (mesh->stage == 0 || mesh->stage == mesh->pp - 1);
    comm_split(world, mesh->stage, mesh->data_rank, &mesh->data);
    comm_split(world, mesh->data_rank, mesh->stage, &mesh->pipe);
    comm_split(world, end ? mesh->data_rank : COMM_NO_COLOR, mesh->stage, &mesh->embedding);
}

int mesh_create(struct mesh *mesh, struct comm *world, int64_t dp, int64_t pp, struct error *e) {
    *mesh = (struct mesh){.world = world};
    if (check_same(world, dp, pp, e)) return -1;
    const int64_t ranks = world->size;
    if (pp < 1 || pp > ranks || dp < 0 || dp > ranks || (dp ? dp : ranks / pp) * pp != ranks)
        return refuse(world, dp, pp, e);
    mesh->pp = (int)pp;
    mesh->dp = (int)(ranks / pp);
    mesh->rank = memory_alloc(sizeof *mesh->rank * (size_t)ranks);
    lay_out(world, mesh->pp, mesh->rank);
    int at = 0;
    while (mesh->rank[at] != world->rank) at++;
    mesh->data_rank = at / mesh->pp;
    mesh->stage = at % mesh->pp;
    open_communicators(mesh);
    return 0;
}

void mesh_free(struct mesh *mesh) {
    comm_close(mesh->embedding);
    comm_close(mesh->pipe);
    comm_close(mesh->data);
    free(mesh->rank);
    *mesh = (struct mesh){0};
}

static int cell(const struct mesh *mesh, int replica, int stage, char *text, size_t size) {
    const int rank = mesh->rank[replica * mesh->pp + stage];
    return snprintf(text, size, "%d@%s", rank, mesh->world->place[rank].host_name);
}

static int cell_width(const struct mesh *mesh) {
    char text[96];
    int widest = snprintf(text, sizeof text, "stage %d", mesh->pp - 1);
    for (int i = 0; i < mesh->dp * mesh->pp; i++) {
        const int width = cell(mesh, i / mesh->pp, i % mesh->pp, text, sizeof text);
        if (width > widest) widest = width;
    }
    return widest;
}

void mesh_print(const struct mesh *mesh, FILE *out) {
    enum { ROWS = 16, LAST = 2 };
    const int width = cell_width(mesh), hidden = mesh->dp > ROWS ? mesh->dp - (ROWS - 1) : 0;
    char text[96];
    fprintf(out, "mesh    %d replica%s x %d stage%s\n%20s", mesh->dp, mesh->dp == 1 ? "" : "s", mesh->pp,
            mesh->pp == 1 ? "" : "s", "");
    for (int s = 0; s < mesh->pp; s++) {
        snprintf(text, sizeof text, "stage %d", s);
        fprintf(out, "  %*s", width, text);
    }
    fputc('\n', out);
    for (int r = 0; r < mesh->dp; r++) {
        if (hidden && r == ROWS - 1 - LAST) {
            fprintf(out, "        ... %d more ...\n", hidden);
            r += hidden;
        }
        fprintf(out, "        replica %-4d", r);
        for (int s = 0; s < mesh->pp; s++) {
            cell(mesh, r, s, text, sizeof text);
            fprintf(out, "  %*s", width, text);
        }
        fputc('\n', out);
    }
}
