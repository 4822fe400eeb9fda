/* value.h: the values of a template: Python's objects, as far as templates can observe.
 *
 * A value is 16 bytes and is copied freely; its data lies in the pool of the rendering (or in the parsed template, or
 * in the caller's JSON) and does not change once built. Only namespaces, loops, cyclers, joiners and iterators have
 * state. */
#ifndef IV_TEXT_JINJA_VALUE_H
#define IV_TEXT_JINJA_VALUE_H

#include "base/arena.h"
#include "base/status.h"

#include <jansson.h>

/* ---- memory ---- */

typedef struct ivj_pool {
    iv_arena arena;
    char *at, *end; /* the free part of the newest chunk */
} ivj_pool;

void ivj_pool_init(ivj_pool *pool, size_t limit_bytes);
void ivj_pool_free(ivj_pool *pool);

/* count elements of size bytes, zeroed, aligned to 16; NULL when memory is out or the limit is reached. */
void *ivj_pool_alloc(ivj_pool *pool, size_t count, size_t size);

/* True if the limit, not the operating system, would refuse `bytes` more. */
bool ivj_pool_full(const ivj_pool *pool, size_t bytes);

#define IVJ_NEW(pool, count, type) ((type *)ivj_pool_alloc((pool), (count), sizeof(type)))

/* ---- values ---- */

typedef enum ivj_type {
    IVJ_MISSING, /* an omitted argument; not visible to templates */
    IVJ_UNDEFINED,
    IVJ_NONE,
    IVJ_BOOL,
    IVJ_INT,
    IVJ_FLOAT,
    IVJ_STRING,
    IVJ_LIST,
    IVJ_TUPLE,
    IVJ_DICT,
    IVJ_VIEW, /* dict.keys(), .values(), .items() */
    IVJ_RANGE,
    IVJ_ITERATOR, /* can be walked once */
    IVJ_NAMESPACE,
    IVJ_LOOP,
    IVJ_MACRO,
    IVJ_CYCLER,
    IVJ_JOINER,
    IVJ_FUNCTION,
    IVJ_METHOD, /* a method with its object */
    IVJ_TYPES
} ivj_type;

/* The origin of an undefined value: a name, an attribute or item of an object of type `why - IVJ_OF_TYPE`, an attribute
 * that the sandbox hides, or a whole sentence. u.s and n are the name or the sentence. */
enum { IVJ_BY_NAME, IVJ_BY_HINT, IVJ_BY_SANDBOX, IVJ_OF_TYPE };

typedef enum ivj_view { IVJ_KEYS, IVJ_VALUES, IVJ_ITEMS } ivj_view;

typedef struct ivj_run ivj_run;
typedef struct ivj_list ivj_list;
typedef struct ivj_dict ivj_dict;
typedef struct ivj_range ivj_range;
typedef struct ivj_iter ivj_iter;
typedef struct ivj_loop ivj_loop;
typedef struct ivj_macro ivj_macro;
typedef struct ivj_cycler ivj_cycler;
typedef struct ivj_function ivj_function;
typedef struct ivj_bound ivj_bound;
typedef struct ivj_filter ivj_filter;

typedef struct ivj_value {
    uint8_t type;
    bool markup;  /* strings: Markup, already escaped for HTML */
    uint16_t why; /* undefined: as above; views: an ivj_view */
    uint32_t n;   /* strings: bytes */
    union {
        bool b;
        int64_t i;
        double d;
        const char *s; /* UTF-8, not NUL-terminated */
        ivj_list *list;
        ivj_dict *dict; /* also views and namespaces */
        ivj_range *range;
        ivj_iter *iter;
        ivj_loop *loop;
        ivj_macro *macro;
        ivj_cycler *cycler; /* also joiners */
        const ivj_function *function;
        ivj_bound *bound;
    } u;
} ivj_value;

struct ivj_list {
    size_t n, cap;
    ivj_value *items;
    bool group; /* a (grouper, list) pair of the groupby filter */
};

typedef struct ivj_entry {
    uint64_t hash;
    ivj_value key, value;
} ivj_entry;

struct ivj_dict {
    size_t n, cap;
    ivj_entry *entries; /* in order of insertion */
    uint32_t *index;    /* open addressing, entry number + 1; NULL while the dict is small */
    size_t index_cap;   /* a power of two */
};

struct ivj_range {
    int64_t start, stop, step;
    size_t n;
};

struct ivj_cycler {
    const ivj_value *items; /* a joiner has one: its separator */
    size_t n, at;
};

