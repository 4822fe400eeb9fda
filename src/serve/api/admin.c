/* admin.c: flush, pause, continue, update of weights, abort. All routes here need the admin key (routes.c).
 *
 * A command outlives its client: if the client leaves, the command is still carried out and its event is dropped. */
#include "serve/api/handlers.h"
#include "format/json.h"
#include "serve/api/reply.h"

#include <stdlib.h>
#include <string.h>

typedef struct iv_admin_command iv_admin_command;
struct iv_admin_command {
    iv_admin_command *next, **link; /* in server->commands */
    iv_http_request *http_request;  /* NULL: the client has left */
    iv_command command;
    char *weights; /* name of the new weights; NULL: their number */
};

static void free_command(iv_admin_command *a) {
    *a->link = a->next;
    if (a->next) a->next->link = a->link;
    free(a->weights), free(a);
}

static void left(void *user) { ((iv_admin_command *)user)->http_request = NULL; }

/* Conflicts are 409 here: an immediate retry would fail again. */
static void reply_command(iv_server *s, iv_http_request *q, iv_command command, iv_status status, const char *message) {
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "success", status == IV_OK);
    iv_out_kv_text(&o, "status", status == IV_OK ? "ok" : iv_status_name(status));
    iv_out_kv_text(&o, "message", message ? message : "");
    if (command == IV_COMMAND_UPDATE_WEIGHTS || command == IV_COMMAND_PAUSE || command == IV_COMMAND_CONTINUE) {
        char number[IV_WEIGHT_NUMBER_BYTES];
        iv_out_kv_text(&o, "weight_version", iv_weight_name(&s->weight_names, stats.weight_version, number));
        iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
        iv_out_kv_bool(&o, "paused", stats.paused);
    }
    iv_out_close(&o, '}');
    if (status != IV_OK) iv_http_request_add_header(q, "x-should-retry", "false");
    iv_api_reply_json(q, status == IV_OK ? 200 : status == IV_BUSY ? 409 : iv_api_http_status(status), &o);
}

/* weights: name of the loaded weights, or NULL. */
static void send_command(iv_server *s, iv_http_request *q, iv_command command, const char *text, const char *weights) {
    iv_error err = {0};
    iv_admin_command *a = calloc(1, sizeof *a);
    char *name = weights ? strdup(weights) : NULL;
    iv_status status = a && (name || !weights) ? IV_OK : iv_fail(&err, IV_NO_MEMORY, "command: no memory");
    if (status != IV_OK) {
        free(a), free(name);
        a = NULL;
    }
    if (a) {
        *a = (iv_admin_command){
            .next = s->commands, .link = &s->commands, .http_request = q, .command = command, .weights = name};
        if (a->next) a->next->link = &a->next;
        s->commands = a;
        status = iv_bridge_command(s->bridge, command, text, a, &err);
    }
    if (status != IV_OK) {
        if (a) free_command(a);
        reply_command(s, q, command, status, err.message);
        return;
    }
    iv_http_request_on_gone(q, left, a);
}

void iv_admin_take_event(iv_server *s, const iv_bridge_event *r) {
    iv_admin_command *a = r->owner;
    if (!a) return;
    if (r->status == IV_OK && a->weights) {
        iv_weight_names_add(&s->weight_names, r->weight_version, a->weights);
        a->weights = NULL;
    }
    if (a->http_request) reply_command(s, a->http_request, a->command, r->status, r->message);
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

void iv_handle_flush(void *user, iv_http_request *q) { send_command(user, q, IV_COMMAND_FLUSH, NULL, NULL); }

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
        send_command(s, q, IV_COMMAND_PAUSE, NULL, NULL);
    }
    json_decref(body);
}

void iv_handle_continue(void *user, iv_http_request *q) { send_command(user, q, IV_COMMAND_CONTINUE, NULL, NULL); }

void iv_handle_update_weights(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_api_params p;
    iv_error err = {0};
    json_t *body = NULL;
    if (!read_body(s, q, IV_API_WEIGHTS, &p, &body)) return;
    if (!p.weights) {
        iv_fail(&err, IV_INVALID, "model_path: wanted a model directory, found nothing");
        iv_api_reply_error(s, q, &err);
    } else {
        if (p.abort_all) iv_task_abort_named(s, NULL);
        send_command(s, q, IV_COMMAND_UPDATE_WEIGHTS, p.weights, p.weights_name);
    }
    json_decref(body);
    iv_api_params_free(&p);
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
