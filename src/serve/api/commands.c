/* commands.c: commands to the engine, for the routes of admin.c, control.c and updates.c, and their answers.
 *
 * A command outlives its client: if the client leaves, the command is still carried out and its event is dropped. */
#include "serve/api/handlers.h"
#include "serve/api/reply.h"

#include <stdlib.h>

typedef struct iv_admin_command iv_admin_command;
struct iv_admin_command {
    iv_admin_command *next, **link; /* in server->commands */
    iv_http_request *http_request;  /* NULL: the client has left, or `done` knows it */
    iv_command command;
    iv_admin_done *done; /* NULL: the request is answered here */
    void *user;
};

static void free_command(iv_admin_command *a) {
    *a->link = a->next;
    if (a->next) a->next->link = a->link;
    free(a);
}

static void left(void *user) { ((iv_admin_command *)user)->http_request = NULL; }

void iv_admin_reply(iv_server *s, iv_http_request *q, iv_status status, const char *message, size_t missing) {
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    char number[IV_WEIGHT_NUMBER_BYTES];
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "success", status == IV_OK);
    iv_out_kv_text(&o, "status", status == IV_OK ? "ok" : iv_status_name(status));
    iv_out_kv_text(&o, "message", message ? message : "");
    iv_out_kv_text(&o, "weight_version", iv_weight_name(&s->weight_names, stats.weight_version, number));
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    iv_out_kv_bool(&o, "paused", stats.paused);
    if (missing) iv_out_kv_uint(&o, "missing", missing);
    iv_out_close(&o, '}');
    if (status != IV_OK) iv_http_request_add_header(q, "x-should-retry", "false");
    iv_api_reply_json(q, status == IV_OK ? 200 : status == IV_BUSY ? 409 : iv_api_http_status(status), &o);
}

iv_status iv_admin_ask(iv_server *s, iv_http_request *q, iv_command command, const char *text, iv_admin_done *done,
                       void *user, iv_error *err) {
    iv_admin_command *a = calloc(1, sizeof *a);
    if (!a) return iv_fail(err, IV_NO_MEMORY, "command: no memory");
    *a = (iv_admin_command){
        .next = s->commands, .link = &s->commands, .http_request = q, .command = command, .done = done, .user = user};
    if (a->next) a->next->link = &a->next;
    s->commands = a;
    iv_status status = iv_bridge_command(s->bridge, command, text, a, err);
    if (status != IV_OK)
        free_command(a);
    else if (q)
        iv_http_request_on_gone(q, left, a);
    return status;
}

iv_status iv_admin_send(iv_server *s, iv_command command, const char *text, iv_admin_done *done, void *user,
                        iv_error *err) {
    return iv_admin_ask(s, NULL, command, text, done, user, err);
}

void iv_admin_take_event(iv_server *s, const iv_bridge_event *r) {
    iv_admin_command *a = r->owner;
    if (!a) return;
    if (a->done)
        a->done(s, a->user, r);
    else if (a->http_request)
        iv_admin_reply(s, a->http_request, r->status, r->message, 0);
    free_command(a);
}

void iv_admin_close(iv_server *s) {
    while (s->commands) free_command(s->commands);
    iv_weight_names_free(&s->weight_names);
}
