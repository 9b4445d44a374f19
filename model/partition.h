/* Where a pipeline cuts the model: plain arithmetic, the same on every rank. */
#ifndef TANDEM_PARTITION_H
#define TANDEM_PARTITION_H

#include "model/params.h"

/* FLOPs per token of the forward pass, by unit: 0 is the embedding, 1 to layers the blocks, layers + 1 the head. Matrix
 * products count 2 x their parameters, attention 4 x channels x positions, the embedding its additions. */
double partition_cost(const struct gpt_config *config, int unit);

/* Cuts the layers + 2 units into chunk[chunks]: each a run of at least one unit, in order. The costliest chunk is as cheap
 * as can be; among such cuts, the sum of the squares of the costs is least. -1 with a message where there are more chunks
 * than units. */
int partition_model(const struct gpt_config *config, int chunks, struct gpt_chunk *chunk, struct error *e);

#endif
