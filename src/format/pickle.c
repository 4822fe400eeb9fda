/* pickle.c: the stack machine. Its stack and memo hold pointers to values in the arena. */
#include "format/pickle.h"
#include "base/size.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { /* the opcodes that are understood, as Python's pickletools names them */
       MARK = '(',
       STOP = '.',
       POP = '0',
       NONE = 'N',
       GLOBAL = 'c',
       REDUCE = 'R',
       BUILD = 'b',
       BININT = 'J',
       BININT1 = 'K',
       BININT2 = 'M',
       BINFLOAT = 'G',
       BINUNICODE = 'X',
       BINPERSID = 'Q',
       TUPLE = 't',
       EMPTY_TUPLE = ')',
       EMPTY_LIST = ']',
       EMPTY_DICT = '}',
       APPEND = 'a',
       APPENDS = 'e',
       SETITEM = 's',
       SETITEMS = 'u',
       BINGET = 'h',
       LONG_BINGET = 'j',
       BINPUT = 'q',
       LONG_BINPUT = 'r',
       BINBYTES = 'B',
       SHORT_BINBYTES = 'C',
       PROTO = 0x80,
       NEWOBJ = 0x81,
       TUPLE1 = 0x85,
       TUPLE2 = 0x86,
       TUPLE3 = 0x87,
       NEWTRUE = 0x88,
       NEWFALSE = 0x89,
       LONG1 = 0x8a,
       SHORT_BINUNICODE = 0x8c,
       BINUNICODE8 = 0x8d,
       BINBYTES8 = 0x8e,
       STACK_GLOBAL = 0x93,
       MEMOIZE = 0x94,
       FRAME = 0x95
};

enum { PROTOCOL_MIN = 2, PROTOCOL_MAX = 5, STACK_MAX = 1 << 20, BLOCK_VALUES = 64 };

typedef iv_pickle_value value;

typedef struct machine {
    const char *name;
    const unsigned char *start, *at, *end;
    iv_arena *arena;
    value **stack, **memo;
    size_t depth, stack_room, memo_count, memo_room, values;
    value *block; /* of BLOCK_VALUES, of which `block_used` are taken */
    size_t block_used;
    iv_error *err;
} machine;

/* ---- reading, stack, memo ----------------------------------------------------------------------------- */

static iv_status damaged(const machine *m, const char *what) {
    return iv_fail(m->err, IV_FORMAT, "%s: pickle: byte %zu: %s", m->name, (size_t)(m->at - m->start), what);
}

static iv_status no_memory(const machine *m) {
    return iv_fail(m->err, IV_NO_MEMORY, "%s: pickle: no memory, or more than %d values", m->name,
                   IV_PICKLE_VALUES_MAX);
}

static iv_status take(machine *m, size_t n, const unsigned char **out) {
    if ((size_t)(m->end - m->at) < n) return damaged(m, "it ends within an opcode");
    *out = m->at;
    m->at += n;
    return IV_OK;
}

/* A little-endian number of n bytes, at most 8. */
static iv_status take_number(machine *m, size_t n, uint64_t *out) {
    const unsigned char *at = NULL;
    IV_TRY(take(m, n, &at));
    *out = 0;
    for (size_t i = 0; i < n; i++) *out |= (uint64_t)at[i] << (8 * i);
    return IV_OK;
}

static bool grow(value ***array, size_t *room, size_t wanted) {
    if (wanted <= *room) return true;
    size_t more = iv_size_max(wanted, *room ? 2 * *room : 64), bytes;
    value **grown = iv_size_mul(more, sizeof *grown, &bytes) ? realloc(*array, bytes) : NULL;
    if (!grown) return false;
    memset(grown + *room, 0, (more - *room) * sizeof *grown);
    *array = grown, *room = more;
    return true;
}

