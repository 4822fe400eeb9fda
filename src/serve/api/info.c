/* info.c: routes about the server: models, health, version, metrics, settings, the page. None waits for the engine. */
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/page/page.h"
#include "serve/state/metrics.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* ---- models ------------------------------------------------------------------------------------------- */

static void out_model(const iv_server *s, const char *name, size_t bytes, iv_json_out *o) {
    const iv_engine_info *info = iv_bridge_info(s->bridge);
    iv_out_open(o, '{');
    iv_out_kv_string(o, "id", name, bytes);
    iv_out_kv_text(o, "object", "model");
    iv_out_kv_uint(o, "created", (uint64_t)time(NULL));
    iv_out_kv_text(o, "owned_by", "invar");
    iv_out_kv_text(o, "root", s->o->bridge.engine.model);
    iv_out_kv_null(o, "parent");
    iv_out_kv_uint(o, "max_model_len", info->max_model_len);
    iv_out_close(o, '}');
}

/* As vLLM lists one. */
static void out_adapter(const iv_server *s, const iv_served_adapter *a, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", a->name);
    iv_out_kv_text(o, "object", "model");
    iv_out_kv_uint(o, "created", (uint64_t)time(NULL));
    iv_out_kv_text(o, "owned_by", "invar");
    iv_out_kv_text(o, "root", a->path);
    iv_out_kv_text(o, "parent", s->model_name);
    iv_out_kv_uint(o, "max_model_len", iv_bridge_info(s->bridge)->max_model_len);
    iv_out_kv_text(o, "digest", a->digest);
    iv_out_kv_uint(o, "rank", a->rank);
    iv_out_close(o, '}');
}

void iv_handle_models(void *user, iv_http_request *q) {
    static const char prefix[] = "/v1/models/";
    iv_server *s = user;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_error err = {0};
    const char *path = iv_http_request_path(q), *name, *adapter;
    iv_adapter_list *list = iv_bridge_adapters(s->bridge);
    iv_served_adapter a;
    size_t at = 0, bytes;
    if (strncmp(path, prefix, strlen(prefix)) == 0 && path[strlen(prefix)]) {
        name = path + strlen(prefix);
        if (iv_api_find_model(s, name, &adapter, &err) != IV_OK) {
            iv_api_reply_error(s, q, &err);
            return;
        }
        if (adapter && iv_adapter_list_find(list, adapter, &a))
            out_adapter(s, &a, &o);
        else
            out_model(s, name, strlen(name), &o);
    } else {
        iv_out_open(&o, '{');
        iv_out_kv_text(&o, "object", "list");
        iv_out_key(&o, "data"), iv_out_open(&o, '[');
        while ((name = iv_server_next_name(s, &at, &bytes)) != NULL) out_model(s, name, bytes, &o);
        for (size_t i = 0; iv_adapter_list_at(list, i, &a); i++) out_adapter(s, &a, &o);
        iv_out_close(&o, ']'), iv_out_close(&o, '}');
    }
    iv_api_reply_json(q, 200, &o);
}

/* ---- health, version, metrics ------------------------------------------------------------------------- */

void iv_handle_health(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    bool ready = !stats.failed && !stats.away && !stats.loading && !s->draining;
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "status",
                   stats.failed     ? "failed"
                   : stats.released ? "released"
                   : stats.away     ? "degraded"
                   : stats.loading  ? "loading"
                   : s->draining    ? "draining"
                                    : "ok");
    if (stats.failed) iv_out_kv_text(&o, "why", stats.why);
    iv_out_close(&o, '}');
    if (!ready) iv_http_request_add_header(q, "Retry-After", "1");
    iv_api_reply_json(q, ready ? 200 : 503, &o);
}

void iv_handle_version(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "version", iv_version());
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

