/* reference.c: the reference of all fields, from their table: docs/REQUESTS.md and GET /openapi.json. */
#include "serve/api/handlers.h"
#include "serve/api/params_table.h"
#include "serve/api/reply.h"

#include <string.h>

/* Bodies and their paths; a path in brackets is a member of another body. */
static const struct {
    unsigned body;
    const char *path, *name;
} bodies[] = {
    {IV_API_COMPLETIONS, "/v1/completions", "completions"},
    {IV_API_CHAT, "/v1/chat/completions", "chat"},
    {IV_API_RESPONSES, "/v1/responses", "responses"},
    {IV_API_INPUT_TOKENS, "/v1/responses/input_tokens", "input_tokens"},
    {IV_API_MESSAGES, "/v1/messages", "messages"},
    {IV_API_COUNT, "/v1/messages/count_tokens", "count_tokens"},
    {IV_API_GENERATE, "/generate", "generate"},
    {IV_API_SCORE, "/v1/score", "score"},
    {IV_API_DECISIONS, "/v1/decisions", "decisions"},
    {IV_API_TOKENIZE, "/tokenize", "tokenize"},
    {IV_API_DETOKENIZE, "/detokenize", "detokenize"},
    {IV_API_ABORT, "/abort_request", "abort"},
    {IV_API_WEIGHTS, "/update_weights_from_disk", "weights"},
    {IV_API_STREAM_OPTIONS, NULL, "stream_options"},
    {IV_API_RESPONSE_STREAM_OPTIONS, NULL, "stream_options of responses"},
    {IV_API_SAMPLING, NULL, "sampling_params"},
    {IV_API_CUSTOM, NULL, "custom_params"},
    {IV_API_REASONING, NULL, "reasoning"},
    {IV_API_OUTPUT, NULL, "output_config"},
};
enum { BODIES = sizeof bodies / sizeof *bodies };

/* The items of a list between bars: *at moves behind one. NULL: no more. */
static const char *next_item(const char **at, size_t *bytes) {
    const char *item = *at + 1;
    if (!item[-1] || !*item) return NULL;
    *bytes = strcspn(item, "|");
    *at = item + *bytes;
    return item;
}

/* ---- the page ----------------------------------------------------------------------------------------- */

static void out_range(const iv_api_field *f, iv_buf *out) {
    if (f->max >= INT32_MAX && f->min <= INT32_MIN)
        iv_buf_puts(out, "integer");
    else if (f->max >= INT32_MAX)
        iv_buf_printf(out, "integer from %.0f", f->min);
    else
        iv_buf_printf(out, "%s from %g to %g",
                      f->kind == IV_FIELD_INT || f->kind == IV_FIELD_TOP_K ? "integer" : "number", f->min, f->max);
}

static void out_items(const char *only, bool code, iv_buf *out) {
    size_t bytes, i = 0;
    for (const char *item; (item = next_item(&only, &bytes)) != NULL; i++)
        iv_buf_printf(out, code ? "%s`%.*s`" : "%s%.*s", i ? ", " : "", (int)bytes, item);
}

static void out_values(const iv_api_field *f, iv_buf *out) {
    switch (f->kind) {
    case IV_FIELD_INT:
    case IV_FIELD_TOP_K:
    case IV_FIELD_FLOAT:
    case IV_FIELD_TEMPERATURE: out_range(f, out); break;
    case IV_FIELD_BOOL:
    case IV_FIELD_NOT_BOOL: iv_buf_puts(out, "true, false"); break;
    case IV_FIELD_STRING: iv_buf_puts(out, "string"); break;
    case IV_FIELD_JSON: out_items(f->only, false, out); break;
    case IV_FIELD_SEED: iv_buf_puts(out, "integer of 64 bits"); break;
    case IV_FIELD_STOP: iv_buf_puts(out, "string, list of strings"); break;
    case IV_FIELD_STOP_IDS: iv_buf_puts(out, "list of ids"); break;
    case IV_FIELD_BIAS: iv_buf_puts(out, "object of ids and numbers"); break;
    case IV_FIELD_ACCEPT: iv_buf_puts(out, "any"); break;
    case IV_FIELD_ONLY:
    case IV_FIELD_ONE_OF: out_items(f->only, true, out); break;
    case IV_FIELD_EACH_OF: iv_buf_puts(out, "list of "), out_items(f->only, true, out); break;
    }
}

