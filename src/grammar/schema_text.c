/* schema_text.c: strings: formats, patterns and lengths. */
#include "grammar/schema.h"
#include "grammar/spell.h"

#include <stdio.h>
#include <string.h>

/* ---- formats ------------------------------------------------------------------------------------------- */

typedef struct format {
    const char *pattern; /* NULL: the format is refused */
    size_t longest;      /* characters; 0: unbounded. Counting them takes many states */
} format;

#define DATE                                                                                             \
    "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
/* Without "--" in the third and fourth place, which RFC 5890 reserves. */
#define HOST_LABEL                                                                \
    "(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-][A-Za-z0-9]|"   \
    "[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9]|" \
    "[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{1,57}[A-Za-z0-9])"
#define GROUP "[0-9a-fA-F]{1,4}"
#define DURATION                                                  \
    "P(?:\\d+W|\\d+D|\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?)|" \
    "P(?:\\d+D|\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?)?"       \
    "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
/* RFC 5322's dot-atom, within the lengths of RFC 5321. */
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define EMAIL ATOM "{1,32}(?:\\." ATOM "{1,31})?@" LABEL "(?:\\." LABEL "){0,3}"
#define HOST HOST_LABEL "(?:\\." HOST_LABEL "){0,3}"
/* RFC 3986. A host is a name or an IPv4 address, which is one; IP literals are left out. */
#define ENCODED "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" ENCODED ")"
#define NO_COLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" ENCODED ")"
#define AUTHORITY                                                                                     \
    "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" ENCODED ")*@)?(?:[A-Za-z0-9._~!$&'()*+,;=-]|" ENCODED ")*" \
    "(?::\\d{0,5})?(?:/" PCHAR "*)*"
#define TAIL "(?:\\?(?:[/?]|" PCHAR ")*)?(?:#(?:[/?]|" PCHAR ")*)?"
#define ABSOLUTE "/(?:" PCHAR "+(?:/" PCHAR "*)*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTHORITY "|" ABSOLUTE "|" PCHAR "+(?:/" PCHAR "*)*)?" TAIL
#define URI_REFERENCE URI "|" AUTHORITY TAIL "|" ABSOLUTE TAIL "|" NO_COLON "+(?:/" PCHAR "*)*" TAIL "|" TAIL
#define POINTER "(?:/(?:[^~/]|~[01])*)*"

static const format formats[IV_FORMAT_COUNT] = {
    [IV_FORMAT_DATE] = {DATE, 10},
    [IV_FORMAT_TIME] = {TIME, 21},
    [IV_FORMAT_DATE_TIME] = {DATE "T" TIME, 32},
    [IV_FORMAT_DURATION] = {DURATION, 0},
    [IV_FORMAT_UUID] = {"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", 36},
    [IV_FORMAT_EMAIL] = {EMAIL, 195},
    [IV_FORMAT_IDN_EMAIL] = {EMAIL, 195},
    [IV_FORMAT_HOSTNAME] = {HOST, 251},
    [IV_FORMAT_IDN_HOSTNAME] = {HOST, 251},
    [IV_FORMAT_IPV4] = {OCTET "(?:\\." OCTET "){3}", 15},
    [IV_FORMAT_IPV6] = {"(?:(?:" GROUP ":){7}" GROUP "|::(?:" GROUP "(?::" GROUP "){0,5})?|" GROUP "::(?:" GROUP
                        "(?::" GROUP "){0,4})?|" GROUP ":" GROUP "::(?:" GROUP "(?::" GROUP "){0,3})?)",
                        39},
    [IV_FORMAT_URI] = {URI, 0},
    [IV_FORMAT_IRI] = {URI, 0},
    [IV_FORMAT_URI_REFERENCE] = {URI_REFERENCE, 0},
    [IV_FORMAT_IRI_REFERENCE] = {URI_REFERENCE, 0},
    [IV_FORMAT_JSON_POINTER] = {POINTER, 0},
    [IV_FORMAT_RELATIVE_JSON_POINTER] = {"(?:0|[1-9]+0?)(?:#|" POINTER ")", 0},
    [IV_FORMAT_URI_TEMPLATE] = {"(?:[A-Za-z0-9._~!$&()*+,;=:@/?#-]|" ENCODED
                                "|\\{[+#./;?&]?[A-Za-z0-9_]+(?:,[A-Za-z0-9_]+)*\\})*",
                                0},
    [IV_FORMAT_REGEX] = {NULL, 0}, /* refused */
};

static int32_t any_character(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    if (s->common->any_character) return s->common->any_character - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any_character, &from, &to);
    if (rule >= 0) iv_codepoints_spell(NULL, s->a, IV_SPELL_JSON_FREELY, from, to, &tails);
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
    iv_schema_format index = name ? iv_schema_format_named(name) : IV_FORMAT_NONE;
    const format *known = index != IV_FORMAT_NONE ? &formats[index] : NULL; /* else a label */
    if (known && !known->pattern)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s: format: \"%.60s\" is not supported", s->name, where, name);
    if (!known) name = NULL;
    if (pattern && name)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "pattern: not supported next to \"format\"", err);
    snprintf(out->where, sizeof out->where, "%.100s: %.300s/%s", s->name, where,
             pattern ? "pattern"
             : name  ? "format"
                     : "length");
    out->any = !pattern && !name;
    if (out->any) return iv_regular_anything(s->arena, &out->m) ? IV_OK : iv_schema_no_memory(s, err);
    if (name) pattern = known->pattern;
    if (name && known->longest && out->max >= known->longest) out->max = SIZE_MAX;
    IV_TRY(iv_regular_parse(out->where, pattern, strlen(pattern), name != NULL, s->arena, &out->m, err));
    return iv_schema_charge(s, out->m.bytes_read, IV_EFFORT_COMPARE / 2, where, err);
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
    return iv_regular_spell(t.where, &t.m, s->a, how, t.min, t.max, begin, end, err);
}
