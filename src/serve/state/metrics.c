/* metrics.c: a table gives each metric its names, help text and value; the page is that table, printed once per
 * dialect. Buckets are cumulative only on the page. */
#include "serve/state/metrics.h"
#include "serve/state/process_stats.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUCKETS_MAX = 24, FINISHES = 4, NAME_BYTES_MAX = 512, HTTP_KINDS_MAX = 1024, ADAPTERS_MAX = 256 };

/* HTTP requests of one method, route and status: a client cannot make new ones without end. */
typedef struct http_kind {
    const char *method, *route; /* constants */
    int status;
    uint64_t count;
} http_kind;

/* Requests that one name of an adapter has answered. A client that loads ever new names fills the table; what comes
 * behind is counted as "other", the last entry. */
typedef struct adapter_kind {
    char name[NAME_BYTES_MAX]; /* escaped */
    uint64_t requests, prompted, generated;
} adapter_kind;

typedef struct histogram {
    const double *bounds;
    size_t count; /* of bounds */
    uint64_t in[BUCKETS_MAX + 1];
    double sum;
} histogram;

/* Requests take a millisecond to an hour, gaps between tokens far less; prompts have up to a million tokens. */
static const double long_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1,
                                     2.5,   5,      7.5,   10,   20,    40,   80,  160,  640, 2560};
static const double gap_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03,
                                    0.04,   0.05,  0.075,  0.1,   0.15,   0.25, 0.5,   1,    5};
static const double token_bounds[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                      1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 1000000};

typedef enum timing {
    T_FIRST,
    T_GAP,
    T_TOTAL,
    T_QUEUE,
    T_PREFILL,
    T_DECODE,
    T_INFERENCE,
    T_PROMPT_TOKENS,
    T_GENERATED_TOKENS,
    T_LONGEST,
    TIMINGS
} timing;

struct iv_metrics {
    iv_metrics_names names;
    char model[NAME_BYTES_MAX]; /* escaped for a label */
    histogram timings[TIMINGS];
    uint64_t requests, finished[FINISHES], refused, generated, prompted, cached;
    http_kind *http; /* HTTP_KINDS_MAX */
    size_t http_count;
    adapter_kind *adapters; /* ADAPTERS_MAX */
    size_t adapter_count;
    double last_time, tokens_per_second;
    uint64_t last_tokens;
    void (*count_server)(void *user, iv_metrics_server *out); /* NULL: all 0 */
    void *server_user;
};

/* ---- recording ---------------------------------------------------------------------------------------- */

static void use_bounds(histogram *h, const double *bounds, size_t count) {
    IV_ASSERT(count <= BUCKETS_MAX);
    h->bounds = bounds, h->count = count;
}
#define BOUNDS(h, list) use_bounds(h, list, sizeof list / sizeof *list)

static void note(histogram *h, double value) {
    size_t at = 0;
    if (!isfinite(value)) return;
    if (value < 0) value = 0; /* clocks of two threads differ */
    while (at < h->count && value > h->bounds[at]) at++;
    h->in[at]++;
    h->sum += value;
}