static value *new_value(machine *m, iv_pickle_kind kind) {
    if (++m->values > IV_PICKLE_VALUES_MAX) return NULL;
    if (!m->block || m->block_used == BLOCK_VALUES) {
        m->block = IV_ARENA_NEW(m->arena, BLOCK_VALUES, value);
        m->block_used = 0;
    }
    if (!m->block) return NULL;
    value *v = &m->block[m->block_used++];
    v->kind = kind;
    return v;
}

static iv_status push(machine *m, value *v) {
    if (!v || m->depth >= STACK_MAX || !grow(&m->stack, &m->stack_room, m->depth + 1)) return no_memory(m);
    m->stack[m->depth++] = v;
    return IV_OK;
}

static iv_status push_new(machine *m, iv_pickle_kind kind, int64_t number) {
    value *v = new_value(m, kind);
    if (v) v->number = number;
    return push(m, v);
}

/* The topmost value, which is no mark. */
static iv_status pop(machine *m, value **out) {
    if (m->depth == 0 || m->stack[m->depth - 1]->kind == IV_PICKLE_MARK) return damaged(m, "nothing on the stack");
    *out = m->stack[--m->depth];
    return IV_OK;
}

/* The values above the topmost mark, which is removed with them: [*first, *first + *count) of the stack. */
static iv_status pop_marked(machine *m, size_t *first, size_t *count) {
    size_t at = m->depth;
    while (at > 0 && m->stack[at - 1]->kind != IV_PICKLE_MARK) at--;
    if (at == 0) return damaged(m, "no mark on the stack");
    *first = at, *count = m->depth - at;
    m->depth = at - 1;
    return IV_OK;
}

static iv_status put(machine *m, uint64_t at) {
    if (m->depth == 0 || m->stack[m->depth - 1]->kind == IV_PICKLE_MARK) return damaged(m, "nothing to remember");
    if (at >= IV_PICKLE_VALUES_MAX || !grow(&m->memo, &m->memo_room, (size_t)at + 1)) return no_memory(m);
    m->memo_count += m->memo[at] == NULL;
    m->memo[at] = m->stack[m->depth - 1];
    return IV_OK;
}

static iv_status get(machine *m, uint64_t at) {
    if (at >= m->memo_room || !m->memo[at]) return damaged(m, "the memo has no such entry");
    return push(m, m->memo[at]);
}

/* ---- values ------------------------------------------------------------------------------------------- */

static iv_status append(machine *m, value *to, value *const *items, size_t n) {
    if (n > to->room - to->count) {
        size_t room = iv_size_max(to->count + n, 2 * to->room);
        value **more = IV_ARENA_NEW(m->arena, room, value *);
        if (!more) return no_memory(m);
        if (to->count) memcpy(more, to->items, to->count * sizeof *more);
        to->items = more, to->room = room;
    }
    if (n) memcpy(to->items + to->count, items, n * sizeof *items);
    to->count += n;
    return IV_OK;
}

static iv_status push_items(machine *m, iv_pickle_kind kind, value *const *items, size_t n) {
    value *v = new_value(m, kind);
    if (!v) return no_memory(m);
    IV_TRY(append(m, v, items, n));
    return push(m, v);
}

static iv_status push_last(machine *m, size_t n) {
    value *items[3] = {NULL, NULL, NULL};
    for (size_t i = n; i-- > 0;) IV_TRY(pop(m, &items[i]));
    return push_items(m, IV_PICKLE_TUPLE, items, n);
}

static iv_status push_string(machine *m, iv_pickle_kind kind, size_t length_bytes) {
    uint64_t n;
    const unsigned char *at;
    IV_TRY(take_number(m, length_bytes, &n));
    if (n > (size_t)(m->end - m->at)) return damaged(m, "a string is longer than the message");
    IV_TRY(take(m, (size_t)n, &at));
    if (kind == IV_PICKLE_TEXT && (!iv_utf8_valid(at, (size_t)n, NULL) || memchr(at, 0, (size_t)n)))
        return damaged(m, "a text is not UTF-8, or holds a NUL");
    value *v = new_value(m, kind);
    if (v) v->text = (const char *)at, v->bytes = (size_t)n;
    return push(m, v);
}

