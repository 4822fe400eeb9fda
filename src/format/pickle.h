/* pickle.h: a pickle as a tree of values. Nothing is imported, called or built: a global is a pair of names, a call is
 * a function's name and its arguments, and the reader of the tree decides what they mean (tensor_message.h).
 *
 * Understood are the opcodes that pickle's protocols 2 to 5 write for None, bool, int, float, str, bytes, tuple, list,
 * dict, classes and functions by name, objects and their state, persistent ids, and the memo. Any other opcode is
 * IV_UNSUPPORTED. Every size is checked against the bytes that are there. */
#ifndef IV_FORMAT_PICKLE_H
#define IV_FORMAT_PICKLE_H

#include "base/arena.h"
#include "base/status.h"

typedef enum iv_pickle_kind {
    IV_PICKLE_NONE,
    IV_PICKLE_BOOL,
    IV_PICKLE_INT,
    IV_PICKLE_FLOAT,
    IV_PICKLE_TEXT,
    IV_PICKLE_BYTES, /* also an int of more than 8 bytes: little-endian */
    IV_PICKLE_TUPLE,
    IV_PICKLE_LIST,
    IV_PICKLE_DICT,       /* items: key, value, key, value, ... */
    IV_PICKLE_GLOBAL,     /* module and name */
    IV_PICKLE_CALL,       /* items: the callable, its arguments as a tuple */
    IV_PICKLE_OBJECT,     /* items: the class, its arguments as a tuple; state: what BUILD sets, or NULL */
    IV_PICKLE_PERSISTENT, /* items: the id */
    IV_PICKLE_MARK        /* of the reader alone */
} iv_pickle_kind;

typedef struct iv_pickle_value iv_pickle_value;
struct iv_pickle_value {
    iv_pickle_kind kind;
    int64_t number;   /* BOOL, INT */
    const char *text; /* TEXT (UTF-8), BYTES, GLOBAL: its module; in the caller's bytes, without NUL */
    size_t bytes;     /* of text */
    const char *name; /* GLOBAL */
    size_t name_bytes;
    iv_pickle_value **items; /* may form circles: lists and dicts can hold themselves */
    size_t count, room;
    iv_pickle_value *state;
};

enum { IV_PICKLE_VALUES_MAX = 1 << 22 };

/* Reads the pickle at the start of n bytes, which must outlive the tree; *used: its length. Values are in the arena.
 * `name` begins errors. IV_FORMAT: damaged; IV_UNSUPPORTED: an opcode or protocol; IV_LIMIT; IV_NO_MEMORY. */
iv_status iv_pickle_read(const char *name, const void *bytes, size_t n, iv_arena *arena, iv_pickle_value **root,
                         size_t *used, iv_error *err);

/* What a value is, for errors: "a tuple of 3". */
const char *iv_pickle_describe(const iv_pickle_value *v, char out[160]);
/* The value of a text key; NULL: none, or not a DICT. */
const iv_pickle_value *iv_pickle_member(const iv_pickle_value *dict, const char *key);
bool iv_pickle_is_global(const iv_pickle_value *v, const char *module, const char *name); /* module NULL: any */
bool iv_pickle_is_text(const iv_pickle_value *v, const char *text);

#endif
