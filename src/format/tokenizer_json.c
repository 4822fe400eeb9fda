/* tokenizer_json.c: a tokenizer.json read into structs. Nothing of the JSON tree is kept: strings are copied into the
 * arena, the vocabulary's into one block. */
#include "format/tokenizer_json.h"
#include "base/size.h"
#include "base/status.h"
#include "base/utf8.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the token map ---- */

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, s, n);
    h = (h ^ word) * 0xff51afd7ed558ccdu;
    return h ^ (h >> 29);
}

bool iv_token_map_init(iv_token_map *map, iv_arena *arena, size_t capacity) {
    IV_ASSERT(capacity < (size_t)1 << 31);
    size_t slots = 16;
    while (slots < 2 * capacity) slots *= 2;
    *map = (iv_token_map){.capacity = capacity, .slot_mask = slots - 1};
    map->tokens = IV_ARENA_NEW(arena, capacity, iv_token);
    map->slots = IV_ARENA_NEW(arena, slots, uint32_t);
    return map->tokens && map->slots;
}

/* The slot of the text, or the free slot for it. */
static size_t slot_of(const iv_token_map *map, const char *text, size_t n) {
    size_t i = hash_bytes(text, n) & map->slot_mask;
    for (; map->slots[i]; i = (i + 1) & map->slot_mask) {
        const iv_token *t = &map->tokens[map->slots[i] - 1];
        if (t->text.len == n && memcmp(t->text.data, text, n) == 0) break;
    }
    return i;
}

bool iv_token_map_put(iv_token_map *map, iv_str text, int32_t id) {
    IV_ASSERT(map->count < map->capacity);
    size_t i = slot_of(map, text.data, text.len);
    if (map->slots[i]) return false;
    map->tokens[map->count] = (iv_token){.text = text, .id = id};
    map->slots[i] = (uint32_t)++map->count;
    return true;
}

const iv_token *iv_token_map_find(const iv_token_map *map, const char *text, size_t n) {
    if (map->count == 0) return NULL;
    uint32_t index = map->slots[slot_of(map, text, n)];
    return index ? &map->tokens[index - 1] : NULL;
}

/* ---- fields ---- */

/* `where` is the path of obj, for errors. Required unless the name says otherwise; null counts as absent. */
typedef struct field {
    const char *name, *where;
    const json_t *obj;
    iv_arena *arena;
    iv_error *err;
} field;

static iv_status field_wrong(const field *f, const char *key, const char *wanted) {
    return iv_fail(f->err, IV_FORMAT, "%s: %s.%s: wanted %s, found %s", f->name, f->where, key, wanted,
                   iv_json_type_name(json_object_get(f->obj, key)));
}

static iv_status field_bool(const field *f, const char *key, bool *out) {
    const json_t *v = json_object_get(f->obj, key);
    if (!json_is_boolean(v)) return field_wrong(f, key, "true or false");
    *out = json_is_true(v);
    return IV_OK;
}

static iv_status field_bool_or(const field *f, const char *key, bool fallback, bool *out) {
    const json_t *v = json_object_get(f->obj, key);
    *out = fallback;
    return !v || json_is_null(v) ? IV_OK : field_bool(f, key, out);
}

static iv_status field_str(const field *f, const char *key, iv_str *out) {
    const json_t *v = json_object_get(f->obj, key);
    if (!json_is_string(v)) return field_wrong(f, key, "a string");
    size_t n = json_string_length(v);
    if (n > IV_TOKEN_BYTES_MAX)
        return iv_fail(f->err, IV_LIMIT, "%s: %s.%s: %zu bytes, at most %d are allowed", f->name, f->where, key, n,
                       IV_TOKEN_BYTES_MAX);
    *out = (iv_str){iv_arena_strndup(f->arena, json_string_value(v), n), n};
    if (!out->data) return iv_fail(f->err, IV_NO_MEMORY, "%s: no memory", f->name);
    return IV_OK;
}

