/* tool_calls.c: the forms of calls as automata, each as chat templates write it back:
 *
 *     hermes            <tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call>, one to a line
 *     llama3_json       {"name": "NAME", "parameters": {...}}, one: templates know no second
 *     mistral           [TOOL_CALLS][{"name": "NAME", "arguments": {...}}, ...], each perhaps with an "id"
 *     mistral_name      [TOOL_CALLS]NAME{...}, again and again
 *     mistral_args      [TOOL_CALLS]NAME[ARGS]{...}
 *     mistral_call_id   [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}
 *     qwen3_coder       <tool_call>\n<function=NAME>\n then for each argument
 *                       <parameter=KEY>\nVALUE\n</parameter>\n and </function>\n</tool_call>, one to a line
 *
 * In the last form strings are written as they are, other values as JSON; src/chat reads them back as values that
 * satisfy the schema. */
#include "grammar/kinds.h"
#include "grammar/schema_names.h"
#include "format/json.h"
#include "grammar/free_text.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <string.h>

/* ---- Qwen3-Coder's parameters -------------------------------------------------------------------------- */

/* The ends of a value: none may occur in one. */
static const char *const ends[] = {"</parameter>", "\n<parameter=", "\n</function>", NULL};
enum {
    EXCLUDE_EFFORT = 2560, /* per state of a pattern, with these words */
    LOOK_EFFORT = 8,       /* per lookup of a parameter's types */
    OPEN_NAME_BYTES = 64,
    NAME_WRITABLE_BYTES_MAX = 256
};

typedef struct writer {
    iv_kind_builder *m;
    json_t *parameters; /* the schema of all */
    uint32_t from, to;
    unsigned kinds; /* of a value: the types it may be parsed as */
} writer;

/* Whether a name can be in a tag: 1 to 256 bytes, no '<', '>' or control characters. */
static bool name_is_writable(const char *name) {
    size_t n = strlen(name);
    for (const char *c = name; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7f || *c == '<' || *c == '>') return false;
    return n > 0 && n <= NAME_WRITABLE_BYTES_MAX;
}

/* ---- values of parameters ------------------------------------------------------------------------------ */

/* The characters with which a text would be parsed as another type. null is a single word, so its first letter is
 * allowed. */
static void first_of_others(unsigned kinds, char out[20]) {
    static const struct {
        unsigned kinds;
        const char *characters;
    } firsts[] = {{IV_KIND_INTEGER | IV_KIND_NUMBER, "-0123456789"},
                  {IV_KIND_BOOLEAN, "tf"},
                  {IV_KIND_ARRAY, "["},
                  {IV_KIND_OBJECT, "{"}};
    *out = 0;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        if (kinds & firsts[i].kinds) strcat(out, firsts[i].characters);
}

static bool is_writable_text(const char *text, const char *not_first) {
    bool good = !*text || !strchr(not_first, *text);
    for (const char *const *end = ends; *end; end++) {
        bool begins = (*end)[0] == '\n' && strncmp(text, *end + 1, strlen(*end) - 1) == 0;
        good = good && !begins && !strstr(text, *end);
    }
    return good;
}

/* A rule, plus one; 0: the automaton has failed. */
static int32_t beyond_ascii(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    int32_t *slot = &s->common->beyond_ascii;
    if (!*slot && iv_schema_new_rule(s, slot, &from, &to) >= 0)
        iv_codepoints_spell(&iv_beyond_ascii, s->a, IV_SPELL_RAW, from, to, &tails);
    return *slot;
}

