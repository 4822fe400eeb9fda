/* constraint.c: checks the fields that constrain an answer; tools, the format of calls, and call ids. */
#include "serve/api/constraint.h"
#include "base/buf.h"
#include "base/digest.h"
#include "chat/forms.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- structured outputs ------------------------------------------------------------------------------- */

typedef struct reader {
    iv_api_params *p;
    iv_request *r;
    const char *prefix;
    const char *by; /* field that set a constraint; NULL: none */
    iv_error *err;
} reader;

static iv_status wanted(const reader *w, const char *field, const char *what, const json_t *found) {
    char shown[IV_JSON_SHOWN_BYTES];
    return iv_fail(w->err, IV_INVALID, "%s%s: wanted %s, found %s", w->prefix, field, what,
                   iv_json_shown(found, shown));
}

static iv_status set(reader *w, const char *field, iv_constraint_kind kind, const char *text, size_t n) {
    if (w->by)
        return iv_fail(w->err, IV_INVALID, "%s%s: wanted one constraint, found \"%s\" too", w->prefix, field, w->by);
    char *copy = iv_arena_strndup(&w->p->arena, text, n);
    if (!copy) return iv_fail(w->err, IV_NO_MEMORY, "%s%s: no memory", w->prefix, field);
    if (strlen(copy) != n)
        return iv_fail(w->err, IV_INVALID, "%s%s: wanted a text without NUL, found one at byte %zu", w->prefix, field,
                       strlen(copy));
    w->by = field, w->r->constraint = kind, w->r->constraint_text = copy;
    return IV_OK;
}

static iv_status set_json(reader *w, const char *field, iv_constraint_kind kind, const json_t *v) {
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text) return iv_fail(w->err, IV_NO_MEMORY, "%s%s: no memory", w->prefix, field);
    iv_status status = set(w, field, kind, text, strlen(text));
    free(text);
    return status;
}

static void name_labels(const reader *w, const char *field, const json_t *schema) {
    char place[120];
    snprintf(place, sizeof place, "%.60s%.50s", w->prefix, field);
    iv_api_ignore_labels(&w->p->ignored, place, schema);
}

/* A schema as JSON, or as its text. */
static iv_status set_schema(reader *w, const char *field, const json_t *v) {
    iv_body_tree tree = {0};
    if (json_is_string(v)) {
        const char *text = json_string_value(v);
        size_t n = json_string_length(v);
        IV_TRY(iv_body_tree_add(&tree, field, text, n, w->err));
        iv_error why;
        json_t *parsed;
        if (iv_json_parse(field, text, n, &parsed, &why) == IV_OK) /* else it is refused when it is compiled */
            name_labels(w, field, parsed), json_decref(parsed);
        return set(w, field, IV_CONSTRAINT_JSON_SCHEMA, text, n);
    }
    if (!json_is_object(v) && !json_is_boolean(v)) return wanted(w, field, "a JSON schema", v);
    name_labels(w, field, v);
    return set_json(w, field, IV_CONSTRAINT_JSON_SCHEMA, v);
}

static iv_status set_text(reader *w, const char *field, iv_constraint_kind kind, const json_t *v) {
    if (!json_is_string(v))
        return wanted(w, field, kind == IV_CONSTRAINT_REGEX ? "a regular expression" : "a grammar's text", v);
    return set(w, field, kind, json_string_value(v), json_string_length(v));
}

static iv_status set_choice(reader *w, const char *field, const json_t *v) {
    if (!json_is_array(v)) return wanted(w, field, "a list of strings", v);
    return set_json(w, field, IV_CONSTRAINT_CHOICE, v);
}

/* Refuses members that are not in the list. */
static iv_status only(const reader *w, const char *field, json_t *object, const char *const *names) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        const char *const *name = names;
        if (json_is_null(value)) continue; /* null is treated as absent */
        while (*name && strcmp(*name, key) != 0) name++;
        if (!*name)
            return iv_fail(w->err, IV_INVALID, "%s%s.%.60s: this field is not known here", w->prefix, field, key);
    }
    return IV_OK;
}

