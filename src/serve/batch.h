/* batch.h: a file of requests, answered by the server's own handlers without a server: `invar batch`.
 *
 * Invariant: the output is always the answers to the first lines of the input, in order, each a whole line but perhaps
 * the last. So it says itself where an interrupted run goes on. What is wrong with a line is that line's answer. */
#ifndef IV_SERVE_BATCH_H
#define IV_SERVE_BATCH_H

#include "base/buf.h"
#include "base/status.h"
#include "serve/bridge.h"

#include <jansson.h>

typedef struct iv_batch_options {
    iv_bridge_options bridge;
    const char *served_model_name; /* NULL: the model's directory name */
    const char *tool_call_parser;  /* as in server.h */
    const char *input,
        *output; /* paths of regular files; the output is made if it is not there. "-": the standard ones */
    /* Both may be NULL. Called often, on the calling thread. */
    void (*progress)(void *user, size_t done, size_t total); /* lines with an answer */
    bool (*stop)(void *user);                                /* true: end now; what is written stays */
    void *user;
} iv_batch_options;

typedef struct iv_batch_counts {
    size_t lines;             /* of the input, blank ones left out */
    size_t kept;              /* were answered before */
    size_t answered, refused; /* now: with status 200, and with another */
    bool stopped;
    bool index_unread; /* as iv_engine_info */
    bool other_rank;   /* this process served rank 0 to the end; nothing else is meant */
} iv_batch_counts;

/* IV_OK: every line has its answer, unless counts say otherwise. Else what was answered before is in the output. */
iv_status iv_batch_run(const iv_batch_options *o, iv_batch_counts *counts, iv_error *err);

/* ---- the two files, also for tests -------------------------------------------------------------------------- */

typedef struct iv_batch_line {
    const char *text; /* without its end; in the file's bytes */
    size_t bytes, number;
} iv_batch_line;

typedef struct iv_batch_lines {
    iv_buf file;
    iv_batch_line *lines;
    size_t count;
    json_t *index_by_id; /* custom_id -> the place of the first line that has it, from 0 */
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
iv_status iv_batch_line_read(iv_batch_lines *l, size_t index, iv_batch_request *out, iv_error *err);

/* Opens the output, alone, behind its last whole line: *kept lines that answer the first of the input. Another file is
 * refused and stays as it is. Standard output is taken as it is: nothing is kept. */
iv_status iv_batch_output_open(const char *path, iv_batch_lines *l, int *fd, size_t *kept, iv_error *err);

#endif
