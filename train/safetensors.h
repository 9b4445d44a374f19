/* The safetensors format: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data.
 * https://github.com/huggingface/safetensors, section Format. */
#ifndef TANDEM_SAFETENSORS_H
#define TANDEM_SAFETENSORS_H

#include "kernels/tensor.h"
#include "train/files.h"

/* A file being read: memory-mapped, tensors are views into it. */
struct safetensors {
    void *map;
    size_t bytes;
    const uint8_t *data;
    size_t data_bytes;
    struct cJSON *header;
    char path[1100];
};

/* -1 with a message for a missing, truncated or malformed file. */
int safetensors_open(struct safetensors *file, const char *path, struct error *e);
void safetensors_close(struct safetensors *file);

/* The tensor of that name; -1 with a message if it is not there, or its place in the file makes no sense. */
int safetensors_find(const struct safetensors *file, const char *name, struct tensor *tensor,
                     struct error *e);
/* The same, and -1 with a message if it is not of `like`'s dtype and shape. */
int safetensors_find_like(const struct safetensors *file, const char *name, struct tensor like,
                          struct tensor *tensor, struct error *e);
bool safetensors_has(const struct safetensors *file, const char *name);

/* Writes count tensors (host memory) and syncs the file; *sum is its length and checksum. -1 with a message, and no file
 * left, on failure. */
int safetensors_write(const char *path, const char *const *names, const struct tensor *tensors, int count,
                      struct file_sum *sum, struct error *e);

#endif