static iv_status write_text(const writer *w, iv_schema_set *s, json_t *plain, const char *where, iv_error *err) {
    iv_schema_text t;
    iv_regular m;
    char not_first[20];
    uint32_t from = w->from, to = w->to;
    IV_TRY(iv_schema_text_read(s, plain, where, &t, err));
    first_of_others(w->kinds, not_first);
    bool free = t.any && t.min == 0 && t.max == SIZE_MAX && !*not_first;
    int32_t *common = &s->common->any_text;
    if (free && *common) {
        iv_automaton_call(s->a, w->from, *common - 1, w->to);
        return IV_OK;
    }
    if (free) {
        int32_t rule = iv_schema_new_rule(s, common, &from, &to);
        if (rule < 0) return IV_OK;
        iv_automaton_call(s->a, w->from, rule, w->to);
    }
    IV_TRY(iv_schema_charge(s, t.m.state_count, EXCLUDE_EFFORT, where, err));
    IV_TRY(iv_regular_exclude(t.where, &t.m, ends, not_first, s->arena, &m, err));
    iv_writing how = {IV_SPELL_RAW, IV_NO_RULE, beyond_ascii(s)};
    return iv_regular_spell(t.where, &m, s->a, how, t.min, t.max, from, to, err);
}

/* The values, with strings written as they are; strings that cannot be written are left out. */
static iv_status write_values(const writer *w, iv_schema_set *s, json_t *plain, const char *where, iv_error *err) {
    json_t *list, *v;
    size_t i;
    char not_first[20];
    first_of_others(w->kinds, not_first);
    IV_TRY(iv_schema_values(s, plain, where, &list, err));
    json_array_foreach(list, i, v) {
        const char *text = json_string_value(v);
        if (!text)
            IV_TRY(iv_schema_value(s, v, where, w->from, w->to, err));
        else if (strlen(text) == json_string_length(v) && is_writable_text(text, not_first))
            iv_automaton_text_to(s->a, w->from, text, strlen(text), w->to);
    }
    return IV_OK;
}

/* Without a type, the value is a text. */
static iv_status write_value(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err) {
    const writer *w = user;
    json_t *type = json_object_get(plain, "type");
    unsigned allowed = iv_json_keyword_kinds(plain);
    if (json_object_get(plain, "enum") || json_object_get(plain, "const")) return write_values(w, s, plain, where, err);
    if (type)
        IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    else if (!allowed)
        allowed = IV_KIND_STRING;
    if (allowed & IV_KIND_STRING) IV_TRY(write_text(w, s, plain, where, err));
    allowed &= ~(unsigned)IV_KIND_STRING;
    if (!allowed) return IV_OK;
    static const char *const names[] = {"null", "boolean", "number", "array", "object"};
    json_t *others = json_copy(plain), *list = json_array();
    bool ok = others && list && json_array_append(s->made, others) == 0;
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++) {
        unsigned bits = iv_json_kind_named(names[i]) & allowed;
        const char *name = bits == IV_KIND_INTEGER ? "integer" : names[i];
        if (bits) ok = json_array_append_new(list, json_string(name)) == 0;
    }
    ok = json_object_set_new(others, "type", list) == 0 && ok;
    json_decref(others); /* s->made keeps it */
    return ok ? iv_schema_plain(s, others, where, w->from, w->to, err) : iv_schema_no_memory(s, err);
}

/* After "<parameter=" and the name. */
static iv_status write_rest(const writer *w, iv_schema_set *s, json_t *schema, const char *name, const char *where,
                            uint32_t from, uint32_t to, iv_error *err) {
    size_t looks;
    unsigned kinds = iv_json_parameter_kinds(w->parameters, name, &looks);
    IV_TRY(iv_schema_charge(s, looks, LOOK_EFFORT, where, err));
    writer value = {.m = w->m, .kinds = kinds, .from = iv_automaton_text(s->a, from, ">\n")};
    value.to = iv_automaton_state(s->a);
    iv_automaton_text_to(s->a, value.to, "\n</parameter>\n", 14, to);
    return iv_schema_each(s, schema, where, write_value, &value, err);
}

/* ---- the parameters ------------------------------------------------------------------------------------ */

