/* schema_words.h: the keywords of JSON schemas, sorted by what they say here, and those of a document that say nothing.
 */
#ifndef IV_FORMAT_SCHEMA_WORDS_H
#define IV_FORMAT_SCHEMA_WORDS_H

#include <jansson.h>
#include <stdbool.h>

/* Whether a keyword is supported; whether it is known to restrict values, but is not supported; and whether it is
 * neither and has no effect, such as "title". */
bool iv_schema_is_word(const char *key);
bool iv_schema_is_assertion(const char *key);
bool iv_schema_is_label(const char *key);
/* Whether an unsupported keyword with this value holds for every value, such as "not": false. */
bool iv_schema_always_holds(const char *key, const json_t *value);

/* The values of "format" that restrict a string; any other is a label. */
typedef enum iv_schema_format {
    IV_FORMAT_NONE,
    IV_FORMAT_DATE,
    IV_FORMAT_TIME,
    IV_FORMAT_DATE_TIME,
    IV_FORMAT_DURATION,
    IV_FORMAT_UUID,
    IV_FORMAT_EMAIL,
    IV_FORMAT_IDN_EMAIL,
    IV_FORMAT_HOSTNAME,
    IV_FORMAT_IDN_HOSTNAME,
    IV_FORMAT_IPV4,
    IV_FORMAT_IPV6,
    IV_FORMAT_URI,
    IV_FORMAT_IRI,
    IV_FORMAT_URI_REFERENCE,
    IV_FORMAT_IRI_REFERENCE,
    IV_FORMAT_JSON_POINTER,
    IV_FORMAT_RELATIVE_JSON_POINTER,
    IV_FORMAT_URI_TEMPLATE,
    IV_FORMAT_REGEX,
    IV_FORMAT_COUNT
} iv_schema_format;

iv_schema_format iv_schema_format_named(const char *name);

/* where: the schema's place, "#/properties/a", shortened if it is long. what: the keyword, or "format: NAME". Both
 * last until the function returns. False ends the walk. */
typedef bool iv_schema_label_seen(void *user, const char *where, const char *what);

/* Calls `seen` for every keyword of the document that asserts nothing and is no plain description: all but $schema,
 * $comment, title, description, default, examples, deprecated, readOnly, writeOnly, and, if a $ref goes by name, the
 * names ($id, id, $anchor). A label is seen wherever a schema may stand, in the document's order. */
void iv_schema_labels(const json_t *schema, iv_schema_label_seen *seen, void *user);

#endif
