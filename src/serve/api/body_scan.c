/* body_scan.c: brackets, strings and runs of other bytes; the rest of the grammar is left to the parser. */
#include "serve/api/body_scan.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* ---- a body ------------------------------------------------------------------------------------------- */

/* Rounded-up memory of a value in jansson and the allocator, including its slot in a list or object. */
enum { OBJECT_BYTES = 248, LIST_BYTES = 152, STRING_BYTES = 104, PLAIN_BYTES = 56, MEMBER_BYTES = 48 };
enum { NAME_BYTES = 100 };

typedef struct body {
    const char *name; /* of the text, for errors */
    const char *s;
    size_t n, i, depth, cost, most;
    char *blanked; /* s, if lists of ids may be blanked in it */
    const iv_body_form *form;
    iv_body_lists *lists;
    bool key;        /* a name comes next, at the top level */
    bool ids_field;  /* inside the field of ids */
    size_t elements; /* of that field, before the current one */
} body;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t skip_space(const body *b, size_t i) {
    while (i < b->n && is_space(b->s[i])) i++;
    return i;
}

static iv_status pay(body *b, size_t bytes, iv_error *err) {
    if (iv_size_add(b->cost, bytes, &b->cost) && b->cost <= b->most) return IV_OK;
    return iv_fail(err, IV_LIMIT,
                   "%s: wanted objects, lists, strings and numbers that take at most %zu bytes of memory (%d MiB, and "
                   "%d times the bytes of their text), found more",
                   b->name, b->most, IV_BODY_TREE_BYTES >> 20, IV_BODY_TREE_TIMES);
}

/* ---- lists of ids ------------------------------------------------------------------------------------- */

/* Reads one id at i; *next is after it. False: not an id in JSON's spelling. */
static bool read_id(const body *b, size_t i, size_t *next, int32_t *out) {
    int64_t id = 0;
    size_t from = i;
    for (; i < b->n && is_digit(b->s[i]) && id <= INT32_MAX; i++) id = id * 10 + (b->s[i] - '0');
    *next = i, *out = (int32_t)id;
    return i > from && id <= INT32_MAX && (b->s[from] != '0' || i == from + 1);
}

/* Counts the ids of the list at b->i; *end is after it. 0: it holds other values. */
static size_t count_ids(const body *b, size_t *end) {
    size_t count = 0, i = b->i;
    int32_t id;
    do {
        i = skip_space(b, i + 1);
        if (!read_id(b, i, &i, &id)) return 0;
        i = skip_space(b, i);
        count++;
    } while (i < b->n && b->s[i] == ',');
    *end = i + 1;
    return i < b->n && b->s[i] == ']' ? count : 0;
}

static iv_body_ids *add_list(iv_body_lists *l, size_t count) {
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 4;
        iv_body_ids *items = realloc(l->items, capacity * sizeof *items);
        if (!items) return NULL;
        l->items = items, l->capacity = capacity;
    }
    iv_body_ids *added = &l->items[l->count];
    *added = (iv_body_ids){.ids.data = malloc(count * sizeof(int32_t)), .ids.capacity = count};
    if (!added->ids.data) return NULL;
    l->count++;
    return added;
}

/* Takes a list of ids at the current position. */
static iv_status take_ids(body *b, bool *taken, iv_error *err) {
    size_t end, count = count_ids(b, &end), at = b->depth == 1 ? IV_BODY_WHOLE : b->elements;
    *taken = count >= IV_BODY_IDS_MIN;
    if (!*taken) return IV_OK;
    iv_body_ids *list = add_list(b->lists, count);
    if (!list) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu ids", b->form->ids, count);
    list->at = at;
    size_t first_end = 0;
    for (size_t i = b->i + 1; list->ids.count < count; i++) {
        if (!is_digit(b->s[i])) continue;
        read_id(b, i, &i, &list->ids.data[list->ids.count++]);
        if (!first_end) first_end = i;
    }
    for (size_t i = first_end; i < end - 1; i++)
        if (!is_space(b->s[i])) b->blanked[i] = ' '; /* keeps line ends, because errors name lines */
    b->i = end;
    return IV_OK;
}

