/* The files of a saved model: model.safetensors, or one for each pipeline stage that has saved it, model-00001-of-00002.safetensors
 * and so on, with Hugging Face's index of which tensor lies where. */
#ifndef TANDEM_MODEL_FILES_H
#define TANDEM_MODEL_FILES_H

#include "model/params.h"
#include "train/safetensors.h"

/* The index, beside the files. */
#define MODEL_INDEX "model.safetensors.index.json"

/* Open for reading. */
struct model_files {
    struct safetensors *file; /* [files] */
    int files;
};

/* -1 with a message if any is missing or malformed. Free with model_files_close in any case. */
int model_files_open(struct model_files *m, const char *checkpoint, struct error *e);
void model_files_close(struct model_files *m);

/* The file that has the tensor; where none has, the first. */
const struct safetensors *model_files_with(const struct model_files *m, const char *name);

/* Writes FOLDER/MODEL_INDEX for a model saved by so many stages of so many chunks. */
int model_files_write_index(const char *folder, const struct gpt_config *config, int stages, int chunks,
                            struct file_sum *sum, struct error *e);

#endif