static iv_status push_long(machine *m) {
    uint64_t n, number;
    IV_TRY(take_number(m, 1, &n));
    if (n > 8) { /* such a number is only compared */
        m->at--;
        return push_string(m, IV_PICKLE_BYTES, 1);
    }
    IV_TRY(take_number(m, (size_t)n, &number));
    if (n > 0 && n < 8 && number >> (8 * n - 1)) number |= ~(uint64_t)0 << (8 * n); /* its sign */
    return push_new(m, IV_PICKLE_INT, (int64_t)number);
}

/* A line of the text form: without its newline. */
static iv_status take_line(machine *m, const char **text, size_t *n) {
    const unsigned char *newline = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (!newline) return damaged(m, "a line without an end");
    *text = (const char *)m->at, *n = (size_t)(newline - m->at);
    m->at = newline + 1;
    return IV_OK;
}

static iv_status push_global(machine *m, const char *module, size_t module_bytes, const char *name, size_t name_bytes) {
    value *v = new_value(m, IV_PICKLE_GLOBAL);
    if (v) v->text = module, v->bytes = module_bytes, v->name = name, v->name_bytes = name_bytes;
    return push(m, v);
}

static iv_status take_global(machine *m) {
    const char *module = NULL, *name = NULL;
    size_t module_bytes = 0, name_bytes = 0;
    IV_TRY(take_line(m, &module, &module_bytes));
    IV_TRY(take_line(m, &name, &name_bytes));
    return push_global(m, module, module_bytes, name, name_bytes);
}

static iv_status stack_global(machine *m) {
    value *module = NULL, *name = NULL;
    IV_TRY(pop(m, &name));
    IV_TRY(pop(m, &module));
    if (module->kind != IV_PICKLE_TEXT || name->kind != IV_PICKLE_TEXT) return damaged(m, "a global without names");
    return push_global(m, module->text, module->bytes, name->text, name->bytes);
}

/* A call or an object: nothing happens. */
static iv_status pair(machine *m, iv_pickle_kind kind) {
    value *items[2] = {NULL, NULL};
    IV_TRY(pop(m, &items[1]));
    IV_TRY(pop(m, &items[0]));
    if (items[0]->kind != IV_PICKLE_GLOBAL || items[1]->kind != IV_PICKLE_TUPLE)
        return damaged(m, "a call of something else than a global with a tuple");
    return push_items(m, kind, items, 2);
}

static iv_status build(machine *m) {
    value *state = NULL, *object = NULL;
    IV_TRY(pop(m, &state));
    IV_TRY(pop(m, &object));
    if (object->kind != IV_PICKLE_OBJECT && object->kind != IV_PICKLE_CALL) return damaged(m, "state of no object");
    object->state = state;
    return push(m, object);
}

static iv_status persistent(machine *m) {
    value *id = NULL;
    IV_TRY(pop(m, &id));
    return push_items(m, IV_PICKLE_PERSISTENT, &id, 1);
}

/* ---- containers --------------------------------------------------------------------------------------- */

static iv_status container(machine *m, iv_pickle_kind kind, value **out) {
    if (m->depth == 0 || m->stack[m->depth - 1]->kind != kind) {
        /* An OrderedDict is a call whose items are set afterwards: they are of no use here. */
        if (m->depth == 0 || m->stack[m->depth - 1]->kind != IV_PICKLE_CALL || kind != IV_PICKLE_DICT)
            return damaged(m, "items of no list or dict");
        *out = NULL;
        return IV_OK;
    }
    *out = m->stack[m->depth - 1];
    return IV_OK;
}

static iv_status add_last(machine *m, iv_pickle_kind kind, size_t n) {
    value *items[2], *to = NULL;
    for (size_t i = n; i-- > 0;) IV_TRY(pop(m, &items[i]));
    IV_TRY(container(m, kind, &to));
    return to ? append(m, to, items, n) : IV_OK;
}