/* In a label backslash, quote and newline are escaped. */
static void escape(const char *text, char out[NAME_BYTES_MAX]) {
    size_t n = 0;
    for (; *text && n + 3 < NAME_BYTES_MAX; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = 0;
}

iv_status iv_metrics_open(iv_metrics_names names, const char *model_name, iv_metrics **out, iv_error *err) {
    iv_metrics *m = calloc(1, sizeof *m);
    if (m) m->http = calloc(HTTP_KINDS_MAX, sizeof *m->http), m->adapters = calloc(ADAPTERS_MAX, sizeof *m->adapters);
    if (!m || !m->http || !m->adapters) {
        iv_metrics_close(m);
        return iv_fail(err, IV_NO_MEMORY, "metrics: no memory");
    }
    m->names = names;
    m->last_time = -1;
    escape(model_name, m->model);
    for (size_t i = 0; i < TIMINGS; i++) BOUNDS(&m->timings[i], long_bounds);
    BOUNDS(&m->timings[T_GAP], gap_bounds);
    BOUNDS(&m->timings[T_PROMPT_TOKENS], token_bounds);
    BOUNDS(&m->timings[T_GENERATED_TOKENS], token_bounds);
    BOUNDS(&m->timings[T_LONGEST], token_bounds);
    *out = m;
    return IV_OK;
}

void iv_metrics_close(iv_metrics *m) {
    if (m) free(m->http), free(m->adapters);
    free(m);
}

static void note_adapter(iv_metrics *m, const iv_metrics_request *r) {
    char name[NAME_BYTES_MAX];
    size_t i = 0;
    if (!r->adapter) return;
    escape(r->adapter, name);
    while (i < m->adapter_count && i + 1 < ADAPTERS_MAX && strcmp(m->adapters[i].name, name) != 0) i++;
    adapter_kind *a = &m->adapters[i];
    if (i == m->adapter_count) {
        m->adapter_count++;
        snprintf(a->name, sizeof a->name, "%s", i + 1 < ADAPTERS_MAX ? name : "other");
    }
    a->requests++, a->prompted += r->prompt_tokens, a->generated += r->generated_tokens;
}

void iv_metrics_note_request(iv_metrics *m, const iv_metrics_request *r) {
    size_t finish = (size_t)r->finish;
    note_adapter(m, r);
    IV_ASSERT(finish >= 1 && finish <= FINISHES);
    m->requests++, m->finished[finish - 1]++;
    m->prompted += r->prompt_tokens, m->generated += r->generated_tokens, m->cached += r->cached_tokens;
    note(&m->timings[T_TOTAL], r->total);
    note(&m->timings[T_QUEUE], r->queued);
    note(&m->timings[T_INFERENCE], r->total - r->queued);
    note(&m->timings[T_PROMPT_TOKENS], (double)r->prompt_tokens);
    note(&m->timings[T_GENERATED_TOKENS], (double)r->generated_tokens);
    if (r->first < 0) return;
    note(&m->timings[T_FIRST], r->first);
    note(&m->timings[T_PREFILL], r->first - r->queued);
    note(&m->timings[T_DECODE], r->decode);
}

void iv_metrics_note_gap(iv_metrics *m, double seconds) { note(&m->timings[T_GAP], seconds); }
void iv_metrics_note_longest(iv_metrics *m, size_t tokens) { note(&m->timings[T_LONGEST], (double)tokens); }
void iv_metrics_note_refused(iv_metrics *m) { m->refused++; }

static const char *known_method(const char *method) {
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(method, known[i]) == 0) return known[i];
    return "other";
}

void iv_metrics_note_http(iv_metrics *m, const char *method, const char *route, int status) {
    http_kind k = {.method = known_method(method), .route = route ? route : "other", .status = status};
    for (size_t i = 0; i < m->http_count; i++) {
        http_kind *h = &m->http[i];
        if (h->status != status || strcmp(h->method, k.method) != 0 || strcmp(h->route, k.route) != 0) continue;
        h->count++;
        return;
    }
    if (m->http_count == HTTP_KINDS_MAX) return;
    k.count = 1;
    m->http[m->http_count++] = k;
}

void iv_metrics_count_server(iv_metrics *m, void (*count)(void *user, iv_metrics_server *out), void *user) {
    m->count_server = count, m->server_user = user;
}

void iv_metrics_note_time(iv_metrics *m, const iv_bridge_stats *stats, double now) {
    uint64_t tokens = stats->engine.tokens_generated;
    if (m->last_time >= 0 && now > m->last_time)
        m->tokens_per_second = (double)(tokens - m->last_tokens) / (now - m->last_time);
    m->last_time = now, m->last_tokens = tokens;
}

/* ---- values of gauges and counters -------------------------------------------------------------------- */

typedef struct sample {
    const iv_metrics *m;
    const iv_bridge_stats *s;
    const iv_engine_info *info;
    iv_metrics_server server;
    iv_process_stats process, engine; /* engine: all 0 if it has no process of its own */
} sample;