static bool is_required(const json_t *required, const char *name) {
    const json_t *one;
    size_t i;
    json_array_foreach(required, i,
                       one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* Advances *at. */
static iv_status write_named(const writer *w, iv_schema_set *s, const char *name, json_t *schema, bool required,
                             const char *where, uint32_t *at, iv_error *err) {
    uint32_t next = iv_automaton_state(s->a);
    if (!name_is_writable(name))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %.300s: the model's tool call form requires names of 1 to %d bytes without '<', '>' and "
                       "control characters",
                       s->name, where, NAME_WRITABLE_BYTES_MAX);
    uint32_t named = iv_automaton_text(s->a, iv_automaton_text(s->a, *at, "<parameter="), name);
    IV_TRY(write_rest(w, s, schema, name, where, named, next, err));
    if (!required) iv_automaton_skip(s->a, *at, next);
    *at = next;
    return IV_OK;
}

/* Any parameters with names of letters, digits, '_', '-' and '.'. A repeated name counts once. */
static iv_status write_open(const writer *w, iv_schema_set *s, json_t *plain, json_t *rest, const char *where,
                            uint32_t at, iv_error *err) {
    static const char ranges[] = "azAZ09__--..";
    size_t min = 0, max = SIZE_MAX;
    iv_automaton *a = s->a;
    const char *rest_where = iv_schema_at(s, where, "additionalProperties");
    IV_TRY(iv_schema_count(s, plain, "minProperties", where, &min, err));
    IV_TRY(iv_schema_count(s, plain, "maxProperties", where, &max, err));
    if (min > 1)
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties: the model's tool call form requires 0 or 1 without \"properties\"", err);
    for (size_t i = 0; a->failed == IV_OK; i++) {
        if (i >= min) iv_automaton_text_to(a, at, "</function>", 11, w->to);
        if (i == max) return IV_OK;
        bool last = max == SIZE_MAX && i >= min;
        uint32_t name = iv_automaton_text(a, at, "<parameter="), next = last ? at : iv_automaton_state(a);
        uint32_t named = iv_automaton_state(a);
        for (size_t k = 0; k < OPEN_NAME_BYTES; k++) {
            uint32_t on = iv_automaton_state(a);
            for (size_t r = 0; r + 1 < sizeof ranges; r += 2)
                iv_automaton_bytes(a, name, (uint8_t)ranges[r], (uint8_t)ranges[r + 1], on);
            iv_automaton_skip(a, on, named);
            name = on;
        }
        IV_TRY(write_rest(w, s, rest, "", rest_where, named, next, err));
        if (last) return IV_OK;
        at = next;
    }
    return IV_OK;
}

/* One alternative of the parameters. Properties other than the named ones are not written. */
static iv_status write_object(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err) {
    const writer *w = user;
    json_t *type = json_object_get(plain, "type"), *listed = json_object_get(plain, "properties");
    json_t *rest = json_object_get(plain, "additionalProperties"), *required = json_object_get(plain, "required"), *v;
    const char *name, *listed_where = iv_schema_at(s, where, "properties");
    unsigned allowed = IV_KIND_OBJECT;
    uint32_t at = w->from;
    size_t i;
    if (type) IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    if (!(allowed & IV_KIND_OBJECT)) return IV_OK;
    if (json_object_get(plain, "enum") || json_object_get(plain, "const"))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "enum, const: not supported for arguments in the model's tool call form", err);
    if ((listed && !json_is_object(listed)) || (required && !json_is_array(required)))
        return iv_schema_fail(s, IV_INVALID, where, "wanted \"properties\", an object, and \"required\", a list", err);
    if (iv_schema_has_names(plain))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "patternProperties, propertyNames: not supported in the model's tool call form", err);
    bool open = rest ? !json_is_false(rest) : !listed, named = json_object_size(listed) || json_array_size(required);
    if (!rest) rest = json_true();
    if (!named && open) return write_open(w, s, plain, rest, where, at, err);
    if (json_object_get(plain, "minProperties") || json_object_get(plain, "maxProperties"))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties, maxProperties: not supported next to \"properties\"", err);
    IV_TRY(iv_schema_charge(s, 1 + json_object_size(listed), 1 + json_array_size(required), where, err));
    json_object_foreach(listed, name, v) {
        const char *at_name = iv_schema_at(s, listed_where, name);
        IV_TRY(write_named(w, s, name, v, is_required(required, name), at_name, &at, err));
    }
    json_array_foreach(required, i, v) {
        name = json_string_value(v);
        if (!name) return iv_schema_fail(s, IV_INVALID, where, "required: wanted strings", err);
        if (json_object_get(listed, name)) continue;
        IV_TRY(write_named(w, s, name, rest, true, iv_schema_at(s, where, "required"), &at, err));
    }
    iv_automaton_text_to(s->a, at, "</function>", 11, w->to);
    return IV_OK;
}

