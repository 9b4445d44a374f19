/* A copy of the training state in host memory, file by file, that a thread can write while training goes on. */
#ifndef TANDEM_SNAPSHOT_H
#define TANDEM_SNAPSHOT_H

#include "train/files.h"
#include "train/state.h"

enum { SNAPSHOT_FILE_NAME = 64 };

/* The files of a checkpoint of a run of so many stages, by number: stage s has file kind * stages + s of the kinds before
 * STATE_RANK, and its rank in replica r has file (STATE_RANK + r) * stages + s. With one stage the names do not mention it. */
void snapshot_name_file(int file, int stages, char name[SNAPSHOT_FILE_NAME]);

struct snapshot_file {
    bool mine;                   /* written by this rank */
    int tensors, room;           /* 0 if it is not */
    struct state_tensor *tensor; /* [tensors] in host memory */
    struct file_sum sum;         /* while and after it is written */
};

struct snapshot {
    struct snapshot_file *file; /* [files]; those without tensors, on any rank, are not written */
    int files, stages;
    char *memory;
    size_t size; /* bytes; kept from one snapshot to the next */
};

void snapshot_free(struct snapshot *snapshot);

/* Copies what this rank is to write: of a stage's dp ranks, the file of kind k by rank k % dp, and each rank's own. Not
 * collective. */
void snapshot_take(struct snapshot *snapshot, struct trainer *trainer);

/* Writes the files that are this rank's into a folder. -1 with a message on failure. */
int snapshot_write(struct snapshot *snapshot, const char *folder, struct error *e);

/* Bytes written so far. */
int64_t snapshot_written(const struct snapshot *snapshot);

#endif
