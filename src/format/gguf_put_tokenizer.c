/* gguf_put_tokenizer.c: a tokenizer as metadata, and whether it comes back. */
#include "format/gguf_put.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens in tokenizer.ggml.token_type. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5, TOKEN_BYTE = 6 };

static bool same(iv_str a, iv_str b) { return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0); }

static bool is_gpt2(const iv_tokenizer_json *t) {
    return t->decoder_count == 1 && t->decoders[0].kind == IV_DECODE_BYTE_LEVEL && t->unk_id < 0;
}

static iv_str token(const iv_tokenizer_json *t, size_t id) {
    return id < t->id_count && t->by_id[id].data ? t->by_id[id] : (iv_str){NULL, 0};
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static bool is_byte(iv_str s) { return s.len == 6 && memcmp(s.data, "<0x", 3) == 0 && s.data[5] == '>'; }

/* [vocab]: kinds of all ids. */
static int32_t *kinds_of(const iv_tokenizer_json *t, size_t vocab) {
    int32_t *kinds = calloc(vocab + 1, sizeof *kinds);
    for (size_t id = 0; kinds && id < vocab; id++) {
        iv_str s = token(t, id);
        kinds[id] = !s.data ? TOKEN_UNUSED : t->byte_fallback && is_byte(s) ? TOKEN_BYTE : TOKEN_NORMAL;
    }
    for (size_t i = 0; kinds && i < t->added_count; i++)
        if ((size_t)t->added[i].id < vocab) kinds[t->added[i].id] = t->added[i].special ? TOKEN_CONTROL : TOKEN_USER;
    if (kinds && t->unk_id >= 0 && (size_t)t->unk_id < vocab) kinds[t->unk_id] = TOKEN_UNKNOWN;
    return kinds;
}

static void put_tokens(iv_gguf_keys *k, const iv_tokenizer_json *t, const int32_t *kinds, size_t vocab) {
    iv_gguf_begin_array(k, "tokenizer.ggml.tokens", IV_GGUF_STRING, vocab);
    for (size_t id = 0; id < vocab; id++) {
        char text[32];
        iv_str s = token(t, id);
        if (!s.data) s = (iv_str){text, (size_t)snprintf(text, sizeof text, "[PAD%zu]", id)};
        iv_gguf_add_text(k, s.data, s.len);
    }
    iv_gguf_begin_array(k, "tokenizer.ggml.token_type", IV_GGUF_I32, vocab);
    for (size_t id = 0; id < vocab; id++) iv_gguf_add_i32(k, kinds[id]);
}

static void put_merges(iv_gguf_keys *k, const iv_tokenizer_json *t) {
    iv_gguf_begin_array(k, "tokenizer.ggml.merges", IV_GGUF_STRING, t->merge_count);
    for (size_t i = 0; i < t->merge_count; i++) {
        iv_str l = token(t, (size_t)t->merges[i].left), r = token(t, (size_t)t->merges[i].right);
        char *text = malloc(l.len + r.len + 1);
        if (!text) {
            k->failed = true;
            return;
        }
        memcpy(text, l.data, l.len), text[l.len] = ' ', memcpy(text + l.len + 1, r.data, r.len);
        iv_gguf_add_text(k, text, l.len + 1 + r.len);
        free(text);
    }
}

/* A token's score orders the merges that make it: minus the rank of the first one. Others come last. */
static void put_scores(iv_gguf_keys *k, const iv_tokenizer_json *t, size_t vocab) {
    float *scores = calloc(vocab + 1, sizeof *scores);
    if (!scores) {
        k->failed = true;
        return;
    }
    for (size_t id = 0; id < vocab; id++) scores[id] = -(float)t->merge_count;
    for (size_t i = t->merge_count; i-- > 0;)
        if ((size_t)t->merges[i].merged < vocab) scores[t->merges[i].merged] = -(float)i;
    iv_gguf_begin_array(k, "tokenizer.ggml.scores", IV_GGUF_F32, vocab);
    for (size_t id = 0; id < vocab; id++) iv_gguf_add_f32(k, scores[id]);
    free(scores);
}

static void put_id(iv_gguf_keys *k, const char *key, int64_t id) {
    if (id >= 0) iv_gguf_put_u32(k, key, (uint32_t)id);
}

static void put_specials(iv_gguf_keys *k, const iv_tokenizer_json *t, const iv_gguf_specials *s) {
    static const char *const ends[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    put_id(k, "tokenizer.ggml.bos_token_id", s->bos), put_id(k, "tokenizer.ggml.eos_token_id", s->eos);
    put_id(k, "tokenizer.ggml.unknown_token_id", t->unk_id >= 0 ? t->unk_id : s->unk);
    put_id(k, "tokenizer.ggml.padding_token_id", s->pad);
    for (size_t i = 0; i < s->end_count; i++) put_id(k, ends[i], s->ends[i]);
    iv_gguf_put_bool(k, "tokenizer.ggml.add_bos_token", t->before_count > 0);
    iv_gguf_put_bool(k, "tokenizer.ggml.add_eos_token", t->after_count > 0);
    if (s->chat_template) iv_gguf_put_text(k, "tokenizer.chat_template", s->chat_template, s->template_bytes);
}

iv_status iv_gguf_put_tokenizer(iv_gguf_keys *k, const char *name, const iv_tokenizer_json *t,
                                const iv_gguf_specials *specials, size_t vocab, iv_error *err) {
    bool gpt2 = is_gpt2(t);
    const char *pre = gpt2 ? iv_gguf_pre_of(t) : NULL, *model = gpt2 ? "gpt2" : "llama";
    if (gpt2 && !pre)
        return iv_fail(
            err, IV_UNSUPPORTED,
            "%s: pre_tokenizer: GGUF is written for those of smollm, gpt-2, qwen2 and llama-bpe, found another", name);
    if (specials->end_count > 2)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %zu tokens end an answer, GGUF has places for 3", name,
                       specials->end_count + 1);
    if (t->id_count > vocab)
        return iv_fail(err, IV_UNSUPPORTED, "%s: has %zu ids, the model %zu", name, t->id_count, vocab);
    int32_t *kinds = kinds_of(t, vocab);
    if (!kinds) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    iv_gguf_put_text(k, "tokenizer.ggml.model", model, strlen(model));
    if (pre) iv_gguf_put_text(k, "tokenizer.ggml.pre", pre, strlen(pre));
    put_tokens(k, t, kinds, vocab);
    if (gpt2)
        put_merges(k, t);
    else {
        put_scores(k, t, vocab);
        bool prefix = t->normalizer_count > 0 && t->normalizers[0].kind == IV_NORMALIZE_PREPEND;
        iv_gguf_put_text(k, "tokenizer.ggml.pre", "default", 7);
        iv_gguf_put_bool(k, "tokenizer.ggml.add_space_prefix", prefix);
    }
    put_specials(k, t, specials);
    free(kinds);
    return IV_OK;
}

/* ---- reading back ------------------------------------------------------------------------------------------ */

static bool same_normalizers(const iv_tokenizer_json *a, const iv_tokenizer_json *b) {
    for (size_t i = 0; i < a->normalizer_count && i < b->normalizer_count; i++) {
        const iv_normalizer_spec *x = &a->normalizers[i], *y = &b->normalizers[i];
        if (x->kind != y->kind || x->pattern.regex != y->pattern.regex || !same(x->pattern.text, y->pattern.text) ||
            !same(x->content, y->content) || x->left != y->left || x->right != y->right)
            return false;
    }
    return a->normalizer_count == b->normalizer_count;
}

/* Gemma's cut at spaces, which its normalizer has replaced before. */
static bool cuts_nothing(const iv_tokenizer_json *t) {
    bool replaced = false;
    for (size_t i = 0; i < t->normalizer_count; i++) {
        const iv_normalizer_spec *n = &t->normalizers[i];
        replaced |= n->kind == IV_NORMALIZE_REPLACE && !n->pattern.regex && same(n->pattern.text, (iv_str){" ", 1}) &&
                    !memchr(n->content.data, ' ', n->content.len);
    }
    const iv_pretokenizer_spec *p = &t->pretokenizers[0];
    return replaced && t->pretokenizer_count == 1 && p->kind == IV_PRETOKENIZE_SPLIT && !p->pattern.regex &&
           !p->invert && same(p->pattern.text, (iv_str){" ", 1});
}

static bool same_pretokenizers(const iv_tokenizer_json *a, const iv_tokenizer_json *b) {
    if (cuts_nothing(a) && b->pretokenizer_count == 0) return true;
    for (size_t i = 0; i < a->pretokenizer_count && i < b->pretokenizer_count; i++) {
        const iv_pretokenizer_spec *x = &a->pretokenizers[i], *y = &b->pretokenizers[i];
        if (x->kind != y->kind || !same(x->pattern.text, y->pattern.text) || x->behavior != y->behavior ||
            x->invert != y->invert || x->add_prefix_space != y->add_prefix_space || x->use_regex != y->use_regex ||
            !same(x->replacement, y->replacement) || x->prepend != y->prepend || x->split != y->split)
            return false;
    }
    return a->pretokenizer_count == b->pretokenizer_count;
}

static bool same_decoders(const iv_tokenizer_json *a, const iv_tokenizer_json *b) {
    for (size_t i = 0; i < a->decoder_count && i < b->decoder_count; i++) {
        const iv_decoder_spec *x = &a->decoders[i], *y = &b->decoders[i];
        if (x->kind != y->kind || !same(x->pattern.text, y->pattern.text) || !same(x->content, y->content) ||
            x->start != y->start || x->stop != y->stop || x->prepend != y->prepend)
            return false;
    }
    return a->decoder_count == b->decoder_count;
}

static bool same_vocabulary(const iv_tokenizer_json *a, const iv_tokenizer_json *b) {
    for (size_t i = 0; i < a->id_count; i++)
        if (!same(token(a, i), token(b, i))) return false;
    return a->id_count >= b->id_count;
}

static bool has_merge(const iv_merge *all, size_t n, const iv_merge *m) {
    for (size_t i = 0; i < n; i++)
        if (all[i].left == m->left && all[i].right == m->right && all[i].merged == m->merged) return true;
    return false;
}

/* Scores say the order of tokens; the order of the merges that make one token is the reader's. */
static bool same_merges(const iv_tokenizer_json *a, const iv_tokenizer_json *b, bool scores) {
    if (a->merge_count != b->merge_count) return false;
    for (size_t i = 0, end; i < a->merge_count; i = end) {
        for (end = i + 1; scores && end < a->merge_count && a->merges[end].merged == a->merges[i].merged;) end++;
        for (size_t k = i; k < end; k++)
            if (!has_merge(b->merges + i, end - i, &a->merges[k])) return false;
    }
    return true;
}

static bool same_ids(const int32_t *a, const int32_t *b, size_t n, size_t m) {
    return n == m && (n == 0 || memcmp(a, b, n * sizeof *a) == 0);
}

/* The token of an unknown character is no longer found in texts, as in llama.cpp. */
static iv_status check_added(const char *name, const iv_tokenizer_json *want, const iv_tokenizer_json *found,
                             iv_error *err) {
    for (size_t i = 0; i < want->added_count; i++) {
        const iv_added_token *a = &want->added[i], *b = NULL;
        if (a->id == want->unk_id) continue;
        for (size_t k = 0; k < found->added_count && !b; k++)
            if (found->added[k].id == a->id) b = &found->added[k];
        if (b && a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
            (a->normalized == b->normalized || !want->normalizer_count) && a->special == b->special)
            continue;
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: GGUF has no place for single_word, lstrip, rstrip and normalized, one of which the token "
                       "'%.*s' has",
                       name, (int)(a->content.len < 60 ? a->content.len : 60), a->content.data);
    }
    return IV_OK;
}

