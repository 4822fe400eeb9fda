/* bpe.c: merging with a linked list of symbols and a heap of candidate pairs.
 *
 * Each merge adds at most two candidates to the heap, so the work is O(n log n) even if the whole text is one word. A
 * candidate whose symbols have changed is stale: it is skipped when popped, or dropped when the heap is full. At most
 * one candidate per pair of neighbours is not stale. */
#include "text/bpe.h"
#include "base/buf.h"
#include "base/size.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct iv_bpe_merge {
    uint64_t pair; /* left id in the high half; UINT64_MAX: free slot */
    uint32_t rank;
    int32_t merged;
} iv_bpe_merge;

typedef struct iv_bpe_symbol {
    int32_t id; /* -1: merged into the symbol on its left */
    uint32_t previous, next;
} iv_bpe_symbol;

typedef uint64_t candidate; /* rank in the high half, position in the low: lowest first */

#define NONE UINT32_MAX
enum { HEAP_MIN = 64 };

/* ---- the merge table ---- */

static size_t pair_slot(const iv_bpe *bpe, uint64_t pair) {
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h ^ (h >> 32)) & bpe->mask;
    while (bpe->merges[i].pair != pair && bpe->merges[i].pair != UINT64_MAX) i = (i + 1) & bpe->mask;
    return i;
}

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static const iv_bpe_merge *find_merge(const iv_bpe *bpe, int32_t left, int32_t right) {
    const iv_bpe_merge *m = &bpe->merges[pair_slot(bpe, pair_key(left, right))];
    return m->pair == UINT64_MAX ? NULL : m;
}

/* ---- opening ---- */

static void find_byte_tokens(iv_bpe *bpe) {
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", b);
        const iv_token *t = iv_token_map_find(&bpe->spec->vocab, name, (size_t)n);
        bpe->bytes[b] = t ? t->id : -1;
    }
}

static bool index_low_characters(iv_bpe *bpe) {
    if (bpe->spec->prefix.len || bpe->spec->suffix.len) return true;
    bpe->low_ids = malloc(IV_BPE_LOW * sizeof *bpe->low_ids);
    if (!bpe->low_ids) return false;
    for (uint32_t cp = 0; cp < IV_BPE_LOW; cp++) {
        uint8_t utf8[4];
        const iv_token *t = iv_token_map_find(&bpe->spec->vocab, (const char *)utf8, iv_utf8_encode(cp, utf8));
        bpe->low_ids[cp] = t ? t->id : -1;
    }
    return true;
}

iv_status iv_bpe_open(const iv_tokenizer_json *spec, iv_bpe *out, iv_error *err) {
    size_t slots = 16;
    while (slots < spec->merge_count + spec->merge_count / 2) slots *= 2;
    *out = (iv_bpe){.spec = spec, .mask = slots - 1};
    out->merges = malloc(slots * sizeof *out->merges); /* slots is bounded by IV_TOKENIZER_MERGES_MAX */
    if (!out->merges || !index_low_characters(out)) {
        iv_bpe_close(out);
        return iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for %zu merges", spec->merge_count);
    }
    memset(out->merges, 0xff, slots * sizeof *out->merges);
    for (size_t i = 0; i < spec->merge_count; i++) {
        const iv_merge *m = &spec->merges[i];
        uint64_t pair = pair_key(m->left, m->right);
        /* A repeated pair takes its last rank, as in the reference. */
        out->merges[pair_slot(out, pair)] = (iv_bpe_merge){pair, (uint32_t)i, m->merged};
    }
    find_byte_tokens(out);
    return IV_OK;
}

void iv_bpe_close(iv_bpe *bpe) {
    free(bpe->merges);
    free(bpe->low_ids);
    *bpe = (iv_bpe){0};
}

void iv_bpe_work_free(iv_bpe_work *work) {
    free(work->symbols);
    free(work->heap);
    *work = (iv_bpe_work){0};
}

/* ---- characters to ids ---- */

