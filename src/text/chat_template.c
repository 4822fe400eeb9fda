/* chat_template.c: finding the template, choosing one of two, merging variables. Owns the parsed templates, the special
 * tokens and the digest of their sources. */
#include "text/chat_template.h"
#include "base/digest.h"
#include "base/file.h"
#include "format/json.h"
#include "format/model_files.h"
#include "text/jinja/template.h"
#include "text/training_template.h"

#include <stdlib.h>
#include <string.h>

/* ---- special tokens ---- */

enum { MAP_BYTES_MAX = 1 << 20 };

static iv_status add(const char *path, const json_t *from, json_t *into, iv_error *err) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(from, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (!token || json_is_null(token)) continue;
        if (!json_is_string(token))
            return iv_fail(err, IV_FORMAT, "%s: %s: wanted a string, found %s", path, names[i],
                           iv_json_type_name(token));
        if (json_object_set(into, names[i], token) != 0)
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %s", path, names[i]);
    }
    return IV_OK;
}

static iv_status add_map(const char *path, json_t *into, iv_error *err) {
    json_t *map;
    if (!iv_file_exists(path)) return IV_OK;
    IV_TRY(iv_json_read(path, MAP_BYTES_MAX, &map, err));
    iv_status status = json_is_object(map)
                           ? add(path, map, into, err)
                           : iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", path, iv_json_type_name(map));
    json_decref(map);
    return status;
}

iv_status iv_special_tokens_read(const char *dir, const json_t *config, json_t *into, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(dir, "tokenizer_config.json", &path, err);
    if (status == IV_OK && config && !json_is_object(config))
        status = iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", path.data, iv_json_type_name(config));
    if (status == IV_OK) status = add(path.data, config, into, err);
    if (status == IV_OK && !json_object_get(config, "added_tokens_decoder")) {
        status = iv_path_join(dir, "special_tokens_map.json", &path, err);
        if (status == IV_OK) status = add_map(path.data, into, err);
    }
    iv_buf_free(&path);
    return status;
}

/* ---- templates ---- */

enum { CONFIG_BYTES_MAX = 16 << 20 };

struct iv_chat_template {
    iv_template *plain, *tool_use;        /* tool_use may be NULL; either is NULL if it does not parse, ... */
    iv_error plain_fault, tool_use_fault; /* ... for this reason */
    iv_template *training;                /* plain with generation marks (training_template.h); NULL: not known */
    json_t *variables;                    /* special tokens and defaults */
    uint8_t digest[32];
};

/* The template sources of a model directory, before parsing. Borrowed. */
typedef struct source {
    const char *plain, *tool_use; /* NULL: none */
    size_t plain_n, tool_use_n;
    const char *where, *tool_use_where; /* the files, for errors */
} source;

static iv_status not_found(const char *dir, iv_error *err) {
    return iv_fail(err, IV_NOT_FOUND,
                   "%s: has no chat template: neither chat_template.jinja nor \"chat_template\" in "
                   "tokenizer_config.json",
                   dir);
}

/* A list of named templates. */
static iv_status read_list(const char *path, const json_t *list, source *out, iv_error *err) {
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry) {
        const json_t *name = json_object_get(entry, "name"), *text = json_object_get(entry, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return iv_fail(err, IV_FORMAT,
                           "%s: chat_template[%zu]: wanted strings \"name\" and \"template\", found %s and %s", path, i,
                           iv_json_type_name(name), iv_json_type_name(text));
        if (strcmp(json_string_value(name), "default") == 0) {
            out->plain = json_string_value(text);
            out->plain_n = json_string_length(text);
        } else if (strcmp(json_string_value(name), "tool_use") == 0) {
            out->tool_use = json_string_value(text);
            out->tool_use_n = json_string_length(text);
        }
    }
    if (out->plain) return IV_OK;
    return iv_fail(err, IV_NOT_FOUND, "%s: chat_template: no template in the list is named \"default\"", path);
}

static iv_status read_config(const char *path, const json_t *config, source *out, iv_error *err) {
    const json_t *field = json_object_get(config, "chat_template");
    if (!field || json_is_null(field)) return IV_OK;
    if (json_is_array(field)) return read_list(path, field, out, err);
    if (!json_is_string(field))
        return iv_fail(err, IV_FORMAT, "%s: chat_template: wanted a string or an array, found %s", path,
                       iv_json_type_name(field));
    out->plain = json_string_value(field);
    out->plain_n = json_string_length(field);
    return IV_OK;
}

