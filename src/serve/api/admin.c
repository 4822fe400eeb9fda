/* admin.c: flush, pause, continue and abort. All routes here need the admin key (routes.c). */
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/api/updates.h"

#include <stdlib.h>
#include <string.h>

/* A command whose result is the answer. */
static void answer_command(iv_server *s, iv_http_request *q, iv_command command) {
    iv_error err = {0};
    iv_status status = iv_admin_ask(s, q, command, NULL, NULL, NULL, &err);
    if (status != IV_OK) iv_admin_reply(s, q, status, err.message, 0);
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

/* mode: what happens to running requests: they are kept, or aborted first. SGLang's route aborts unless asked
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
