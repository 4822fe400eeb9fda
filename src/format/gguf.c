/* gguf.c: the parser. A cursor that never passes the end of the bytes; what lies behind them makes it `short`. */
#include "format/gguf.h"
#include "base/file.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 1 << 20, ALIGNMENT = 32, ALIGNMENT_MAX = 1 << 20 };

typedef struct cursor {
    const char *name;
    const uint8_t *bytes;
    size_t at, n, file_size;
    bool short_of; /* something lies behind n */
    iv_error *err;
} cursor;

static const uint8_t item_bytes[IV_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Whether n bytes follow; on false short_of is set, or the error: the file ends. */
static iv_status take(cursor *c, size_t n, const uint8_t **out) {
    if (n > c->file_size - c->at)
        return iv_fail(c->err, IV_FORMAT, "%s: %zu bytes at byte %zu do not fit a file of %zu (cut short?)", c->name, n,
                       c->at, c->file_size);
    if (n > c->n - c->at) {
        c->short_of = true;
        return iv_fail(c->err, IV_LIMIT, "%s: its header is longer than %zu bytes", c->name, c->n);
    }
    *out = c->bytes + c->at;
    c->at += n;
    return IV_OK;
}

static uint64_t number(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    while (n-- > 0) v = v << 8 | p[n];
    return v;
}

static iv_status take_number(cursor *c, size_t n, uint64_t *out) {
    const uint8_t *p = NULL;
    IV_TRY(take(c, n, &p));
    *out = number(p, n);
    return IV_OK;
}

static iv_status take_string(cursor *c, iv_str *out) {
    uint64_t n;
    const uint8_t *p = NULL;
    IV_TRY(take_number(c, 8, &n));
    IV_TRY(take(c, n, &p));
    *out = (iv_str){(const char *)p, n};
    return IV_OK;
}

/* ---- metadata ------------------------------------------------------------------------------------------- */

static iv_status decode(cursor *c, const uint8_t *p, iv_gguf_type type, const iv_str *key, int64_t *integer,
                        double *real) {
    uint64_t u = number(p, item_bytes[type]);
    float f;
    uint32_t bits = (uint32_t)u;
    switch (type) {
    case IV_GGUF_I8: *integer = (int8_t)u; break;
    case IV_GGUF_I16: *integer = (int16_t)u; break;
    case IV_GGUF_I32: *integer = (int32_t)u; break;
    case IV_GGUF_I64: *integer = (int64_t)u; break;
    case IV_GGUF_F32: memcpy(&f, &bits, sizeof f), *real = (double)f; break;
    case IV_GGUF_F64: memcpy(real, &u, sizeof *real); break;
    default:
        if (u > INT64_MAX && key)
            return iv_fail(c->err, IV_FORMAT, "%s: %.*s: %" PRIu64 " is too large", c->name,
                           (int)iv_size_min(key->len, 200), key->data, u);
        *integer = (int64_t)u;
    }
    return IV_OK;
}

static iv_status take_array(cursor *c, iv_gguf_value *v) {
    uint64_t item, count;
    size_t bytes, begin;
    const uint8_t *p = NULL;
    IV_TRY(take_number(c, 4, &item));
    IV_TRY(take_number(c, 8, &count));
    if (item >= IV_GGUF_TYPES || item == IV_GGUF_ARRAY)
        return iv_fail(c->err, IV_UNSUPPORTED, "%s: %.*s: an array of items of type %" PRIu64 " is not read", c->name,
                       (int)iv_size_min(v->key.len, 200), v->key.data, item);
    v->item = (iv_gguf_type)item, v->count = count, begin = c->at;
    if (item != IV_GGUF_STRING) {
        if (!iv_size_mul(count, item_bytes[item], &bytes)) bytes = SIZE_MAX;
        IV_TRY(take(c, bytes, &p));
    }
    for (uint64_t i = 0; item == IV_GGUF_STRING && i < count; i++) {
        iv_str s;
        IV_TRY(take_string(c, &s));
    }
    v->text = (iv_str){(const char *)c->bytes + begin, c->at - begin};
    return IV_OK;
}

static iv_status take_value(cursor *c, iv_gguf_value *v) {
    uint64_t type;
    const uint8_t *p = NULL;
    *v = (iv_gguf_value){0};
    IV_TRY(take_string(c, &v->key));
    IV_TRY(take_number(c, 4, &type));
    if (type >= IV_GGUF_TYPES)
        return iv_fail(c->err, IV_FORMAT, "%s: %.*s: wanted a type below %d, found %" PRIu64, c->name,
                       (int)iv_size_min(v->key.len, 200), v->key.data, IV_GGUF_TYPES, type);
    v->type = (iv_gguf_type)type;
    if (v->type == IV_GGUF_STRING) return take_string(c, &v->text);
    if (v->type == IV_GGUF_ARRAY) return take_array(c, v);
    IV_TRY(take(c, item_bytes[type], &p));
    return decode(c, p, v->type, &v->key, &v->integer, &v->real);
}

static int compare(iv_str a, const char *b, size_t n) {
    int order = memcmp(a.data, b, iv_size_min(a.len, n));
    return order ? order : a.len < n ? -1 : a.len > n;
}

static int by_key(const void *a, const void *b) {
    const iv_gguf_value *x = a, *y = b;
    return compare(x->key, y->key.data, y->key.len);
}

static iv_status take_values(cursor *c, size_t count, iv_arena *arena, iv_gguf *out) {
    out->values = IV_ARENA_NEW(arena, count + 1, iv_gguf_value);
    if (!out->values) return iv_fail(c->err, IV_NO_MEMORY, "%s: no memory for %zu keys", c->name, count);
    for (; out->value_count < count; out->value_count++) IV_TRY(take_value(c, &out->values[out->value_count]));
    if (count > 1) qsort(out->values, count, sizeof *out->values, by_key);
    for (size_t i = 1; i < count; i++)
        if (by_key(&out->values[i - 1], &out->values[i]) == 0)
            return iv_fail(c->err, IV_FORMAT, "%s: the key %.*s is there twice", c->name,
                           (int)iv_size_min(out->values[i].key.len, 200), out->values[i].key.data);
    return IV_OK;
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

static const struct kind {
    const char *name; /* of one that is not read */
    int format;       /* -1: not read */
} kinds[] = {[0] = {NULL, IV_WEIGHT_F32},
             [1] = {NULL, IV_WEIGHT_F16},
             [2] = {NULL, IV_WEIGHT_Q4_0},
             [3] = {NULL, IV_WEIGHT_Q4_1},
             [4] = {"Q4_2", -1},
             [5] = {"Q4_3", -1},
             [6] = {NULL, IV_WEIGHT_Q5_0},
             [7] = {NULL, IV_WEIGHT_Q5_1},
             [8] = {NULL, IV_WEIGHT_Q8_0},
             [9] = {"Q8_1", -1},
             [10] = {NULL, IV_WEIGHT_Q2_K},
             [11] = {NULL, IV_WEIGHT_Q3_K},
             [12] = {NULL, IV_WEIGHT_Q4_K},
             [13] = {NULL, IV_WEIGHT_Q5_K},
             [14] = {NULL, IV_WEIGHT_Q6_K},
             [15] = {"Q8_K", -1},
             [16] = {"IQ2_XXS", -1},
             [17] = {"IQ2_XS", -1},
             [18] = {"IQ3_XXS", -1},
             [19] = {"IQ1_S", -1},
             [20] = {NULL, IV_WEIGHT_IQ4_NL},
             [21] = {"IQ3_S", -1},
             [22] = {"IQ2_S", -1},
             [23] = {NULL, IV_WEIGHT_IQ4_XS},
             [24] = {"I8", -1},
             [25] = {"I16", -1},
             [26] = {"I32", -1},
             [27] = {"I64", -1},
             [28] = {"F64", -1},
             [29] = {"IQ1_M", -1},
             [30] = {NULL, IV_WEIGHT_BF16},
             [31] = {"Q4_0_4_4", -1},
             [32] = {"Q4_0_4_8", -1},
             [33] = {"Q4_0_8_8", -1},
             [34] = {"TQ1_0", -1},
             [35] = {"TQ2_0", -1},
             [36] = {"IQ4_NL_4_4", -1},
             [37] = {"IQ4_NL_4_8", -1},
             [38] = {"IQ4_NL_8_8", -1},
             [39] = {NULL, IV_WEIGHT_MXFP4_GGUF},
             [40] = {"NVFP4", -1}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static iv_status take_shape(cursor *c, iv_tensor_info *t) {
    uint64_t dims, d;
    IV_TRY(take_number(c, 4, &dims));
    if (dims < 1 || dims > IV_GGUF_DIMS_MAX)
        return iv_fail(c->err, IV_FORMAT, "%s: tensor '%.200s': wanted 1 to %d dimensions, found %" PRIu64, c->name,
                       t->name, IV_GGUF_DIMS_MAX, dims);
    t->ndim = (int)dims;
    for (int i = t->ndim - 1; i >= 0; i--) { /* the fastest first in the file */
        IV_TRY(take_number(c, 8, &d));
        if (d > INT64_MAX)
            return iv_fail(c->err, IV_FORMAT, "%s: tensor '%.200s': a dimension of %" PRIu64, c->name, t->name, d);
        t->shape[i] = (int64_t)d;
    }
    return IV_OK;
}

static iv_status take_tensor(cursor *c, iv_arena *arena, iv_gguf_tensor *out) {
    iv_str name;
    uint64_t kind, offset;
    iv_tensor_info *t = &out->info;
    IV_TRY(take_string(c, &name));
    if (name.len > IV_TENSOR_NAME_BYTES_MAX || name.len == 0 || memchr(name.data, 0, name.len))
        return iv_fail(c->err, IV_FORMAT, "%s: a tensor's name: wanted 1 to %d bytes without NUL, found %zu", c->name,
                       IV_TENSOR_NAME_BYTES_MAX, name.len);
    t->name = iv_arena_strndup(arena, name.data, name.len);
    if (!t->name) return iv_fail(c->err, IV_NO_MEMORY, "%s: no memory for tensor names", c->name);
    IV_TRY(take_shape(c, t));
    IV_TRY(take_number(c, 4, &kind));
    IV_TRY(take_number(c, 8, &offset));
    if (kind >= KINDS || kinds[kind].format < 0)
        return iv_fail(c->err, IV_UNSUPPORTED, "%s: tensor '%.200s': type %" PRIu64 "%s%s%s is not read", c->name,
                       t->name, kind, kind < KINDS ? " (" : "", kind < KINDS ? kinds[kind].name : "",
                       kind < KINDS ? ")" : "");
    out->format = (iv_weight_format)kinds[kind].format;
    const iv_weight_facts *f = iv_weight_facts_of(out->format);
    t->dtype = iv_weight_is_plain(out->format) ? (iv_dtype)out->format : IV_U8;
    size_t row = (size_t)t->shape[t->ndim - 1], ignored;
    if (row % f->block != 0 || !iv_safetensors_shape_bytes(t->shape, t->ndim, f->block_bytes, &t->elements, &ignored))
        return iv_fail(c->err, IV_FORMAT, "%s: tensor '%.200s': %s rows of %zu: wanted a multiple of %zu", c->name,
                       t->name, f->name, row, f->block);
    t->bytes = t->elements / f->block * f->block_bytes;
    t->offset = offset;
    return IV_OK;
}

/* Offsets count from the data's start; now from the file's. */
static iv_status place(cursor *c, const iv_gguf_value *alignment, iv_gguf *out) {
    size_t align = ALIGNMENT, start;
    if (alignment) {
        align = (size_t)alignment->integer;
        if (alignment->type > IV_GGUF_I32 || alignment->integer < 1 || alignment->integer > ALIGNMENT_MAX ||
            (align & (align - 1)))
            return iv_fail(c->err, IV_FORMAT, "%s: general.alignment: wanted a power of two up to %d, found %" PRId64,
                           c->name, ALIGNMENT_MAX, alignment->integer);
    }
    if (!iv_size_round_up(c->at, align, &start)) start = SIZE_MAX;
    for (size_t i = 0; i < out->tensor_count; i++) {
        iv_tensor_info *t = &out->tensors[i].info;
        size_t end;
        if (t->offset % align != 0)
            return iv_fail(c->err, IV_FORMAT, "%s: tensor '%.200s': offset %zu is no multiple of %zu", c->name, t->name,
                           t->offset, align);
        if (!iv_size_add(t->offset, start, &t->offset) || !iv_size_add(t->offset, t->bytes, &end) || end > c->file_size)
            return iv_fail(c->err, IV_FORMAT, "%s: tensor '%.200s': %zu bytes do not fit the file of %zu (cut short?)",
                           c->name, t->name, t->bytes, c->file_size);
    }
    return IV_OK;
}

static iv_status parse(cursor *c, iv_arena *arena, iv_gguf *out) {
    const uint8_t *magic = NULL;
    uint64_t version, tensors, keys;
    IV_TRY(take(c, 4, &magic));
    if (memcmp(magic, "GGUF", 4) != 0) return iv_fail(c->err, IV_FORMAT, "%s: is no GGUF file", c->name);
    IV_TRY(take_number(c, 4, &version));
    if (version != 2 && version != 3)
        return iv_fail(c->err, IV_UNSUPPORTED, "%s: wanted GGUF version 2 or 3, found %" PRIu64 "%s", c->name,
                       version >= 1 << 24 ? version >> 24 : version,
                       version >= 1 << 24 ? " of a big-endian machine" : "");
    IV_TRY(take_number(c, 8, &tensors));
    IV_TRY(take_number(c, 8, &keys));
    if (keys > IV_GGUF_KEYS_MAX || tensors > IV_SAFETENSORS_TENSORS_MAX)
        return iv_fail(c->err, IV_LIMIT, "%s: %" PRIu64 " keys and %" PRIu64 " tensors, at most %zu and %zu are read",
                       c->name, keys, tensors, IV_GGUF_KEYS_MAX, IV_SAFETENSORS_TENSORS_MAX);
    if (keys > c->file_size / 13 || tensors > c->file_size / 32) /* the least that each takes */
        return iv_fail(c->err, IV_FORMAT, "%s: %" PRIu64 " keys and %" PRIu64 " tensors do not fit a file of %zu bytes",
                       c->name, keys, tensors, c->file_size);
    IV_TRY(take_values(c, keys, arena, out));
    out->tensors = IV_ARENA_NEW(arena, tensors + 1, iv_gguf_tensor);
    if (!out->tensors) return iv_fail(c->err, IV_NO_MEMORY, "%s: no memory for %" PRIu64 " tensors", c->name, tensors);
    for (; out->tensor_count < tensors; out->tensor_count++)
        IV_TRY(take_tensor(c, arena, &out->tensors[out->tensor_count]));
    return place(c, iv_gguf_find(out, "general.alignment"), out);
}

iv_status iv_gguf_parse(const char *name, const uint8_t *bytes, size_t n, size_t file_size, iv_arena *arena,
                        iv_gguf *out, bool *more, iv_error *err) {
    cursor c = {.name = name, .bytes = bytes, .n = n, .file_size = file_size, .err = err};
    *out = (iv_gguf){0};
    iv_status status = parse(&c, arena, out);
    *more = status != IV_OK && c.short_of;
    return status;
}

iv_status iv_gguf_read(const char *path, int fd, size_t file_size, iv_arena *arena, iv_gguf *out, iv_error *err) {
    for (size_t n = FIRST_BYTES;; n *= 4) {
        bool more = false;
        iv_arena own = {0}; /* of an attempt that may be too short */
        n = iv_size_min(iv_size_min(n, file_size), IV_GGUF_HEADER_BYTES_MAX);
        uint8_t *bytes = iv_arena_alloc(&own, n ? n : 1, 1);
        iv_status status = bytes ? iv_file_read_at(fd, path, bytes, n, 0, err)
                                 : iv_fail(err, IV_NO_MEMORY, "%s: no memory for its header", path);
        if (status == IV_OK) status = iv_gguf_parse(path, bytes, n, file_size, &own, out, &more, err);
        iv_arena_free(&own);
        if (more && n < IV_GGUF_HEADER_BYTES_MAX) continue;
        if (status != IV_OK) return status;
        bytes = iv_arena_alloc(arena, n, 1); /* again, to stay */
        if (!bytes) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its header", path);
        IV_TRY(iv_file_read_at(fd, path, bytes, n, 0, err));
        return iv_gguf_parse(path, bytes, n, file_size, arena, out, &more, err);
    }
}

/* ---- reading values ------------------------------------------------------------------------------------- */

const iv_gguf_value *iv_gguf_find(const iv_gguf *g, const char *key) {
    size_t low = 0, high = g->value_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare(g->values[middle].key, key, strlen(key));
        if (order == 0) return &g->values[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool iv_gguf_next_string(const iv_gguf_value *v, size_t *at, iv_str *out) {
    if (v->item != IV_GGUF_STRING || *at >= v->text.len) return false;
    size_t n = number((const uint8_t *)v->text.data + *at, 8);
    *out = (iv_str){v->text.data + *at + 8, n};
    *at += 8 + n;
    return true;
}

int64_t iv_gguf_integer_at(const iv_gguf_value *v, size_t i) {
    int64_t integer = 0;
    double real = 0;
    IV_ASSERT(i < v->count && v->item != IV_GGUF_STRING);
    cursor unused = {0};
    decode(&unused, (const uint8_t *)v->text.data + i * item_bytes[v->item], v->item, NULL, &integer, &real);
    return v->item == IV_GGUF_F32 || v->item == IV_GGUF_F64 ? 0 : integer;
}

double iv_gguf_real_at(const iv_gguf_value *v, size_t i) {
    int64_t integer = 0;
    double real = 0;
    IV_ASSERT(i < v->count && v->item != IV_GGUF_STRING);
    cursor unused = {0};
    decode(&unused, (const uint8_t *)v->text.data + i * item_bytes[v->item], v->item, NULL, &integer, &real);
    return v->item == IV_GGUF_F32 || v->item == IV_GGUF_F64 ? real : (double)integer;
}