static iv_status defaults(json_t **out, iv_error *err) {
    *out = json_object();
    if (*out && json_object_set_new(*out, "tools", json_null()) == 0 &&
        json_object_set_new(*out, "documents", json_null()) == 0 &&
        json_object_set_new(*out, "add_generation_prompt", json_false()) == 0)
        return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "no memory for the variables of a chat template");
}

static void add_text(iv_digest *d, const char *s, size_t n) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)n >> (8 * i));
    iv_digest_add(d, length, sizeof length);
    if (n) iv_digest_add(d, s, n);
}

static iv_status make_digest(iv_chat_template *t, const source *from, iv_error *err) {
    char *variables = json_dumps(t->variables, JSON_SORT_KEYS | JSON_COMPACT);
    iv_digest *d = variables ? iv_digest_new() : NULL;
    if (!d) {
        free(variables);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a digest", from->where);
    }
    add_text(d, from->plain, from->plain_n);
    add_text(d, from->tool_use ? from->tool_use : "", from->tool_use_n);
    add_text(d, variables, strlen(variables));
    iv_digest_finish(d, t->digest);
    free(variables);
    return IV_OK;
}

/* A template that does not parse fails chats only; the model stays usable otherwise. */
static iv_status parse_one(const char *where, const char *text, size_t n, iv_template **out, iv_error *fault,
                           iv_error *err) {
    iv_status status = iv_template_parse(where, text, n, IV_JINJA_CHAT, out, fault);
    if (status == IV_OK) return IV_OK;
    *out = NULL;
    return status == IV_NO_MEMORY ? iv_fail(err, status, "%s", fault->message) : IV_OK;
}

/* A known template without marks of its own also gets a form with them. */
static iv_status parse_training(iv_chat_template *t, const source *from, iv_error *err) {
    iv_buf marked = {0};
    iv_error fault;
    const char *family;
    if (!t->plain || iv_template_has_generation(t->plain)) return IV_OK;
    iv_status status = iv_training_template(from->plain, from->plain_n, &marked, &family)
                           ? IV_OK
                           : iv_fail(err, IV_NO_MEMORY, "%s: no memory for a chat template", from->where);
    if (status == IV_OK && family) status = parse_one(from->where, marked.data, marked.len, &t->training, &fault, err);
    iv_buf_free(&marked);
    return status;
}

static iv_status parse_source(iv_chat_template *t, const source *from, iv_error *err) {
    IV_TRY(parse_one(from->where, from->plain, from->plain_n, &t->plain, &t->plain_fault, err));
    IV_TRY(parse_training(t, from, err));
    if (from->tool_use)
        IV_TRY(
            parse_one(from->tool_use_where, from->tool_use, from->tool_use_n, &t->tool_use, &t->tool_use_fault, err));
    return make_digest(t, from, err);
}

/* The files of a directory. */
typedef struct found {
    iv_buf jinja_path, tool_use_path, config_path, jinja, tool_use;
    json_t *config;
} found;

static void found_free(found *f) {
    iv_buf_free(&f->jinja_path), iv_buf_free(&f->tool_use_path), iv_buf_free(&f->config_path);
    iv_buf_free(&f->jinja), iv_buf_free(&f->tool_use);
    json_decref(f->config);
}

/* The template file, and the file of the tool_use template, as transformers saves a list of named templates today. */
static iv_status read_files(found *f, source *out, iv_error *err) {
    IV_TRY(iv_file_read(f->jinja_path.data, IVJ_MAX_SOURCE_BYTES, &f->jinja, err));
    *out = (source){.plain = f->jinja.data, .plain_n = f->jinja.len, .where = f->jinja_path.data};
    if (!iv_file_exists(f->tool_use_path.data)) return IV_OK;
    IV_TRY(iv_file_read(f->tool_use_path.data, IVJ_MAX_SOURCE_BYTES, &f->tool_use, err));
    out->tool_use = f->tool_use.data, out->tool_use_n = f->tool_use.len, out->tool_use_where = f->tool_use_path.data;
    return IV_OK;
}

/* Every file is optional: without tokenizer_config.json there are no special tokens, without it and chat_template.jinja
 * no template. */
static iv_status load(iv_chat_template *t, const char *dir, found *f, iv_error *err) {
    const char *config_path = f->config_path.data;
    source from = {0};
    if (iv_model_file_exists(dir, "tokenizer_config.json"))
        IV_TRY(iv_model_file_json(dir, "tokenizer_config.json", CONFIG_BYTES_MAX, &f->config, err));
    IV_TRY(iv_special_tokens_read(dir, f->config, t->variables, err));
    if (iv_file_exists(f->jinja_path.data)) {
        IV_TRY(read_files(f, &from, err));
    } else {
        from.where = from.tool_use_where = config_path;
        if (f->config) IV_TRY(read_config(config_path, f->config, &from, err));
    }
    return from.plain ? parse_source(t, &from, err) : not_found(dir, err);
}

