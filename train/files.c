#define _GNU_SOURCE
#include "train/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SYNC_EVERY = 64 << 20, CHUNK = 1 << 20 };

int files_output_open(struct file_output *out, const char *path, struct file_sum *sum, struct error *e) {
    *sum = (struct file_sum){.bytes = 0, .crc = (uint32_t)crc32(0, NULL, 0)};
    *out = (struct file_output){.file = fopen(path, "wbe"), .path = path, .sum = sum};
    return out->file ? 0 : error_set(e, "'%s' cannot be written: %s", path, strerror(errno));
}

/* By chunks that stay in the cache between the sum and the copy. */
void files_output_write(struct file_output *out, const void *data, size_t bytes) {
    const uint8_t *next = data;
    for (size_t left = bytes; left && !out->code;) {
        const size_t chunk = left < CHUNK ? left : CHUNK;
        out->sum->crc = (uint32_t)crc32(out->sum->crc, next, (uInt)chunk);
        if (fwrite(next, 1, chunk, out->file) != chunk) out->code = errno;
        next += chunk;
        left -= chunk;
        out->sum->bytes += (int64_t)chunk;
        if (out->sum->bytes - out->synced < SYNC_EVERY) continue;
        if (fflush(out->file) || fdatasync(fileno(out->file))) out->code = errno;
        out->synced = out->sum->bytes;
    }
}

int files_output_close(struct file_output *out, struct error *e) {
    if (!out->code && (fflush(out->file) || fsync(fileno(out->file)))) out->code = errno;
    if (fclose(out->file) && !out->code) out->code = errno;
    if (!out->code) return 0;
    unlink(out->path);
    return error_set(e, "'%s' could not be written whole: %s", out->path, strerror(out->code));
}

int files_output_text(const char *path, const char *text, struct file_sum *sum, struct error *e) {
    struct file_output out;
    if (files_output_open(&out, path, sum, e)) return -1;
    files_output_write(&out, text, strlen(text));
    return files_output_close(&out, e);
}

int files_sum(const char *path, struct file_sum *sum, struct error *e) {
    *sum = (struct file_sum){.bytes = 0, .crc = (uint32_t)crc32(0, NULL, 0)};
    FILE *f = fopen(path, "rbe");
    if (!f) return error_set(e, "'%s' cannot be opened: %s", path, strerror(errno));
    uint8_t *chunk = memory_alloc(CHUNK);
    for (size_t got; (got = fread(chunk, 1, CHUNK, f)) > 0;) {
        sum->crc = (uint32_t)crc32(sum->crc, chunk, (uInt)got);
        sum->bytes += (int64_t)got;
    }
    const int code = ferror(f) ? errno : 0;
    free(chunk);
    fclose(f);
    return code ? error_set(e, "'%s' cannot be read: %s", path, strerror(code)) : 0;
}

int files_exchange_folder(const char *from, const char *to, struct error *e) {
    if (access(to, F_OK) != 0) {
        if (rename(from, to) == 0) return 0;
        return error_set(e, "'%s' cannot be renamed to '%s': %s", from, to, strerror(errno));
    }
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return 0;
    /* Not every file system can exchange two names at once (NFS): by way of a third. */
    char third[1400];
    snprintf(third, sizeof third, "%s.old", to);
    if (rename(to, third) || rename(from, to) || rename(third, from))
        return error_set(e, "'%s' and '%s' cannot be exchanged: %s", from, to, strerror(errno));
    return 0;
}

int files_make_folder(const char *path, struct error *e) {
    char part[FILES_LONGEST_FOLDER + 1];
    if (!*path) return error_set(e, "the folder's name is empty; expected a path");
    if (strlen(path) > FILES_LONGEST_FOLDER)
        return error_set(e, "folder '%.100s...': the name is longer than %d characters", path,
                         FILES_LONGEST_FOLDER);
    snprintf(part, sizeof part, "%s", path);
    for (char *c = part + 1;; c++) {
        if (*c != '/' && *c) continue;
        char end = *c;
        *c = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return error_set(e, "folder '%s' cannot be made: %s", part, strerror(errno));
        *c = end;
        if (!end) break;
    }
    struct stat info;
    if (stat(path, &info) || !S_ISDIR(info.st_mode))
        return error_set(e, "'%s' is not a folder; name another or remove it", path);
    return 0;
}

void files_remove_folder(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    char file[1400];
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file); /* fails on . and .., as it should */
    }
    closedir(folder);
    rmdir(path);
}

int files_write_text(const char *path, const char *text, struct error *e) {
    char beside[1100];
    snprintf(beside, sizeof beside, "%s.tmp", path);
    FILE *f = fopen(beside, "we");
    if (!f) return error_set(e, "'%s' cannot be written: %s", beside, strerror(errno));
    bool ok = fputs(text, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    int code = errno;
    if (fclose(f) == 0 && ok && rename(beside, path) == 0) return 0;
    if (ok) code = errno;
    unlink(beside);
    return error_set(e, "'%s' could not be written: %s", path, strerror(code));
}

char *files_read_text(const char *path, struct error *e) {
    FILE *f = fopen(path, "re");
    if (!f) return error_set(e, "'%s' cannot be opened: %s", path, strerror(errno)), NULL;
    char *text = NULL;
    size_t size = 0;
    ssize_t length = getdelim(&text, &size, '\0', f);
    fclose(f);
    if (length >= 0) return text;
    free(text);
    return error_set(e, "'%s' is empty or cannot be read", path), NULL;
}

int files_sync_folder(const char *path, struct error *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    int code = errno;
    if (fd >= 0) close(fd);
    return ok ? 0 : error_set(e, "folder '%s' cannot be synced: %s", path, strerror(code));
}
