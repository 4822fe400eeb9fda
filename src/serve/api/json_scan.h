/* json_scan.h: passes over the bytes of JSON before a parser sees them: where a value ends, and what a body would cost.
 */
#ifndef IV_SERVE_API_JSON_SCAN_H
#define IV_SERVE_API_JSON_SCAN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the end of a value ------------------------------------------------------------------------------------- */

/* finds where an object or a list of JSON ends, byte by byte, while it comes.
 *
 * What it says is wrong is no JSON, however it goes on; what it says is done has its brackets in pairs and no more:
 * whether it is JSON is then for a parser. */
enum { IV_JSON_SCAN_DEPTH_MAX = 1024 };

typedef enum iv_json_scanned { IV_JSON_MORE, IV_JSON_DONE, IV_JSON_WRONG } iv_json_scanned;

/* Zeroed: before the first bracket. */
typedef struct iv_json_scan {
    size_t depth;
    uint64_t objects[IV_JSON_SCAN_DEPTH_MAX / 64]; /* a bit for each open bracket: {, not [ */
    bool in_string, escaped;
} iv_json_scan;

iv_json_scanned iv_json_scan_byte(iv_json_scan *j, char c);
/* Where the value that begins at s ends, 0 if it does not. */
size_t iv_json_scan_end(const char *s, size_t n);

/* ---- a body ------------------------------------------------------------------------------------------------- */

/* a pass over the bytes of a body before they are parsed, so that parsing it costs no more memory than a
 * request can need.
 *
 * The parser builds a value of its own for each object, list, string and number: `{}` takes 3 bytes of a body and more
 * than 200 of memory. The scan adds up what will be built and refuses a body that is not worth it. A field that is not
 * known is refused here too. Long lists of token ids, which may have millions of elements, are read here; in the text
 * they become lists of their first id. What is not JSON is left for the parser. */
enum {
    IV_BODY_TREE_BYTES = 8 << 20, /* any body may become values of this size, ... */
    IV_BODY_TREE_TIMES = 4,       /* ... and of this many times its own size more */
    IV_BODY_IDS_MIN = 16          /* ids of a list that is read here */
};

#define IV_BODY_WHOLE SIZE_MAX /* the field is the list itself, not one of its elements */

/* One list of ids that was read. */
typedef struct iv_body_ids {
    size_t at; /* which element of the field, or IV_BODY_WHOLE */
    iv_ids ids;
} iv_body_ids;

/* All of a body, in order. Zero-initialise. */
typedef struct iv_body_lists {
    iv_body_ids *items;
    size_t count, capacity;
} iv_body_lists;

/* What a body may have. */
typedef struct iv_body_form {
    bool (*known)(const void *user, const char *name); /* NULL: any field is left for the parser */
    const void *user;
    const char *ids; /* the field that holds ids; NULL: none */
} iv_body_form;

/* Lists of ids go to *lists, and in the text white space takes their place behind the first id. */
iv_status iv_body_scan(char *text, size_t bytes, const iv_body_form *form, iv_body_lists *lists, iv_error *err);

/* Texts inside a body that are parsed as well, all together. Zero-initialise. */
typedef struct iv_body_tree {
    size_t bytes, cost;
} iv_body_tree;
/* Whether this one may be parsed too; `name` heads the error. */
iv_status iv_body_tree_add(iv_body_tree *tree, const char *name, const char *text, size_t bytes, iv_error *err);

/* Moves a list into *out; false if it was not read here. */
bool iv_body_lists_take(iv_body_lists *lists, size_t at, iv_ids *out);
void iv_body_lists_free(iv_body_lists *lists);

#endif
