/* The state of training as a list: every tensor and every number that a run needs to go on as if it had not stopped, once.
 * Saving and loading walk the same list, so nothing is saved that is not loaded. The step, and with it the data position, is
 * the checkpoint's; random numbers follow from seed and step. */
#ifndef TANDEM_STATE_H
#define TANDEM_STATE_H

#include "train/trainer.h"

/* The kinds of files of a checkpoint that hold tensors, in the order in which the list has them. Of each there is one for each
 * stage of the pipeline; of STATE_RANK, one for each rank. */
enum state_file { STATE_MODEL, STATE_OPTIMIZER, STATE_COMPRESSOR, STATE_RANK };

/* Tensors that lie in the flat range go by parameter, so that the files know nothing of its layout. */
enum { STATE_NAME = 112 };
struct state_tensor {
    char name
        [STATE_NAME]; /* Hugging Face's name of the parameter, and what of it: transformer.wte.weight.exp_avg */
    enum state_file file;
    enum share share;
    bool copy;            /* of what the first stage of a pipeline holds, too, and saves */
    struct tensor tensor; /* on the device */
};
typedef void state_take(void *context, const struct state_tensor *tensor);

/* Hugging Face's name of a parameter. */
void state_name_weight(const struct param *param, char name[STATE_NAME]);

/* The weights alone, and everything. */
void state_visit_weights(const struct gpt *gpt, state_take *take, void *context);
void state_visit_tensors(struct trainer *trainer, state_take *take, void *context);

/* Numbers: first those of what an option has switched on, which may be missing where it was off before (the tuner, from which
 * the plan of buckets follows, and the loss scale); then the others, which follow from the plan. */
void state_visit_switched_numbers(struct trainer *trainer, kept_take *take, void *context);
void state_visit_numbers(struct trainer *trainer, kept_take *take, void *context);

#endif