static iv_status add_marked(machine *m, iv_pickle_kind kind) {
    size_t first = 0, count = 0;
    value *to = NULL;
    IV_TRY(pop_marked(m, &first, &count));
    if (kind == IV_PICKLE_DICT && count % 2) return damaged(m, "a key without a value");
    IV_TRY(container(m, kind, &to));
    return to ? append(m, to, m->stack + first, count) : IV_OK;
}

static iv_status marked_tuple(machine *m) {
    size_t first = 0, count = 0;
    value *v = new_value(m, IV_PICKLE_TUPLE);
    if (!v) return no_memory(m);
    IV_TRY(pop_marked(m, &first, &count));
    IV_TRY(append(m, v, m->stack + first, count));
    return push(m, v);
}

/* ---- opcodes ------------------------------------------------------------------------------------------ */

static iv_status numbers(machine *m, unsigned op) {
    uint64_t v = 0;
    if (op == LONG1) return push_long(m);
    IV_TRY(take_number(m, op == BININT ? 4 : op == BININT2 ? 2 : op == BININT1 ? 1 : 8, &v));
    if (op == BINFLOAT) return push_new(m, IV_PICKLE_FLOAT, 0); /* no message has one of use */
    return push_new(m, IV_PICKLE_INT, op == BININT ? (int32_t)(uint32_t)v : (int64_t)v);
}

static iv_status memo(machine *m, unsigned op) {
    uint64_t at = m->memo_count;
    if (op == BINGET || op == BINPUT) IV_TRY(take_number(m, 1, &at));
    if (op == LONG_BINGET || op == LONG_BINPUT) IV_TRY(take_number(m, 4, &at));
    return op == BINGET || op == LONG_BINGET ? get(m, at) : put(m, at);
}

static iv_status head(machine *m, unsigned op) {
    uint64_t v;
    IV_TRY(take_number(m, op == PROTO ? 1 : 8, &v)); /* a frame only says how much to read ahead */
    if (op == FRAME || (v >= PROTOCOL_MIN && v <= PROTOCOL_MAX)) return IV_OK;
    return iv_fail(m->err, IV_UNSUPPORTED, "%s: pickle: wanted protocol %d to %d, found %d", m->name, PROTOCOL_MIN,
                   PROTOCOL_MAX, (int)v);
}

static iv_status run(machine *m, unsigned op) {
    value *unused;
    switch (op) {
    case PROTO:
    case FRAME: return head(m, op);
    case MARK: return push_new(m, IV_PICKLE_MARK, 0);
    case POP: return pop(m, &unused);
    case NONE: return push_new(m, IV_PICKLE_NONE, 0);
    case NEWTRUE: return push_new(m, IV_PICKLE_BOOL, 1);
    case NEWFALSE: return push_new(m, IV_PICKLE_BOOL, 0);
    case BININT:
    case BININT1:
    case BININT2:
    case BINFLOAT:
    case LONG1: return numbers(m, op);
    case SHORT_BINUNICODE: return push_string(m, IV_PICKLE_TEXT, 1);
    case BINUNICODE: return push_string(m, IV_PICKLE_TEXT, 4);
    case BINUNICODE8: return push_string(m, IV_PICKLE_TEXT, 8);
    case SHORT_BINBYTES: return push_string(m, IV_PICKLE_BYTES, 1);
    case BINBYTES: return push_string(m, IV_PICKLE_BYTES, 4);
    case BINBYTES8: return push_string(m, IV_PICKLE_BYTES, 8);
    case EMPTY_TUPLE: return push_new(m, IV_PICKLE_TUPLE, 0);
    case TUPLE1: return push_last(m, 1);
    case TUPLE2: return push_last(m, 2);
    case TUPLE3: return push_last(m, 3);
    case TUPLE: return marked_tuple(m);
    case EMPTY_LIST: return push_new(m, IV_PICKLE_LIST, 0);
    case EMPTY_DICT: return push_new(m, IV_PICKLE_DICT, 0);
    case APPEND: return add_last(m, IV_PICKLE_LIST, 1);
    case APPENDS: return add_marked(m, IV_PICKLE_LIST);
    case SETITEM: return add_last(m, IV_PICKLE_DICT, 2);
    case SETITEMS: return add_marked(m, IV_PICKLE_DICT);
    case GLOBAL: return take_global(m);
    case STACK_GLOBAL: return stack_global(m);
    case REDUCE: return pair(m, IV_PICKLE_CALL);
    case NEWOBJ: return pair(m, IV_PICKLE_OBJECT);
    case BUILD: return build(m);
    case BINPERSID: return persistent(m);
    case BINGET:
    case LONG_BINGET:
    case BINPUT:
    case LONG_BINPUT:
    case MEMOIZE: return memo(m, op);
    default: return iv_fail(m->err, IV_UNSUPPORTED, "%s: pickle: opcode 0x%02x is not read here", m->name, op);
    }
}

