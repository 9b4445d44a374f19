/* training.json of a checkpoint: what the run was, its numbers, and the length and CRC-32 of every other file. Itself sealed
 * (train/sealed_json.h), so a checkpoint that is truncated or changed anywhere is noticed. */
#ifndef TANDEM_MANIFEST_H
#define TANDEM_MANIFEST_H

#include "train/checkpoint.h"
#include "train/state.h"

struct cJSON;

/* What is known when the state is copied: everything but the files. Free with cJSON_Delete. */
struct cJSON *manifest_create(struct trainer *trainer, int64_t step);
void manifest_add_file(struct cJSON *manifest, const char *name, const struct file_sum *sum);

/* path[MANIFEST_PATH] of CHECKPOINT/training.json. */
enum { MANIFEST_PATH = CHECKPOINT_PATH + 20 };
void manifest_path(char *path, const char *checkpoint);

/* read: NULL with a message if it is missing or damaged; free with cJSON_Delete. */
int manifest_write(const struct cJSON *manifest, const char *checkpoint, struct error *e);
struct cJSON *manifest_read(const char *checkpoint, struct error *e);

/* A whole number of it; -1 if it is not there. */
int64_t manifest_number(const struct cJSON *manifest, const char *name);

/* Files it lists; the name of number i. */
int manifest_files(const struct cJSON *manifest);
const char *manifest_file(const struct cJSON *manifest, int i);
bool manifest_has_file(const struct cJSON *manifest, const char *name);

/* Reads a file and compares it with what is recorded. -1 with a message that says what differs. */
int manifest_verify(const struct cJSON *manifest, const char *checkpoint, const char *name, struct error *e);

/* -1 with a message naming both values if the run that goes on would have other data or options marked FIXED. */
int manifest_check_run(const struct cJSON *manifest, const struct trainer *trainer, const char *checkpoint,
                       struct error *e);

/* Loads numbers: context of a kept_take. What is not there is left as it is and counted in `missing`. */
struct manifest_numbers {
    const struct cJSON *manifest;
    int missing;
};
kept_take manifest_load_number;

/* What `tandem generate` reads of a checkpoint, if it is one of training and not a model alone. -1 with a message. */
int manifest_verify_model(const char *checkpoint, struct error *e);

/* Adds to a message that `checkpoint` is damaged: which older one beside it is whole, to be given to `option`. */
void manifest_suggest(const char *checkpoint, const char *option, struct error *e);

#endif
