/* ranks: 1 2 3 4
 * The mesh: every product of replicas and stages, the groups that follow, hosts, the picture, refusals. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "comm/mesh.h"
#include "comm/ops.h"

static struct comm *comm;

static void check_group(struct comm *c, int size, int rank, const struct mesh *mesh, int first, int stride) {
    assert_int_equal(c->size, size);
    assert_int_equal(c->rank, rank);
    for (int r = 0; r < size; r++) assert_int_equal(c->place[r].world_rank, mesh->rank[first + r * stride]);
    double expected = 0, sum = comm->rank + 1;
    for (int r = 0; r < size; r++) expected += mesh->rank[first + r * stride] + 1;
    comm_reduce(c, &sum, 1, REDUCE_SUM);
    assert_true(sum == expected);
}

static void check_mesh(int dp, int pp, bool say_dp) {
    struct mesh mesh;
    struct error e;
    assert_int_equal(mesh_create(&mesh, comm, say_dp ? dp : 0, pp, &e), 0);
    assert_true(mesh.dp == dp && mesh.pp == pp && mesh.world == comm);
    assert_int_equal(mesh.rank[mesh.data_rank * pp + mesh.stage], comm->rank);
    int seen = 0;
    for (int i = 0; i < comm->size; i++) seen |= 1 << mesh.rank[i];
    assert_int_equal(seen, (1 << comm->size) - 1);
    check_group(mesh.data, dp, mesh.data_rank, &mesh, mesh.stage, pp);
    check_group(mesh.pipe, pp, mesh.stage, &mesh, mesh.data_rank * pp, 1);
    const bool end = pp > 1 && (mesh.stage == 0 || mesh.stage == pp - 1);
    assert_true((mesh.embedding != NULL) == end);
    if (end) check_group(mesh.embedding, 2, mesh.stage > 0, &mesh, mesh.data_rank * pp, pp - 1);
    mesh_free(&mesh);
}

static void test_every_product(void **state) {
    (void)state;
    for (int pp = 1; pp <= comm->size; pp++) {
        if (comm->size % pp) continue;
        check_mesh(comm->size / pp, pp, true);
        check_mesh(comm->size / pp, pp, false);
    }
}

static void check_refused(int64_t dp, int64_t pp, const char *found) {
    struct mesh mesh;
    struct error e;
    char ranks[32];
    assert_int_equal(mesh_create(&mesh, comm, dp, pp, &e), -1);
    assert_non_null(strstr(e.text, found));
    snprintf(ranks, sizeof ranks, "does not fit %d rank%s:", comm->size, comm->size == 1 ? "" : "s");
    assert_non_null(strstr(e.text, ranks));
    for (int p = 1; p <= comm->size; p++) {
        char choice[32];
        snprintf(choice, sizeof choice, "%d x %d", comm->size / p, p);
        assert_true((strstr(e.text, choice) != NULL) == (comm->size % p == 0));
    }
}

static void test_other_products_are_refused(void **state) {
    (void)state;
    const int size = comm->size;
    check_refused(size + 1, 1, "--dp ");
    check_refused(size, 2, "--pp 2 ");
    check_refused(0, size + 1, "--pp ");
    check_refused(0, 0, "--pp 0 ");
    check_refused(0, -1, "--pp -1 ");
    check_refused(-1, -size, "--dp -1 x --pp ");
    check_refused(INT64_C(1) << 32, INT64_C(1) << 32, "--dp 4294967296 x --pp 4294967296 ");
    if (size == 4) check_refused(0, 3, "--pp 3 does");
}

static void test_ranks_that_disagree_are_refused(void **state) {
    (void)state;
    struct mesh mesh;
    struct error e;
    if (comm->size == 1) return;
    assert_int_equal(mesh_create(&mesh, comm, 0, comm->rank ? 1 : 2, &e), -1);
    assert_non_null(strstr(e.text, "--pp 1 to 2"));
}

/* A world of so many ranks, seen from rank 0, that answers alike and splits into nothing. */
static void fake_gather(struct comm *c, const char *what, const void *record, size_t bytes, void *all) {
    (void)what;
    for (int r = 0; r < c->size; r++) memcpy((char *)all + (size_t)r * bytes, record, bytes);
}
static struct comm *fake_split(struct comm *c, int color, int key) {
    (void)c, (void)color, (void)key;
    return NULL;
}
static const struct comm_ops fake_ops = {.gather = fake_gather, .split = fake_split};