/* {"type": "json_schema", ...}: the schema's members are in `inner`. `strict` is always in effect. */
static iv_status read_named_schema(reader *w, const char *field, json_t *inner) {
    const json_t *schema = json_object_get(inner, "schema"), *name = json_object_get(inner, "name");
    const json_t *strict = json_object_get(inner, "strict");
    if (name && !json_is_string(name) && !json_is_null(name)) return wanted(w, field, "\"name\" to be a string", name);
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return wanted(w, field, "\"strict\" to be true or false", strict);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return wanted(w, field, "\"schema\", a JSON schema", schema);
    name_labels(w, field, schema);
    return set_json(w, field, IV_CONSTRAINT_JSON_SCHEMA, schema);
}

static iv_status read_format(reader *w, const char *field, json_t *v, bool flat) {
    static const char *const plain[] = {"type", NULL}, *const nested[] = {"type", "json_schema", NULL};
    static const char *const flat_names[] = {"type", "name", "description", "strict", "schema", NULL};
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && (strcmp(type, "text") == 0 || strcmp(type, "json_object") == 0)) {
        IV_TRY(only(w, field, v, plain));
        return type[0] == 't' ? IV_OK : set(w, field, IV_CONSTRAINT_JSON_OBJECT, "", 0);
    }
    if (!type || strcmp(type, "json_schema") != 0)
        return iv_fail(w->err, IV_INVALID,
                       "%s%s.type: wanted \"text\", \"json_object\" or \"json_schema\", found \"%.40s\"", w->prefix,
                       field, type ? type : iv_json_type_name(json_object_get(v, "type")));
    IV_TRY(only(w, field, v, flat ? flat_names : nested));
    if (flat) return read_named_schema(w, field, v);
    json_t *inner = json_object_get(v, "json_schema");
    if (!json_is_object(inner)) return wanted(w, field, "\"json_schema\", an object, next to its type", inner);
    IV_TRY(only(w, field, inner, flat_names + 1));
    return read_named_schema(w, field, inner);
}

/* The Responses API's "text". */
static iv_status read_text(reader *w, json_t *v) {
    static const char *const names[] = {"format", "verbosity", NULL};
    IV_TRY(only(w, "text", v, names));
    json_t *verbosity = json_object_get(v, "verbosity");
    if (verbosity && !json_is_null(verbosity)) {
        const char *word = json_string_value(verbosity);
        if (!word || (strcmp(word, "low") != 0 && strcmp(word, "medium") != 0 && strcmp(word, "high") != 0))
            return iv_fail(w->err, IV_INVALID,
                           "%stext.verbosity: wanted \"low\", \"medium\" or \"high\", found \"%.40s\"", w->prefix,
                           word ? word : iv_json_type_name(verbosity));
        w->p->verbosity = verbosity;
    }
    json_t *format = json_object_get(v, "format");
    return format && !json_is_null(format) ? read_format(w, "text.format", format, true) : IV_OK;
}

/* vLLM's structured_outputs. */
static iv_status read_structured(reader *w, json_t *v) {
    enum { FIRST_UNSUPPORTED = 7 };
    static const char *const names[] = {"json",
                                        "regex",
                                        "choice",
                                        "json_object",
                                        "grammar",
                                        "disable_any_whitespace",
                                        "disable_fallback",
                                        "structural_tag",
                                        "whitespace_pattern",
                                        "disable_additional_properties",
                                        NULL};
    IV_TRY(only(w, "structured_outputs", v, names));
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value) {
        bool disable = strncmp(key, "disable_", 8) == 0;
        if (json_is_null(value) || (disable && json_is_false(value))) continue; /* requests nothing */
        for (size_t i = FIRST_UNSUPPORTED; names[i]; i++)
            if (strcmp(key, names[i]) == 0)
                return iv_fail(w->err, IV_UNSUPPORTED,
                               "%sstructured_outputs.%s: wanted null (nothing else is supported), found %s", w->prefix,
                               key, iv_json_type_name(value));
        if (strcmp(key, "json") == 0) IV_TRY(set_schema(w, "structured_outputs.json", value));
        if (strcmp(key, "regex") == 0) IV_TRY(set_text(w, "structured_outputs.regex", IV_CONSTRAINT_REGEX, value));
        if (strcmp(key, "grammar") == 0)
            IV_TRY(set_text(w, "structured_outputs.grammar", IV_CONSTRAINT_GRAMMAR, value));
        if (strcmp(key, "choice") == 0) IV_TRY(set_choice(w, "structured_outputs.choice", value));
        bool flag = strcmp(key, "json_object") == 0 || disable;
        if (flag && !json_is_boolean(value))
            return wanted(w, "structured_outputs", "true or false for its flags", value);
        if (strcmp(key, "json_object") == 0 && json_is_true(value))
            IV_TRY(set(w, "structured_outputs.json_object", IV_CONSTRAINT_JSON_OBJECT, "", 0));
    }
    if (w->by) return IV_OK;
    return wanted(w, "structured_outputs", "one of \"json\", \"regex\", \"choice\", \"grammar\" and \"json_object\"",
                  v);
}