static void out_bodies(unsigned mask, iv_buf *out) {
    const char *comma = "";
    for (size_t i = 0; i < BODIES; i++)
        if (mask & bodies[i].body) iv_buf_printf(out, "%s%s", comma, bodies[i].name), comma = ", ";
}

/* What a field does: the sections of the page. */
typedef enum effect { CHANGES, ONLY, NEVER, EFFECTS } effect;

static effect effect_of(const iv_api_field *f) {
    return f->kind == IV_FIELD_ACCEPT ? NEVER : f->kind == IV_FIELD_ONLY ? ONLY : CHANGES;
}

static bool together(const iv_api_field *a, const iv_api_field *b) {
    return a->bodies == b->bodies && effect_of(a) == effect_of(b);
}

/* The fields of the first one's bodies and effect, unless an earlier field has printed them. */
static void out_group(size_t first, iv_buf *out) {
    const iv_api_field *f = &iv_api_fields[first];
    for (size_t i = 0; i < first; i++)
        if (together(&iv_api_fields[i], f)) return;
    iv_buf_puts(out, "\n**"), out_bodies(f->bodies, out), iv_buf_puts(out, "**\n\n");
    for (size_t i = first; i < iv_api_field_count; i++) {
        const iv_api_field *g = &iv_api_fields[i];
        const char *help = iv_api_field_help(g->name);
        if (!together(g, f)) continue;
        iv_buf_printf(out, "- `%s`", g->name);
        if (effect_of(g) != NEVER) iv_buf_puts(out, " ("), out_values(g, out), iv_buf_puts(out, ")");
        iv_buf_printf(out, ": %s\n", help ? help : "");
    }
}

void iv_api_write_reference(iv_buf *out) {
    static const char *const sections[EFFECTS] = {"Fields that change the answer, or what it reports",
                                                  "Fields that accept these values alone",
                                                  "Fields that change nothing"};
    iv_buf_puts(
        out,
        "# Fields of requests\n\n"
        "Every field that the server knows, by the bodies that have it, made from its own table (`INVAR_WRITE_DOCS=1\n"
        "build/tests/test_serve_api_reference`). `GET /openapi.json` has the same as JSON. Any other field is "
        "refused by name;\n`null` is the same as absent. The meaning of the larger ones is in "
        "[SERVER.md](SERVER.md#requests), [STRUCTURED.md](STRUCTURED.md)\nand [RL_SERVER.md](RL_SERVER.md).\n\n");
    const char *comma = "Bodies: ";
    for (size_t i = 0; i < BODIES; i++)
        if (bodies[i].path) iv_buf_printf(out, "%s%s (`%s`)", comma, bodies[i].name, bodies[i].path), comma = ", ";
    iv_buf_puts(out, ". The others are members of these.\n");
    for (effect e = 0; e < EFFECTS; e++) {
        iv_buf_printf(out, "\n## %s\n", sections[e]);
        for (size_t i = 0; i < iv_api_field_count; i++)
            if (effect_of(&iv_api_fields[i]) == e) out_group(i, out);
    }
}

/* ---- OpenAPI ------------------------------------------------------------------------------------------ */

static const char *schema_type(const char *item, size_t bytes) {
    static const char *const types[][2] = {{"real", "number"}, {"true", "boolean"},    {"false", "boolean"},
                                           {"null", "null"},   {"integer", "integer"}, {"string", "string"},
                                           {"array", "array"}, {"object", "object"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i][0]) == bytes && memcmp(types[i][0], item, bytes) == 0) return types[i][1];
    return "object";
}

static void out_types(const char *only, iv_json_out *o) {
    const char *last = "";
    size_t bytes;
    iv_out_key(o, "type"), iv_out_open(o, '[');
    for (const char *item; (item = next_item(&only, &bytes)) != NULL;) {
        const char *type = schema_type(item, bytes);
        if (strcmp(type, last) != 0) iv_out_string(o, type, strlen(type));
        last = type;
    }
    iv_out_close(o, ']');
}

static void out_enum(const char *only, iv_json_out *o) {
    size_t bytes;
    iv_out_key(o, "enum"), iv_out_open(o, '[');
    for (const char *item; (item = next_item(&only, &bytes)) != NULL;) iv_out_raw(o, item, bytes);
    iv_out_close(o, ']');
}

