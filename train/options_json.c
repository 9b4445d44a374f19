#include "train/options_json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static void add_option(void *context, const char *name, const char *value, bool is_text) {
    if (is_text)
        cJSON_AddStringToObject(context, name, value);
    else
        cJSON_AddRawToObject(context, name, value);
}

void options_json_add(const struct options *o, cJSON *object) {
    options_visit(o, TRAIN, add_option, object);
}

bool options_json_same(const cJSON *item, const char *value, bool is_text) {
    if (!item) return false;
    if (is_text) return cJSON_IsString(item) && strcmp(item->valuestring, value) == 0;
    if (cJSON_IsBool(item)) return cJSON_IsTrue(item) == (strcmp(value, "true") == 0);
    return cJSON_IsNumber(item) && item->valuedouble == strtod(value, NULL);
}
