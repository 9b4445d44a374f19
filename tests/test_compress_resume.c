/* ranks: 1 2 3 4
 * What a compressor shows to a checkpoint is all that it keeps: one made anew from it goes on with the same bits. */
#include "tests/compress_test.h"

struct list {
    struct kept entry[64];
    char name[64][48];
    int count;
};

static void append(void *context, const struct kept *kept) {
    struct list *l = context;
    assert_true(l->count < 64);
    l->entry[l->count] = *kept;
    snprintf(l->name[l->count++], sizeof l->name[0], "%s", kept->name);
}

static struct list list_of(struct bucket_engine *engine) {
    struct list l = {.count = 0};
    struct compressor *c = engine->compressor;
    if (c->method->visit) c->method->visit(c, append, &l);
    return l;
}

static size_t bytes_of(const struct kept *k) {
    static const size_t number[] = {
        [NUMBER_FLAG] = sizeof(bool), [NUMBER_WHOLE] = sizeof(int64_t), [NUMBER_REAL] = sizeof(double)};
    if (k->tensor.data) return (size_t)tensor_count(k->tensor) * dtype_table[k->tensor.dtype].size;
    return (size_t)k->count * number[k->type];
}

/* Both lists have the same entries, as they are of the same method. */
static void copy_kept(struct bucket_engine *to, struct bucket_engine *from) {
    struct list a = list_of(to), b = list_of(from);
    assert_int_equal(a.count, b.count);
    for (int i = 0; i < a.count; i++) {
        const struct kept *old = &b.entry[i], *new = &a.entry[i];
        assert_string_equal(a.name[i], b.name[i]);
        assert_int_equal(bytes_of(old), bytes_of(new));
        memcpy(new->tensor.data ? new->tensor.data : new->number,
               old->tensor.data ? old->tensor.data : old->number, bytes_of(old));
    }
}

static void goes_on(const char *method) {
    enum { MOST = 3 };
    static float before[TOTAL], after[TOTAL];
    const struct bucket_plan plan = plan_of(method, 6000, 3000, true);
    for (int64_t stop = 1; stop < 3 * MOST;
         stop += 2) { /* the dense start and every place in a cycle of three */
        struct bucket_engine *one = engine_with(comm, tensor_of(before, DTYPE_F32, TOTAL), &plan);
        struct bucket_engine *other = engine_with(comm, tensor_of(after, DTYPE_F32, TOTAL), &plan);
        for (int64_t step = 0; step < stop; step++) {
            fill_gradient(before, step);
            reduce_step(one, step, true);
        }
        copy_kept(other, one);
        for (int64_t step = stop; step < stop + 2 * MOST; step++) {
            fill_gradient(before, step);
            fill_gradient(after, step);
            reduce_step(one, step, true);
            reduce_step(other, step, true);
            if (memcmp(before, after, sizeof before) != 0)
                fail_msg("%s: stopped after %d steps, step %d differs", method, (int)stop, (int)step);
        }
        bucket_engine_free(one);
        bucket_engine_free(other);
    }
}

static void test_each_method_goes_on_with_the_same_bits(void **state) {
    (void)state;
    for_each_method(goes_on);
}

/* What is a sum over ranks lies by place in the flat range, fp32, with nothing in the gaps between parameters, which are not
 * saved; and nothing of the arena is left out. */
static void is_whole(const char *method) {
    static float gradient[TOTAL];
    const struct bucket_plan plan = plan_of(method, 6000, 3000, true);
    struct bucket_engine *engine = engine_with(comm, tensor_of(gradient, DTYPE_F32, TOTAL), &plan);
    for (int64_t step = 0; step < 5; step++) {
        fill_gradient(gradient, step);
        reduce_step(engine, step, true);
    }
    const struct list l = list_of(engine);
    size_t bytes = 0;
    for (int i = 0; i < l.count; i++) {
        const struct kept *k = &l.entry[i];
        if (!k->tensor.data) continue;
        bytes += bytes_of(k);
        if (k->share != SHARE_SUM) continue;
        assert_int_equal(tensor_count(k->tensor), TOTAL);
        for (int64_t p = GAP; p < GAP_END; p++) assert_true(tensor_f32(k->tensor)[p] == 0.0f);
    }
    assert_true(bytes <= engine->compressor->keep.size);
    assert_true(engine->compressor->keep.size < bytes + 64 * (size_t)(l.count + 1));
    bucket_engine_free(engine);
}

static void test_nothing_that_is_kept_is_left_out(void **state) {
    (void)state;
    for_each_method(is_whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_method_goes_on_with_the_same_bits),
        cmocka_unit_test(test_nothing_that_is_kept_is_left_out),
    };
    return run_on_ranks(tests, sizeof tests / sizeof *tests);
}
