/* Whole files for reading, as memory: what shards and texts share. */
#ifndef TANDEM_FILE_H
#define TANDEM_FILE_H

#include "kernels/base.h"

struct file_map {
    const uint8_t *bytes;
    int64_t size; /* bytes, at least 1 */
};

/* Maps a regular file, read-only and shared with every process that maps it. -1 with a message if it is
 * missing, unreadable, something else than a file, or empty; `what` is what it should have been ("a shard",
 * "a text"). The file must not shrink while it is mapped. */
int file_map(struct file_map *map, const char *path, const char *what, struct error *e);

/* Accepts a map that is all zero. */
void file_unmap(struct file_map *map);

#endif
