/* chat_fit.c: a conversation, as read, for one template (format/chat_messages.h). What a template shows is found by
 * rendering probes: short conversations with marked texts. They are needed only for developers and several system
 * messages. */
#include "text/chat_fit.h"
#include "base/buf.h"
#include "format/chat_messages.h"

#include <stdio.h>
#include <stdint.h>
#include <string.h>

typedef struct fit {
    const iv_template *t;
    const json_t *base;
    json_t *variables, *messages;
    const char *name;
    iv_error *err;
} fit;

static iv_status no_memory(const fit *f) {
    return iv_fail(f->err, IV_NO_MEMORY, "%.60s: no memory for the text of a message", f->name);
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool has_role(const json_t *message, const char *role) { return strcmp(role_of(message), role) == 0; }

static bool instructs(const json_t *message) { return has_role(message, "system") || has_role(message, "developer"); }

/* ---- probes ---- */

#define FIRST "qx0a7f41"
#define SECOND "qx8b3e92"

typedef struct probe {
    bool rendered, first, second; /* the texts FIRST and SECOND are in the result */
} probe;

/* Renders these messages with the conversation's other variables. messages: taken. */
static iv_status try(const fit *f, json_t *messages, probe *out) {
    iv_error refused;
    iv_buf text = {0};
    *out = (probe){0};
    json_t *all = f->base ? json_copy((json_t *)(uintptr_t)f->base) : json_object();
    bool ok = messages && all && json_object_update(all, f->variables) == 0 &&
              json_object_set(all, "messages", messages) == 0 &&
              json_object_set_new(all, "add_generation_prompt", json_false()) == 0;
    if (ok) {
        out->rendered = iv_template_render(f->t, all, "26 Jul 2024", &text, &refused) == IV_OK;
        out->first = out->rendered && text.len && memmem(text.data, text.len, FIRST, strlen(FIRST));
        out->second = out->rendered && text.len && memmem(text.data, text.len, SECOND, strlen(SECOND));
    }
    iv_buf_free(&text);
    json_decref(all), json_decref(messages);
    return ok ? IV_OK : no_memory(f);
}

static iv_status shows_developer(const fit *f, bool *yes) {
    probe p;
    *yes = iv_template_names(f->t, "developer");
    if (!*yes) return IV_OK;
    IV_TRY(try(f, json_pack("[{ss,ss},{ss,ss}]", "role", "developer", "content", FIRST, "role", "user", "content", "u"),
               &p));
    *yes = p.first;
    return IV_OK;
}

static iv_status shows_two(const fit *f, const char *one, const char *two, bool *yes) {
    probe p;
    IV_TRY(try(f,
               json_pack("[{ss,ss},{ss,ss},{ss,ss}]", "role", one, "content", FIRST, "role", two, "content", SECOND,
                         "role", "user", "content", "u"),
               &p));
    *yes = p.first && p.second;
    return IV_OK;
}

/* Whether the template leaves out an instruction in the middle, without an error of its own. */
static iv_status hides_later(const fit *f, const char *role, bool *yes) {
    probe p;
    IV_TRY(try(f,
               json_pack("[{ss,ss},{ss,ss},{ss,ss},{ss,ss}]", "role", "user", "content", FIRST, "role", "assistant",
                         "content", "a", "role", role, "content", SECOND, "role", "user", "content", "u"),
               &p));
    *yes = p.first && !p.second;
    return IV_OK;
}

/* ---- content ---- */

static iv_status join(const fit *f, const json_t *content, const char *with, iv_buf *out) {
    size_t i;
    const json_t *part;
    bool ok = true;
    if (json_is_string(content)) ok = iv_buf_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        const json_t *text = json_object_get(part, "text");
        ok = ok && (i == 0 || iv_buf_puts(out, with)) &&
             iv_buf_append(out, json_is_string(text) ? json_string_value(text) : "", json_string_length(text));
    }
    return ok ? IV_OK : no_memory(f);
}

static iv_status set_text(const fit *f, json_t *message, iv_buf *text) {
    json_t *string = json_stringn(text->data ? text->data : "", text->len);
    bool ok = string && json_object_set_new(message, "content", string) == 0;
    iv_buf_free(text);
    return ok ? IV_OK : no_memory(f);
}

