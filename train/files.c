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