static iv_status field_str_or_null(const field *f, const char *key, iv_str *out) {
    const json_t *v = json_object_get(f->obj, key);
    *out = (iv_str){0};
    return !v || json_is_null(v) ? IV_OK : field_str(f, key, out);
}

static iv_status field_count(const field *f, const char *key, size_t max, size_t *out) {
    const json_t *v = json_object_get(f->obj, key);
    if (!json_is_integer(v)) return field_wrong(f, key, "a whole number");
    json_int_t n = json_integer_value(v);
    if (n < 0 || (unsigned long long)n > max)
        return iv_fail(f->err, IV_FORMAT, "%s: %s.%s: %" JSON_INTEGER_FORMAT " is not in 0..%zu", f->name, f->where,
                       key, n, max);
    *out = (size_t)n;
    return IV_OK;
}

/* ---- vocabulary ---- */

static iv_status check_id(const char *name, const char *token, const json_t *value, int32_t *id, iv_error *err) {
    if (!json_is_integer(value))
        return iv_fail(err, IV_FORMAT, "%s: id of token \"%.100s\": wanted an integer, found %s", name, token,
                       iv_json_type_name(value));
    json_int_t v = json_integer_value(value);
    if (v < 0 || v > IV_TOKEN_ID_MAX)
        return iv_fail(err, IV_FORMAT, "%s: id of token \"%.100s\": %" JSON_INTEGER_FORMAT " is not in 0..%d", name,
                       token, v, IV_TOKEN_ID_MAX);
    *id = (int32_t)v;
    return IV_OK;
}

static iv_status read_vocab(const char *name, json_t *model, iv_tokenizer_json *t, iv_error *err) {
    json_t *vocab = json_object_get(model, "vocab"), *value;
    const char *key;
    size_t pool_bytes = 0, count = json_object_size(vocab);
    if (!json_is_object(vocab))
        return iv_fail(err, IV_FORMAT, "%s: model.vocab: wanted an object, found %s", name, iv_json_type_name(vocab));
    if (count > (size_t)IV_TOKEN_ID_MAX + 1)
        return iv_fail(err, IV_LIMIT, "%s: model.vocab: %zu tokens, at most %d are allowed", name, count,
                       IV_TOKEN_ID_MAX + 1);
    json_object_foreach(vocab, key, value) {
        size_t n = strlen(key);
        if (n > IV_TOKEN_BYTES_MAX)
            return iv_fail(err, IV_LIMIT, "%s: model.vocab: token \"%.60s...\" of %zu bytes, at most %d are allowed",
                           name, key, n, IV_TOKEN_BYTES_MAX);
        if (!iv_size_add(pool_bytes, n, &pool_bytes)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    }
    char *pool = iv_arena_alloc(&t->arena, pool_bytes, 1);
    if (!pool || !iv_token_map_init(&t->vocab, &t->arena, count))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tokens", name, count);
    json_object_foreach(vocab, key, value) {
        int32_t id = 0;
        IV_TRY(check_id(name, key, value, &id, err));
        size_t n = strlen(key);
        memcpy(pool, key, n);
        /* The JSON reader has refused equal keys. */
        IV_ASSERT(iv_token_map_put(&t->vocab, (iv_str){pool, n}, id));
        t->id_count = iv_size_max(t->id_count, (size_t)id + 1);
        pool += n;
    }
    return IV_OK;
}

/* ---- merges ---- */

static iv_status merge_part(const char *name, size_t index, const iv_tokenizer_json *t, iv_str part, int32_t *id,
                            iv_error *err) {
    const iv_token *token = iv_token_map_find(&t->vocab, part.data, part.len);
    if (!token)
        return iv_fail(err, IV_FORMAT, "%s: model.merges[%zu]: \"%.*s\" is not in the vocabulary", name, index,
                       (int)iv_size_min(part.len, 100), part.data);
    *id = token->id;
    return IV_OK;
}

/* Both forms of a merge: "left right", with exactly one space, and ["left", "right"]. */
static bool split_merge(const json_t *value, iv_str *left, iv_str *right) {
    if (json_is_string(value)) {
        const char *s = json_string_value(value);
        size_t n = json_string_length(value);
        const char *space = memchr(s, ' ', n);
        if (!space) return false;
        *left = (iv_str){s, (size_t)(space - s)};
        *right = (iv_str){space + 1, n - left->len - 1};
        return !memchr(right->data, ' ', right->len);
    }
    const json_t *a = json_array_get(value, 0), *b = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_string(a) || !json_is_string(b)) return false;
    *left = (iv_str){json_string_value(a), json_string_length(a)};
    *right = (iv_str){json_string_value(b), json_string_length(b)};
    return true;
}

