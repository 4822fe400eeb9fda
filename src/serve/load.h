/* load.h: sends many requests to a running server from one thread and times each: the client of `invar bench serve`.
 *
 * Every request is a streamed POST of token ids or a text, greedy or seeded, ignoring end-of-sequence tokens; to
 * invar's servers, or to any server with OpenAI's API. */
#ifndef IV_SERVE_LOAD_H
#define IV_SERVE_LOAD_H

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

typedef struct iv_load_request {
    const int32_t *ids; /* [id_count]; or, with id_count 0, ... */
    const char *text;   /* ... this */
    size_t id_count, max_tokens;
    uint64_t seed;
    float temperature;
    double at; /* not sent before: seconds after the start */
} iv_load_request;

typedef struct iv_load_result {
    bool done;         /* a complete answer came; else see `error` */
    char error[200];   /* "" if it was not sent: stopped before */
    double sent;       /* seconds after the start */
    double first, end; /* seconds after `sent`: the first token, the last event */
    double *gaps;      /* [gap_count] seconds between events with tokens */
    size_t gap_count;
    size_t prompt_tokens, generated, cached_tokens; /* as reported by the server */
    char digest[80];                                /* "" if the server has none */
} iv_load_result;

typedef struct iv_load_options {
    const char *host; /* a name or an address, IPv6 without brackets */
    uint16_t port;
    const char *path;                                        /* before the routes: "" or "/base" */
    const char *api_key;                                     /* NULL: none */
    const char *model;                                       /* field of the requests; NULL: omitted */
    bool chat;                                               /* /v1/chat/completions, not /v1/completions */
    bool other;                                              /* not an invar server: no digests */
    size_t concurrency;                                      /* requests at once; 0: no limit */
    uint32_t timeout_s;                                      /* of silence */
    void (*progress)(void *user, size_t done, size_t total); /* called often; may be NULL */
    bool (*stop)(void *user);                                /* true: stop now; may be NULL */
    void *user;
} iv_load_options;

/* "http://HOST[:PORT][/BASE]" -> host (at most 255 bytes), port and path. A trailing /v1 is removed from the base.
 * iv_load_is_url: any scheme, so that unsupported ones are an error. */
typedef struct iv_load_url {
    char host[256], path[256];
    uint16_t port;
} iv_load_url;
bool iv_load_is_url(const char *text);
iv_status iv_load_url_parse(const char *url, iv_load_url *out, iv_error *err);

/* Sends all requests in order, each at its time or as soon as there is room. A failed request is reported in its
 * result; the call still returns IV_OK. `seconds`: from the start to the last end. */
iv_status iv_load_run(const iv_load_options *o, const iv_load_request *requests, size_t count, iv_load_result *results,
                      double *seconds, iv_error *err);
void iv_load_results_free(iv_load_result *results, size_t count); /* frees their gaps */

/* GETs a small JSON object; the caller frees *out (json_decref). */
iv_status iv_load_get(const iv_load_options *o, const char *route, json_t **out, iv_error *err);

/* ---- an event stream ---------------------------------------------------------------------------------- */

/* The stream of /v1/completions as a client reads it: bytes -> a result. A pure function of bytes and times: a result
 * does not depend on how the stream was cut into pieces, except for its times. */
typedef struct iv_load_events {
    iv_buf bytes;        /* an incomplete event; has a limit */
    double last;         /* time of the last tokens */
    size_t gap_capacity; /* of result->gaps */
    bool finished;       /* [DONE] came */
} iv_load_events;

/* Resets all but the buffer's memory and limit. */
void iv_load_events_begin(iv_load_events *e);
/* Takes n bytes received at `now`, seconds after the request was sent. Errors go to the result. */
void iv_load_events_feed(iv_load_events *e, iv_load_result *r, const void *bytes, size_t n, double now);

#endif