bool iv_body_lists_take(iv_body_lists *lists, size_t at, iv_ids *out) {
    for (size_t i = 0; i < lists->count; i++) {
        if (lists->items[i].at != at || !lists->items[i].ids.data) continue;
        *out = lists->items[i].ids;
        lists->items[i].ids = (iv_ids){0};
        return true;
    }
    return false;
}

void iv_body_lists_free(iv_body_lists *lists) {
    for (size_t i = 0; i < lists->count; i++) free(lists->items[i].ids.data);
    free(lists->items);
    *lists = (iv_body_lists){0};
}

/* ---- the scan ----------------------------------------------------------------------------------------- */

/* Checks the name of a top-level member. Names with escapes are left for the parser. */
static iv_status take_name(body *b, size_t from, size_t end, iv_error *err) {
    char name[NAME_BYTES];
    size_t n = end - from, value = skip_space(b, end + 1);
    b->key = b->ids_field = false, b->elements = 0;
    if (n >= sizeof name || value >= b->n || b->s[value] != ':' || memchr(b->s + from, '\\', n)) return IV_OK;
    memcpy(name, b->s + from, n), name[n] = 0;
    value = skip_space(b, value + 1);
    bool null = b->n - value >= 4 && memcmp(b->s + value, "null", 4) == 0;
    if (b->form->check && !null && strlen(name) == n) IV_TRY(b->form->check(b->form->user, name, err));
    b->ids_field = b->lists && b->form->ids && strcmp(name, b->form->ids) == 0;
    return IV_OK;
}

static iv_status string(body *b, iv_error *err) {
    size_t from = ++b->i;
    while (b->i < b->n && b->s[b->i] != '"') b->i += b->s[b->i] == '\\' ? 2 : 1;
    size_t end = iv_size_min(b->i, b->n);
    b->i = end + 1;
    IV_TRY(pay(b, STRING_BYTES, err));
    return b->depth == 1 && b->key && end < b->n ? take_name(b, from, end, err) : IV_OK;
}

static iv_status take_bracket(body *b, iv_error *err) {
    bool object = b->s[b->i] == '{', taken = false;
    IV_TRY(pay(b, object ? OBJECT_BYTES : LIST_BYTES, err));
    if (!object && b->ids_field && b->depth <= 2) IV_TRY(take_ids(b, &taken, err));
    if (taken) return pay(b, PLAIN_BYTES, err);
    b->depth++, b->i++;
    b->key = b->depth == 1;
    return IV_OK;
}

static iv_status step(body *b, iv_error *err) {
    switch (b->s[b->i]) {
    case '"': return string(b, err);
    case '{':
    case '[': return take_bracket(b, err);
    case '}':
    case ']': b->depth -= b->depth > 0; break;
    case ',':
        b->key = b->depth == 1;
        b->elements += b->depth == 2;
        break;
    case ':': IV_TRY(pay(b, MEMBER_BYTES, err)); break;
    case ' ':
    case '\t':
    case '\r':
    case '\n': break;
    default: /* a number or a literal */
        while (b->i + 1 < b->n && !memchr("{}[]\",: \t\r\n", b->s[b->i + 1], 11)) b->i++;
        IV_TRY(pay(b, PLAIN_BYTES, err));
    }
    b->i++;
    return IV_OK;
}

/* Scans the text and adds its cost to the tree. */
static iv_status scan(body *b, iv_body_tree *tree, iv_error *err) {
    b->cost = tree->cost;
    if (!iv_size_add(tree->bytes, b->n, &tree->bytes) || !iv_size_mul(tree->bytes, IV_BODY_TREE_TIMES, &b->most) ||
        !iv_size_add(b->most, IV_BODY_TREE_BYTES, &b->most))
        b->most = SIZE_MAX;
    while (b->i < b->n) IV_TRY(step(b, err));
    tree->cost = b->cost;
    return IV_OK;
}

iv_status iv_body_scan(char *text, size_t bytes, const iv_body_form *form, iv_body_lists *lists, iv_error *err) {
    body b = {.name = "body", .s = text, .n = bytes, .blanked = text, .form = form, .lists = lists};
    iv_body_tree tree = {0};
    return scan(&b, &tree, err);
}

iv_status iv_body_tree_add(iv_body_tree *tree, const char *name, const char *text, size_t bytes, iv_error *err) {
    static const iv_body_form any = {0};
    body b = {.name = name, .s = text, .n = bytes, .form = &any};
    return scan(&b, tree, err);
}