static iv_status read_merge(const char *name, size_t index, const json_t *value, const iv_tokenizer_json *t,
                            iv_merge *out, iv_error *err) {
    iv_str left, right;
    char joined[2 * IV_TOKEN_BYTES_MAX];
    if (!split_merge(value, &left, &right))
        return iv_fail(err, IV_FORMAT, "%s: model.merges[%zu]: wanted \"left right\" or [\"left\", \"right\"]", name,
                       index);
    IV_TRY(merge_part(name, index, t, left, &out->left, err));
    IV_TRY(merge_part(name, index, t, right, &out->right, err));
    /* The second part carries the continuing prefix, the merged token carries only the first part's. */
    if (right.len < t->prefix.len)
        return iv_fail(err, IV_FORMAT, "%s: model.merges[%zu]: \"%.*s\" is shorter than continuing_subword_prefix",
                       name, index, (int)right.len, right.data);
    size_t tail = right.len - t->prefix.len;
    memcpy(joined, left.data, left.len);
    memcpy(joined + left.len, right.data + t->prefix.len, tail);
    return merge_part(name, index, t, (iv_str){joined, left.len + tail}, &out->merged, err);
}

static iv_status read_merges(const char *name, json_t *model, iv_tokenizer_json *t, iv_error *err) {
    json_t *merges = json_object_get(model, "merges"), *value;
    size_t count = json_array_size(merges), i;
    if (!json_is_array(merges))
        return iv_fail(err, IV_FORMAT, "%s: model.merges: wanted an array, found %s", name, iv_json_type_name(merges));
    if (count > IV_TOKENIZER_MERGES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: model.merges: %zu, at most %d are allowed", name, count,
                       IV_TOKENIZER_MERGES_MAX);
    t->merges = IV_ARENA_NEW(&t->arena, count, iv_merge);
    if (!t->merges) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu merges", name, count);
    json_array_foreach(merges, i, value) {
        /* The first line of a merges.txt, which some files have kept. */
        if (json_is_string(value) && strncmp(json_string_value(value), "#version", 8) == 0) continue;
        IV_TRY(read_merge(name, i, value, t, &t->merges[t->merge_count++], err));
    }
    return IV_OK;
}

static iv_status read_model(const char *name, json_t *root, iv_tokenizer_json *t, iv_error *err) {
    json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return iv_fail(err, IV_FORMAT, "%s: model: wanted an object, found %s", name, iv_json_type_name(model));
    field f = {name, "model", model, &t->arena, err};
    iv_str type, unk;
    IV_TRY(field_str_or_null(&f, "type", &type));
    /* Files of the first releases leave the type out; only BPE has merges. */
    if (type.data ? strcmp(type.data, "BPE") != 0 : !json_object_get(model, "merges"))
        return iv_fail(err, IV_UNSUPPORTED, "%s: model.type: wanted BPE, found %s", name,
                       type.data ? type.data : "nothing");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return iv_fail(err, IV_UNSUPPORTED, "%s: model.dropout: merges are never dropped at random here; wanted null",
                       name);
    IV_TRY(field_bool_or(&f, "byte_fallback", false, &t->byte_fallback));
    IV_TRY(field_bool_or(&f, "fuse_unk", false, &t->fuse_unk));
    IV_TRY(field_bool_or(&f, "ignore_merges", false, &t->ignore_merges));
    IV_TRY(field_str_or_null(&f, "continuing_subword_prefix", &t->prefix));
    IV_TRY(field_str_or_null(&f, "end_of_word_suffix", &t->suffix));
    IV_TRY(field_str_or_null(&f, "unk_token", &unk));
    if (t->prefix.len > IV_TOKEN_AFFIX_BYTES_MAX || t->suffix.len > IV_TOKEN_AFFIX_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: model: a prefix or suffix of more than %d bytes", name,
                       IV_TOKEN_AFFIX_BYTES_MAX);
    IV_TRY(read_vocab(name, model, t, err));
    t->unk_id = -1;
    if (unk.data) {
        const iv_token *token = iv_token_map_find(&t->vocab, unk.data, unk.len);
        if (!token)
            return iv_fail(err, IV_FORMAT, "%s: model.unk_token: \"%.100s\" is not in the vocabulary", name, unk.data);
        t->unk_id = token->id;
    }
    return read_merges(name, model, t, err);
}

