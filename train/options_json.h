/* Options as JSON: in records of runs, and compared with them. */
#ifndef TANDEM_OPTIONS_JSON_H
#define TANDEM_OPTIONS_JSON_H

#include "train/options.h"

struct cJSON;

/* Adds every option of train to the object, by its field's name. */
void options_json_add(const struct options *o, struct cJSON *object);

/* Whether the item is this value as options_visit gives it. A missing item (NULL) is not. */
bool options_json_same(const struct cJSON *item, const char *value, bool is_text);

#endif
