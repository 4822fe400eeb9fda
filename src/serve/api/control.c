/* control.c: memory, checks of the weights, and profiles, as SGLang's routes of the same names. */
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/api/updates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A request that waits for its command. */
typedef struct waiting {
    iv_http_request *http_request; /* NULL: the client has left */
    char action[16];               /* of /weights_checker */
} waiting;

void iv_control_close(iv_server *s) {
    free(s->weights_snapshot);
    s->weights_snapshot = NULL;
}

static void left(void *user) { ((waiting *)user)->http_request = NULL; }

static void reply_error(iv_server *s, iv_http_request *q, const iv_error *err) {
    iv_admin_reply(s, q, err->status, err->message, 0);
}

/* action: of /weights_checker, else "". */
static void send(iv_server *s, iv_http_request *q, iv_command command, const char *text, const char *action,
                 iv_admin_done *done) {
    iv_error err = {0};
    waiting *w = calloc(1, sizeof *w);
    iv_status status = w ? IV_OK : iv_fail(&err, IV_NO_MEMORY, "command: no memory");
    if (w) snprintf(w->action, sizeof w->action, "%s", action), w->http_request = q;
    if (status == IV_OK) status = iv_admin_send(s, command, text, done, w, &err);
    if (status == IV_OK) {
        iv_http_request_on_gone(q, left, w);
        return;
    }
    free(w);
    reply_error(s, q, &err);
}

/* The answer is the command's result. */
static void answered(iv_server *s, void *user, const iv_bridge_event *r) {
    waiting *w = user;
    if (w->http_request) iv_admin_reply(s, w->http_request, r->status, r->message, 0);
    free(w);
}

/* False: an error was answered. */
static bool read_body(iv_server *s, iv_http_request *q, json_t **body) {
    iv_error err = {0};
    *body = NULL;
    if (iv_api_body(q, 0, body, &err) == IV_OK) return true;
    reply_error(s, q, &err);
    return false;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* {"tags": ["weights", "kv_cache"]}, in words; none: all. */
static iv_status read_tags(const json_t *body, iv_buf *out, iv_error *err) {
    const json_t *tags = json_object_get(body, "tags");
    if (tags && !json_is_null(tags) && !json_is_array(tags))
        return iv_fail(err, IV_INVALID, "tags: wanted a list, found %s", iv_json_type_name(tags));
    bool ok = iv_buf_puts(out, "");
    for (size_t i = 0; i < json_array_size(tags) && ok; i++) {
        const char *tag = json_string_value(json_array_get(tags, i));
        if (!tag || !*tag || strchr(tag, ' '))
            return iv_fail(err, IV_INVALID, "tags[%zu]: wanted \"weights\" or \"kv_cache\"", i);
        ok = iv_buf_printf(out, "%s%s", i ? " " : "", tag);
    }
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "tags: no memory");
}

/* With the weights of the last update the engine did not open: the earlier are used again. */
static void resumed(iv_server *s, void *user, const iv_bridge_event *r) {
    if (r->status == IV_INVALID && s->updates) iv_updates_revert(s->updates);
    answered(s, user, r);
}

static void handle_memory(iv_server *s, iv_http_request *q, iv_command command, iv_admin_done *done) {
    iv_error err = {0};
    iv_buf tags = {0};
    json_t *body;
    if (!read_body(s, q, &body)) return;
    if (read_tags(body, &tags, &err) == IV_OK)
        send(s, q, command, tags.data, "", done);
    else
        reply_error(s, q, &err);
    json_decref(body);
    iv_buf_free(&tags);
}

void iv_handle_release(void *user, iv_http_request *q) { handle_memory(user, q, IV_COMMAND_RELEASE, answered); }
void iv_handle_resume(void *user, iv_http_request *q) { handle_memory(user, q, IV_COMMAND_RESUME, resumed); }

/* ---- checks of the weights ---------------------------------------------------------------------------- */

/* The first tensors that differ, in words. */
static size_t list_differences(const json_t *before, const json_t *now, char *out, size_t capacity) {
    const char *name;
    json_t *v;
    size_t count = 0, n = 0;
    json_object_foreach((json_t *)(uintptr_t)now, name, v) {
        const char *old = json_string_value(json_object_get(before, name));
        if (old && strcmp(old, json_string_value(v)) == 0) continue;
        if (count++ < 3 && n < capacity) n += (size_t)snprintf(out + n, capacity - n, "%s%.200s", n ? ", " : "", name);
    }
    return count;
}

