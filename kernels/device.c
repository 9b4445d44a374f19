#include "kernels/device.h"

#include <string.h>

static const struct device *const devices[] = {&device_cpu, &device_cuda};

const struct device *device_find(const char *name, struct error *e) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    error_set(e, "device '%s' is not known; expected cpu or cuda", name);
    return NULL;
}