/* ---- added tokens ---- */

static iv_status read_added_token(const char *name, size_t index, json_t *value, iv_tokenizer_json *t, iv_error *err) {
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    iv_added_token *a = &t->added[index];
    field f = {name, where, value, &t->arena, err};
    IV_TRY(field_str(&f, "content", &a->content));
    IV_TRY(check_id(name, a->content.data, json_object_get(value, "id"), &a->id, err));
    IV_TRY(field_bool(&f, "single_word", &a->single_word));
    IV_TRY(field_bool(&f, "lstrip", &a->lstrip));
    IV_TRY(field_bool(&f, "rstrip", &a->rstrip));
    IV_TRY(field_bool(&f, "normalized", &a->normalized));
    IV_TRY(field_bool(&f, "special", &a->special));
    if (a->content.len == 0) return iv_fail(err, IV_FORMAT, "%s: %s.content: empty", name, where);
    if (a->content.len > IV_ADDED_TOKEN_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %s.content: %zu bytes, at most %d are allowed", name, where, a->content.len,
                       IV_ADDED_TOKEN_BYTES_MAX);
    const iv_token *own = iv_token_map_find(&t->vocab, a->content.data, a->content.len);
    if (own && own->id != a->id)
        return iv_fail(err, IV_FORMAT, "%s: %s: \"%.100s\" has id %d here and %d in model.vocab", name, where,
                       a->content.data, a->id, own->id);
    if (!iv_token_map_put(&t->added_map, a->content, a->id))
        return iv_fail(err, IV_FORMAT, "%s: %s: \"%.100s\" is listed twice", name, where, a->content.data);
    t->id_count = iv_size_max(t->id_count, (size_t)a->id + 1);
    return IV_OK;
}

static iv_status read_added(const char *name, json_t *root, iv_tokenizer_json *t, iv_error *err) {
    json_t *list = json_object_get(root, "added_tokens"), *value;
    size_t count = json_array_size(list), i;
    if (list && !json_is_array(list))
        return iv_fail(err, IV_FORMAT, "%s: added_tokens: wanted an array, found %s", name, iv_json_type_name(list));
    if (count > (size_t)IV_TOKEN_ID_MAX + 1)
        return iv_fail(err, IV_LIMIT, "%s: added_tokens: %zu, at most %d are allowed", name, count,
                       IV_TOKEN_ID_MAX + 1);
    t->added = IV_ARENA_NEW(&t->arena, count, iv_added_token);
    if (!t->added || !iv_token_map_init(&t->added_map, &t->arena, count))
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu added tokens", name, count);
    json_array_foreach(list, i, value) { IV_TRY(read_added_token(name, i, value, t, err)); }
    t->added_count = count;
    return IV_OK;
}

/* ---- ids ---- */

