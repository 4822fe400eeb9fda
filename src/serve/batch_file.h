/* batch_file.h: the two files of a batch: lines with requests, and the answers there are already. */
#ifndef IV_SERVE_BATCH_FILE_H
#define IV_SERVE_BATCH_FILE_H

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

typedef struct iv_batch_line {
    const char *text; /* without its end; in the file's bytes */
    size_t bytes, number;
} iv_batch_line;

typedef struct iv_batch_lines {
    iv_buf file;
    iv_batch_line *lines;
    size_t count;
    json_t *places; /* custom_id -> the place of the first line that has it, from 0 */
} iv_batch_lines;

/* "-": standard input, or output. */
bool iv_batch_is_standard(const char *path);

/* The lines that are not blank; of standard input up to its end. Zeroed before. */
iv_status iv_batch_lines_read(const char *path, iv_batch_lines *out, iv_error *err);
/* The same once `file` holds the bytes. */
iv_status iv_batch_lines_split(const char *path, iv_batch_lines *out, iv_error *err);
void iv_batch_lines_free(iv_batch_lines *l);

/* One line as it should be; all borrowed from `root`. */
typedef struct iv_batch_request {
    json_t *root, *id, *body; /* id: NULL where there is no usable one */
    const char *body_text;    /* as it stands in the line: written again, its numbers could be others */
    size_t body_bytes;
    enum { IV_BATCH_COMPLETIONS, IV_BATCH_CHAT, IV_BATCH_RESPONSES } api;
} iv_batch_request;

/* root and id are good also where it fails; the caller lets go of root (json_decref, NULL is fine). */
iv_status iv_batch_line_read(iv_batch_lines *l, size_t place, iv_batch_request *out, iv_error *err);

/* Opens the output, alone, behind its last whole line: *kept lines that answer the first of the input. Another file is
 * refused and stays as it is. Standard output is taken as it is: nothing is kept. */
iv_status iv_batch_output_open(const char *path, iv_batch_lines *l, int *fd, size_t *kept, iv_error *err);

#endif
