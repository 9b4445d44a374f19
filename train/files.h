/* Files as a run needs them: whole or not at all. */
#ifndef TANDEM_FILES_H
#define TANDEM_FILES_H

#include "kernels/base.h"

enum { FILES_LONGEST_FOLDER = 1000 }; /* characters; leaves room for the names of what goes into it */

/* Makes a folder and its parents; an existing one is fine. */
int files_make_folder(const char *path, struct error *e);

/* Removes a folder and the files in it; missing is fine. Not recursive beyond one level. */
void files_remove_folder(const char *path);

/* Writes text beside path, syncs it and renames it there. */
int files_write_text(const char *path, const char *text, struct error *e);

/* The whole of a text file (free it), or NULL with a message. */
char *files_read_text(const char *path, struct error *e);

/* Makes renames in the folder durable. */
int files_sync_folder(const char *path, struct error *e);

#endif
