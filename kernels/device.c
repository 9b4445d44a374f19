#include "kernels/device.h"

#include <string.h>

static const struct device *const devices[] = {&device_cpu, &device_cuda};

const struct device *device_find(const char *name, struct error *e) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    error_set(e, "device '%s' is not known; expected cpu or cuda", name);
    return NULL;
}

int device_find_precision(const struct device *d, const char *name, enum dtype *dtype, struct error *e) {
    const size_t length = strlen(name);
    for (const char *word = d->precisions; word; word = strchr(word, '|')) {
        word += *word == '|';
        if (strcspn(word, "|") != length || memcmp(word, name, length) != 0) continue;
        *dtype = dtype_find(name);
        return 0;
    }
    return error_set(
        e, "--precision %s is not possible on device %s, which has no such arithmetic; expected one of %s",
        name, d->name, d->precisions);
}
