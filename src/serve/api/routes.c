/* routes.c: a stand-in: health and metrics alone. */
#include "serve/metrics.h"

static void health(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_bridge_get_stats(s->bridge, &stats);
    iv_exchange_reply(x, stats.failed ? 503 : 200, "application/json", "{}", 2);
}

static void metrics(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf page = {0};
    iv_bridge_get_stats(s->bridge, &stats);
    bool good = iv_metrics_write(s->metrics, &stats, iv_bridge_info(s->bridge), &page);
    iv_exchange_reply(x, good ? 200 : 500, "text/plain; version=0.0.4", page.data, page.len);
    iv_buf_free(&page);
}

const iv_http_route iv_server_routes[] = {{"GET", "/health", IV_HTTP_OPEN, health},
                                          {"GET", "/metrics", IV_HTTP_KEY, metrics}};
const size_t iv_server_route_count = sizeof iv_server_routes / sizeof *iv_server_routes;

void iv_server_take_report(iv_server *s, const iv_report *report) { (void)s, (void)report; }