static iv_status fit_parts(const fit *f, json_t *message) {
    const json_t *content = json_object_get(message, "content");
    bool kept = iv_template_reads_parts(f->t) && (has_role(message, "user") || has_role(message, "assistant"));
    iv_buf text = {0};
    if (kept || !json_is_array(content)) return IV_OK;
    iv_status status = join(f, content, "\n", &text);
    if (status == IV_OK) return set_text(f, message, &text);
    iv_buf_free(&text);
    return status;
}

static iv_status fit_reasoning(const fit *f, json_t *message) {
    static const char *const others[] = {"thinking", "reasoning"};
    json_t *text = json_object_get(message, "reasoning_content");
    for (size_t i = 0; text && i < 2; i++)
        if (iv_template_names(f->t, others[i]) && json_object_set(message, others[i], text) != 0) return no_memory(f);
    return IV_OK;
}

/* ---- instructions ---- */

static iv_status fit_developers(const fit *f) {
    size_t i;
    json_t *message;
    bool any = false, shown = false;
    json_array_foreach(f->messages, i, message) any |= has_role(message, "developer");
    if (!any) return IV_OK;
    IV_TRY(shows_developer(f, &shown));
    json_array_foreach(f->messages, i, message) {
        if (shown || !has_role(message, "developer")) continue;
        if (json_object_set_new(message, "role", json_string("system")) != 0) return no_memory(f);
    }
    return IV_OK;
}

/* The first n messages become one, with the members of the first. */
static iv_status join_first(const fit *f, size_t n) {
    json_t *first = json_array_get(f->messages, 0);
    iv_buf text = {0};
    iv_status status = IV_OK;
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        if (i && !iv_buf_puts(&text, "\n\n")) status = no_memory(f);
        if (status == IV_OK) status = join(f, json_object_get(json_array_get(f->messages, i), "content"), "\n", &text);
    }
    if (status != IV_OK) {
        iv_buf_free(&text);
        return status;
    }
    IV_TRY(set_text(f, first, &text));
    while (--n) json_array_remove(f->messages, 1);
    return IV_OK;
}

/* Looks at positions before messages are joined, so that errors have the caller's numbers. */
static iv_status check_later(const fit *f, size_t from) {
    for (size_t i = from; i < json_array_size(f->messages); i++) {
        const json_t *message = json_array_get(f->messages, i);
        bool hidden;
        if (!instructs(message)) continue;
        IV_TRY(hides_later(f, role_of(message), &hidden));
        if (hidden)
            return iv_fail(f->err, IV_INVALID,
                           "%.60s[%zu].role: wanted no \"%s\" after other messages, as the chat template leaves it out "
                           "there, found one",
                           f->name, i, role_of(message));
        return IV_OK; /* the template shows it, or refuses the conversation itself */
    }
    return IV_OK;
}

static iv_status fit_instructions(const fit *f) {
    size_t first = 0;
    bool both = true;
    while (first < json_array_size(f->messages) && instructs(json_array_get(f->messages, first))) first++;
    IV_TRY(check_later(f, first));
    if (first < 2) return IV_OK;
    IV_TRY(shows_two(f, role_of(json_array_get(f->messages, 0)), role_of(json_array_get(f->messages, 1)), &both));
    return both ? IV_OK : join_first(f, first);
}

static bool names(const void *t, const char *word) { return iv_template_names(t, word); }

iv_status iv_chat_fit_read(const iv_template *t, const char *name, bool learned, const json_t *messages, json_t *out,
                           iv_error *err) {
    const iv_chat_reader reader = {.name = name, .named = t ? names : NULL, .template = t, .learned = learned};
    return iv_chat_messages_read(&reader, messages, out, err);
}

iv_status iv_chat_fit(const iv_template *t, const json_t *base, json_t *variables, const char *name, iv_error *err) {
    const fit f = {t, base, variables, json_object_get(variables, "messages"), name, err};
    size_t i;
    json_t *message;
    json_array_foreach(f.messages, i, message) {
        IV_TRY(fit_parts(&f, message));
        IV_TRY(fit_reasoning(&f, message));
    }
    IV_TRY(fit_developers(&f));
    return fit_instructions(&f);
}
