/* A checkpoint: RUN_DIR/checkpoints/step-00000100/ with
 *
 *     config.json, model.safetensors   the model, as Hugging Face's GPT-2 has it (train/model_files.h)
 *     optimizer.safetensors            moments, by parameter
 *     compressor.safetensors           what a compressor keeps alike on all ranks; where it keeps any
 *     rank-00000.safetensors, ...      what each rank holds back; where the compressor holds back any
 *     training.json                    step, ranks, data, options, numbers, and length and CRC-32 of all files
 *
 * Written beside, synced, then renamed; RUN_DIR/checkpoints/latest names the newest whole one. A folder with the first two
 * files only is a model that can be sampled from. */
#ifndef TANDEM_CHECKPOINT_H
#define TANDEM_CHECKPOINT_H

#include "model/gpt.h"
#include "train/files.h"

enum { CHECKPOINT_PATH = 1100 }; /* characters of a checkpoint's path, at most */

struct checkpoint_info {
    struct gpt_config config;
    char tokenizer[32];
    int64_t step;
};

/* Makes RUN_DIR/checkpoints, so that a folder that cannot hold a model is found before one is trained, and takes away what
 * a killed run has left half-written there. */
int checkpoint_prepare(const char *run_dir, struct error *e);

/* path[CHECKPOINT_PATH] of a step's checkpoint, and of the folder beside it in which it is written. */
void checkpoint_path(char *path, const char *run_dir, int64_t step);
void checkpoint_path_beside(char *path, const char *run_dir, int64_t step);

/* Writing, in this order. begin: makes an empty folder beside the place of step's checkpoint; publish: what is there now is whole, and becomes the newest checkpoint; or discard. The earlier checkpoints, also one of the
 * same step, stay until publish. -1 with a message on failure. Called by one rank. */
int checkpoint_begin(const char *run_dir, int64_t step, struct error *e);
int checkpoint_publish(const char *run_dir, int64_t step, struct error *e);
void checkpoint_discard(const char *run_dir, int64_t step);
void checkpoint_remove(const char *run_dir, int64_t step);

/* Writes FOLDER/config.json. */
int checkpoint_write_config(const char *folder, const struct gpt_config *config, const char *tokenizer,
                            int64_t step, struct file_sum *sum, struct error *e);

/* The steps of the checkpoints in a folder of them, ascending: how many. *steps is the caller's to free. */
int checkpoint_list(const char *checkpoints, int64_t **steps);

/* Writes into `path` the folder of the newest checkpoint of a run folder, or `dir` itself if it is a checkpoint. */
int checkpoint_locate(const char *dir, char *path, size_t size, struct error *e);

/* Reads config.json, then fills the weights of a model created from it. -1 with a message naming what does not fit. */
int checkpoint_read_info(const char *checkpoint, struct checkpoint_info *info, struct error *e);
int checkpoint_read_weights(const char *checkpoint, struct gpt *gpt, struct error *e);

#endif