static double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }
static double pages_held(const sample *l) {
    return (double)(l->s->engine.kv_pages - l->s->engine.kv_pages_free - l->s->engine.kv_pages_cached);
}
static double v_running(const sample *l) { return (double)l->s->engine.running; }
static double v_waiting(const sample *l) { return (double)(l->s->queued + l->s->engine.waiting); }
static double v_kv_usage(const sample *l) { return ratio(pages_held(l), (double)l->s->engine.kv_pages); }
static double v_kv_pages(const sample *l) { return (double)l->s->engine.kv_pages; }
static double v_kv_held(const sample *l) { return pages_held(l); }
static double v_kv_cached(const sample *l) { return (double)l->s->engine.kv_pages_cached; }
static double v_kv_tokens(const sample *l) { return (double)l->info->kv_tokens; }
static double v_kv_tokens_used(const sample *l) { return v_kv_usage(l) * (double)l->info->kv_tokens; }
static double v_prompt(const sample *l) { return (double)l->s->engine.prompt_tokens; }
static double v_cached(const sample *l) { return (double)l->s->engine.cached_tokens; }
static double v_generated(const sample *l) { return (double)l->s->engine.tokens_generated; }
static double v_hit_rate(const sample *l) { return ratio(v_cached(l), v_prompt(l)); }
static double v_preemptions(const sample *l) { return (double)l->s->engine.preemptions; }
static double v_steps(const sample *l) { return (double)l->s->engine.steps; }
static double v_step_seconds(const sample *l) { return l->s->engine.step_seconds; }
static double v_computed(const sample *l) { return (double)l->s->engine.tokens_computed; }
static double v_drafted(const sample *l) { return (double)l->s->engine.drafted_tokens; }
static double v_accepted(const sample *l) { return (double)l->s->engine.accepted_tokens; }
static double v_throughput(const sample *l) { return l->m->tokens_per_second; }
static double v_requests(const sample *l) { return (double)(l->m->requests + l->s->cancelled); }
static double v_refused(const sample *l) { return (double)l->m->refused; }
/* Including requests cancelled by a command or a lost client, which have no last event. */
static uint64_t finished(const sample *l, size_t finish) {
    return l->m->finished[finish - 1] + (finish == IV_FINISH_CANCELLED ? l->s->cancelled : 0);
}
static double v_aborted(const sample *l) { return (double)finished(l, IV_FINISH_CANCELLED); }
static double v_log_dropped(const sample *l) { return (double)l->server.log_lines_dropped; }
static double v_connections(const sample *l) { return (double)l->server.connections; }
static double v_connections_refused(const sample *l) { return (double)l->server.connections_refused; }
static double v_connections_accepted(const sample *l) { return (double)l->server.connections_accepted; }
static double v_cut(const sample *l) { return (double)l->server.answers_cut; }
static double v_cpu(const sample *l) { return l->process.cpu_seconds; }
static double v_start(const sample *l) { return l->process.start_seconds; }
static double v_resident(const sample *l) { return (double)l->process.resident_bytes; }
static double v_virtual(const sample *l) { return (double)l->process.virtual_bytes; }
static double v_files(const sample *l) { return (double)l->process.open_files; }
static double v_files_max(const sample *l) { return (double)l->process.files_max; }
static double v_engine_cpu(const sample *l) { return l->engine.cpu_seconds; }
static double v_engine_start(const sample *l) { return l->engine.start_seconds; }
static double v_engine_resident(const sample *l) { return (double)l->engine.resident_bytes; }
static double v_engine_files(const sample *l) { return (double)l->engine.open_files; }
static double v_paused(const sample *l) { return l->s->paused; }
static double v_failed(const sample *l) { return l->s->failed; }
static double v_away(const sample *l) { return l->s->away; }
static double v_restarts(const sample *l) { return (double)l->s->restarts; }
static double v_continued(const sample *l) { return (double)l->s->continued; }
static double v_weight_version(const sample *l) { return (double)l->s->weight_version; }

typedef struct number {
    const char *names[3]; /* by dialect; NULL: absent */
    const char *help;
    double (*value)(const sample *l);
} number;

