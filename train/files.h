/* Files as a run needs them: whole or not at all. */
#ifndef TANDEM_FILES_H
#define TANDEM_FILES_H

#include <stdio.h>

#include "kernels/base.h"

enum { FILES_LONGEST_FOLDER = 1000 }; /* characters; leaves room for the names of what goes into it */

/* Length and CRC-32 (zlib's) of a file's bytes. bytes grows while the file is written: another thread may watch it. */
struct file_sum {
    _Atomic int64_t bytes;
    uint32_t crc;
};

/* A file being written. Synced now and then, so that no large rest is left for the end. */
struct file_output {
    FILE *file;
    const char *path;
    struct file_sum *sum;
    int64_t synced; /* bytes */
    int code;       /* errno of the first failure; nothing is written after it */
};

/* open, write ..., close; the last syncs, and on any failure removes the file. The path must outlive it. */
int files_output_open(struct file_output *out, const char *path, struct file_sum *sum, struct error *e);
void files_output_write(struct file_output *out, const void *data, size_t bytes);
int files_output_close(struct file_output *out, struct error *e);

/* A text as a file, synced in place. */
int files_output_text(const char *path, const char *text, struct file_sum *sum, struct error *e);

/* Reads a file for its sum. -1 with a message if it cannot be read. */
int files_sum(const char *path, struct file_sum *sum, struct error *e);

/* Makes a folder and its parents; an existing one is fine. */
int files_make_folder(const char *path, struct error *e);

/* Removes a folder and the files in it; missing is fine. Not recursive beyond one level. */
void files_remove_folder(const char *path);

/* Gives folder `from` the name `to`; a folder that had it is called `from` afterwards. At once where the file system can;
 * else (NFS) there is a moment in which the old one is called `to`.old. */
int files_exchange_folder(const char *from, const char *to, struct error *e);

/* Writes text beside path, syncs it and renames it there. */
int files_write_text(const char *path, const char *text, struct error *e);

/* The whole of a text file (free it), or NULL with a message. */
char *files_read_text(const char *path, struct error *e);

/* Makes renames in the folder durable. */
int files_sync_folder(const char *path, struct error *e);

#endif