static iv_status claim_id(const char *name, iv_tokenizer_json *t, iv_str text, int32_t id, iv_error *err) {
    iv_str *slot = &t->by_id[id];
    if (slot->data && (slot->len != text.len || memcmp(slot->data, text.data, text.len) != 0))
        return iv_fail(err, IV_FORMAT, "%s: id %d is given to two tokens, \"%.*s\" and \"%.*s\"", name, id,
                       (int)iv_size_min(slot->len, 100), slot->data, (int)iv_size_min(text.len, 100), text.data);
    *slot = text;
    return IV_OK;
}

static iv_status index_ids(const char *name, iv_tokenizer_json *t, iv_error *err) {
    /* calloc, not the arena: for sparse ids, untouched pages cost nothing. */
    t->by_id = calloc(iv_size_max(t->id_count, 1), sizeof *t->by_id);
    if (!t->by_id) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu ids", name, t->id_count);
    for (size_t i = 0; i < t->vocab.count; i++)
        IV_TRY(claim_id(name, t, t->vocab.tokens[i].text, t->vocab.tokens[i].id, err));
    for (size_t i = 0; i < t->added_count; i++) IV_TRY(claim_id(name, t, t->added[i].content, t->added[i].id, err));
    return IV_OK;
}

/* ---- steps ---- */

typedef struct parser {
    const char *name;
    iv_tokenizer_json *out;
    iv_error *err;
    size_t pieces, text_piece; /* of the post-processor so far: how many, and which one is the text */
} parser;

typedef iv_status (*read_step)(parser *p, const field *f, const char *type);

static iv_status unsupported(const parser *p, const char *where, const char *type) {
    return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s: type \"%.100s\" is not supported", p->name, where, type);
}

static iv_status too_many(const parser *p, const char *where) {
    return iv_fail(p->err, IV_LIMIT, "%s: %s: more than %d steps", p->name, where, IV_TOKENIZER_STEPS_MAX);
}

/* One step, or the members of a Sequence in order; null and absent are no step. list is the Sequence's key.
 */
static iv_status read_steps(parser *p, const char *where, const json_t *v, const char *list, int depth,
                            read_step read) {
    if (!v || json_is_null(v)) return IV_OK;
    if (depth > IV_TOKENIZER_NESTING_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: %s: Sequence nested over %d deep", p->name, where,
                       IV_TOKENIZER_NESTING_MAX);
    field f = {p->name, where, v, &p->out->arena, p->err};
    iv_str type;
    IV_TRY(field_str(&f, "type", &type));
    if (strcmp(type.data, "Sequence") != 0) return read(p, &f, type.data);
    const json_t *members = json_object_get(v, list);
    if (!json_is_array(members))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.%s: wanted an array, found %s", p->name, where, list,
                       iv_json_type_name(members));
    for (size_t i = 0; i < json_array_size(members); i++) {
        char path[200];
        snprintf(path, sizeof path, "%.150s.%s[%zu]", where, list, i);
        IV_TRY(read_steps(p, path, json_array_get(members, i), list, depth + 1, read));
    }
    return IV_OK;
}

static iv_status read_pattern(const parser *p, const field *f, iv_pattern *out) {
    const json_t *v = json_object_get(f->obj, "pattern");
    field inner = {f->name, f->where, v, f->arena, f->err};
    iv_str string, regex;
    IV_TRY(field_str_or_null(&inner, "String", &string));
    IV_TRY(field_str_or_null(&inner, "Regex", &regex));
    if (!string.data == !regex.data)
        return iv_fail(p->err, IV_FORMAT, "%s: %s.pattern: wanted one of String and Regex", p->name, f->where);
    *out = (iv_pattern){regex.data ? regex : string, regex.data != NULL};
    if (out->text.len == 0) return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s.pattern: empty", p->name, f->where);
    return IV_OK;
}

/* A string that must be exactly one character. */
static iv_status read_char(const parser *p, const field *f, const char *key, iv_str *out) {
    IV_TRY(field_str(f, key, out));
    if (out->len && iv_utf8_length((const uint8_t *)out->data, out->len) == out->len) return IV_OK;
    return iv_fail(p->err, IV_FORMAT, "%s: %s.%s: wanted one character", p->name, f->where, key);
}

