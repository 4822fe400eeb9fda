/* response_store.h: responses kept for later: a directory with a file for each, bounded in number and bytes; beyond
 * that the oldest go. A thread writes and removes files; a response can be read as soon as it was put. Any thread. */
#ifndef IV_SERVE_STATE_RESPONSE_STORE_H
#define IV_SERVE_STATE_RESPONSE_STORE_H

#include "base/buf.h"
#include "base/status.h"

enum {
    IV_STORED_BYTES_MAX = 16 << 20,   /* of one response */
    IV_STORED_PENDING_MAX = 256 << 20 /* of those not yet written; more are lost, and counted */
};

typedef struct iv_response_store_options {
    const char *directory; /* created if it is absent; used by one process at a time */
    size_t count_max;
    uint64_t bytes_max;
} iv_response_store_options;

typedef struct iv_response_store_stats {
    size_t count;
    uint64_t bytes;
    uint64_t lost; /* responses that could not be written */
    char why[256]; /* the last reason; "": none */
} iv_response_store_stats;

typedef struct iv_response_store iv_response_store;

/* Finds what earlier processes have kept. An error names the directory. */
iv_status iv_response_store_open(const iv_response_store_options *o, iv_response_store **out, iv_error *err);
void iv_response_store_close(iv_response_store *s); /* writes what is pending. NULL is fine */

/* Keeps the text under this id, and takes the buffer. What cannot be kept is counted. */
void iv_response_store_put(iv_response_store *s, const char *id, iv_buf *text);
/* Appends the text to *out. IV_NOT_FOUND: there is none of this id. */
iv_status iv_response_store_get(iv_response_store *s, const char *id, iv_buf *out, iv_error *err);
iv_status iv_response_store_remove(iv_response_store *s, const char *id, iv_error *err);
void iv_response_store_get_stats(iv_response_store *s, iv_response_store_stats *out);

#endif