iv_status iv_pickle_read(const char *name, const void *bytes, size_t n, iv_arena *arena, iv_pickle_value **root,
                         size_t *used, iv_error *err) {
    machine m = {
        .name = name, .start = bytes, .at = bytes, .end = (const unsigned char *)bytes + n, .arena = arena, .err = err};
    iv_status status = IV_OK;
    *root = NULL;
    while (status == IV_OK) {
        const unsigned char *op = NULL;
        status = take(&m, 1, &op);
        if (status != IV_OK) break;
        if (*op == STOP) {
            status = pop(&m, root);
            break;
        }
        status = run(&m, *op);
    }
    if (status == IV_OK && m.depth > 0) status = damaged(&m, "more than one value");
    *used = (size_t)(m.at - m.start);
    free(m.stack), free(m.memo);
    return status;
}

/* ---- for readers of the tree -------------------------------------------------------------------------- */

const char *iv_pickle_describe(const iv_pickle_value *v, char out[160]) {
    static const char *const names[] = {"None",   "a bool", "an int", "a float", "a text", "bytes",           "a tuple",
                                        "a list", "a dict", "",       "",        "",       "a persistent id", "a mark"};
    const iv_pickle_value *g = v->kind == IV_PICKLE_CALL || v->kind == IV_PICKLE_OBJECT ? v->items[0] : v;
    if (g->kind == IV_PICKLE_GLOBAL)
        snprintf(out, 160, "%s%.*s.%.*s", v->kind == IV_PICKLE_CALL ? "a call of " : "", (int)iv_size_min(g->bytes, 64),
                 g->text, (int)iv_size_min(g->name_bytes, 64), g->name);
    else if (v->kind == IV_PICKLE_TUPLE || v->kind == IV_PICKLE_LIST)
        snprintf(out, 160, "%s of %zu", names[v->kind], v->count);
    else
        snprintf(out, 160, "%s", names[v->kind]);
    return out;
}

bool iv_pickle_is_text(const iv_pickle_value *v, const char *text) {
    return v->kind == IV_PICKLE_TEXT && v->bytes == strlen(text) && memcmp(v->text, text, v->bytes) == 0;
}

bool iv_pickle_is_global(const iv_pickle_value *v, const char *module, const char *name) {
    return v->kind == IV_PICKLE_GLOBAL && v->name_bytes == strlen(name) && memcmp(v->name, name, v->name_bytes) == 0 &&
           (!module || (v->bytes == strlen(module) && memcmp(v->text, module, v->bytes) == 0));
}

const iv_pickle_value *iv_pickle_member(const iv_pickle_value *dict, const char *key) {
    for (size_t i = 0; dict->kind == IV_PICKLE_DICT && i + 1 < dict->count; i += 2)
        if (iv_pickle_is_text(dict->items[i], key)) return dict->items[i + 1];
    return NULL;
}