static void compare(iv_server *s, iv_http_request *q, const char *now_text) {
    char names[700] = "", message[900];
    iv_error err = {0};
    json_t *before = NULL, *now = NULL;
    if (!s->weights_snapshot) {
        iv_admin_reply(s, q, IV_INVALID, "action: there is no snapshot to compare with", 0);
        return;
    }
    iv_status status = iv_json_parse("snapshot", s->weights_snapshot, strlen(s->weights_snapshot), &before, &err);
    if (status == IV_OK) status = iv_json_parse("weights", now_text, strlen(now_text), &now, &err);
    if (status == IV_OK) {
        size_t n = list_differences(before, now, names, sizeof names);
        if (n)
            snprintf(message, sizeof message, "%zu of %zu tensors differ from the snapshot: %s%s", n,
                     json_object_size(now), names, n > 3 ? ", ..." : "");
        else
            snprintf(message, sizeof message, "all %zu tensors equal those of the snapshot", json_object_size(now));
        iv_admin_reply(s, q, n ? IV_INVALID : IV_OK, message, 0);
    } else {
        reply_error(s, q, &err);
    }
    json_decref(before), json_decref(now);
}

/* SGLang's form: one entry for each rank. Here all ranks hold the tensors together. */
static void reply_checksums(iv_http_request *q, const char *digest, const char *json) {
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "success", true);
    iv_out_kv_text(&o, "message", "Success");
    iv_out_kv_text(&o, "per_engine_checksum", digest);
    iv_out_kv_open(&o, "ranks", '['), iv_out_open(&o, '{');
    iv_out_key(&o, "checksums"), iv_out_raw(&o, json, strlen(json));
    iv_out_kv_text(&o, "per_gpu_checksum", digest);
    iv_out_close(&o, '}'), iv_out_close(&o, ']'), iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}

/* The result: the digest of all, a space, and the tensors'. */
static void checked(iv_server *s, void *user, const iv_bridge_event *r) {
    waiting *w = user;
    iv_http_request *q = w->http_request;
    const char *json = r->status == IV_OK ? strchr(r->message, ' ') : NULL;
    bool snapshot = json && strcmp(w->action, "snapshot") == 0;
    if (snapshot) {
        free(s->weights_snapshot);
        s->weights_snapshot = strdup(json + 1);
    }
    if (q && !json)
        iv_admin_reply(s, q, r->status, r->message, 0);
    else if (q && snapshot)
        iv_admin_reply(s, q, s->weights_snapshot ? IV_OK : IV_NO_MEMORY,
                       s->weights_snapshot ? "" : "snapshot: no memory", 0);
    else if (q && strcmp(w->action, "compare") == 0)
        compare(s, q, json + 1);
    else if (q) {
        char digest[65];
        snprintf(digest, sizeof digest, "%.*s", (int)(json - r->message), r->message);
        reply_checksums(q, digest, json + 1);
    }
    free(w);
}

void iv_handle_weights_checker(void *user, iv_http_request *q) {
    iv_server *s = user;
    json_t *body;
    if (!read_body(s, q, &body)) return;
    const json_t *v = json_object_get(body, "action");
    const char *action = v && !json_is_null(v) ? json_string_value(v) : "checksum";
    bool known = action &&
                 (strcmp(action, "checksum") == 0 || strcmp(action, "snapshot") == 0 || strcmp(action, "compare") == 0);
    if (action && strcmp(action, "reset_tensors") == 0)
        iv_handle_reset_weights(s, q);
    else if (known)
        send(s, q, IV_COMMAND_CHECK_WEIGHTS, NULL, action, checked);
    else
        iv_admin_reply(
            s, q, IV_INVALID,
            "action: wanted \"checksum\", \"snapshot\", \"compare\" or \"reset_tensors\", found something else", 0);
    json_decref(body);
}

/* ---- profiles ----------------------------------------------------------------------------------------- */

/* The directory's default is SGLang's. Fields about torch's profiler have no meaning here. */
void iv_handle_start_profile(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    json_t *body;
    if (!read_body(s, q, &body)) return;
    const char *set = getenv("SGLANG_TORCH_PROFILER_DIR");
    json_t *dir = json_object_get(body, "output_dir");
    if (!dir || json_is_null(dir)) json_object_set_new(body, "output_dir", json_string(set && *set ? set : "/tmp"));
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text) {
        send(s, q, IV_COMMAND_PROFILE_START, text, "", answered);
    } else {
        iv_fail(&err, IV_NO_MEMORY, "profile: no memory");
        reply_error(s, q, &err);
    }
    free(text);
}

void iv_handle_stop_profile(void *user, iv_http_request *q) {
    send(user, q, IV_COMMAND_PROFILE_STOP, NULL, "", answered);
}
