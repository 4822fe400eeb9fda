/* load.h: many requests to a server that runs, from one thread, each timed: what `invar bench serve` measures with.
 *
 * Every request is a POST of token ids or a text, greedy or seeded, past any end of sequence, streamed; to invar's own
 * servers, or to any that speak OpenAI's API. */
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
    double at; /* seconds after the beginning before which it is not sent */
} iv_load_request;

typedef struct iv_load_result {
    bool done;         /* a whole answer came; else `error` */
    char error[200];   /* "" where nothing was tried: stopped before */
    double sent;       /* seconds after the beginning */
    double first, end; /* seconds after `sent`: the first token, the last event */
    double *gaps;      /* [gap_count] seconds between events that brought tokens */
    size_t gap_count;
    size_t prompt_tokens, generated, cached_tokens; /* as the server counts them */
    char digest[80];                                /* "" from a server that has none */
} iv_load_result;

typedef struct iv_load_options {
    const char *host; /* a name or an address, IPv6 without brackets */
    uint16_t port;
    const char *path;                                        /* before the routes: "" or "/base" */
    const char *api_key;                                     /* NULL: none */
    const char *model;                                       /* for the requests; NULL: they name none */
    bool chat;                                               /* /v1/chat/completions, not /v1/completions */
    bool other;                                              /* another server than invar's: it has no digests */
    size_t concurrency;                                      /* requests at once; 0: no limit */
    uint32_t timeout_s;                                      /* without a byte */
    void (*progress)(void *user, size_t done, size_t total); /* often; may be NULL */
    bool (*stop)(void *user);                                /* true: end now; may be NULL */
    void *user;
} iv_load_options;

/* "http://HOST[:PORT][/BASE]" -> host (at most 255 bytes), port and path. A last /v1, which clients of this API are
 * given, is none of the base. iv_load_is_url: of whatever scheme, so that one that is not spoken is an error. */
typedef struct iv_load_url {
    char host[256], path[256];
    uint16_t port;
} iv_load_url;
bool iv_load_is_url(const char *text);
iv_status iv_load_url_parse(const char *url, iv_load_url *out, iv_error *err);

/* Sends all, in order, each at its time or as soon as there is room after it. What goes wrong with a request is its
 * result's error; IV_OK all the same. `seconds`: from the beginning to the last end. */
iv_status iv_load_run(const iv_load_options *o, const iv_load_request *requests, size_t count, iv_load_result *results,
                      double *seconds, iv_error *err);
void iv_load_results_free(iv_load_result *results, size_t count); /* their gaps */

/* GET of a small JSON object; *out is the caller's (json_decref). */
iv_status iv_load_get(const iv_load_options *o, const char *route, json_t **out, iv_error *err);

/* ---- an event stream ---------------------------------------------------------------------------------------- */

/* The stream of /v1/completions as a client reads it: bytes -> a result. A pure function of bytes and times: a result
 * does not depend on how the stream was cut into pieces, except for its times. */
typedef struct iv_load_events {
    iv_buf bytes;    /* not yet an event; a limit holds */
    double last;     /* when the last tokens came */
    size_t gap_room; /* of result->gaps */
    bool finished;   /* [DONE] came */
} iv_load_events;

/* Everything anew but the buffer's memory and limit. */
void iv_load_events_begin(iv_load_events *e);
/* Takes n bytes at `now`, seconds after the request was sent. What is wrong becomes the result's error. */
void iv_load_events_feed(iv_load_events *e, iv_load_result *r, const void *bytes, size_t n, double now);

#endif