static void out_number(const iv_api_field *f, const char *type, iv_json_out *o) {
    iv_out_kv_text(o, "type", type);
    iv_out_key(o, "minimum"), iv_out_shortest(o, f->min);
    iv_out_key(o, "maximum"), iv_out_shortest(o, f->max);
}

static void out_items_of(const char *type, iv_json_out *o) {
    iv_out_kv_text(o, "type", "array");
    iv_out_kv_open(o, "items", '{'), iv_out_kv_text(o, "type", type), iv_out_close(o, '}');
}

static void out_schema(const iv_api_field *f, iv_json_out *o) {
    const char *help = iv_api_field_help(f->name);
    iv_out_open(o, '{');
    switch (f->kind) {
    case IV_FIELD_INT:
    case IV_FIELD_TOP_K: out_number(f, "integer", o); break;
    case IV_FIELD_FLOAT:
    case IV_FIELD_TEMPERATURE: out_number(f, "number", o); break;
    case IV_FIELD_BOOL:
    case IV_FIELD_NOT_BOOL: iv_out_kv_text(o, "type", "boolean"); break;
    case IV_FIELD_STRING: iv_out_kv_text(o, "type", "string"); break;
    case IV_FIELD_JSON: out_types(f->only, o); break;
    case IV_FIELD_SEED: iv_out_kv_text(o, "type", "integer"); break;
    case IV_FIELD_STOP: out_types("|string|array|", o); break;
    case IV_FIELD_STOP_IDS: out_items_of("integer", o); break;
    case IV_FIELD_BIAS: iv_out_kv_text(o, "type", "object"); break;
    case IV_FIELD_ACCEPT: break;
    case IV_FIELD_ONLY:
    case IV_FIELD_ONE_OF: out_enum(f->only, o); break;
    case IV_FIELD_EACH_OF:
        iv_out_kv_text(o, "type", "array");
        iv_out_kv_open(o, "items", '{'), out_enum(f->only, o), iv_out_close(o, '}');
        break;
    }
    if (help) iv_out_kv_text(o, "description", help);
    iv_out_close(o, '}');
}

static void out_body(unsigned body, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "object");
    iv_out_kv_open(o, "properties", '{');
    for (size_t i = 0; i < iv_api_field_count; i++)
        if (iv_api_fields[i].bodies & body) iv_out_key(o, iv_api_fields[i].name), out_schema(&iv_api_fields[i], o);
    iv_out_close(o, '}');
    iv_out_kv_bool(o, "additionalProperties", false);
    iv_out_close(o, '}');
}

static void out_path(size_t i, iv_json_out *o) {
    iv_out_kv_open(o, bodies[i].path, '{');
    iv_out_kv_open(o, "post", '{');
    iv_out_kv_text(o, "operationId", bodies[i].name);
    iv_out_kv_open(o, "requestBody", '{');
    iv_out_kv_open(o, "content", '{');
    iv_out_kv_open(o, "application/json", '{');
    iv_out_key(o, "schema"), out_body(bodies[i].body, o);
    iv_out_close(o, '}'), iv_out_close(o, '}'), iv_out_close(o, '}');
    iv_out_kv_open(o, "responses", '{');
    iv_out_kv_open(o, "200", '{'), iv_out_kv_text(o, "description", "the answer"), iv_out_close(o, '}');
    iv_out_close(o, '}'), iv_out_close(o, '}'), iv_out_close(o, '}');
}

void iv_handle_openapi(void *user, iv_http_request *q) {
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    (void)user;
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "openapi", "3.1.0");
    iv_out_kv_open(&o, "info", '{');
    iv_out_kv_text(&o, "title", "invar"), iv_out_kv_text(&o, "version", iv_version());
    iv_out_close(&o, '}');
    iv_out_kv_open(&o, "paths", '{');
    for (size_t i = 0; i < BODIES; i++)
        if (bodies[i].path) out_path(i, &o);
    iv_out_close(&o, '}');
    iv_out_kv_open(&o, "components", '{'), iv_out_kv_open(&o, "schemas", '{');
    for (size_t i = 0; i < BODIES; i++) {
        char name[40];
        if (bodies[i].path) continue;
        snprintf(name, sizeof name, "%s", bodies[i].name);
        for (char *c = name; *c; c++)
            if (*c == ' ') *c = '_';
        iv_out_key(&o, name), out_body(bodies[i].body, &o);
    }
    iv_out_close(&o, '}'), iv_out_close(&o, '}'), iv_out_close(&o, '}');
    iv_api_reply_json(q, 200, &o);
}
