/* schema_string.c: strings: any, of a length, of a pattern, of a format. */
#include "base/utf8.h"
#include "grammar/schema_parts.h"

#include <string.h>

typedef struct format {
    const char *name, *pattern; /* NULL: it says what the text is for, and any text will do */
} format;

#define DATE                                                                                             \
    "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define GROUP "[0-9a-fA-F]{1,4}"

static const format formats[] = {
    {"binary", NULL},
    {"password", NULL},
    {"path", NULL},
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:\\d{1,4}W|\\d{1,4}D|\\d{1,4}Y(?:\\d{1,4}M(?:\\d{1,4}D)?)?|\\d{1,4}M(?:\\d{1,4}D)?|"
                 "(?:\\d{1,4}D)?T(?:\\d{1,4}H(?:\\d{1,4}M(?:\\d{1,4}S)?)?|\\d{1,4}M(?:\\d{1,4}S)?|\\d{1,4}S))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31}){0,1}@(?:" LABEL "\\.){1,3}[A-Za-z]{2,12}"},
    {"hostname", "(?:" LABEL "\\.){0,4}" LABEL},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"ipv6", "(?:(?:" GROUP ":){7}" GROUP "|::(?:" GROUP "(?::" GROUP "){0,5})?|" GROUP "::(?:" GROUP "(?::" GROUP
             "){0,4})?|" GROUP ":" GROUP "::(?:" GROUP "(?::" GROUP "){0,3})?)"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,15}://" LABEL "(?:\\." LABEL "){0,4}(?::[1-9]\\d{0,3})?"
            "(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"
            "(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"},
};

static const format *find_format(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) return &formats[i];
    return NULL;
}

void iv_json_string_spell(iv_automaton *a, const char *text, size_t bytes, uint32_t from, uint32_t to) {
    uint32_t at = iv_automaton_text(a, from, "\"");
    for (size_t i = 0; i < bytes && a->failed == IV_OK;) {
        iv_range one;
        iv_spell_tails tails = {0};
        size_t n = iv_utf8_decode((const uint8_t *)text + i, bytes - i, &one.low);
        IV_ASSERT(n > 0); /* what was read as JSON is UTF-8 */
        one.high = one.low;
        uint32_t next = iv_automaton_state(a);
        iv_codepoints_spell(&(iv_codepoints){.ranges = &one, .count = 1}, a, IV_SPELL_JSON, at, next, &tails);
        at = next, i += n;
    }
    iv_automaton_bytes(a, at, '"', '"', to);
}

static int32_t any_character(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    if (s->common->any_character) return s->common->any_character - 1;
    int32_t rule = iv_schema_fresh(s, &s->common->any_character, &from, &to);
    if (rule >= 0) iv_codepoints_spell(NULL, s->a, IV_SPELL_JSON_FREELY, from, to, &tails);
    return rule;
}

int32_t iv_schema_any_string(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    if (s->common->any_string) return s->common->any_string - 1;
    int32_t rule = iv_schema_fresh(s, &s->common->any_string, &from, &to);
    if (rule < 0) return rule;
    uint32_t body = iv_automaton_text(s->a, from, "\"");
    iv_codepoints_spell(NULL, s->a, IV_SPELL_JSON_FREELY, body, body, &tails);
    iv_automaton_bytes(s->a, body, '"', '"', to);
    return rule;
}

/* A keyword's text without NUL; *out is NULL where the keyword is absent. */
static iv_status read_text(const iv_schema_set *s, const json_t *schema, const char *key, const char *where,
                           const char **out, iv_error *err) {
    const json_t *v = json_object_get(schema, key);
    *out = json_string_value(v);
    if (!v || (*out && strlen(*out) == json_string_length(v))) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: %.300s: %s: wanted a string without NUL", s->name, where, key);
}

iv_status iv_schema_text_read(iv_schema_set *s, json_t *schema, const char *where, iv_schema_text *out, iv_error *err) {
    const char *pattern, *name;
    *out = (iv_schema_text){.max = SIZE_MAX};
    IV_TRY(iv_schema_count(s, schema, "minLength", where, &out->min, err));
    IV_TRY(iv_schema_count(s, schema, "maxLength", where, &out->max, err));
    IV_TRY(read_text(s, schema, "pattern", where, &pattern, err));
    IV_TRY(read_text(s, schema, "format", where, &name, err));
    const format *known = name ? find_format(name) : NULL;
    if (name && !known)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s: format: \"%.60s\" is not supported", s->name, where, name);
    if (known && !known->pattern) name = NULL;
    if (pattern && name)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "pattern: not supported beside \"format\"", err);
    snprintf(out->place, sizeof out->place, "%.100s: %.300s/%s", s->name, where,
             pattern ? "pattern"
             : name  ? "format"
                     : "length");
    out->any = !pattern && !name;
    if (out->any) return iv_regular_anything(s->arena, &out->m) ? IV_OK : iv_schema_no_memory(s, err);
    if (name) pattern = known->pattern;
    IV_TRY(iv_regular_parse(out->place, pattern, strlen(pattern), name != NULL, s->arena, &out->m, err));
    return iv_schema_spend(s, out->m.bytes_read, IV_EFFORT_COMPARE / 2, where, err);
}

iv_status iv_schema_string(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                           iv_error *err) {
    iv_schema_text t;
    IV_TRY(iv_schema_text_read(s, schema, where, &t, err));
    if (t.any && t.min == 0 && t.max == SIZE_MAX) {
        iv_automaton_call(s->a, from, iv_schema_any_string(s), to);
        return IV_OK;
    }
    uint32_t begin = iv_automaton_text(s->a, from, "\""), end = iv_automaton_state(s->a);
    iv_automaton_bytes(s->a, end, '"', '"', to);
    iv_writing how = {IV_SPELL_JSON, t.any ? any_character(s) : IV_NO_RULE, 0};
    return iv_regular_spell(t.place, &t.m, s->a, how, t.min, t.max, begin, end, err);
}