static iv_status compare(const char *name, const iv_tokenizer_json *want, const iv_tokenizer_json *found,
                         iv_error *err) {
    const char *what = NULL;
    if (!same_ids(want->before, found->before, want->before_count, found->before_count) ||
        !same_ids(want->after, found->after, want->after_count, found->after_count))
        what = "its post_processor";
    if (want->prefix.len || want->suffix.len || want->unk_id != found->unk_id ||
        want->byte_fallback != found->byte_fallback || want->ignore_merges != found->ignore_merges ||
        (want->unk_id >= 0 && want->fuse_unk != found->fuse_unk))
        what = "a setting of its model";
    if (!same_decoders(want, found)) what = "its decoder";
    if (!same_pretokenizers(want, found)) what = "its pre_tokenizer";
    if (!same_normalizers(want, found)) what = "its normalizer";
    if (!same_merges(want, found, !is_gpt2(want))) what = "its merges";
    if (!same_vocabulary(want, found)) what = "its vocabulary";
    if (what) return iv_fail(err, IV_UNSUPPORTED, "%s: GGUF would not give back %s", name, what);
    return check_added(name, want, found, err);
}

iv_status iv_gguf_check_tokenizer(const iv_gguf_set *s, const char *name, const iv_tokenizer_json *t, iv_error *err) {
    iv_buf text = {0};
    iv_tokenizer_json back;
    iv_status status = iv_gguf_tokenizer_json(s, &text, err);
    if (status == IV_OK) status = iv_tokenizer_json_parse(name, text.data, text.len, &back, err);
    if (status == IV_OK) {
        status = compare(name, t, &back, err);
        iv_tokenizer_json_free(&back);
    }
    iv_buf_free(&text);
    return status;
}
