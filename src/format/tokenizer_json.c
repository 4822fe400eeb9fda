/* tokenizer_json.c: the model (vocabulary, merges) and the added tokens of a tokenizer.json.
 *
 * Invariant: nothing of the JSON tree is kept; strings are copied into the arena, the vocabulary's into one
 * pool. */
#include "format/tokenizer_json.h"
#include "base/size.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

static iv_status field_wrong(const iv_field *f, const char *key, const char *wanted) {
    return iv_fail(f->err, IV_FORMAT, "%s: %s.%s: wanted %s, found %s", f->name, f->where, key, wanted,
                   iv_json_type_name(json_object_get(f->obj, key)));
}

iv_status iv_field_bool(const iv_field *f, const char *key, bool *out) {
    const json_t *v = json_object_get(f->obj, key);
    if (!json_is_boolean(v)) return field_wrong(f, key, "true or false");
    *out = json_is_true(v);
    return IV_OK;
}

iv_status iv_field_bool_or(const iv_field *f, const char *key, bool fallback, bool *out) {
    const json_t *v = json_object_get(f->obj, key);
    *out = fallback;
    return !v || json_is_null(v) ? IV_OK : iv_field_bool(f, key, out);
}

iv_status iv_field_str(const iv_field *f, const char *key, iv_str *out) {
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

iv_status iv_field_str_or_null(const iv_field *f, const char *key, iv_str *out) {
    const json_t *v = json_object_get(f->obj, key);
    *out = (iv_str){0};
    return !v || json_is_null(v) ? IV_OK : iv_field_str(f, key, out);
}

iv_status iv_field_count(const iv_field *f, const char *key, size_t max, size_t *out) {
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

/* Both spellings of a merge: "left right", split at its only space, and ["left", "right"]. */
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
    iv_field f = {name, "model", model, &t->arena, err};
    iv_str type, unk;
    IV_TRY(iv_field_str_or_null(&f, "type", &type));
    /* Files of the first releases leave the type out; only BPE has merges. */
    if (type.data ? strcmp(type.data, "BPE") != 0 : !json_object_get(model, "merges"))
        return iv_fail(err, IV_UNSUPPORTED, "%s: model.type: wanted BPE, found %s", name,
                       type.data ? type.data : "nothing");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return iv_fail(err, IV_UNSUPPORTED, "%s: model.dropout: merges are never dropped at random here; wanted null",
                       name);
    IV_TRY(iv_field_bool_or(&f, "byte_fallback", false, &t->byte_fallback));
    IV_TRY(iv_field_bool_or(&f, "fuse_unk", false, &t->fuse_unk));
    IV_TRY(iv_field_bool_or(&f, "ignore_merges", false, &t->ignore_merges));
    IV_TRY(iv_field_str_or_null(&f, "continuing_subword_prefix", &t->prefix));
    IV_TRY(iv_field_str_or_null(&f, "end_of_word_suffix", &t->suffix));
    IV_TRY(iv_field_str_or_null(&f, "unk_token", &unk));
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
    iv_field f = {name, where, value, &t->arena, err};
    IV_TRY(iv_field_str(&f, "content", &a->content));
    IV_TRY(check_id(name, a->content.data, json_object_get(value, "id"), &a->id, err));
    IV_TRY(iv_field_bool(&f, "single_word", &a->single_word));
    IV_TRY(iv_field_bool(&f, "lstrip", &a->lstrip));
    IV_TRY(iv_field_bool(&f, "rstrip", &a->rstrip));
    IV_TRY(iv_field_bool(&f, "normalized", &a->normalized));
    IV_TRY(iv_field_bool(&f, "special", &a->special));
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
    /* calloc, not the arena: for sparse ids the untouched pages then cost nothing. */
    t->by_id = calloc(iv_size_max(t->id_count, 1), sizeof *t->by_id);
    if (!t->by_id) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu ids", name, t->id_count);
    for (size_t i = 0; i < t->vocab.count; i++)
        IV_TRY(claim_id(name, t, t->vocab.tokens[i].text, t->vocab.tokens[i].id, err));
    for (size_t i = 0; i < t->added_count; i++) IV_TRY(claim_id(name, t, t->added[i].content, t->added[i].id, err));
    return IV_OK;
}

static iv_status read_all(const char *name, json_t *root, iv_tokenizer_json *t, iv_error *err) {
    if (!json_is_object(root))
        return iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", name, iv_json_type_name(root));
    const json_t *version = json_object_get(root, "version");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return iv_fail(err, IV_UNSUPPORTED, "%s: version: wanted \"1.0\"", name);
    IV_TRY(read_model(name, root, t, err));
    IV_TRY(read_added(name, root, t, err));
    IV_TRY(index_ids(name, t, err));
    return iv_tokenizer_json_steps(name, root, t, err);
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
