#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map_open_file(struct file_map *map, int fd, const char *path, const char *what, struct error *e) {
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set(e, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(e, "%s is %s; expected %s: name a regular file", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "not a regular file", what);
    if (info.st_size == 0) return error_set(e, "%s is empty (0 bytes); expected %s", path, what);
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return error_set(e, "cannot map %s (%lld bytes): %s", path, (long long)info.st_size, strerror(errno));
    *map = (struct file_map){bytes, info.st_size};
    return 0;
}

int file_map(struct file_map *map, const char *path, const char *what, struct error *e) {
    *map = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait for its writer */
    if (fd < 0)
        return error_set(e, "cannot open %s: %s; expected %s: check the name and its permissions", path,
                         strerror(errno), what);
    int result = map_open_file(map, fd, path, what, e);
    close(fd);
    return result;
}

void file_unmap(struct file_map *map) {
    if (map->bytes) munmap((void *)map->bytes, (size_t)map->size);
    *map = (struct file_map){0};
}