static const number gauges[] = {
    {{"invar_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs"},
     "Requests that run.",
     v_running},
    {{"invar_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs"},
     "Requests that wait.",
     v_waiting},
    {{"invar_kv_usage_ratio", "vllm:kv_cache_usage_perc", "sglang:token_usage"},
     "Part of the KV cache that requests hold, 0 to 1.",
     v_kv_usage},
    {{"invar_kv_pages", NULL, NULL}, "Pages of the KV cache, 64 tokens each.", v_kv_pages},
    {{"invar_kv_pages_held", NULL, NULL}, "Pages that requests hold.", v_kv_held},
    {{"invar_kv_pages_cached", NULL, NULL}, "Pages that only the prefix cache holds.", v_kv_cached},
    {{NULL, NULL, "sglang:num_used_tokens"}, "Tokens of the KV cache that requests hold.", v_kv_tokens_used},
    {{NULL, NULL, "sglang:max_total_num_tokens"}, "Tokens that the KV cache has room for.", v_kv_tokens},
    {{NULL, NULL, "sglang:cache_hit_rate"}, "Part of prompt tokens found in the prefix cache.", v_hit_rate},
    {{"invar_tokens_per_second", NULL, "sglang:gen_throughput"}, "Recently generated tokens per second.", v_throughput},
    {{"invar_connections", NULL, NULL}, "Open connections.", v_connections},
    {{"invar_paused", NULL, NULL}, "1 while no step is made.", v_paused},
    {{"invar_failed", NULL, NULL}, "1 when the engine is lost.", v_failed},
    {{"invar_engine_away", NULL, NULL}, "1 while the engine process is restarted.", v_away},
    {{"invar_weight_version", NULL, NULL}, "Updates of the weights so far.", v_weight_version},
};
static const number counters[] = {
    {{"invar_prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total"},
     "Tokens of prompts that were admitted.",
     v_prompt},
    {{"invar_generated_tokens_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total"},
     "Tokens generated.",
     v_generated},
    {{NULL, "vllm:prefix_cache_queries_total", NULL}, "Prompt tokens looked up in the prefix cache.", v_prompt},
    {{"invar_cached_tokens_total", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"},
     "Prompt tokens found in the prefix cache.",
     v_cached},
    {{"invar_preemptions_total", "vllm:num_preemptions_total", NULL},
     "Requests that lost their pages and were computed again.",
     v_preemptions},
    {{NULL, NULL, "sglang:num_requests_total"}, "Requests that ended.", v_requests},
    {{NULL, NULL, "sglang:num_aborted_requests_total"}, "Requests that were cancelled.", v_aborted},
    {{"invar_requests_refused_total", NULL, NULL}, "Requests answered with 429.", v_refused},
    {{"invar_connections_accepted_total", NULL, NULL}, "Connections so far.", v_connections_accepted},
    {{"invar_connections_refused_total", NULL, NULL}, "Connections that were too many.", v_connections_refused},
    {{"invar_answers_cut_total", NULL, NULL}, "Answers whose clients read nothing for too long.", v_cut},
    {{"invar_log_lines_dropped_total", NULL, NULL}, "Log lines that could not be written.", v_log_dropped},
    {{"invar_engine_restarts_total", NULL, NULL}, "Restarts of the engine process.", v_restarts},
    {{"invar_requests_continued_total", NULL, NULL},
     "Requests that a restarted engine process continued.",
     v_continued},
    {{"invar_steps_total", NULL, NULL}, "Steps of the engine.", v_steps},
    {{"invar_step_seconds_total", NULL, NULL}, "Seconds spent in steps.", v_step_seconds},
    {{"invar_computed_tokens_total", NULL, NULL}, "Tokens computed: prompts, answers, drafts.", v_computed},
    {{"invar_drafted_tokens_total", NULL, NULL}, "Tokens drafted by speculation.", v_drafted},
    {{"invar_accepted_tokens_total", NULL, NULL}, "Drafted tokens that were accepted.", v_accepted},
};

/* Without labels, as in other programs. */
static const struct {
    const char *name, *type, *help;
    double (*value)(const sample *l);
    bool engine; /* only where the engine has a process of its own */
} processes[] = {
    {"process_cpu_seconds_total", "counter", "User and system time of the server's process.", v_cpu, false},
    {"process_resident_memory_bytes", "gauge", "Resident memory of the server's process.", v_resident, false},
    {"process_virtual_memory_bytes", "gauge", "Virtual memory of the server's process.", v_virtual, false},
    {"process_open_fds", "gauge", "Open files of the server's process.", v_files, false},
    {"process_max_fds", "gauge", "Limit of open files.", v_files_max, false},
    {"process_start_time_seconds", "gauge", "Start of the server's process, since 1970.", v_start, false},
    {"invar_engine_cpu_seconds_total", "counter", "User and system time of the engine process.", v_engine_cpu, true},
    {"invar_engine_resident_memory_bytes", "gauge", "Resident memory of the engine process.", v_engine_resident, true},
    {"invar_engine_open_fds", "gauge", "Open files of the engine process.", v_engine_files, true},
    {"invar_engine_start_time_seconds", "gauge", "Start of the engine process, since 1970.", v_engine_start, true},
};

static const struct {
    const char *names[3];
    const char *help;
} timings[TIMINGS] = {
    [T_FIRST] = {{"invar_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
                  "sglang:time_to_first_token_seconds"},
                 "From a request's arrival to its first token."},
    [T_GAP] = {{"invar_inter_token_seconds", "vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds"},
               "Between two tokens of a request."},
    [T_TOTAL] = {{"invar_request_seconds", "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"},
                 "From a request's arrival to its end."},
    [T_QUEUE] = {{"invar_request_queue_seconds", "vllm:request_queue_time_seconds", NULL}, "Waiting to be admitted."},
    [T_PREFILL] = {{"invar_request_prefill_seconds", "vllm:request_prefill_time_seconds", NULL},
                   "From admission to the first token."},
    [T_DECODE] = {{"invar_request_decode_seconds", "vllm:request_decode_time_seconds", NULL},
                  "From the first token to the end."},
    [T_INFERENCE] = {{"invar_request_inference_seconds", "vllm:request_inference_time_seconds", NULL},
                     "From admission to the end."},
    [T_PROMPT_TOKENS] = {{"invar_request_prompt_tokens", "vllm:request_prompt_tokens", NULL}, "Tokens of a prompt."},
    [T_GENERATED_TOKENS] = {{"invar_request_generated_tokens", "vllm:request_generation_tokens", NULL},
                            "Tokens of an answer."},
    [T_LONGEST] = {{NULL, "vllm:request_max_num_generation_tokens", NULL}, "Tokens of the longest of n answers."},
};

/* ---- the page ----------------------------------------------------------------------------------------- */

typedef struct page {
    iv_buf *out;
    sample sample;
    iv_metrics_names dialect;
    char labels[NAME_BYTES_MAX + 64]; /* without braces */
    bool good;
} page;

#define PRINT(p, ...) ((p)->good = (p)->good && iv_buf_printf((p)->out, __VA_ARGS__))

static void head(page *p, const char *name, const char *help, const char *type) {
    PRINT(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void numbers(page *p, const number *list, size_t count, const char *type) {
    for (size_t i = 0; i < count; i++) {
        const char *name = list[i].names[p->dialect];
        if (!name) continue;
        head(p, name, list[i].help, type);
        PRINT(p, "%s{%s} %.15g\n", name, p->labels, list[i].value(&p->sample));
    }
}

static void print_histogram(page *p, const char *name, const char *help, const histogram *h) {
    uint64_t below = 0;
    head(p, name, help, "histogram");
    for (size_t i = 0; i < h->count; i++) {
        below += h->in[i];
        PRINT(p, "%s_bucket{%s,le=\"%.15g\"} %llu\n", name, p->labels, h->bounds[i], (unsigned long long)below);
    }
    below += h->in[h->count];
    PRINT(p, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, p->labels, (unsigned long long)below);
    PRINT(p, "%s_sum{%s} %.15g\n", name, p->labels, h->sum);
    PRINT(p, "%s_count{%s} %llu\n", name, p->labels, (unsigned long long)below);
}

static void print_steps(page *p) {
    static const char *const names[] = {"invar_step_tokens", "vllm:iteration_tokens_total", NULL};
    const iv_bridge_stats *s = p->sample.s;
    double bounds[IV_STEP_BUCKETS];
    histogram h = {.bounds = bounds, .count = IV_STEP_BUCKETS - 1, .sum = (double)s->engine.tokens_computed};
    _Static_assert(IV_STEP_BUCKETS <= BUCKETS_MAX + 1, "a histogram holds them");
    for (size_t i = 0; i < IV_STEP_BUCKETS; i++) bounds[i] = (double)((uint64_t)1 << i), h.in[i] = s->step_tokens[i];
    if (names[p->dialect]) print_histogram(p, names[p->dialect], "Tokens computed in a step.", &h);
}

static void print_finishes(page *p) {
    static const char *const names[] = {"invar_requests_total", "vllm:request_success_total", NULL};
    static const char *const own[FINISHES] = {"stop", "length", "cancelled", "error"}, *const theirs[FINISHES] = {
                                                                                           "stop", "length", "abort",
                                                                                           "error"};
    const char *name = names[p->dialect];
    if (!name) return;
    head(p, name, "Requests that ended, by how.", "counter");
    for (size_t i = 0; i < FINISHES; i++)
        PRINT(p, "%s{%s,%s=\"%s\"} %llu\n", name, p->labels,
              p->dialect == IV_METRICS_VLLM ? "finished_reason" : "finish",
              p->dialect == IV_METRICS_VLLM ? theirs[i] : own[i], (unsigned long long)finished(&p->sample, i + 1));
}

static void print_http(page *p) {
    const iv_metrics *m = p->sample.m;
    if (m->http_count == 0) return;
    head(p, "invar_http_requests_total", "HTTP requests that ended. 499: the client left before the answer.",
         "counter");
    for (size_t i = 0; i < m->http_count; i++) {
        const http_kind *h = &m->http[i];
        PRINT(p, "invar_http_requests_total{%s,method=\"%s\",route=\"%s\",status=\"%d\"} %llu\n", p->labels, h->method,
              h->route, h->status, (unsigned long long)h->count);
    }
}

static void print_stored(page *p) {
    const iv_metrics_server *s = &p->sample.server;
    if (!s->stores_responses) return;
    head(p, "invar_stored_responses", "Stored responses.", "gauge");
    PRINT(p, "invar_stored_responses{%s} %zu\n", p->labels, s->stored_responses);
    head(p, "invar_stored_response_bytes", "Bytes of stored responses.", "gauge");
    PRINT(p, "invar_stored_response_bytes{%s} %llu\n", p->labels, (unsigned long long)s->stored_bytes);
    head(p, "invar_responses_lost_total", "Responses that could not be stored.", "counter");
    PRINT(p, "invar_responses_lost_total{%s} %llu\n", p->labels, (unsigned long long)s->responses_lost);
}

static void print_loaded(page *p) {
    const iv_metrics_server *s = &p->sample.server;
    char name[NAME_BYTES_MAX];
    head(p, "invar_adapter_info", "Adapters that are loaded.", "gauge");
    for (size_t i = 0; i < s->adapter_count; i++) {
        escape(s->adapters[i].name, name);
        PRINT(p, "invar_adapter_info{%s,adapter=\"%s\",digest=\"%s\",rank=\"%zu\"} 1\n", p->labels, name,
              s->adapters[i].digest, s->adapters[i].rank);
    }
    head(p, "invar_adapter_requests_open", "Requests that wait or run, by adapter.", "gauge");
    for (size_t i = 0; i < s->adapter_count; i++) {
        escape(s->adapters[i].name, name);
        PRINT(p, "invar_adapter_requests_open{%s,adapter=\"%s\"} %zu\n", p->labels, name,
              s->adapters[i].running + s->adapters[i].waiting);
    }
}

static void print_adapters(page *p) {
    static const struct {
        const char *name, *help;
        size_t at;
    } counts[] = {
        {"invar_adapter_requests_total", "Requests that ended, by adapter.", offsetof(adapter_kind, requests)},
        {"invar_adapter_prompt_tokens_total", "Tokens of their prompts.", offsetof(adapter_kind, prompted)},
        {"invar_adapter_generated_tokens_total", "Tokens of their answers.", offsetof(adapter_kind, generated)}};
    const iv_metrics *m = p->sample.m;
    if (!p->sample.server.max_loras) return;
    print_loaded(p);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        head(p, counts[k].name, counts[k].help, "counter");
        for (size_t i = 0; i < m->adapter_count; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&m->adapters[i] + counts[k].at, sizeof value);
            PRINT(p, "%s{%s,adapter=\"%s\"} %llu\n", counts[k].name, p->labels, m->adapters[i].name,
                  (unsigned long long)value);
        }
    }
}

/* vLLM's: names in labels, and the time as the value. */
static void print_lora_info(page *p) {
    const iv_metrics_server *s = &p->sample.server;
    char name[NAME_BYTES_MAX];
    if (!s->max_loras) return;
    head(p, "vllm:lora_requests_info", "Adapters of requests that run and wait.", "gauge");
    PRINT(p, "vllm:lora_requests_info{max_lora=\"%zu\"", s->max_loras);
    for (int waiting = 0; waiting < 2; waiting++) {
        const char *comma = "";
        PRINT(p, ",%s_lora_adapters=\"", waiting ? "waiting" : "running");
        for (size_t i = 0; i < s->adapter_count; i++) {
            const iv_metrics_adapter *a = &s->adapters[i];
            if (!(waiting ? a->waiting : a->running)) continue;
            escape(a->name, name);
            PRINT(p, "%s%s", comma, name);
            comma = ",";
        }
        PRINT(p, "\"");
    }
    PRINT(p, "} %lld\n", (long long)time(NULL));
}

static void print_processes(page *p) {
    for (size_t i = 0; i < sizeof processes / sizeof *processes; i++) {
        if (processes[i].engine && p->sample.s->engine_pid <= 0) continue;
        head(p, processes[i].name, processes[i].help, processes[i].type);
        PRINT(p, "%s %.15g\n", processes[i].name, processes[i].value(&p->sample));
    }
}

/* Constant facts, as labels of a gauge of 1. */
static void print_facts(page *p) {
    const iv_engine_info *info = p->sample.info;
    const iv_bridge_stats *s = p->sample.s;
    if (p->dialect == IV_METRICS_OWN) {
        head(p, "invar_info", "The server: its fingerprint covers everything that may change a bit.", "gauge");
        PRINT(p, "invar_info{%s,version=\"%s\",fingerprint=\"%s\",dtype=\"%s\",arithmetic=\"%s\",device=\"%s\"} 1\n",
              p->labels, iv_version(), s->fingerprint, info->dtype, info->arithmetic, info->device);
    }
    if (p->dialect == IV_METRICS_VLLM) {
        head(p, "vllm:cache_config_info", "The KV cache.", "gauge");
        PRINT(p, "vllm:cache_config_info{%s,block_size=\"64\",num_gpu_blocks=\"%zu\"} 1\n", p->labels,
              s->engine.kv_pages);
        print_lora_info(p);
    }
}

static void print_dialect(page *p, iv_metrics_names dialect) {
    const iv_metrics *m = p->sample.m;
    p->dialect = dialect;
    snprintf(p->labels, sizeof p->labels, "model_name=\"%s\"%s", m->model,
             dialect == IV_METRICS_VLLM ? ",engine=\"0\"" : "");
    print_facts(p);
    numbers(p, gauges, sizeof gauges / sizeof *gauges, "gauge");
    numbers(p, counters, sizeof counters / sizeof *counters, "counter");
    print_finishes(p);
    for (size_t i = 0; i < TIMINGS; i++)
        if (timings[i].names[dialect]) print_histogram(p, timings[i].names[dialect], timings[i].help, &m->timings[i]);
    print_steps(p);
}

bool iv_metrics_write(const iv_metrics *m, const iv_bridge_stats *stats, const iv_engine_info *info, iv_buf *out) {
    page p = {.out = out, .sample = {.m = m, .s = stats, .info = info}, .good = true};
    if (m->count_server) m->count_server(m->server_user, &p.sample.server);
    p.sample.process = iv_process_stats_read(getpid());
    if (stats->engine_pid > 0) p.sample.engine = iv_process_stats_read(stats->engine_pid);
    print_processes(&p);
    print_dialect(&p, IV_METRICS_OWN);
    print_http(&p);
    print_stored(&p);
    print_adapters(&p);
    if (m->names != IV_METRICS_OWN) print_dialect(&p, m->names);
    free(p.sample.server.adapters);
    return p.good;
}
