/* token_rules.c: reads and applies rules on tokens. */
#include "grammar/token_rules.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

static const char ALLOWED[] = "allowed_token_ids", BAD[] = "bad_words";

static iv_status no_memory(const char *name, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
}

static iv_status read_id(const char *name, const json_t *v, size_t vocab, int32_t *out, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    *out = (int32_t)id;
    if (id >= 0 && (size_t)id < vocab) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted ids below %zu, the size of the vocabulary, found %s", name, vocab,
                   iv_json_shown(v, shown));
}

static iv_status read_allowed(const json_t *list, iv_token_rules *r, iv_error *err) {
    if (json_array_size(list) == 0) return iv_fail(err, IV_INVALID, "%s: wanted at least one id, found none", ALLOWED);
    if (!(r->allowed = calloc(r->vocab / 64 + 1, sizeof *r->allowed))) return no_memory(ALLOWED, err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t id;
        IV_TRY(read_id(ALLOWED, json_array_get(list, i), r->vocab, &id, err));
        r->allowed[id / 64] |= (uint64_t)1 << (id % 64);
    }
    return IV_OK;
}

static iv_status read_bad(const json_t *list, iv_token_rules *r, iv_error *err) {
    size_t total = 0, count = json_array_size(list);
    for (size_t i = 0; i < count; i++) total += json_array_size(json_array_get(list, i));
    r->ids = malloc((total + 1) * sizeof *r->ids), r->ends = malloc((count + 1) * sizeof *r->ends);
    if (!r->ids || !r->ends) return no_memory(BAD, err);
    total = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        if (json_array_size(one) == 0) return iv_fail(err, IV_INVALID, "%s: wanted words with tokens, found none", BAD);
        for (size_t k = 0; k < json_array_size(one); k++)
            IV_TRY(read_id(BAD, json_array_get(one, k), r->vocab, &r->ids[total++], err));
        r->ends[r->count++] = total;
    }
    return IV_OK;
}

iv_status iv_token_rules_read(const char *text, size_t vocab, iv_token_rules *out, iv_error *err) {
    json_t *root = NULL;
    *out = (iv_token_rules){.vocab = vocab};
    iv_status status = iv_json_parse("tokens", text, strlen(text), &root, err);
    if (status == IV_FORMAT) status = err->status = IV_INVALID; /* not a file format error */
    if (status != IV_OK) return status;
    const json_t *allowed = json_object_get(root, "allowed"), *bad = json_object_get(root, "bad");
    if (!json_is_object(root) || json_object_size(root) != (size_t)(allowed != NULL) + (bad != NULL))
        status = iv_fail(err, IV_INVALID, "tokens: wanted {\"allowed\": [...], \"bad\": [...]}");
    if (status == IV_OK && allowed) status = read_allowed(allowed, out, err);
    if (status == IV_OK && bad) status = read_bad(bad, out, err);
    json_decref(root);
    if (status != IV_OK) iv_token_rules_free(out);
    return status;
}

void iv_token_rules_free(iv_token_rules *r) {
    free(r->allowed), free(r->ids), free(r->ends);
    *r = (iv_token_rules){0};
}

void iv_token_rules_mask(const iv_token_rules *r, const int32_t *ids, size_t count, uint64_t *mask) {
    size_t words = (r->vocab + 63) / 64;
    for (size_t i = 0; i < words; i++) mask[i] = r->allowed ? r->allowed[i] : ~(uint64_t)0;
    if (r->vocab % 64 && !r->allowed) mask[words - 1] = ((uint64_t)1 << r->vocab % 64) - 1;
    for (size_t i = 0, begin = 0; i < r->count; begin = r->ends[i++]) {
        size_t before = r->ends[i] - begin - 1;
        int32_t last = r->ids[r->ends[i] - 1];
        if (before <= count && memcmp(ids + count - before, r->ids + begin, before * sizeof *ids) == 0)
            mask[last / 64] &= ~((uint64_t)1 << (last % 64));
    }
}