void iv_handle_metrics(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_error err = {0};
    iv_bridge_get_stats(s->bridge, &stats);
    if (iv_metrics_write(s->metrics, &stats, iv_bridge_info(s->bridge), &out)) {
        iv_http_request_reply(q, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    } else {
        iv_fail(&err, IV_NO_MEMORY, "metrics: no memory");
        iv_api_reply_error(s, q, &err);
    }
    iv_buf_free(&out);
}

/* ---- settings ----------------------------------------------------------------------------------------- */

static void out_version(const iv_server *s, const iv_bridge_stats *stats, iv_json_out *o) {
    char number[IV_WEIGHT_NUMBER_BYTES];
    iv_out_kv_text(o, "weight_version", iv_weight_name(&s->weight_names, stats->weight_version, number));
}

void iv_handle_model_info(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "model_path", s->o->bridge.engine.model);
    iv_out_kv_text(&o, "tokenizer_path", s->o->bridge.engine.model);
    iv_out_kv_bool(&o, "is_generation", true);
    iv_out_kv_text(&o, "model_type", iv_bridge_info(s->bridge)->model_type);
    out_version(s, &stats, &o);
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

static void out_identity(const iv_engine_info *i, iv_json_out *o) {
    iv_out_kv_text(o, "numerics", i->numerics);
    iv_out_kv_uint(o, "numerics_version", (uint64_t)i->numerics_version);
    iv_out_kv_text(o, "arithmetic", i->arithmetic);
    iv_out_kv_text(o, "dtype", i->dtype);
    iv_out_kv_text(o, "device", i->device);
    iv_out_kv_text(o, "gpu", i->gpu);
    iv_out_kv_text(o, "rank_transport", i->rank_transport);
    iv_out_kv_text(o, "isa", i->isa);
    iv_out_kv_text(o, "model_type", i->model_type);
    iv_out_kv_text(o, "configuration_digest", i->configuration_digest);
    iv_out_kv_text(o, "tokenizer_digest", i->tokenizer_digest);
    iv_out_kv_text(o, "template_digest", i->template_digest);
    iv_out_kv_uint(o, "threads", i->threads);
    iv_out_kv_uint(o, "tp_size", i->tensor_parallel_size);
    iv_out_kv_uint(o, "vocab_size", i->vocab_size);
    iv_out_kv_uint(o, "max_model_len", i->max_model_len);
    iv_out_kv_uint(o, "context_length", i->max_model_len);
    iv_out_kv_uint(o, "max_running_requests", i->max_num_seqs);
    iv_out_kv_uint(o, "max_num_batched_tokens", i->max_num_batched_tokens);
    iv_out_kv_uint(o, "max_total_num_tokens", i->kv_tokens);
    iv_out_kv_uint(o, "weight_bytes", i->weight_bytes);
}

static void out_peers(const char *peers, iv_json_out *o) {
    const char *origin;
    iv_out_key(o, "proof_urls"), iv_out_open(o, '[');
    for (size_t n; (n = iv_page_next_peer(&peers, &origin)) != 0;) iv_out_string(o, origin, n);
    iv_out_close(o, ']');
}

void iv_handle_server_info(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    const iv_engine_options *e = &s->o->bridge.engine;
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "version", iv_version());
    iv_out_kv_text(&o, "model_path", e->model);
    iv_out_kv_text(&o, "served_model_name", s->model_name);
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    out_version(s, &stats, &o);
    out_identity(iv_bridge_info(s->bridge), &o);
    iv_out_kv_bool(&o, "disable_radix_cache", !e->prefix_caching);
    iv_out_kv_text(&o, "speculative", e->speculative ? e->speculative : "off");
    iv_out_kv_bool(&o, "enable_deterministic_inference", strcmp(iv_bridge_info(s->bridge)->numerics, "invar") == 0);
    iv_out_kv_null(&o, "random_seed"); /* requests without a seed get a random one, which is returned */
    /* slime compares these with the flags that it would have started the server with. */
    iv_out_kv_bool(&o, "enable_memory_saver", false);
    iv_out_kv_bool(&o, "enable_return_routed_experts", true);
    iv_out_kv_bool(&o, "admin", s->o->http.admin_key || s->o->http.admin_key_file);
    out_peers(s->o->proof_urls, &o);
    iv_out_kv_bool(&o, "paused", stats.paused);
    iv_out_kv_uint(&o, "running", stats.engine.running);
    iv_out_kv_uint(&o, "waiting", stats.engine.waiting + stats.queued);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

void iv_handle_weight_version(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    out_version(s, &stats, &o);
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

/* ---- load --------------------------------------------------------------------------------------------- */

static double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

/* The members that SGLang's routers and schedulers read. */
static void out_load(const iv_server *s, const iv_bridge_stats *stats, iv_json_out *o) {
    const iv_engine_stats *e = &stats->engine;
    const iv_engine_info *i = iv_bridge_info(s->bridge);
    size_t waiting = e->waiting + stats->queued, used = e->kv_pages - e->kv_pages_free - e->kv_pages_cached;
    double usage = share_of((double)used, (double)e->kv_pages);
    iv_out_open(o, '{');
    iv_out_kv_uint(o, "dp_rank", 0);
    iv_out_kv_double(o, "timestamp", (double)time(NULL));
    iv_out_kv_uint(o, "num_running_reqs", e->running);
    iv_out_kv_uint(o, "num_waiting_reqs", waiting);
    iv_out_kv_uint(o, "num_total_reqs", e->running + waiting);
    iv_out_kv_uint(o, "num_used_tokens", used * (i->kv_tokens / (e->kv_pages ? e->kv_pages : 1)));
    iv_out_kv_uint(o, "max_total_num_tokens", i->kv_tokens);
    iv_out_kv_double(o, "token_usage", usage);
    iv_out_kv_double(o, "gen_throughput", share_of((double)e->tokens_generated, e->step_seconds));
    iv_out_kv_double(o, "cache_hit_rate", share_of((double)e->cached_tokens, (double)e->prompt_tokens));
    iv_out_kv_double(o, "utilization", share_of((double)e->running, (double)i->max_num_seqs));
    iv_out_kv_uint(o, "max_running_requests", i->max_num_seqs);
    iv_out_close(o, '}');
}

void iv_handle_loads(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    const iv_engine_info *i = iv_bridge_info(s->bridge);
    char now[32];
    struct tm utc;
    time_t seconds = time(NULL);
    iv_bridge_get_stats(s->bridge, &stats);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%S+00:00", gmtime_r(&seconds, &utc));
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "timestamp", now);
    iv_out_kv_text(&o, "version", iv_version());
    iv_out_kv_text(&o, "accelerator", *i->gpu ? i->gpu : NULL);
    iv_out_kv_uint(&o, "num_accelerators", *i->gpu ? i->tensor_parallel_size : 0);
    iv_out_kv_uint(&o, "dp_rank_count", 1);
    iv_out_key(&o, "loads"), iv_out_open(&o, '[');
    out_load(s, &stats, &o);
    iv_out_close(&o, ']'), iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

/* ---- the page ----------------------------------------------------------------------------------------- */

void iv_page_handle(void *user, iv_http_request *q) {
    char policy[IV_PAGE_POLICY_MAX];
    iv_error err;
    const iv_server *s = user;
    if (iv_page_policy(s->o->proof_urls, policy, &err) != IV_OK) {
        iv_http_request_reply(q, 500, "text/plain", err.message, strlen(err.message));
        return;
    }
    iv_http_request_add_header(q, "Content-Security-Policy", policy);
    iv_http_request_add_header(q, "X-Content-Type-Options", "nosniff");
    iv_http_request_add_header(q, "Referrer-Policy", "no-referrer");
    iv_http_request_add_header(q, "Cache-Control", "no-cache"); /* another version of the program has another page */
    iv_http_request_reply(q, 200, "text/html; charset=utf-8", iv_page, iv_page_bytes);
}