/* The parameters up to and including </function>. parameters: their schema; NULL, null, true: any. `name` prefixes
 * errors. */
static iv_status write_parameters(iv_kind_builder *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                  iv_error *err) {
    iv_schema_set s;
    bool none = !parameters || json_is_null(parameters);
    writer w = {.m = m, .parameters = parameters, .from = from, .to = to};
    IV_TRY(iv_schema_set_open(&s, name, parameters, &m->common, err));
    iv_status status = iv_schema_each(&s, none ? json_true() : parameters, "#", write_object, &w, err);
    if (status == IV_OK) status = iv_schema_set_compile(&s, err);
    iv_schema_set_close(&s);
    return status;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

enum { TOOLS_MAX = 512, TOOL_NAME_BYTES_MAX = 256, CALL_ID_CHARS = 9 };

const char *iv_tool_form_name(iv_tool_form form) {
    static const char *const names[] = {"hermes",       "llama3_json",     "mistral",     "mistral_name",
                                        "mistral_args", "mistral_call_id", "qwen3_coder", "none"};
    return (size_t)form < sizeof names / sizeof *names ? names[form] : "none";
}

bool iv_tool_name_is_bare(const char *name, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        char c = name[i], lower = (char)(c | 0x20);
        if (!(lower >= 'a' && lower <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.')
            return false;
    }
    return bytes > 0;
}

/* ---- the parts of a call ------------------------------------------------------------------------------- */

/* Arguments are objects, even if their schema allows more. */
static iv_status write_arguments(iv_kind_builder *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                 iv_error *err) {
    json_t *type = json_object_get(parameters, "type"), *one;
    size_t i;
    bool may = !type || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
    if (!parameters || json_is_null(parameters) || json_is_true(parameters))
        return iv_schema_write(&m->common, "json_object", NULL, NULL, from, to, err);
    json_array_foreach(type, i, one) may |= json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
    if (!may) return iv_fail(err, IV_INVALID, "%s: #: type: wanted \"object\", as arguments are objects", name);
    if (json_is_string(type) || !json_is_object(parameters))
        return iv_schema_write(&m->common, name, parameters, parameters, from, to, err);
    json_t *object = json_copy(parameters);
    bool ok = object && json_object_set_new(object, "type", json_string("object")) == 0;
    iv_status status = ok ? iv_schema_write(&m->common, name, parameters, object, from, to, err)
                          : iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    json_decref(object);
    return status;
}

/* The special token if the vocabulary has it, else its spelling. */
static void write_special(iv_kind_builder *m, uint32_t from, iv_special special, uint32_t to) {
    const char *name = iv_special_name(special);
    if (m->vocabulary && m->vocabulary->specials[special] >= 0)
        iv_automaton_special(m->a, from, special, to);
    else
        iv_automaton_text_to(m->a, from, name, strlen(name), to);
}

static uint32_t write_call_id(iv_automaton *a, uint32_t from) {
    static const char ranges[] = "azAZ09";
    for (int i = 0; i < CALL_ID_CHARS && a->failed == IV_OK; i++) {
        uint32_t next = iv_automaton_state(a);
        for (int k = 0; k < 6; k += 2) iv_automaton_bytes(a, from, (uint8_t)ranges[k], (uint8_t)ranges[k + 1], next);
        from = next;
    }
    return from;
}

/* {"name": "NAME", KEY: {...}}; Mistral's form allows an "id" at the end. */
static iv_status write_object_call(iv_kind_builder *m, const iv_tool_entry *entry, const char *name, iv_tool_form form,
                                   json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    bool bare = form == IV_TOOL_FORM_LLAMA3_JSON;
    uint32_t at = iv_automaton_text(a, from, "{\"name\""), next = iv_automaton_state(a);
    iv_json_string_spell(a, name, strlen(name), iv_json_mark(a, at, ':'), next);
    at = iv_automaton_text(a, iv_json_mark(a, next, ','), bare ? "\"parameters\"" : "\"arguments\"");
    next = iv_automaton_state(a);
    uint32_t marked = iv_automaton_state(a);
    if (bare && m->format) /* nothing before has distinguished it from other JSON */
        iv_automaton_cut(a, at, ':', marked);
    else
        iv_automaton_bytes(a, at, ':', ':', marked);
    at = iv_json_space(a, marked);
    iv_automaton_bytes(a, next, '}', '}', to);
    if (form == IV_TOOL_FORM_MISTRAL) {
        uint32_t id = iv_automaton_text(a, iv_json_mark(a, next, ','), "\"id\"");
        id = write_call_id(a, iv_automaton_text(a, iv_json_mark(a, id, ':'), "\""));
        iv_automaton_text_to(a, id, "\"}", 2, to);
    }
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return write_arguments(m, entry->name, parameters, at, next, err);
}

/* NAME, the form's marks, {...}. A bare name cannot be escaped, so not every name is allowed. */
static iv_status write_bare_call(iv_kind_builder *m, const iv_tool_entry *entry, iv_tool_form form, const char *name,
                                 json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    if (!iv_tool_name_is_bare(name, strlen(name)))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: the model's tool call form requires a name of letters, digits, '_', '-' and '.'",
                       entry->name);
    uint32_t at = iv_automaton_text(a, from, name), next;
    if (form == IV_TOOL_FORM_MISTRAL_CALL_ID) {
        next = iv_automaton_state(a);
        write_special(m, at, IV_SPECIAL_CALL_ID, next);
        at = write_call_id(a, next);
    }
    if (form != IV_TOOL_FORM_MISTRAL_NAME) {
        next = iv_automaton_state(a);
        write_special(m, at, IV_SPECIAL_ARGS, next);
        at = next;
    }
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return write_arguments(m, entry->name, parameters, at, to, err);
}

/* <function=NAME> and the parameters, each in its own tag. */
static iv_status write_tagged_call(iv_kind_builder *m, const iv_tool_entry *entry, const char *name, json_t *parameters,
                                   uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    if (!name_is_writable(name))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: the model's tool call form requires a name without '<', '>' and control characters",
                       entry->name);
    uint32_t at = iv_automaton_text(a, m->function ? m->function : iv_automaton_text(a, from, "<function="), name);
    at = iv_automaton_text(a, at, ">\n");
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return write_parameters(m, entry->name, parameters, at, to, err);
}