iv_status iv_api_constraint_read(iv_api_params *p, const char *prefix, iv_request *r, iv_error *err) {
    reader w = {.p = p, .r = r, .prefix = prefix, .err = err};
    if (p->response_format) IV_TRY(read_format(&w, "response_format", p->response_format, false));
    if (p->text_options) IV_TRY(read_text(&w, p->text_options));
    if (p->output_format) IV_TRY(read_format(&w, "output_config.format", p->output_format, true));
    p->format_holds = w.by != NULL;
    if (p->structured_outputs) IV_TRY(read_structured(&w, p->structured_outputs));
    if (p->guided_json) IV_TRY(set_schema(&w, "guided_json", p->guided_json));
    if (p->guided_regex) IV_TRY(set_text(&w, "guided_regex", IV_CONSTRAINT_REGEX, p->guided_regex));
    if (p->guided_grammar) IV_TRY(set_text(&w, "guided_grammar", IV_CONSTRAINT_GRAMMAR, p->guided_grammar));
    if (p->grammar) IV_TRY(set_text(&w, "grammar", IV_CONSTRAINT_GRAMMAR, p->grammar));
    if (p->guided_choice) IV_TRY(set_choice(&w, "guided_choice", p->guided_choice));
    if (p->json_schema) IV_TRY(set_schema(&w, "json_schema", p->json_schema));
    if (p->ebnf) IV_TRY(set_text(&w, "ebnf", IV_CONSTRAINT_GRAMMAR, p->ebnf));
    return p->regex ? set_text(&w, "regex", IV_CONSTRAINT_REGEX, p->regex) : IV_OK;
}

/* The tokens of a word, as they are after other text (with a space) and without. */
static iv_status add_word(const iv_server *s, const json_t *word, size_t at, json_t *out, iv_error *err) {
    const iv_text_model *text_model = iv_bridge_text_model(s->bridge);
    const char *text = json_string_value(word);
    size_t n = json_string_length(word);
    char shown[IV_JSON_SHOWN_BYTES];
    for (; n && *text == ' '; n--) text++;
    if (n == 0)
        return iv_fail(err, IV_INVALID, "bad_words[%zu]: wanted a word, found %s", at, iv_json_shown(word, shown));
    for (int space = 0; space < 2; space++) {
        iv_buf spelled = {0};
        iv_ids ids = {0};
        bool ok = (!space || iv_buf_putc(&spelled, ' ')) && iv_buf_append(&spelled, text, n);
        iv_status status = ok ? iv_tokenize(text_model, spelled.data, spelled.len, false, &ids, err)
                              : iv_fail(err, IV_NO_MEMORY, "bad_words: no memory");
        json_t *list = json_array();
        for (size_t i = 0; status == IV_OK && i < ids.count; i++)
            json_array_append_new(list, json_integer(ids.data[i]));
        ok = json_array_append_new(out, list) == 0 && json_array_size(list) == ids.count;
        iv_buf_free(&spelled), iv_ids_free(&ids);
        if (status != IV_OK) return status;
        if (!ok) return iv_fail(err, IV_NO_MEMORY, "bad_words: no memory");
    }
    return IV_OK;
}

static iv_status write_rules(const iv_server *s, const iv_api_params *p, json_t *rules, iv_error *err) {
    json_t *bad = json_array();
    if (p->allowed_ids && json_object_set(rules, "allowed", p->allowed_ids) != 0)
        return iv_fail(err, IV_NO_MEMORY, "allowed_token_ids: no memory");
    if (json_array_size(p->bad_words) == 0) {
        json_decref(bad);
        return IV_OK;
    }
    if (json_object_set_new(rules, "bad", bad) != 0) return iv_fail(err, IV_NO_MEMORY, "bad_words: no memory");
    for (size_t i = 0; i < json_array_size(p->bad_words); i++)
        IV_TRY(add_word(s, json_array_get(p->bad_words, i), i, bad, err));
    return IV_OK;
}

