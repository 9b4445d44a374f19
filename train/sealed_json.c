#define _GNU_SOURCE
#include "train/sealed_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "train/files.h"

enum { SEAL = 32 }; /* room for the last member and the closing brace */

static void write_seal(char seal[SEAL], const char *text, size_t length) {
    snprintf(seal, SEAL, ",\n\t\"crc32\":\t\"%08lx\"\n}\n",
             crc32(crc32(0, NULL, 0), (const Bytef *)text, (uInt)length));
}

int sealed_json_write(const char *path, const cJSON *object, struct error *e) {
    char *text = cJSON_Print(object), seal[SEAL];
    size_t length = strlen(text) - 1; /* without the brace and the line end before it */
    while (text[length - 1] == '\n') length--;
    write_seal(seal, text, length);
    char *sealed = memory_alloc(length + SEAL);
    memcpy(sealed, text, length);
    strcpy(sealed + length, seal);
    const int status = files_write_text(path, sealed, e);
    free(sealed);
    free(text);
    return status;
}

cJSON *sealed_json_read(const char *path, struct error *e) {
    char *text = files_read_text(path, e), seal[SEAL];
    if (!text) return NULL;
    char *end = NULL;
    for (char *at = text; (at = strstr(at, ",\n\t\"crc32\":")); at++) end = at;
    if (end) write_seal(seal, text, (size_t)(end - text));
    cJSON *object = end && strcmp(end, seal) == 0 ? cJSON_Parse(text) : NULL;
    free(text);
    if (!object) error_set(e, "'%s' is truncated or damaged: its checksum does not fit its content", path);
    return object;
}
