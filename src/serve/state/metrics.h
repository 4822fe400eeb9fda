/* metrics.h: counters and histograms of the server, printed as Prometheus text: invar's names always, and optionally
 * those of vLLM or SGLang, exactly as their dashboards expect. One thread. */
#ifndef IV_SERVE_STATE_METRICS_H
#define IV_SERVE_STATE_METRICS_H

#include "base/buf.h"
#include "serve/state/state.h"

iv_status iv_metrics_open(iv_metrics_names names, const char *model_name, iv_metrics **out, iv_error *err);
void iv_metrics_close(iv_metrics *m); /* NULL is fine */

/* One finished request. Times in seconds; `first`: from arrival to the first token, negative if there was none;
 * `queued` is part of it, `decode` follows it. */
typedef struct iv_metrics_request {
    iv_finish finish;
    const char *adapter; /* its name; NULL: the base alone */
    size_t prompt_tokens, generated_tokens, cached_tokens;
    double queued, first, total, decode;
} iv_metrics_request;
void iv_metrics_note_request(iv_metrics *m, const iv_metrics_request *r);
void iv_metrics_note_gap(iv_metrics *m, double seconds);    /* between two tokens of one request */
void iv_metrics_note_longest(iv_metrics *m, size_t tokens); /* of the answers to one prompt, once all have ended */
void iv_metrics_note_refused(iv_metrics *m);                /* 429 */

/* An HTTP request has ended. route: its pattern, a constant; NULL: it matched none. */
void iv_metrics_note_http(iv_metrics *m, const char *method, const char *route, int status);

/* A loaded adapter, and the open requests that name it. */
typedef struct iv_metrics_adapter {
    char name[IV_ADAPTER_NAME_BYTES], digest[IV_ADAPTER_DIGEST_BYTES];
    size_t rank, running, waiting;
} iv_metrics_adapter;

/* Counters kept by the server. `count` is called when a page is written. */
typedef struct iv_metrics_server {
    uint64_t log_lines_dropped;
    size_t connections;
    uint64_t connections_accepted, connections_refused, answers_cut;
    bool stores_responses; /* the next are meant */
    size_t stored_responses;
    uint64_t stored_bytes, responses_lost;
    size_t max_loras;             /* 0: the server has no adapters */
    iv_metrics_adapter *adapters; /* adapter_count of them, freed by the caller of `count` */
    size_t adapter_count;
} iv_metrics_server;
void iv_metrics_count_server(iv_metrics *m, void (*count)(void *user, iv_metrics_server *out), void *user);

/* Samples the engine's counters at `now` (seconds, any clock), for rates. Call it about once a second. */
void iv_metrics_note_time(iv_metrics *m, const iv_bridge_stats *stats, double now);

/* Appends the page. */
bool iv_metrics_write(const iv_metrics *m, const iv_bridge_stats *stats, const iv_engine_info *info, iv_buf *out);

#endif