static iv_status write_call(iv_kind_builder *m, json_t *tool, size_t index, iv_tool_form form, uint32_t from,
                            uint32_t to, iv_error *err) {
    const char *name = json_string_value(json_object_get(tool, "name"));
    json_t *parameters = json_object_get(tool, "parameters");
    char where[400];
    if (!name || !*name || strlen(name) > TOOL_NAME_BYTES_MAX ||
        strlen(name) != json_string_length(json_object_get(tool, "name")))
        return iv_fail(err, IV_INVALID, "tools[%zu].name: wanted a string of 1 to %d bytes without NUL", index,
                       TOOL_NAME_BYTES_MAX);
    snprintf(where, sizeof where, "parameters of tool \"%s\"", name);
    iv_tool_entry entry = {.name = iv_arena_strndup(m->arena, where, strlen(where))};
    if (!entry.name) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    if (form == IV_TOOL_FORM_QWEN3_CODER) return write_tagged_call(m, &entry, name, parameters, from, to, err);
    if (form > IV_TOOL_FORM_MISTRAL) return write_bare_call(m, &entry, form, name, parameters, from, to, err);
    return write_object_call(m, &entry, name, form, parameters, from, to, err);
}

/* ---- the forms ----------------------------------------------------------------------------------------- */

/* Writes the marks around the calls: each call goes from *open to *close. */
static void write_around(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to,
                         uint32_t *open, uint32_t *close) {
    iv_automaton *a = m->a;
    *open = from, *close = iv_automaton_state(a);
    if (form == IV_TOOL_FORM_HERMES || form == IV_TOOL_FORM_QWEN3_CODER) {
        *open = iv_automaton_text(a, from, "<tool_call>\n");
        uint32_t end = iv_automaton_text(a, *close, "\n</tool_call>");
        iv_automaton_skip(a, end, to);
        if (several) iv_automaton_text_to(a, end, "\n", 1, from);
        return;
    }
    if (form == IV_TOOL_FORM_LLAMA3_JSON) {
        iv_automaton_skip(a, *close, to);
        return;
    }
    *open = iv_automaton_state(a);
    if (form == IV_TOOL_FORM_MISTRAL) { /* some templates have a space before the list */
        uint32_t begin = iv_automaton_state(a);
        write_special(m, from, IV_SPECIAL_TOOL_CALLS, begin);
        iv_automaton_text_to(a, begin, "[", 1, *open);
        iv_automaton_text_to(a, begin, " [", 2, *open);
        iv_automaton_text_to(a, *close, "]", 1, to);
        if (several) iv_automaton_skip(a, iv_json_mark(a, *close, ','), *open);
        return;
    }
    write_special(m, from, IV_SPECIAL_TOOL_CALLS, *open);
    iv_automaton_skip(a, *close, to);
    if (several) iv_automaton_skip(a, *close, from);
}