/* hosts "AABB": rank r is on the host of letter r. Lays them out, and draws the hosts: "AA BB". */
static void lay_out(const char *hosts, int pp, char *picture) {
    enum { MOST = 64 };
    static struct comm_place place[MOST];
    const int size = (int)strlen(hosts);
    struct comm world = {.ops = &fake_ops, .size = size};
    struct mesh mesh;
    struct error e;
    for (int r = 0; r < size; r++) {
        place[r] = (struct comm_place){.world_rank = r, .host = (int)(strchr(hosts, hosts[r]) - hosts)};
        place[r].host_name[0] = hosts[r];
    }
    comm_set_places(&world, place);
    assert_int_equal(mesh_create(&mesh, &world, 0, pp, &e), 0);
    for (int i = 0; i < size; i++) {
        if (i && i % pp == 0) *picture++ = ' ';
        *picture++ = hosts[mesh.rank[i]];
    }
    *picture = '\0';
    mesh_free(&mesh);
}

static void test_neighbours_share_a_host(void **state) {
    (void)state;
    static const struct {
        const char *hosts;
        int pp;
        const char *picture;
    } cases[] = {
        {"AABB", 2, "AA BB"},
        {"ABAB", 2, "AA BB"},
        {"ABAB", 4, "AABB"},
        {"ABAB", 1, "A A B B"},
        {"ABBC", 2, "BB AC"},
        {"AAABBB", 2, "AA BB AB"},
        {"ABCABCABC", 3, "AAA BBB CCC"},
        {"AABBCCDD", 4, "AABB CCDD"},
        {"ABCDABCD", 4, "AABB CCDD"},
        {"BABABBBB", 4, "BBBB BBAA"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char picture[128];
        lay_out(cases[i].hosts, cases[i].pp, picture);
        assert_string_equal(picture, cases[i].picture);
    }
}

static char *printed(struct mesh *mesh) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    mesh_print(mesh, out);
    fclose(out);
    return text;
}

/* A mesh of dp x 2 on hosts of two ranks each, whose names are node0, node1, ... */
static char *print_mesh_of(int dp) {
    struct comm_place *place = memory_alloc_zeroed(sizeof *place * 2 * (size_t)dp);
    struct comm world = {.ops = &fake_ops, .size = 2 * dp};
    struct mesh mesh;
    struct error e;
    for (int r = 0; r < 2 * dp; r++) {
        place[r].world_rank = r;
        place[r].host = r / 2 * 2;
        snprintf(place[r].host_name, sizeof place[r].host_name, "node%d", r / 2);
    }
    comm_set_places(&world, place);
    assert_int_equal(mesh_create(&mesh, &world, dp, 2, &e), 0);
    char *text = printed(&mesh);
    mesh_free(&mesh);
    free(place);
    return text;
}

static void test_picture(void **state) {
    (void)state;
    char *text = print_mesh_of(2);
    assert_string_equal(text, "mesh    2 replicas x 2 stages\n"
                              "                      stage 0  stage 1\n"
                              "        replica 0     0@node0  1@node0\n"
                              "        replica 1     2@node1  3@node1\n");
    free(text);
}

static int count_of(const char *text, const char *what) {
    int count = 0;
    for (; (text = strstr(text, what)); text++) count++;
    return count;
}

static void test_picture_of_many_replicas(void **state) {
    (void)state;
    for (int dp = 15; dp <= 20; dp++) {
        char *text = print_mesh_of(dp), hidden[64], last[64];
        snprintf(hidden, sizeof hidden, "... %d more ...", dp - 15);
        snprintf(last, sizeof last, "%d@node%d\n", 2 * dp - 1, dp - 1);
        assert_int_equal(count_of(text, "\n        replica "), dp > 16 ? 15 : dp);
        assert_int_equal(count_of(text, hidden), dp > 16);
        assert_non_null(strstr(text, last));
        free(text);
    }
}

int main(void) {
    struct error e;
    struct comm_options options = {.all_reduce = ALL_REDUCE_DIRECT, .timeout_s = 60};
    CHECK(comm_open(&comm, "auto", &options, &e) == 0, "%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_product),
        cmocka_unit_test(test_other_products_are_refused),
        cmocka_unit_test(test_ranks_that_disagree_are_refused),
        cmocka_unit_test(test_neighbours_share_a_host),
        cmocka_unit_test(test_picture),
        cmocka_unit_test(test_picture_of_many_replicas),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_close(comm);
    return failed;
}