static void add_symbol(iv_bpe_work *w, int32_t id) {
    uint32_t i = (uint32_t)w->symbol_count++;
    IV_ASSERT(i < w->symbol_cap);
    w->symbols[i] = (iv_bpe_symbol){id, i ? i - 1 : NONE, i + 1};
}

/* The id of a character; where the model has a prefix and suffix, they are part of its name. */
static int32_t character_id(const iv_bpe *bpe, iv_buf *name, const char *s, size_t len, bool first, bool last) {
    if (bpe->low_ids && len <= 2) {
        uint32_t cp;
        iv_utf8_decode((const uint8_t *)s, len, &cp);
        return bpe->low_ids[cp];
    }
    const iv_str *prefix = &bpe->spec->prefix, *suffix = &bpe->spec->suffix;
    if ((!first && prefix->len) || (last && suffix->len)) {
        iv_buf_clear(name);
        if (!first) iv_buf_append(name, prefix->data, prefix->len);
        iv_buf_append(name, s, len);
        if (last) iv_buf_append(name, suffix->data, suffix->len);
        s = name->data, len = name->len;
    }
    const iv_token *t = iv_token_map_find(&bpe->spec->vocab, s, len);
    return t ? t->id : -1;
}

/* Byte tokens for a name of n bytes; false if one of them is missing. */
static bool add_bytes(const iv_bpe *bpe, iv_bpe_work *w, const char *name, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bpe->bytes[(uint8_t)name[i]] < 0) return false;
    for (size_t i = 0; i < n; i++) add_symbol(w, bpe->bytes[(uint8_t)name[i]]);
    return true;
}

/* One symbol per character. An unknown character is held back until the next known one, so that neighbours can fuse;
 * byte tokens do not release it (as in the reference). */
static void add_characters(const iv_bpe *bpe, iv_bpe_work *w, iv_buf *name, const char *piece, size_t n) {
    const iv_tokenizer_json *spec = bpe->spec;
    bool unknown = false;
    for (size_t i = 0; i < n;) {
        size_t len = iv_utf8_length((const uint8_t *)piece + i, n - i);
        bool first = i == 0, last = i + len == n;
        int32_t id = character_id(bpe, name, piece + i, len, first, last);
        bool named = (!first && spec->prefix.len) || (last && spec->suffix.len);
        if (id >= 0) {
            if (unknown) add_symbol(w, spec->unk_id);
            unknown = false;
            add_symbol(w, id);
        } else if (!spec->byte_fallback ||
                   !add_bytes(bpe, w, named ? name->data : piece + i, named ? name->len : len)) {
            if (unknown && !spec->fuse_unk) add_symbol(w, spec->unk_id);
            unknown = spec->unk_id >= 0;
        }
        i += len;
    }
    if (unknown) add_symbol(w, spec->unk_id);
    if (w->symbol_count) w->symbols[w->symbol_count - 1].next = NONE;
}

/* ---- merging ---- */

