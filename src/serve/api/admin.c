/* admin.c: flush, pause, continue, abort, and commands to the engine for control.c and updates.c. All routes here need
 * the admin key (routes.c).
 *
 * A command outlives its client: if the client leaves, the command is still carried out and its event is dropped. */
#include "serve/api/handlers.h"
#include "format/json.h"
#include "serve/api/reply.h"
#include "serve/api/updates.h"

#include <stdlib.h>
#include <string.h>

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

static iv_status send_command(iv_server *s, iv_http_request *q, iv_command command, const char *text,
                              iv_admin_done *done, void *user, iv_error *err) {
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
    return send_command(s, NULL, command, text, done, user, err);
}

/* A command whose result is the answer. */
static void answer_command(iv_server *s, iv_http_request *q, iv_command command) {
    iv_error err = {0};
    iv_status status = send_command(s, q, command, NULL, NULL, NULL, &err);
    if (status != IV_OK) iv_admin_reply(s, q, status, err.message, 0);
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

/* Reads a body that may be empty; errors are answered here. */
static bool read_body(iv_server *s, iv_http_request *q, unsigned body, iv_api_params *p, json_t **json) {
    iv_error err = {0};
    iv_request none = {0};
    iv_api_params_init(p, &none);
    size_t bytes;
    iv_http_request_body(q, &bytes);
    s->freed_bytes += bytes;
    iv_status status = iv_api_body(q, body, json, &err);
    if (status == IV_OK && body) status = iv_api_params_read(p, body, "", *json, &err);
    if (status == IV_OK) return true;
    json_decref(*json);
    iv_api_params_free(p);
    iv_api_reply_error(s, q, &err);
    return false;
}

/* ---- routes ------------------------------------------------------------------------------------------- */

void iv_handle_flush(void *user, iv_http_request *q) { answer_command(user, q, IV_COMMAND_FLUSH); }

/* mode: what happens to running requests: they are kept, or aborted first. SGLang's route aborts unless told
 * otherwise; its "retract" keeps the requests and frees their pages, which never changes their bits: as "keep". */
void iv_handle_pause(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    json_t *body = NULL;
    if (iv_api_body(q, 0, &body, &err) != IV_OK) {
        iv_api_reply_error(s, q, &err);
        return;
    }
    const char *mode = json_string_value(json_object_get(body, "mode"));
    if (!mode) mode = iv_http_request_query(q, "mode");
    if (!mode) mode = strcmp(iv_http_request_path(q), "/pause_generation") == 0 ? "abort" : "keep";
    bool abort = strcmp(mode, "abort") == 0;
    bool known = abort || strcmp(mode, "keep") == 0 || strcmp(mode, "in_place") == 0 || strcmp(mode, "retract") == 0;
    if (!known) {
        iv_fail(&err, IV_UNSUPPORTED, "mode: wanted \"keep\", \"in_place\", \"retract\" or \"abort\", found \"%.40s\"",
                mode);
        iv_api_reply_error(s, q, &err);
    } else {
        if (abort) iv_task_abort_named(s, NULL);
        answer_command(s, q, IV_COMMAND_PAUSE);
    }
    json_decref(body);
}

/* Generation does not go on with weights of which a part has arrived. */
void iv_handle_continue(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    iv_status status = s->updates ? iv_updates_check_whole(s->updates, &err) : IV_OK;
    if (status == IV_OK)
        answer_command(s, q, IV_COMMAND_CONTINUE);
    else
        iv_admin_reply(s, q, status, err.message, 0);
}

void iv_handle_abort(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_api_params p;
    json_t *body = NULL;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    size_t count = 0;
    if (!read_body(s, q, IV_API_ABORT, &p, &body)) return;
    if (p.abort_all) {
        count = iv_task_abort_named(s, NULL);
    } else if (json_is_string(p.rid)) {
        count = iv_task_abort_named(s, json_string_value(p.rid));
    } else {
        for (size_t i = 0; i < json_array_size(p.rid); i++)
            if (json_is_string(json_array_get(p.rid, i)))
                count += iv_task_abort_named(s, json_string_value(json_array_get(p.rid, i)));
    }
    json_decref(body);
    iv_api_params_free(&p);
    iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "success", true);
    iv_out_kv_uint(&o, "aborted", count);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}