static iv_status read_prepend(const parser *p, const field *f, iv_prepend_scheme *out) {
    static const char *const names[] = {"never", "first", "always"};
    iv_str scheme;
    bool add;
    IV_TRY(field_str_or_null(f, "prepend_scheme", &scheme));
    IV_TRY(field_bool_or(f, "add_prefix_space", true, &add));
    *out = IV_PREPEND_ALWAYS;
    if (scheme.data) {
        size_t i = 0;
        while (i < 3 && strcmp(scheme.data, names[i]) != 0) i++;
        if (i == 3)
            return iv_fail(p->err, IV_FORMAT, "%s: %s.prepend_scheme: wanted never, first or always, found \"%.40s\"",
                           p->name, f->where, scheme.data);
        *out = (iv_prepend_scheme)i;
    }
    if (!add && scheme.data && *out != IV_PREPEND_NEVER)
        return iv_fail(p->err, IV_FORMAT, "%s: %s: add_prefix_space is false but prepend_scheme is \"%s\"", p->name,
                       f->where, scheme.data);
    if (!add) *out = IV_PREPEND_NEVER;
    return IV_OK;
}

/* ---- normalizer ---- */

static iv_status read_normalizer(parser *p, const field *f, const char *type) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->normalizer_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_normalizer_spec *s = &p->out->normalizers[p->out->normalizer_count++];
    s->kind = (iv_normalizer_kind)kind;
    switch (s->kind) {
    case IV_NORMALIZE_PREPEND: return field_str(f, "prepend", &s->content);
    case IV_NORMALIZE_REPLACE: IV_TRY(read_pattern(p, f, &s->pattern)); return field_str(f, "content", &s->content);
    case IV_NORMALIZE_STRIP:
        IV_TRY(field_bool(f, "strip_left", &s->left));
        return field_bool(f, "strip_right", &s->right);
    default: return IV_OK;
    }
}

/* ---- pre_tokenizer ---- */

static iv_status read_behavior(const parser *p, const field *f, iv_match_behavior fallback, bool required,
                               iv_match_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    iv_str s;
    *out = fallback;
    IV_TRY(required ? field_str(f, "behavior", &s) : field_str_or_null(f, "behavior", &s));
    if (!s.data) return IV_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(s.data, names[i]) != 0) continue;
        *out = (iv_match_behavior)i;
        return IV_OK;
    }
    return iv_fail(p->err, IV_FORMAT, "%s: %s.behavior: \"%.40s\" is not known", p->name, f->where, s.data);
}

static iv_status read_metaspace(const parser *p, const field *f, iv_pretokenizer_spec *s) {
    IV_TRY(read_char(p, f, "replacement", &s->replacement));
    IV_TRY(read_prepend(p, f, &s->prepend));
    return field_bool_or(f, "split", true, &s->split);
}