static void sift_up(candidate *heap, size_t i, candidate c) {
    for (; i > 0 && heap[(i - 1) / 2] > c; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static void sift_down(candidate *heap, size_t count, size_t i, candidate c) {
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= c) break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static candidate heap_pop(iv_bpe_work *w) {
    candidate top = w->heap[0], last = w->heap[--w->heap_count];
    if (w->heap_count) sift_down(w->heap, w->heap_count, 0, last);
    return top;
}

/* The merge of a candidate, if its symbols have not changed since it was made. */
static const iv_bpe_merge *live_merge(const iv_bpe *bpe, const iv_bpe_work *w, candidate c) {
    const iv_bpe_symbol *s = &w->symbols[(uint32_t)c];
    if (s->id < 0 || s->next == NONE) return NULL;
    const iv_bpe_merge *m = find_merge(bpe, s->id, w->symbols[s->next].id);
    return m && m->merged == bpe->spec->merges[c >> 32].merged ? m : NULL;
}

static void drop_stale(const iv_bpe *bpe, iv_bpe_work *w) {
    size_t live = 0;
    for (size_t i = 0; i < w->heap_count; i++)
        if (live_merge(bpe, w, w->heap[i])) w->heap[live++] = w->heap[i];
    w->heap_count = live;
    for (size_t i = live / 2; i-- > 0;) sift_down(w->heap, live, i, w->heap[i]);
}

static bool heap_push(const iv_bpe *bpe, iv_bpe_work *w, candidate c) {
    size_t most = iv_size_max(w->symbol_count + w->symbol_count / 4, HEAP_MIN);
    if (w->heap_count == most) drop_stale(bpe, w);
    if (w->heap_count == w->heap_cap) {
        size_t bytes, cap = iv_size_min(iv_size_max(2 * w->heap_cap, HEAP_MIN), iv_size_max(most, w->heap_count + 1));
        if (!iv_size_mul(cap, sizeof *w->heap, &bytes)) return false;
        candidate *p = realloc(w->heap, bytes);
        if (!p) return false;
        w->heap = p, w->heap_cap = cap;
    }
    sift_up(w->heap, w->heap_count++, c);
    return true;
}

static bool consider(const iv_bpe *bpe, iv_bpe_work *w, uint32_t position) {
    const iv_bpe_symbol *left = &w->symbols[position];
    const iv_bpe_merge *m = find_merge(bpe, left->id, w->symbols[left->next].id);
    return !m || heap_push(bpe, w, (candidate)m->rank << 32 | position);
}

static bool merge_all(const iv_bpe *bpe, iv_bpe_work *w) {
    w->heap_count = 0;
    for (uint32_t i = 0; i + 1 < w->symbol_count; i++)
        if (!consider(bpe, w, i)) return false;
    while (w->heap_count) {
        candidate c = heap_pop(w);
        const iv_bpe_merge *m = live_merge(bpe, w, c);
        if (!m) continue;
        uint32_t position = (uint32_t)c;
        iv_bpe_symbol *s = &w->symbols[position], *right = &w->symbols[s->next];
        s->id = m->merged;
        s->next = right->next;
        right->id = -1;
        if (s->next != NONE) w->symbols[s->next].previous = position;
        if (s->previous != NONE && !consider(bpe, w, s->previous)) return false;
        if (s->next != NONE && !consider(bpe, w, position)) return false;
    }
    return true;
}

/* Reserves the symbols of a piece: n bytes are at most n characters; each makes at most as many symbols as it has bytes
 * with prefix and suffix. */
static bool reserve(const iv_bpe *bpe, iv_bpe_work *w, size_t n) {
    size_t each, symbols, bytes;
    if (!iv_size_mul(bpe->spec->prefix.len, n, &each) || !iv_size_add(each, n, &each) ||
        !iv_size_add(each, bpe->spec->suffix.len, &symbols) || symbols >= NONE / 4)
        return false;
    w->symbol_count = 0;
    if (symbols > w->symbol_cap) {
        if (!iv_size_mul(symbols, sizeof *w->symbols, &bytes)) return false;
        iv_bpe_symbol *p = realloc(w->symbols, bytes);
        if (!p) return false;
        w->symbols = p, w->symbol_cap = symbols;
    }
    return true;
}

iv_status iv_bpe_encode(const iv_bpe *bpe, iv_bpe_work *work, const char *piece, size_t n, iv_ids *out, iv_error *err) {
    if (bpe->spec->ignore_merges) {
        const iv_token *t = iv_token_map_find(&bpe->spec->vocab, piece, n);
        if (t) return iv_ids_push(out, t->id) ? IV_OK : iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for ids");
    }
    iv_buf name = {0};
    size_t longest = bpe->spec->prefix.len + bpe->spec->suffix.len + 4;
    bool ok = reserve(bpe, work, n) && (longest == 4 || iv_buf_reserve(&name, longest));
    if (ok) {
        add_characters(bpe, work, &name, piece, n);
        ok = merge_all(bpe, work);
    }
    for (size_t i = 0; ok && i < work->symbol_count; i++)
        if (work->symbols[i].id >= 0) ok = iv_ids_push(out, work->symbols[i].id);
    iv_buf_free(&name);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for a piece of %zu bytes", n);
}
