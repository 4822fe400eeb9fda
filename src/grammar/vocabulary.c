/* vocabulary.c: tokens sorted by their bytes, and their prefix tree. */
#include "grammar/vocabulary.h"
#include "base/buf.h"
#include "base/size.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "vocabulary: no memory"); }

/* ---- the tree ------------------------------------------------------------------------------------------ */

static size_t length_of(const iv_vocabulary *v, int32_t id) {
    size_t n = v->offsets[id + 1] - v->offsets[id];
    return n > IV_VOCABULARY_TOKEN_BYTES_MAX ? 0 : n;
}

static int by_bytes(const void *a, const void *b, void *vocabulary) {
    const iv_vocabulary *v = vocabulary;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = length_of(v, x), m = length_of(v, y);
    int order = memcmp(v->bytes + v->offsets[x], v->bytes + v->offsets[y], iv_size_min(n, m));
    if (order == 0) order = (n > m) - (n < m);
    return order ? order : (x > y) - (x < y);
}

static size_t shared(const iv_vocabulary *v, int32_t a, int32_t b) {
    const char *x = v->bytes + v->offsets[a], *y = v->bytes + v->offsets[b];
    size_t n = iv_size_min(length_of(v, a), length_of(v, b)), i = 0;
    while (i < n && x[i] == y[i]) i++;
    return i;
}

/* Nodes of the tree: a token adds those that its predecessor lacks. */
static void count_nodes(iv_vocabulary *v, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t n = length_of(v, v->token_ids[i]);
        v->node_count += n - (i ? shared(v, v->token_ids[i - 1], v->token_ids[i]) : 0);
        v->longest = iv_size_max(v->longest, n);
    }
}

static void fill_nodes(iv_vocabulary *v, size_t count, uint32_t *open) {
    size_t made = 0, depth = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t id = v->token_ids[i];
        size_t common = i ? shared(v, v->token_ids[i - 1], id) : 0, n = length_of(v, id);
        while (depth > common) v->nodes[open[--depth]].skip = (uint32_t)made;
        for (; depth < n; depth++) {
            open[depth] = (uint32_t)made;
            v->nodes[made++] = (iv_vocabulary_node){.token = (uint32_t)i,
                                                    .depth = (uint16_t)(depth + 1),
                                                    .byte = (uint8_t)v->bytes[v->offsets[id] + depth]};
        }
    }
    while (depth > 0) v->nodes[open[--depth]].skip = (uint32_t)made;
    v->nodes[made] = (iv_vocabulary_node){.token = (uint32_t)count, .skip = (uint32_t)made};
}

/* Builds everything from the bytes. */
static iv_status plant(iv_vocabulary *v, iv_error *err) {
    size_t count = 0;
    v->token_ids = calloc(v->size + 1, sizeof *v->token_ids);
    if (!v->token_ids) return no_memory(err);
    for (size_t i = 0; i < v->size; i++)
        if (length_of(v, (int32_t)i)) v->token_ids[count++] = (int32_t)i;
    if (count) qsort_r(v->token_ids, count, sizeof *v->token_ids, by_bytes, v);
    count_nodes(v, count);
    if (v->node_count >= UINT32_MAX) return iv_fail(err, IV_LIMIT, "vocabulary: %zu bytes of tokens", v->node_count);
    uint32_t *open = calloc(v->longest + 1, sizeof *open);
    v->nodes = calloc(v->node_count + 1, sizeof *v->nodes);
    if (open && v->nodes) fill_nodes(v, count, open);
    free(open);
    return open && v->nodes ? IV_OK : no_memory(err);
}

iv_status iv_vocabulary_make(const char *bytes, const size_t *offsets, size_t size, iv_vocabulary *out, iv_error *err) {
    *out = (iv_vocabulary){
        .size = size, .offsets = calloc(size + 1, sizeof *out->offsets), .bytes = malloc(offsets[size] + 1)};
    for (size_t i = 0; i < IV_SPECIALS; i++) out->specials[i] = -1;
    iv_status status = out->offsets && out->bytes ? IV_OK : no_memory(err);
    if (status == IV_OK) {
        memcpy(out->offsets, offsets, (size + 1) * sizeof *offsets);
        if (offsets[size]) memcpy(out->bytes, bytes, offsets[size]);
        status = plant(out, err);
    }
    if (status != IV_OK) iv_vocabulary_close(out);
    return status;
}

void iv_vocabulary_close(iv_vocabulary *v) {
    free(v->offsets), free(v->bytes), free(v->nodes), free(v->token_ids);
    *v = (iv_vocabulary){0};
}

/* ---- from a tokenizer ---------------------------------------------------------------------------------- */

/* Decodes all tokens whose bytes only decoding reveals, as one text: each token's bytes are what it adds. A first token
 * is skipped, as the first of a text may lose a space. */
typedef struct token_decoder {
    const iv_tokenizer *t;
    iv_token_stream *stream;
    iv_buf text;
} token_decoder;

static iv_status decode_token(token_decoder *w, int32_t id, iv_error *err) {
    if (!w->stream) {
        IV_TRY(iv_token_stream_open(w->t, true, &w->stream, err));
        IV_TRY(iv_token_stream_push(w->stream, id, &w->text, err));
    }
    iv_buf_clear(&w->text);
    return iv_token_stream_push(w->stream, id, &w->text, err);
}

static iv_status add_token(token_decoder *w, int32_t id, iv_buf *bytes, iv_error *err) {
    bool known, ok;
    if (iv_tokenizer_is_special(w->t, id) || !iv_tokenizer_token(w->t, id, NULL)) return IV_OK;
    iv_buf_clear(&w->text);
    if (!iv_tokenizer_token_bytes(w->t, id, &w->text, &known)) return no_memory(err);
    if (!known) IV_TRY(decode_token(w, id, err));
    ok = iv_buf_append(bytes, w->text.data, w->text.len);
    return ok ? IV_OK : no_memory(err);
}

static void find_specials(const iv_tokenizer *t, iv_vocabulary *v) {
    for (int i = 0; i < IV_SPECIALS; i++) {
        const char *name = iv_special_name((iv_special)i);
        int32_t id;
        bool has = iv_tokenizer_find(t, name, strlen(name), &id) && iv_tokenizer_is_special(t, id);
        if (has && id >= 0 && (size_t)id < v->size) v->specials[i] = id;
    }
}

iv_status iv_vocabulary_open(const iv_tokenizer *t, size_t size, iv_vocabulary *out, iv_error *err) {
    token_decoder w = {.t = t};
    iv_buf bytes = {0};
    size_t *offsets = calloc(size + 1, sizeof *offsets);
    *out = (iv_vocabulary){0};
    iv_status status = offsets && iv_buf_reserve(&bytes, 1) && iv_buf_reserve(&w.text, 64) ? IV_OK : no_memory(err);
    for (size_t i = 0; status == IV_OK && i < size; i++) {
        status = add_token(&w, (int32_t)i, &bytes, err);
        offsets[i + 1] = bytes.len;
    }
    if (status == IV_OK) status = iv_vocabulary_make(bytes.data, offsets, size, out, err);
    if (status == IV_OK) find_specials(t, out);
    iv_token_stream_close(w.stream);
    iv_buf_free(&w.text), iv_buf_free(&bytes);
    free(offsets);
    return status;
}
