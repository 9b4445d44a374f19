/* A saved model: RUN_DIR/checkpoints/step-00000100/ with model.safetensors (Hugging Face GPT-2 names) and config.json.
 * Written beside, synced, then renamed; RUN_DIR/checkpoints/latest names the newest whole one. */
#ifndef TANDEM_CHECKPOINT_H
#define TANDEM_CHECKPOINT_H

#include "model/gpt.h"

struct checkpoint_info {
    struct gpt_config config;
    char tokenizer[32];
    int64_t step;
};

/* Makes RUN_DIR/checkpoints, so that a folder that cannot hold a model is found before one is trained. */
int checkpoint_prepare(const char *run_dir, struct error *e);

/* Saves the model; called by one rank. -1 with a message on failure, the earlier checkpoints untouched. */
int checkpoint_save(const char *run_dir, int64_t step, const struct gpt *gpt, const char *tokenizer,
                    struct error *e);

/* Writes into `path` the folder of the newest checkpoint of a run folder, or `dir` itself if it is a checkpoint. */
int checkpoint_locate(const char *dir, char *path, size_t size, struct error *e);

/* Reads config.json, then fills the weights of a model created from it. -1 with a message naming what does not fit. */
int checkpoint_read_info(const char *checkpoint, struct checkpoint_info *info, struct error *e);
int checkpoint_read_weights(const char *checkpoint, struct gpt *gpt, struct error *e);

#endif
