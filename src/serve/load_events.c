/* load_events.c: lines of data, each one JSON object, until [DONE]. */
#include "serve/load_events.h"
#include "base/size.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

static void fail(iv_load_result *r, const char *what, const char *more) {
    if (!r->error[0]) snprintf(r->error, sizeof r->error, "%s%s%.150s", what, more ? ": " : "", more ? more : "");
}

static bool note_tokens(iv_load_events *e, iv_load_result *r, double now) {
    double before = e->last;
    e->last = now;
    if (r->first == 0) {
        r->first = now;
        return true;
    }
    if (r->gap_count == e->gap_room) {
        size_t bytes, room = e->gap_room ? 2 * e->gap_room : 64;
        double *more = iv_size_mul(room, sizeof *more, &bytes) ? realloc(r->gaps, bytes) : NULL;
        if (!more) return false;
        r->gaps = more, e->gap_room = room;
    }
    r->gaps[r->gap_count++] = now - before;
    return true;
}

static size_t count_of(const json_t *object, const char *key) {
    json_int_t v = json_integer_value(json_object_get(object, key));
    return v > 0 ? (size_t)v : 0;
}

/* A chat's first event has its role alone. */
static bool has_tokens(const json_t *delta) {
    static const char *const texts[] = {"content", "reasoning_content", "reasoning"};
    bool found = json_array_size(json_object_get(delta, "tool_calls")) > 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        found |= json_string_length(json_object_get(delta, texts[i])) > 0;
    return found;
}

static void take_object(iv_load_events *e, iv_load_result *r, json_t *event, double now) {
    json_t *error = json_object_get(event, "error"), *usage = json_object_get(event, "usage");
    json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (json_is_object(error)) {
        const char *said = json_string_value(json_object_get(error, "message"));
        fail(r, "the stream ended with an error", said ? said : "");
        return;
    }
    if (choice) {
        bool last = json_is_string(json_object_get(choice, "finish_reason"));
        json_t *delta = json_object_get(choice, "delta");
        bool tokens = delta ? has_tokens(delta) : json_string_length(json_object_get(choice, "text")) > 0 || !last;
        if (tokens && !note_tokens(e, r, now)) fail(r, "no memory", NULL);
    }
    const char *digest = json_string_value(json_object_get(json_object_get(event, "invar"), "digest"));
    if (digest) snprintf(r->digest, sizeof r->digest, "%s", digest);
    if (json_is_object(usage)) {
        r->prompt_tokens = count_of(usage, "prompt_tokens"), r->generated = count_of(usage, "completion_tokens");
        r->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
}

static void take_event(iv_load_events *e, iv_load_result *r, const char *text, size_t n, double now) {
    static const char field[] = "data:";
    json_t *event = NULL;
    iv_error why;
    if (n < strlen(field) || strncmp(text, field, strlen(field)) != 0) return; /* a comment */
    text += strlen(field), n -= strlen(field);
    while (n && *text == ' ') text++, n--;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        e->finished = true;
        r->end = now;
    } else if (iv_json_parse("event", text, n, &event, &why) != IV_OK) {
        fail(r, "an event that is not JSON", why.message);
    } else {
        take_object(e, r, event, now);
    }
    json_decref(event);
}

void iv_load_events_begin(iv_load_events *e) {
    iv_buf_clear(&e->bytes);
    e->last = 0, e->gap_room = 0, e->finished = false;
}

/* Where an event ends: an empty line, after line feeds alone or with carriage returns, as some servers write. */
static const char *event_end(const char *from, size_t n, size_t *end_bytes) {
    const char *lf = memmem(from, n, "\n\n", 2);
    const char *crlf = memmem(from, lf ? (size_t)(lf - from) : n, "\r\n\r\n", 4);
    *end_bytes = crlf ? 4 : 2;
    return crlf ? crlf : lf;
}

void iv_load_events_feed(iv_load_events *e, iv_load_result *r, const void *bytes, size_t n, double now) {
    size_t at = 0;
    if (!iv_buf_append(&e->bytes, bytes, n)) {
        fail(r, "no memory, or an event that is too long", NULL);
        return;
    }
    while (at < e->bytes.len) {
        size_t end_bytes = 2;
        const char *from = e->bytes.data + at, *stop = event_end(from, e->bytes.len - at, &end_bytes);
        if (!stop) break;
        take_event(e, r, from, (size_t)(stop - from), now);
        at += (size_t)(stop - from) + end_bytes;
    }
    if (at == 0) return;
    memmove(e->bytes.data, e->bytes.data + at, e->bytes.len - at + 1);
    e->bytes.len -= at;
}