iv_status iv_api_token_rules_read(const iv_server *s, iv_api_params *p, iv_error *err) {
    reader w = {.p = p, .r = &p->request, .prefix = "", .err = err};
    if (!p->allowed_ids && json_array_size(p->bad_words) == 0) return IV_OK;
    if (w.r->constraint != IV_CONSTRAINT_NONE) w.by = iv_constraint_name(w.r->constraint);
    json_t *rules = json_object();
    iv_status status = rules ? write_rules(s, p, rules, err) : iv_fail(err, IV_NO_MEMORY, "bad_words: no memory");
    if (status == IV_OK)
        status = set_json(&w, p->allowed_ids ? "allowed_token_ids" : "bad_words", IV_CONSTRAINT_TOKENS, rules);
    json_decref(rules);
    return status;
}

/* Tools in the format of a constraint: their schemas hold. */
static void name_tool_labels(iv_api_params *p, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        char place[80];
        snprintf(place, sizeof place, "tools.%.60s", json_string_value(json_object_get(one, "name")));
        iv_api_ignore_labels(&p->ignored, place, json_object_get(one, "parameters"));
    }
}

/* Hermes' form is the default. */
static iv_status set_calls(reader *w, iv_constraint_kind kind, iv_tool_form form, json_t *list) {
    if (form == IV_TOOL_FORM_HERMES) return set_json(w, "tool_choice", kind, list);
    json_t *formed = json_pack("{s:s, s:O}", "form", iv_tool_form_name(form), "tools", list);
    iv_status status = set_json(w, "tool_choice", kind, formed);
    json_decref(formed);
    return status;
}

/* The tools, or the named one, in the format of a constraint. */
static iv_status list_tools(json_t *tools, const char *name, json_t **out, iv_error *err) {
    json_t *list = json_array(), *tool;
    size_t i;
    bool ok = list != NULL;
    json_array_foreach(tools, i, tool) {
        json_t *nested = json_object_get(tool, "function"), *function = nested ? nested : tool;
        const json_t *named = json_object_get(function, "name");
        const char *own = json_string_value(named);
        if (!own || strlen(own) != json_string_length(named)) {
            char shown[IV_JSON_SHOWN_BYTES];
            json_decref(list);
            return iv_fail(err, IV_INVALID, "tools[%zu].function.name: wanted a string without NUL, found %s", i,
                           iv_json_shown(named, shown));
        }
        if (name && strcmp(name, own) != 0) continue;
        ok = ok && json_array_append_new(list, json_pack("{s:s, s:O?}", "name", own, "parameters",
                                                         json_object_get(function, "parameters"))) == 0;
    }
    *out = list;
    if (ok && json_array_size(list) > 0) return IV_OK;
    json_decref(list);
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "tool_choice: no memory");
    return iv_fail(err, IV_INVALID, "tool_choice: wanted one of \"tools\", found \"%.60s\"", name ? name : "none");
}

/* Restricts the answer to calls of `tools` (as in Chat Completions or Responses) or of the named one, in the model's
 * format: a single call if named, or if the parameters ask for it. No other constraint is allowed. */
static iv_status force_calls(iv_api_params *p, json_t *tools, const char *name, iv_tool_form form, iv_request *r,
                             iv_error *err) {
    reader w = {.p = p, .r = r, .prefix = "", .err = err};
    json_t *list;
    /* A format applies to the message; a forced call has none. */
    if (r->constraint != IV_CONSTRAINT_NONE && !p->format_holds) w.by = iv_constraint_name(r->constraint);
    IV_TRY(list_tools(tools, name, &list, err));
    name_tool_labels(p, list);
    bool one = p->one_tool_call || name;
    iv_status status = set_calls(&w, one ? IV_CONSTRAINT_TOOL_CALL : IV_CONSTRAINT_TOOL_CALLS, form, list);
    json_decref(list);
    return status;
}

/* A tool's `strict` as it was sent: the arguments satisfy the schema. */
static iv_status read_strict(const json_t *tools, size_t i, bool *strict, iv_error *err) {
    const json_t *tool = json_array_get(tools, i), *nested = json_object_get(tool, "function");
    const json_t *v = json_object_get(nested ? nested : tool, "strict");
    char shown[IV_JSON_SHOWN_BYTES];
    *strict = json_is_true(v);
    if (!v || json_is_null(v) || json_is_boolean(v)) return IV_OK;
    return iv_fail(err, IV_INVALID, "tools[%zu]%s.strict: wanted true or false, found %s", i, nested ? ".function" : "",
                   iv_json_shown(v, shown));
}