/* Constructors of plain values. */
static inline ivj_value ivj_none(void) { return (ivj_value){.type = IVJ_NONE}; }
static inline ivj_value ivj_bool(bool b) { return (ivj_value){.type = IVJ_BOOL, .u.b = b}; }
static inline ivj_value ivj_int(int64_t i) { return (ivj_value){.type = IVJ_INT, .u.i = i}; }
static inline ivj_value ivj_float(double d) { return (ivj_value){.type = IVJ_FLOAT, .u.d = d}; }
static inline ivj_value ivj_list_value(ivj_list *l) { return (ivj_value){.type = IVJ_LIST, .u.list = l}; }
static inline ivj_value ivj_tuple_value(ivj_list *l) { return (ivj_value){.type = IVJ_TUPLE, .u.list = l}; }
static inline ivj_value ivj_dict_value(ivj_dict *d) { return (ivj_value){.type = IVJ_DICT, .u.dict = d}; }
/* Borrows s. */
static inline ivj_value ivj_string(const char *s, size_t n) {
    return (ivj_value){.type = IVJ_STRING, .n = (uint32_t)n, .u.s = s};
}
ivj_value ivj_text(const char *s); /* the same for a C string */
static inline ivj_value ivj_hint(const char *sentence) {
    ivj_value v = ivj_text(sentence);
    v.type = IVJ_UNDEFINED, v.why = IVJ_BY_HINT;
    return v;
}
static inline bool ivj_is_sequence(ivj_value v) { return v.type == IVJ_LIST || v.type == IVJ_TUPLE; }
static inline bool ivj_is_number(ivj_value v) { return v.type >= IVJ_BOOL && v.type <= IVJ_FLOAT; }
/* bool is an int in Python. */
static inline bool ivj_is_int(ivj_value v) { return v.type == IVJ_BOOL || v.type == IVJ_INT; }
static inline int64_t ivj_as_int(ivj_value v) { return v.type == IVJ_BOOL ? v.u.b : v.u.i; }
static inline double ivj_as_double(ivj_value v) { return v.type == IVJ_FLOAT ? v.u.d : (double)ivj_as_int(v); }

/* Python's name of the value's type ("str", "int", "NoneType", ...). Static string. */
const char *ivj_type_name(ivj_value v);

bool ivj_bytes_equal(ivj_value string, const char *text); /* a string that is exactly `text` */

/* Lists under construction. */
iv_status ivj_list_new(ivj_run *r, size_t cap, ivj_list **out);
iv_status ivj_list_push(ivj_run *r, ivj_list *list, ivj_value v);
iv_status ivj_list_append(ivj_run *r, ivj_list *list, const ivj_value *items, size_t n);

/* Dicts under construction. Keys must be hashable: scalars, strings and tuples of them; other keys are
 * template errors. */
iv_status ivj_dict_new(ivj_run *r, ivj_dict **out);
iv_status ivj_dict_set(ivj_run *r, ivj_dict *d, ivj_value key, ivj_value value);
iv_status ivj_dict_get(ivj_run *r, const ivj_dict *d, ivj_value key, const ivj_value **out); /* NULL: absent */
bool ivj_hashable(ivj_value v, int depth);

/* Python's truth, ==, <. ivj_less is a template error for types that have no order. */
bool ivj_truth(ivj_value v);
iv_status ivj_equal(ivj_run *r, ivj_value a, ivj_value b, bool *out);
iv_status ivj_less(ivj_run *r, ivj_value a, ivj_value b, bool *out);
bool ivj_same(ivj_value a, ivj_value b); /* `is` */

/* Negative, zero or positive; 2 when either is NaN. Exact for ints against floats. */
int ivj_compare_numbers(ivj_value a, ivj_value b);

/* A JSON value as a template value; strings are borrowed from it. */
iv_status ivj_from_json(ivj_run *r, const json_t *json, int depth, ivj_value *out);

/* ---- sorting ---- */

/* *order: positions of the n keys in ascending order; equal keys keep theirs, also when reversed. */
iv_status ivj_sort_order(ivj_run *r, const ivj_value *keys, size_t n, bool reverse, size_t **order);
/* The same for the keys of a dict. */
iv_status ivj_sort_keys(ivj_run *r, const ivj_dict *d, size_t **order);

/* ---- doubles ---- */

double ivj_floor(double d);
double ivj_ceil(double d);
double ivj_round_even(double d); /* to an integer, ties to the even one */
/* a - b * trunc(a / b), exact; a finite, b not zero and not NaN. */
double ivj_remainder(double a, double b);
/* base to an integer power, by squaring in twice the precision of a double. Infinite on overflow. */
double ivj_power(double base, int64_t exponent);

#endif
