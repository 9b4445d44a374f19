/* A JSON file that knows whether it is whole: its last member is "crc32", over all bytes before that member. */
#ifndef TANDEM_SEALED_JSON_H
#define TANDEM_SEALED_JSON_H

#include "kernels/base.h"

struct cJSON;

/* Writes the object beside path, syncs it and renames it there. */
int sealed_json_write(const char *path, const struct cJSON *object, struct error *e);

/* The object, to be freed with cJSON_Delete; NULL with a message for a file that is missing or damaged. */
struct cJSON *sealed_json_read(const char *path, struct error *e);

#endif
