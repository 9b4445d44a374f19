#include "kernels/cpu/wide.h"

#include "kernels/cpu/cpu.h"

/* Memory of the stand-ins, taken and given back like a stack; kept and grown. */
static struct {
    void *memory;
    size_t size;
} slots[WIDE_MOST];
static int slots_taken;

static void *take_slot(size_t bytes) {
    CHECK(slots_taken < WIDE_MOST, "more than %d tensors of 16 bits at once", WIDE_MOST);
    const int i = slots_taken++;
    if (bytes > slots[i].size) {
        device_cpu.memory_free(slots[i].memory, slots[i].size);
        slots[i].memory = device_cpu.memory_alloc(bytes);
        slots[i].size = bytes;
    }
    return slots[i].memory;
}

static struct tensor stand_in(struct wide *w, struct tensor t, bool read, bool written) {
    if (t.dtype != DTYPE_BF16 && t.dtype != DTYPE_F16) return t;
    const int i = w->count++;
    void *memory = take_slot((size_t)tensor_count(t) * sizeof(float));
    w->entry[i].half = t;
    w->entry[i].wide = tensor_make(memory, DTYPE_F32, t.ndim, t.dim);
    w->entry[i].written = written;
    if (read) cpu_cast(NULL, w->entry[i].wide, t, 1.0f);
    return w->entry[i].wide;
}

struct tensor wide_read(struct wide *w, struct tensor t) {
    return stand_in(w, t, true, false);
}

struct tensor wide_write(struct wide *w, struct tensor t) {
    return stand_in(w, t, false, true);
}

struct tensor wide_update(struct wide *w, struct tensor t) {
    return stand_in(w, t, true, true);
}

void wide_finish(struct wide *w) {
    for (int i = 0; i < w->count; i++)
        if (w->entry[i].written) cpu_cast(NULL, w->entry[i].half, w->entry[i].wide, 1.0f);
    slots_taken -= w->count;
    w->count = 0;
}
