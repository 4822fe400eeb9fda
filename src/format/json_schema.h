/* json_schema.h: what several rooms ask of a JSON schema: where its references lead, and which kinds of values it
 * speaks of. Nothing is checked here: that is for who compiles it. */
#ifndef IV_FORMAT_JSON_SCHEMA_H
#define IV_FORMAT_JSON_SCHEMA_H

#include <jansson.h>

/* The kinds of values, as bits. */
enum {
    IV_KIND_NULL = 1,
    IV_KIND_BOOLEAN = 2,
    IV_KIND_INTEGER = 4,
    IV_KIND_NUMBER = 8,
    IV_KIND_STRING = 16,
    IV_KIND_ARRAY = 32,
    IV_KIND_OBJECT = 64,
    IV_KIND_ALL = 127
};

/* Of a type's name: a number may be an integer too. 0: no such type. */
unsigned iv_json_kind_named(const char *name);
/* Of a value: one of the bits; a real without a fraction is an integer. */
unsigned iv_json_kind_of(const json_t *value);
/* Those that keywords beside "type" speak of (minLength: strings). 0: none does. */
unsigned iv_json_keyword_kinds(const json_t *schema);

/* What "#" or a JSON pointer, "#/...", refers to. NULL: it is not there. */
json_t *iv_json_pointer(json_t *root, const char *text);

/* As what the text of a parameter may be read that a model wrote without quotes: the kinds that `parameters`, the
 * schema of all of them, allows for it by types, values, branches and references. Where nothing is said, a string.
 * *looks: what that took, some nanoseconds each; bounded, so that not all of a schema without measure is seen. */
unsigned iv_json_parameter_kinds(json_t *parameters, const char *name, size_t *looks);

#endif