/* Hermes' and Qwen3-Coder's calls in any text. A model may omit the coder's first tag. */
static void write_in_text(iv_kind_builder *m, bool coder, bool several, uint32_t from, uint32_t to, uint32_t *open,
                          uint32_t *close) {
    iv_automaton *a = m->a;
    uint32_t tag = iv_automaton_state(a), rest = several ? from : iv_automaton_state(a);
    iv_free_text text = {.marks = {{"<tool_call>", tag}, {"<function=", IV_TEXT_FORBIDDEN}},
                         .mark_count = coder ? 2 : 1,
                         .end = to,
                         .not_first = "",
                         .special = -1};
    *open = iv_automaton_text(a, tag, "\n"), *close = iv_automaton_state(a);
    if (coder) {
        m->function = text.marks[1].to = iv_automaton_state(a);
        iv_automaton_text_to(a, *open, "<function=", 10, m->function);
    }
    iv_free_text_write(a, &text, from);
    iv_automaton_skip(a, iv_automaton_text(a, *close, "\n</tool_call>"), rest);
    text.marks[0].to = text.marks[1].to = IV_TEXT_FORBIDDEN;
    if (!several) iv_free_text_write(a, &text, rest);
}

/* A call in Llama's form is the whole answer: one that begins with '{' is a call. */
static void write_llama_or_text(iv_kind_builder *m, uint32_t from, uint32_t to, uint32_t *open, uint32_t *close) {
    static const char spaces[] = " \n\r\t";
    iv_free_text text = {.marks = {{"<|python_tag|>", IV_TEXT_FORBIDDEN}}, .mark_count = 1, .end = to, .special = -1};
    text.not_first = "{ \n\r\t";
    iv_free_text_write(m->a, &text, from);
    for (const char *c = spaces; *c; c++) iv_automaton_bytes(m->a, from, (uint8_t)*c, (uint8_t)*c, from);
    *open = iv_automaton_state(m->a), *close = iv_automaton_state(m->a);
    iv_automaton_skip(m->a, from, *open), iv_automaton_skip(m->a, *close, to);
}

