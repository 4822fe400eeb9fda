/* json_schema.h: what several folders need of a JSON schema: the target of references, and the kinds of values it
 * allows. Nothing is validated; the schema compiler does that. */
#ifndef IV_FORMAT_JSON_SCHEMA_H
#define IV_FORMAT_JSON_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

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

/* The kinds of a type name (a number includes integers). 0: no such type. */
unsigned iv_json_kind_named(const char *name);
/* The kind of a value, one bit; a real without a fraction is an integer. */
unsigned iv_json_kind_of(const json_t *value);
/* The kinds implied by keywords other than "type" (minLength: strings). 0: none. */
unsigned iv_json_keyword_kinds(const json_t *schema);

enum { IV_JSON_ANCHOR_LOOKS = 10000 /* values of a document that are searched for an anchor */ };

/* The fragment of a reference into the document, from "#" on: "#/..." or "#anchor", also after the document's own
 * "$id". NULL: it refers to another document. Borrowed. */
const char *iv_json_fragment(const json_t *root, const char *reference);
/* The target of "#", of a JSON pointer, "#/...", percent-encoded or not (RFC 6901, 6), or of an anchor: a schema with
 * this "$anchor", or with "#..." as its "$id" or "id". NULL: absent. */
json_t *iv_json_pointer(json_t *root, const char *text);
/* Whether references stand below an inner schema with an "$id" of its own, where "#" is another document's. */
bool iv_json_has_inner_base(json_t *root);

/* The kinds as which an unquoted parameter that a model wrote may be read: those that `parameters`, the schema of all
 * parameters, allows for `name` by types, values, branches and references. Without any constraint, a string. *looks:
 * the work done, some nanoseconds each; it is bounded, so part of a very large schema may be ignored. */
unsigned iv_json_parameter_kinds(json_t *parameters, const char *name, size_t *looks);

#endif