static bool has_name(const json_t *tool, const char *name) {
    const json_t *nested = json_object_get(tool, "function");
    const char *own = json_string_value(json_object_get(nested ? nested : tool, "name"));
    return own && strcmp(own, name) == 0;
}

/* Opens the schemas of the listed tools that are not strict. *any: some are. */
static iv_status open_loose(const json_t *given, json_t *list, bool *any, iv_error *err) {
    size_t i, k;
    json_t *one;
    *any = false;
    json_array_foreach(list, k, one) {
        bool strict = false;
        for (i = 0; !strict && i < json_array_size(given); i++)
            if (has_name(json_array_get(given, i), json_string_value(json_object_get(one, "name"))))
                IV_TRY(read_strict(given, i, &strict, err));
        *any |= strict;
        if (!strict) json_object_del(one, "parameters");
    }
    return IV_OK;
}

/* With strict tools, text is free up to a call, and a call is one of the tools'; the schemas of strict ones hold. */
static iv_status constrain_strict(iv_api_params *p, iv_tool_form form, iv_request *r, iv_error *err) {
    reader w = {.p = p, .r = r, .prefix = "", .err = err};
    json_t *list;
    bool strict;
    IV_TRY(list_tools(p->tools, NULL, &list, err));
    iv_status status = open_loose(p->given_tools ? p->given_tools : p->tools, list, &strict, err);
    if (status == IV_OK && strict && form == IV_TOOL_FORM_NONE)
        status = iv_fail(err, IV_UNSUPPORTED,
                         "tools: wanted no \"strict\": true: this server parses no calls (its --tool-call-parser is "
                         "none)");
    if (status == IV_OK && strict) {
        name_tool_labels(p, list);
        if (r->constraint != IV_CONSTRAINT_NONE) w.by = iv_constraint_name(r->constraint);
        json_t *made = json_pack("{s:s, s:O, s:b}", "form", iv_tool_form_name(form), "tools", list, "text", 1);
        status = set_json(&w, "tools", p->one_tool_call ? IV_CONSTRAINT_TOOL_CALL : IV_CONSTRAINT_TOOL_CALLS, made);
        json_decref(made);
    }
    json_decref(list);
    return status;
}

