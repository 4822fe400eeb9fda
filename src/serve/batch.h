/* batch.h: answers a file of requests with the server's handlers, without a server: `invar batch`.
 *
 * Invariant: the output holds the answers to the first lines of the input, in order. Each is a whole line, except
 * perhaps the last, so an interrupted run can be resumed. An error of a line is that line's answer. */
#ifndef IV_SERVE_BATCH_H
#define IV_SERVE_BATCH_H

#include "base/buf.h"
#include "base/status.h"
#include "serve/engine/bridge.h"

#include <jansson.h>

typedef struct iv_batch_options {
    iv_bridge_options bridge;
    const char *served_model_name; /* as iv_server_options.served_model_name */
    const char *tool_call_parser;  /* as in server.h, like the next */
    const char *reasoning_parser;
    const iv_lora_module *adapters;
    size_t adapter_count;
    const char *input,
        *output; /* paths of regular files; the output is created if it does not exist. "-": standard input or output */
    /* Both may be NULL. Called often, on the calling thread. */
    void (*progress)(void *user, size_t done, size_t total); /* lines with an answer */
    bool (*stop)(void *user);                                /* true: stop now; written answers stay */
    void *user;
} iv_batch_options;

typedef struct iv_batch_counts {
    size_t lines;             /* of the input, without blank ones */
    size_t kept;              /* answered by an earlier run */
    size_t answered, refused; /* now: with status 200, and with another */
    bool stopped;
    bool index_unread; /* as iv_engine_info */
    bool other_rank;   /* this process was another rank and served rank 0 to the end; other counts are unset */
} iv_batch_counts;

/* IV_OK: every line has an answer, unless counts say otherwise. On an error, earlier answers are in the output. */
iv_status iv_batch_run(const iv_batch_options *o, iv_batch_counts *counts, iv_error *err);

/* ---- the two files, also for tests -------------------------------------------------------------------- */

typedef struct iv_batch_line {
    const char *text; /* without its line end; points into `file` */
    size_t bytes, number;
} iv_batch_line;

typedef struct iv_batch_lines {
    iv_buf file;
    iv_batch_line *lines;
    size_t count;
    json_t *index_by_id; /* custom_id -> index of the first line that has it */
} iv_batch_lines;

/* Splits `file` into the lines that are not blank. `path` is for errors. */
iv_status iv_batch_lines_split(const char *path, iv_batch_lines *out, iv_error *err);
void iv_batch_lines_free(iv_batch_lines *l);

/* One parsed line; everything is borrowed from `root`. */
typedef struct iv_batch_request {
    json_t *root, *id, *body; /* id: NULL if absent or unusable */
    const char *body_text;    /* as spelled in the line: printing it again could change numbers */
    size_t body_bytes;
    enum { IV_BATCH_COMPLETIONS, IV_BATCH_CHAT, IV_BATCH_RESPONSES, IV_BATCH_MESSAGES, IV_BATCH_APIS } api;
} iv_batch_request;

/* root and id are valid even on an error; the caller frees root (json_decref, NULL is fine). */
iv_status iv_batch_line_read(iv_batch_lines *l, size_t index, iv_batch_request *out, iv_error *err);

#endif
