/* bridge.c: each call goes to the bridge's own table. */
#include "serve/engine/bridge.h"
#include "serve/engine/calls.h"

iv_status iv_bridge_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err) {
    return o->process ? iv_remote_open(o, out, err) : iv_local_open(o, out, err);
}

void iv_bridge_close(iv_bridge *b) {
    if (b) b->calls->close(b);
}

iv_adapter_list *iv_bridge_adapters(iv_bridge *b) { return &b->adapters; }

int iv_bridge_fd(const iv_bridge *b) { return b->calls->fd(b); }
const iv_engine_info *iv_bridge_info(const iv_bridge *b) { return b->calls->info(b); }
const iv_text_model *iv_bridge_text_model(const iv_bridge *b) { return b->calls->text_model(b); }
void iv_bridge_request_init(iv_bridge *b, iv_request *request) { b->calls->request_init(b, request); }

iv_status iv_bridge_compile(iv_bridge *b, const iv_request *request, bool quick, iv_constraint **out, iv_error *err) {
    return b->calls->compile(b, request, quick, out, err);
}

iv_status iv_bridge_submit(iv_bridge *b, const iv_request *request, void *owner, uint64_t *id, iv_error *err) {
    return b->calls->submit(b, request, owner, id, err);
}

void iv_bridge_cancel(iv_bridge *b, uint64_t id) { b->calls->cancel(b, id); }
void iv_bridge_hold(iv_bridge *b, uint64_t id, bool hold) { b->calls->hold(b, id, hold); }

iv_status iv_bridge_command(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err) {
    return b->calls->command(b, command, text, owner, err);
}

void iv_bridge_limit_queue(iv_bridge *b, size_t queued_requests_max) { b->calls->limit_queue(b, queued_requests_max); }
bool iv_bridge_next(iv_bridge *b, iv_bridge_event *out) { return b->calls->next(b, out); }
void iv_bridge_get_stats(iv_bridge *b, iv_bridge_stats *stats) { b->calls->get_stats(b, stats); }