/* r is constrained to a format and `tools` may be called, too: the answer is calls, or JSON of the format. */
static iv_status constrain_to_calls_or_json(iv_api_params *p, json_t *tools, iv_tool_form form, iv_request *r,
                                            iv_error *err) {
    reader w = {.p = p, .r = r, .prefix = "", .err = err};
    bool object = r->constraint == IV_CONSTRAINT_JSON_OBJECT; /* for the schema of any object */
    iv_buf text = {0};
    json_t *list;
    IV_TRY(list_tools(tools, NULL, &list, err));
    name_tool_labels(p, list);
    char *listed = json_dumps(list, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(list);
    bool ok = listed && iv_buf_printf(&text, "{\"form\":\"%s\",\"tools\":", iv_tool_form_name(form)) &&
              iv_buf_puts(&text, listed) && iv_buf_puts(&text, ",\"schema\":") &&
              iv_buf_puts(&text, object ? "{\"type\":\"object\"}" : r->constraint_text) && iv_buf_puts(&text, "}");
    iv_constraint_kind kind = p->one_tool_call ? IV_CONSTRAINT_TOOL_CALL_OR_JSON : IV_CONSTRAINT_TOOL_CALLS_OR_JSON;
    iv_status status =
        ok ? set(&w, "tool_choice", kind, text.data, text.len) : iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    free(listed), iv_buf_free(&text);
    return status;
}
/* ---- tools: the format of calls ----------------------------------------------------------------------- */

static bool is_mistral(iv_tool_form form) {
    return form >= IV_TOOL_FORM_MISTRAL && form <= IV_TOOL_FORM_MISTRAL_CALL_ID;
}

/* The special tokens of forms that the model can generate. */
static size_t find_specials(const iv_bridge *b, iv_reasoning_form reasoning, iv_tool_form calls, int32_t *out) {
    size_t count = iv_form_ids(iv_bridge_text_model(b), reasoning, calls, out), kept = 0;
    for (size_t i = 0; i < count; i++)
        if ((size_t)out[i] < iv_bridge_info(b)->vocab_size) out[kept++] = out[i];
    return kept;
}

static bool is_automatic(const char *name) { return !name || strcmp(name, "auto") == 0; }

/* Harmony's reasoning and calls are messages alike. */
static iv_status check_forms(const iv_server *s, iv_error *err) {
    bool calls = s->tool_form == IV_TOOL_FORM_HARMONY, reasoning = s->reasoning_form == IV_REASONING_FORM_HARMONY;
    bool good = calls ? reasoning || s->reasoning_form == IV_REASONING_FORM_NONE
                      : !reasoning || s->tool_form == IV_TOOL_FORM_NONE;
    if (good) return IV_OK;
    return iv_fail(err, IV_INVALID,
                   "tool-call-parser, reasoning-parser: wanted openai with openai_gptoss (or none), found %s with %s",
                   iv_tool_form_name(s->tool_form), iv_reasoning_form_name(s->reasoning_form));
}

iv_status iv_api_tools_open(iv_server *s, const char *calls, const char *reasoning, iv_error *err) {
    const iv_text_model *t = iv_bridge_text_model(s->bridge);
    iv_tool_form own = iv_tool_form_of(t);
    s->tool_form = own, s->reasoning_form = iv_reasoning_form_of(t);
    if (!is_automatic(calls) && !iv_tool_form_named(calls, &s->tool_form))
        return iv_fail(err, IV_INVALID,
                       "tool-call-parser: wanted auto, none or the name of one (docs/SERVER.md lists them), found "
                       "\"%.40s\"",
                       calls);
    if (!is_automatic(reasoning) && !iv_reasoning_form_named(reasoning, &s->reasoning_form))
        return iv_fail(err, IV_INVALID,
                       "reasoning-parser: wanted auto, none or the name of one (docs/SERVER.md lists them), found "
                       "\"%.40s\"",
                       reasoning);
    /* Of Harmony's two a single one decides. */
    if (s->tool_form == IV_TOOL_FORM_HARMONY && is_automatic(reasoning)) s->reasoning_form = IV_REASONING_FORM_HARMONY;
    if (s->reasoning_form == IV_REASONING_FORM_HARMONY && is_automatic(calls)) s->tool_form = IV_TOOL_FORM_HARMONY;
    /* Mistral's variant follows from the template. */
    if (s->tool_form == IV_TOOL_FORM_MISTRAL && is_mistral(own)) s->tool_form = own;
    s->reasoning_id_count = find_specials(s->bridge, s->reasoning_form, IV_TOOL_FORM_NONE, s->tool_ids);
    s->tool_id_count = find_specials(s->bridge, s->reasoning_form, s->tool_form, s->tool_ids);
    return check_forms(s, err);
}

/* ---- tools: the fields -------------------------------------------------------------------------------- */

static iv_status check_types(const json_t *tools, iv_error *err) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *type = json_string_value(json_object_get(json_array_get(tools, i), "type"));
        if (!type || strcmp(type, "function") != 0)
            return iv_fail(err, IV_INVALID, "tools[%zu].type: wanted \"function\", found \"%.40s\"", i,
                           type ? type : "nothing");
    }
    return IV_OK;
}

/* The name of a tool, or of a choice: in a chat it is nested. */
static const char *tool_name(const json_t *tool) {
    const json_t *named = json_object_get(tool, "function");
    return json_string_value(json_object_get(named ? named : tool, "name"));
}

static bool names_tool(const json_t *list, const char *name) {
    for (size_t i = 0; name && i < json_array_size(list); i++) {
        const char *other = tool_name(json_array_get(list, i));
        if (other && strcmp(other, name) == 0) return true;
    }
    return false;
}