/* Mistral's calls after any text: the special token, or its spelling where the vocabulary has none. */
static void write_mistral_or_text(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to,
                                  uint32_t *open, uint32_t *close) {
    iv_automaton *a = m->a;
    bool special = m->vocabulary && m->vocabulary->specials[IV_SPECIAL_TOOL_CALLS] >= 0;
    uint32_t begin = iv_automaton_state(a), rest = several ? from : iv_automaton_state(a);
    iv_free_text text = {.marks = {{iv_special_name(IV_SPECIAL_TOOL_CALLS), special ? IV_TEXT_FORBIDDEN : begin}},
                         .mark_count = 1,
                         .end = to,
                         .not_first = "",
                         .special = special ? IV_SPECIAL_TOOL_CALLS : -1,
                         .special_to = begin};
    *open = begin, *close = iv_automaton_state(a);
    iv_free_text_write(a, &text, from);
    if (form == IV_TOOL_FORM_MISTRAL) {
        *open = iv_automaton_state(a);
        iv_automaton_text_to(a, begin, "[", 1, *open);
        iv_automaton_text_to(a, begin, " [", 2, *open);
        iv_automaton_text_to(a, *close, "]", 1, rest);
        if (several) iv_automaton_skip(a, iv_json_mark(a, *close, ','), *open);
    } else {
        iv_automaton_skip(a, *close, rest);
    }
    text.marks[0].to = IV_TEXT_FORBIDDEN, text.special = -1;
    if (!several) iv_free_text_write(a, &text, rest);
}

static void write_around_or_text(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to,
                                 uint32_t *open, uint32_t *close) {
    bool coder = form == IV_TOOL_FORM_QWEN3_CODER;
    if (coder || form == IV_TOOL_FORM_HERMES)
        write_in_text(m, coder, several, from, to, open, close);
    else if (form == IV_TOOL_FORM_LLAMA3_JSON)
        write_llama_or_text(m, from, to, open, close);
    else
        write_mistral_or_text(m, form, several, from, to, open, close);
}

static iv_status read_form(const json_t *json, iv_tool_form *form, const json_t **list, iv_error *err) {
    *form = IV_TOOL_FORM_HERMES, *list = json;
    if (!json_is_object(json)) return IV_OK;
    const char *name = json_string_value(json_object_get(json, "form"));
    *list = json_object_get(json, "tools");
    while (*form < IV_TOOL_FORM_NONE && (!name || strcmp(name, iv_tool_form_name(*form)) != 0)) ++*form;
    if (*form != IV_TOOL_FORM_NONE) return IV_OK;
    return iv_fail(err, IV_INVALID, "tools: form: wanted a tool call form, found \"%.40s\"", name ? name : "nothing");
}

iv_status iv_tool_calls_write(iv_kind_builder *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err) {
    iv_tool_form form;
    const json_t *list;
    json_t *one;
    size_t i;
    uint32_t open, close;
    IV_TRY(read_form(json, &form, &list, err));
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > TOOLS_MAX)
        return iv_fail(err, IV_INVALID, "tools: wanted a list of 1 to %d, found %s of %zu", TOOLS_MAX,
                       iv_json_type_name(list), count);
    if (!(m->tools = IV_ARENA_NEW(m->arena, count, iv_tool_entry)))
        return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    if (json_is_true(json_object_get(json, "text")))
        write_around_or_text(m, form, several, from, to, &open, &close);
    else
        write_around(m, form, several, from, to, &open, &close);
    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        if (m->a->failed != IV_OK) return IV_OK;
        IV_TRY(write_call(m, one, i, form, open, close, err));
    }
    return IV_OK;
}

iv_status iv_tool_calls_check(const iv_kind_builder *m, iv_error *err) {
    for (size_t i = 0; i < m->tool_count; i++)
        if (!m->a->alive[m->tools[i].state])
            return iv_fail(err, IV_INVALID, "%s: no finite object satisfies them", m->tools[i].name);
    return IV_OK;
}
