/* A copy of the training state in host memory, file by file, that a thread can write while training goes on. */
#ifndef TANDEM_SNAPSHOT_H
#define TANDEM_SNAPSHOT_H

#include "train/files.h"
#include "train/state.h"

enum { SNAPSHOT_FILE_NAME = 32 };

/* The files of a checkpoint, by number: those of enum state_file, with STATE_RANK + r for rank r. */
void snapshot_name_file(int file, char name[SNAPSHOT_FILE_NAME]);

struct snapshot_file {
    int tensors, room;
    bool mine;                   /* written by this rank */
    struct state_tensor *tensor; /* [tensors] in host memory, if it is mine */
    struct file_sum sum;         /* while and after it is written */
};

struct snapshot {
    struct snapshot_file *file; /* [files]; those without tensors are not written */
    int files;
    char *memory;
    size_t size; /* bytes; kept from one snapshot to the next */
};

void snapshot_free(struct snapshot *snapshot);

/* Copies what this rank is to write: of p ranks, file f of the first three by rank f % p, and each rank's own. Not collective. */
void snapshot_take(struct snapshot *snapshot, struct trainer *trainer);

/* Writes the files that are this rank's into a folder. -1 with a message on failure. */
int snapshot_write(struct snapshot *snapshot, const char *folder, struct error *e);

/* Bytes written so far. */
int64_t snapshot_written(const struct snapshot *snapshot);

#endif
