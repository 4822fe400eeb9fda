/* stored_responses.c: responses that are kept: what a request continues (previous_response_id), what is kept of it, and
 * the routes that read and remove one.
 *
 * Kept are two lines of JSON: the whole conversation up to the answer, a list of items; and the response, byte for
 * byte. So each of a chain can be read, and continued, without the earlier ones. */
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/state/response_store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { RANDOM_BYTES = 16 };

#define ROUTE "/v1/responses/"

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "input: no memory"); }

/* ---- a request ---------------------------------------------------------------------------------------- */

/* The text of a stored response; *response: where its second line begins. */
static iv_status load(iv_response_store *s, const char *id, iv_buf *text, size_t *response, iv_error *err) {
    IV_TRY(iv_response_store_get(s, id, text, err));
    const char *end = memchr(text->data, '\n', text->len);
    if (!end) return iv_fail(err, IV_FORMAT, "the stored response \"%.100s\" is damaged", id);
    *response = (size_t)(end - text->data) + 1;
    return IV_OK;
}

/* Appends the items of a stored response: its input and its output. */
static iv_status add_items(const iv_buf *text, size_t response, json_t *items, iv_error *err) {
    json_t *input = json_loadb(text->data, response - 1, JSON_ALLOW_NUL, NULL);
    json_t *answer = json_loadb(text->data + response, text->len - response, JSON_ALLOW_NUL, NULL);
    json_t *output = json_object_get(answer, "output");
    iv_status status = IV_OK;
    if (!json_is_array(input) || !json_is_array(output))
        status = iv_fail(err, IV_FORMAT, "the stored response is damaged");
    else if (json_array_extend(items, input) != 0 || json_array_extend(items, output) != 0)
        status = no_memory(err);
    json_decref(input), json_decref(answer);
    return status;
}

/* Appends the conversation of the previous response and its output. */
static iv_status add_previous(const iv_task *t, json_t *items, iv_error *err) {
    iv_error why;
    const char *id = t->params.previous_id;
    if (!t->server->responses)
        return iv_fail(err, IV_UNSUPPORTED,
                       "previous_response_id: wanted null: this server keeps no responses (--response-dir)");
    iv_buf text = {0};
    size_t response = 0;
    iv_status status = load(t->server->responses, id, &text, &response, &why);
    if (status == IV_OK) status = add_items(&text, response, items, &why);
    iv_buf_free(&text);
    return status == IV_OK ? IV_OK : iv_fail(err, IV_INVALID, "previous_response_id: %.300s", why.message);
}

/* Appends the request's own input; its errors name its own positions. */
static iv_status add_input(const iv_task *t, json_t *items, iv_error *err) {
    json_t *input = t->params.prompt, *checked = json_array();
    iv_status status = checked ? iv_responses_messages(input, NULL, checked, NULL, err) : no_memory(err);
    json_decref(checked);
    if (status != IV_OK) return status;
    if (json_is_array(input)) return json_array_extend(items, input) == 0 ? IV_OK : no_memory(err);
    json_t *item = json_pack("{ss, ss, sO}", "type", "message", "role", "user", "content", input);
    return json_array_append_new(items, item) == 0 ? IV_OK : no_memory(err);
}

/* Not guessable, unlike an id that a client has chosen for its request. */
static iv_status draw_id(iv_task *t, iv_error *err) {
    uint8_t bytes[RANDOM_BYTES];
    char id[8 + 2 * RANDOM_BYTES] = "resp_";
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return iv_fail(err, IV_IO, "response: the system gives no random bytes");
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(id + 5 + 2 * i, 3, "%02x", bytes[i]);
    char *copy = strdup(id);
    if (!copy) return no_memory(err);
    free(t->id), t->id = copy;
    return IV_OK;
}

static iv_status keep_input(iv_task *t, const json_t *items, iv_error *err) {
    t->stored_input = json_dumps(items, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!t->stored_input) return no_memory(err);
    if (strlen(t->stored_input) > IV_STORED_BYTES_MAX / 2)
        return iv_fail(err, IV_LIMIT, "input: a conversation of more than %d bytes cannot be stored (\"store\": false)",
                       IV_STORED_BYTES_MAX / 2);
    return draw_id(t, err);
}

iv_status iv_responses_continue(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    bool store = t->server->responses && !p->no_store;
    if (!p->previous_id && !store) return IV_OK;
    json_t *items = json_array();
    iv_status status = items ? IV_OK : no_memory(err);
    if (status == IV_OK && p->previous_id) status = add_previous(t, items, err);
    if (status == IV_OK) status = add_input(t, items, err);
    if (status == IV_OK && store) status = keep_input(t, items, err);
    if (status == IV_OK && p->previous_id) {
        if (json_object_set(t->body, "input", items) != 0)
            status = no_memory(err);
        else
            p->prompt = items; /* of the body */
    }
    json_decref(items);
    return status;
}

void iv_responses_keep(const iv_task *t, void (*write)(const iv_task *t, iv_json_out *o)) {
    iv_buf text = {0};
    iv_json_out o = {.buf = &text};
    if (!t->stored_input) return;
    o.failed = !iv_buf_printf(&text, "%s\n", t->stored_input);
    write(t, &o);
    if (o.failed) iv_buf_clear(&text); /* counted as lost */
    iv_response_store_put(t->server->responses, t->id, &text);
}

/* ---- the routes --------------------------------------------------------------------------------------- */

static const char *id_of(const iv_http_request *q) { return iv_http_request_path(q) + sizeof ROUTE - 1; }

static void refuse(iv_server *s, iv_http_request *q, iv_error *why) {
    iv_error err;
    if (!s->responses)
        iv_fail(&err, IV_NOT_FOUND, "this server keeps no responses: it was started without --response-dir");
    else
        err = *why;
    iv_api_reply_error(s, q, &err);
}

void iv_handle_stored_response(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    iv_buf text = {0};
    size_t response = 0;
    const char *stream = iv_http_request_query(q, "stream");
    if (stream && strcmp(stream, "true") == 0) {
        iv_fail(&err, IV_INVALID, "stream: wanted false: a stored response is read as a whole");
        iv_api_reply_error(s, q, &err);
    } else if (!s->responses || load(s->responses, id_of(q), &text, &response, &err) != IV_OK) {
        refuse(s, q, &err);
    } else {
        iv_http_request_reply(q, 200, "application/json", text.data + response, text.len - response);
    }
    iv_buf_free(&text);
}

void iv_handle_remove_response(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    if (!s->responses || iv_response_store_remove(s->responses, id_of(q), &err) != IV_OK) {
        refuse(s, q, &err);
        return;
    }
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "id", id_of(q)), iv_out_kv_text(&o, "object", "response"), iv_out_kv_bool(&o, "deleted", true);
    iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}