static iv_status read_pretokenizer(parser *p, const field *f, const char *type) {
    static const char *const names[] = {"Split",       "ByteLevel",  "Metaspace",      "Digits",
                                        "Punctuation", "Whitespace", "WhitespaceSplit"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->pretokenizer_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_pretokenizer_spec *s = &p->out->pretokenizers[p->out->pretokenizer_count++];
    s->kind = (iv_pretokenizer_kind)kind;
    switch (s->kind) {
    case IV_PRETOKENIZE_SPLIT:
        IV_TRY(read_pattern(p, f, &s->pattern));
        IV_TRY(read_behavior(p, f, IV_MATCH_ISOLATED, true, &s->behavior));
        return field_bool(f, "invert", &s->invert);
    case IV_PRETOKENIZE_BYTE_LEVEL:
        IV_TRY(field_bool(f, "add_prefix_space", &s->add_prefix_space));
        return field_bool_or(f, "use_regex", true, &s->use_regex);
    case IV_PRETOKENIZE_METASPACE: return read_metaspace(p, f, s);
    case IV_PRETOKENIZE_DIGITS: {
        bool individual = false;
        IV_TRY(field_bool(f, "individual_digits", &individual));
        s->behavior = individual ? IV_MATCH_ISOLATED : IV_MATCH_CONTIGUOUS;
        return IV_OK;
    }
    case IV_PRETOKENIZE_PUNCTUATION: return read_behavior(p, f, IV_MATCH_ISOLATED, false, &s->behavior);
    default: return IV_OK;
    }
}

/* ---- decoder ---- */

static iv_status read_decoder(parser *p, const field *f, const char *type) {
    static const char *const names[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->decoder_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_decoder_spec *s = &p->out->decoders[p->out->decoder_count++];
    s->kind = (iv_decoder_kind)kind;
    switch (s->kind) {
    case IV_DECODE_REPLACE: IV_TRY(read_pattern(p, f, &s->pattern)); return field_str(f, "content", &s->content);
    case IV_DECODE_STRIP:
        IV_TRY(read_char(p, f, "content", &s->content));
        IV_TRY(field_count(f, "start", IV_TOKEN_BYTES_MAX, &s->start));
        return field_count(f, "stop", IV_TOKEN_BYTES_MAX, &s->stop);
    case IV_DECODE_METASPACE:
        IV_TRY(read_char(p, f, "replacement", &s->content));
        return read_prepend(p, f, &s->prepend);
    default: return IV_OK;
    }
}

/* ---- post_processor ---- */

/* The ids of a template's special token, appended at ids[*count]. */
static iv_status read_special(const parser *p, const field *f, const char *token, int32_t *ids, size_t *count) {
    const json_t *list = json_object_get(json_object_get(json_object_get(f->obj, "special_tokens"), token), "ids");
    if (!json_is_array(list))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.special_tokens: no ids for \"%.100s\"", p->name, f->where, token);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || (unsigned long long)id >= p->out->id_count || !p->out->by_id[id].data)
            return iv_fail(p->err, IV_FORMAT, "%s: %s.special_tokens: \"%.100s\" has an id that is no token", p->name,
                           f->where, token);
        if (*count == IV_TEMPLATE_TOKENS_MAX)
            return iv_fail(p->err, IV_LIMIT, "%s: %s.single: more than %d special tokens on one side", p->name,
                           f->where, IV_TEMPLATE_TOKENS_MAX);
        ids[(*count)++] = (int32_t)id;
    }
    return IV_OK;
}

/* What a template makes of one piece: the text, or special tokens that an earlier template added. */
typedef struct template_out {
    int32_t ids[2][IV_TEMPLATE_TOKENS_MAX]; /* before the text, after it */
    size_t count[2], texts, text_at;
} template_out;

/* Of two pieces one is the text; the tokens of the other are before it, or after it. */
static iv_status add_piece(const parser *p, const field *f, size_t piece, template_out *out) {
    const iv_tokenizer_json *t = p->out;
    size_t side = out->texts > 0;
    if (piece == p->text_piece) {
        out->texts++;
        return IV_OK;
    }
    const int32_t *ids = p->text_piece ? t->before : t->after;
    size_t n = p->text_piece ? t->before_count : t->after_count;
    if (out->count[side] + n > IV_TEMPLATE_TOKENS_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: %s: more than %d special tokens on one side", p->name, f->where,
                       IV_TEMPLATE_TOKENS_MAX);
    memcpy(out->ids[side] + out->count[side], ids, n * sizeof *ids);
    out->count[side] += n;
    return IV_OK;
}

static iv_status read_piece(const parser *p, const field *f, const json_t *piece, const char *key, size_t i,
                            template_out *out) {
    const char *token = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
    const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
    size_t side = out->texts > 0, before = out->texts;
    bool second = p->pieces == 2 && text && strcmp(text, "B") == 0;
    if (token) return read_special(p, f, token, out->ids[side], &out->count[side]);
    if (!text || (strcmp(text, "A") != 0 && !second))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.%s[%zu]: wanted a SpecialToken or the Sequence A%s", p->name,
                       f->where, key, i, p->pieces == 2 ? " or B" : "");
    IV_TRY(add_piece(p, f, second, out));
    if (out->texts > before) out->text_at = i;
    return IV_OK;
}