iv_status iv_chat_template_open(const char *dir, iv_chat_template **out, iv_error *err) {
    iv_chat_template *t = calloc(1, sizeof *t);
    found f = {0};
    if (!t) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a chat template", dir);
    iv_status status = defaults(&t->variables, err);
    if (status == IV_OK) status = iv_path_join(dir, "chat_template.jinja", &f.jinja_path, err);
    if (status == IV_OK) status = iv_path_join(dir, "additional_chat_templates/tool_use.jinja", &f.tool_use_path, err);
    if (status == IV_OK) status = iv_path_join(dir, "tokenizer_config.json", &f.config_path, err);
    if (status == IV_OK) status = load(t, dir, &f, err);
    found_free(&f);
    if (status == IV_OK)
        *out = t;
    else
        iv_chat_template_close(t);
    return status;
}

/* Whether these variables are rendered by the template for tools. */
static bool for_tools(const iv_chat_template *t, const json_t *variables) {
    const json_t *tools = json_object_get(variables, "tools");
    bool any = json_array_size(tools) > 0 || json_object_size(tools) > 0;
    return any && (t->tool_use || t->tool_use_fault.status);
}

/* The spans of the form with marks, if its text is `text`. */
static iv_status mark_spans(const iv_template *training, const json_t *variables, const char *strftime_now,
                            const iv_buf *text, iv_text_spans *spans, bool *tagged, iv_error *err) {
    iv_buf marked = {0};
    iv_status status = iv_template_render_spans(training, variables, strftime_now, &marked, spans, err);
    *tagged = status == IV_OK && marked.len == text->len && (!text->len || !memcmp(marked.data, text->data, text->len));
    if (!*tagged) spans->count = 0;
    iv_buf_free(&marked);
    return status == IV_NO_MEMORY ? status : IV_OK;
}

iv_status iv_chat_template_render_spans(const iv_chat_template *t, const json_t *variables, const char *strftime_now,
                                        iv_buf *out, iv_text_spans *spans, bool *tagged, iv_error *err) {
    if (!json_is_object(variables))
        return iv_fail(err, IV_INVALID, "the variables of a chat template: wanted an object, found %s",
                       iv_json_type_name(variables));
    json_t *merged = json_copy(t->variables);
    /* jansson only reads the second object, though its type is not const. */
    if (!merged || json_object_update(merged, (json_t *)(uintptr_t)variables) != 0) {
        json_decref(merged);
        return iv_fail(err, IV_NO_MEMORY, "no memory for the variables of a chat template");
    }
    bool tool_use = for_tools(t, merged);
    const iv_template *chosen = tool_use ? t->tool_use : t->plain;
    iv_status status = IV_OK;
    *tagged = chosen && iv_template_has_generation(chosen);
    if (chosen)
        status = iv_template_render_spans(chosen, merged, strftime_now, out, spans, err);
    else
        *err = tool_use ? t->tool_use_fault : t->plain_fault, status = err->status;
    if (status == IV_OK && spans && !tool_use && t->training)
        status = mark_spans(t->training, merged, strftime_now, out, spans, tagged, err);
    json_decref(merged);
    return status;
}

iv_status iv_chat_template_render(const iv_chat_template *t, const json_t *variables, const char *strftime_now,
                                  iv_buf *out, iv_error *err) {
    bool tagged;
    return iv_chat_template_render_spans(t, variables, strftime_now, out, NULL, &tagged, err);
}

const iv_template *iv_chat_template_chosen(const iv_chat_template *t, const json_t *variables) {
    return for_tools(t, variables) ? t->tool_use : t->plain;
}

iv_status iv_chat_template_fit(const iv_chat_template *t, json_t *variables, const char *name, iv_error *err) {
    const iv_template *chosen = iv_chat_template_chosen(t, variables);
    return chosen ? iv_chat_fit(chosen, t->variables, variables, name, err) : IV_OK;
}

void iv_chat_template_digest(const iv_chat_template *t, uint8_t out[32]) { memcpy(out, t->digest, sizeof t->digest); }

void iv_chat_template_close(iv_chat_template *t) {
    if (!t) return;
    iv_template_close(t->plain);
    iv_template_close(t->training);
    iv_template_close(t->tool_use);
    json_decref(t->variables);
    free(t);
}
