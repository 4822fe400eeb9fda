/* folder.h: the server's own folder for weights that arrive over HTTP: one subfolder for each set. It is removed with
 * the server; folders of servers that were killed are removed by the next one. */
#ifndef IV_SERVE_WEIGHTS_FOLDER_H
#define IV_SERVE_WEIGHTS_FOLDER_H

#include "base/status.h"

#include <stdint.h>

typedef struct iv_folder {
    char *path; /* NULL: not made yet */
    int lock;   /* held while this process lives */
    uint64_t sets;
} iv_folder;

/* parent: where to make it; NULL: /dev/shm if it has room for `bytes` three times (the weights in use, the next ones,
 * and those as they arrive), else $TMPDIR or /tmp. */
iv_status iv_folder_open(iv_folder *f, const char *parent, size_t bytes, iv_error *err);
void iv_folder_close(iv_folder *f);
/* A new subfolder; its path is the caller's. */
iv_status iv_folder_add(iv_folder *f, char **path, iv_error *err);
void iv_folder_remove(const char *path); /* with its files; NULL is fine */

#endif