/* As in tokenizers, a template's result is as many pieces as the template has, and a later template of a Sequence takes
 * one piece by `single` and two by `pair`; with more the library panics. */
static iv_status read_template(parser *p, const field *f) {
    const char *key = p->pieces == 2 ? "pair" : "single";
    const json_t *list = json_object_get(f->obj, key);
    template_out out = {0};
    if (p->pieces > 2)
        return iv_fail(p->err, IV_UNSUPPORTED,
                       "%s: %s: wanted at most 2 pieces from the TemplateProcessing before this one, found %zu",
                       p->name, f->where, p->pieces);
    if (!json_is_array(list))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.%s: wanted an array, found %s", p->name, f->where, key,
                       iv_json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) IV_TRY(read_piece(p, f, json_array_get(list, i), key, i, &out));
    if (out.texts != 1)
        return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s.%s: wanted the %s once, found it %zu times", p->name, f->where,
                       key, p->pieces == 2 ? "text" : "Sequence A", out.texts);
    iv_tokenizer_json *t = p->out;
    memcpy(t->before, out.ids[0], out.count[0] * sizeof *t->before);
    memcpy(t->after, out.ids[1], out.count[1] * sizeof *t->after);
    t->before_count = out.count[0], t->after_count = out.count[1];
    p->pieces = json_array_size(list), p->text_piece = out.text_at;
    return IV_OK;
}

static iv_status read_processor(parser *p, const field *f, const char *type) {
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(p, f);
    if (strcmp(type, "ByteLevel") == 0) return IV_OK; /* moves offsets only, never ids */
    return unsupported(p, f->where, type);
}

static iv_status read_step_lists(const char *name, const json_t *root, iv_tokenizer_json *out, iv_error *err) {
    parser p = {.name = name, .out = out, .err = err, .pieces = 1};
    const json_t *decoder = json_object_get(root, "decoder");
    out->has_decoder = decoder && !json_is_null(decoder);
    IV_TRY(read_steps(&p, "normalizer", json_object_get(root, "normalizer"), "normalizers", 0, read_normalizer));
    IV_TRY(
        read_steps(&p, "pre_tokenizer", json_object_get(root, "pre_tokenizer"), "pretokenizers", 0, read_pretokenizer));
    IV_TRY(read_steps(&p, "decoder", decoder, "decoders", 0, read_decoder));
    return read_steps(&p, "post_processor", json_object_get(root, "post_processor"), "processors", 0, read_processor);
}

/* ---- the whole file ---- */

static iv_status read_all(const char *name, json_t *root, iv_tokenizer_json *t, iv_error *err) {
    if (!json_is_object(root))
        return iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", name, iv_json_type_name(root));
    const json_t *version = json_object_get(root, "version");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return iv_fail(err, IV_UNSUPPORTED, "%s: version: wanted \"1.0\"", name);
    IV_TRY(read_model(name, root, t, err));
    IV_TRY(read_added(name, root, t, err));
    IV_TRY(index_ids(name, t, err));
    return read_step_lists(name, root, t, err);
}

iv_status iv_tokenizer_json_parse(const char *name, const char *json, size_t n, iv_tokenizer_json *out, iv_error *err) {
    json_t *root;
    memset(out, 0, sizeof *out);
    if (n > IV_TOKENIZER_FILE_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu bytes, at most %d are read", name, n, IV_TOKENIZER_FILE_BYTES_MAX);
    IV_TRY(iv_json_parse_python(name, json, n, &root, err));
    iv_status status = read_all(name, root, out, err);
    json_decref(root);
    if (status != IV_OK) iv_tokenizer_json_free(out);
    return status;
}

void iv_tokenizer_json_free(iv_tokenizer_json *t) {
    free(t->by_id);
    iv_arena_free(&t->arena);
    memset(t, 0, sizeof *t);
}