iv_status iv_api_tools_allow(iv_api_params *p, iv_error *err) {
    const char *type = json_string_value(json_object_get(p->tool_choice, "type"));
    if (!type || strcmp(type, "allowed_tools") != 0) return IV_OK;
    json_t *nested = json_object_get(p->tool_choice, "allowed_tools"), *in = nested ? nested : p->tool_choice;
    json_t *mode = json_object_get(in, "mode"), *allowed = json_object_get(in, "tools");
    const char *word = json_string_value(mode), *where = nested ? "tool_choice.allowed_tools" : "tool_choice";
    if (!word || (strcmp(word, "auto") != 0 && strcmp(word, "required") != 0))
        return iv_fail(err, IV_INVALID, "%s.mode: wanted \"auto\" or \"required\", found \"%.40s\"", where,
                       word ? word : "nothing");
    if (json_array_size(allowed) == 0)
        return iv_fail(err, IV_INVALID, "%s.tools: wanted a list of functions, found none", where);
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        const char *name = tool_name(json_array_get(allowed, i));
        if (!names_tool(p->tools, name))
            return iv_fail(err, IV_INVALID, "%s.tools[%zu]: wanted one of \"tools\", found \"%.60s\"", where, i,
                           name ? name : "nothing");
    }
    for (size_t i = json_array_size(p->tools); i-- > 0;)
        if (!names_tool(allowed, tool_name(json_array_get(p->tools, i)))) json_array_remove(p->tools, i);
    p->tool_choice = mode;
    return IV_OK;
}

iv_status iv_api_tools_apply(const iv_server *s, iv_api_params *p, iv_error *err) {
    IV_TRY(iv_api_tools_allow(p, err));
    const char *choice = json_string_value(p->tool_choice), *name = NULL;
    if (json_is_object(p->tool_choice)) {
        json_t *named = json_object_get(p->tool_choice, "function"); /* in a chat the name is nested */
        name = json_string_value(json_object_get(named ? named : p->tool_choice, "name"));
        choice = name ? json_string_value(json_object_get(p->tool_choice, "type")) : NULL;
    }
    const char *type = choice ? choice : json_string_value(json_object_get(p->tool_choice, "type"));
    bool forced = choice && strcmp(choice, name ? "function" : "required") == 0;
    if (p->tool_choice && !forced && !(choice && !name && (strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0)))
        return iv_fail(err, IV_UNSUPPORTED,
                       "tool_choice: wanted \"auto\", \"none\", \"required\" or a function's name in "
                       "{\"type\": \"function\", ...}, found %s%.40s",
                       json_is_string(p->tool_choice) ? "" : "an object of type ", type ? type : "nothing");
    bool needless = choice && !forced && (strcmp(choice, "none") == 0 || p->tools); /* "auto" with an empty list */
    if (choice && !needless && json_array_size(p->tools) == 0)
        return iv_fail(err, IV_INVALID, "tool_choice: wanted \"tools\" with \"%s\", found none", choice);
    if (choice && strcmp(choice, "none") == 0) p->tools = NULL;
    if (json_array_size(p->tools) == 0) p->tools = NULL;
    IV_TRY(check_types(p->tools, err));
    if (forced && s->tool_form == IV_TOOL_FORM_NONE)
        return iv_fail(err, IV_UNSUPPORTED,
                       "tool_choice: wanted \"auto\" or \"none\": this server parses no calls (its "
                       "--tool-call-parser is none)");
    p->request.show_ids = s->tool_ids;
    p->request.show_id_count = p->tools ? s->tool_id_count : s->reasoning_id_count;
    p->forced_call = forced;
    if (forced) return force_calls(p, p->tools, name, s->tool_form, &p->request, err);
    bool calls_or_json = p->tools && p->format_holds && s->tool_form != IV_TOOL_FORM_NONE;
    if (calls_or_json) return constrain_to_calls_or_json(p, p->tools, s->tool_form, &p->request, err);
    return p->tools && !p->format_holds ? constrain_strict(p, s->tool_form, &p->request, err) : IV_OK;
}

/* ---- ids of calls ------------------------------------------------------------------------------------- */

void iv_api_call_id(const iv_server *s, const char *response, size_t choice, size_t i, const char *function,
                    char out[IV_CALL_ID_BYTES]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { SHORT = 9 };
    uint8_t hash[32];
    if (s->tool_form == IV_TOOL_FORM_KIMI_K2) {
        snprintf(out, IV_CALL_ID_BYTES, "functions.%.256s:%zu", function, i);
        return;
    }
    snprintf(out, IV_CALL_ID_BYTES, "call_%.40s_%zu_%zu", response, choice, i);
    if (!is_mistral(s->tool_form)) return;
    iv_digest_of(out, strlen(out), hash);
    for (size_t k = 0; k < SHORT; k++) out[k] = digits[hash[k] % (sizeof digits - 1)];
    out[SHORT] = 0;
}
