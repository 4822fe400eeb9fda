/* body_scan.h: the cost of a body of JSON, before it is parsed. */
#ifndef IV_SERVE_API_BODY_SCAN_H
#define IV_SERVE_API_BODY_SCAN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Scans a body before it is parsed, to bound the parser's memory.
 *
 * The parser allocates a value for each object, list, string and number: `{}` takes 3 bytes of a body and more than
 * 200 of memory. The scan adds up this cost and refuses a body that exceeds its limit. Unknown fields are refused
 * here, too. Long lists of token ids, which may have millions of elements, are read here and shortened to their
 * first id in the text. Other syntax errors are left for the parser. */
enum {
    IV_BODY_TREE_BYTES = 8 << 20, /* every body may use this much memory, ... */
    IV_BODY_TREE_TIMES = 4,       /* ... plus this multiple of its size */
    IV_BODY_IDS_MIN = 16          /* shorter lists are left for the parser */
};

#define IV_BODY_WHOLE SIZE_MAX /* the field itself is the list, not one of its elements */

/* One list of ids. */
typedef struct iv_body_ids {
    size_t at; /* index of the field's element, or IV_BODY_WHOLE */
    iv_ids ids;
} iv_body_ids;

/* All lists of a body, in order. Zero-initialise. */
typedef struct iv_body_lists {
    iv_body_ids *items;
    size_t count, capacity;
} iv_body_lists;

/* The fields of a body. */
typedef struct iv_body_form {
    /* Refuses unknown fields; NULL: they are left for the parser. */
    iv_status (*check)(const void *user, const char *name, iv_error *err);
    const void *user;
    const char *ids; /* field that holds ids; NULL: none */
} iv_body_form;

/* Moves long lists of ids to *lists, and blanks them in the text after their first id. */
iv_status iv_body_scan(char *text, size_t bytes, const iv_body_form *form, iv_body_lists *lists, iv_error *err);

/* Total cost of texts inside a body that are parsed, too. Zero-initialise. */
typedef struct iv_body_tree {
    size_t bytes, cost;
} iv_body_tree;
/* Checks whether this text may be parsed, too; `name` prefixes errors. */
iv_status iv_body_tree_add(iv_body_tree *tree, const char *name, const char *text, size_t bytes, iv_error *err);

/* Moves a list to *out; false: it was not read here. */
bool iv_body_lists_take(iv_body_lists *lists, size_t at, iv_ids *out);
void iv_body_lists_free(iv_body_lists *lists);

#endif
