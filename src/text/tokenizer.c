/* tokenizer.c: the whole tokenizer.
 *
 * Encoding: added tokens are cut out of the text; the rest is normalized; added tokens of normalized text are cut out
 * of that; the rest is cut into pieces; each piece is merged. */
#include "text/tokenizer.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "base/utf8.h"
#include "format/model_files.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#define MARK "\xef\xb7\x90" /* U+FDD0: a noncharacter */

/* An added token that is matched and decoded by its normalized text. */
typedef struct normal_form {
    int32_t id;
    bool skippable; /* that text is also the content of a special token */
    iv_str text;
} normal_form;

struct iv_tokenizer {
    iv_tokenizer_json spec;
    iv_normalizer normalizer;
    iv_pretokenizer splitter;
    iv_bpe bpe;
    iv_decoder decoder;
    iv_added_set raw, normalized; /* tokens found before and after normalizing */
    normal_form *forms;           /* only forms that differ from the token's content */
    size_t form_count;
    uint8_t *special; /* a bit for each id */
    uint8_t digest[32];
};

struct iv_token_stream {
    const iv_tokenizer *tokenizer;
    bool skip_special;
    iv_decode_run run;
};

/* Which tokens lie in spans of the text. The text between two added tokens, normalized and cut into pieces, is
 * `pieces`; tokens have places there. The place of a byte of the text is found by normalizing and cutting the text
 * before it. */
typedef struct tracer {
    const iv_text_span *spans;
    size_t count;
    iv_buf *inside;
    iv_buf pieces, ends; /* ends: a size_t for each id of the text between two added tokens */
    bool probing;        /* pieces are collected and not encoded */
} tracer;

/* Scratch of one encode call. */
typedef struct encoder {
    const iv_tokenizer *t;
    iv_regex_work *regex;
    iv_pretokenize_work split;
    iv_bpe_work bpe;
    iv_buf normal, spare;
    bool special;  /* IV_ENCODE_PARSE_SPECIAL */
    bool marked;   /* IV_ENCODE_MARKED */
    iv_buf bare;   /* a part of the text without marks */
    tracer *trace; /* NULL: no spans */
    iv_ids *out;
    iv_error *err;
} encoder;

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory"); }

/* ---- opening ---- */

/* The text that matches an added token: its content, or the normalized content (kept in the arena). */
static iv_status added_text(iv_tokenizer *t, iv_regex_work *work, const iv_added_token *a, iv_str *out, iv_error *err) {
    iv_buf normal = {0}, spare = {0};
    *out = a->content;
    if (!a->normalized) return IV_OK;
    normal.limit = spare.limit = IV_TOKEN_BYTES_MAX;
    iv_status status = iv_normalizer_apply(&t->normalizer, work, a->content.data, a->content.len, &normal, &spare, err);
    if (status == IV_OK) {
        *out = (iv_str){iv_arena_strndup(&t->spec.arena, normal.data, normal.len), normal.len};
        if (!out->data) status = no_memory(err);
    }
    iv_buf_free(&normal);
    iv_buf_free(&spare);
    return status;
}

static iv_status open_added(const char *name, iv_tokenizer *t, bool normalized, iv_added_set *out, iv_error *err) {
    size_t count = 0, bytes;
    iv_added_entry *entries = NULL;
    iv_status status = IV_OK;
    for (size_t i = 0; i < t->spec.added_count; i++) count += t->spec.added[i].normalized == normalized;
    iv_regex_work *work = iv_regex_work_new();
    if (work && iv_size_mul(count, sizeof *entries, &bytes)) entries = malloc(iv_size_max(bytes, 1));
    if (!entries) status = no_memory(err);
    count = 0;
    for (size_t i = 0; status == IV_OK && i < t->spec.added_count; i++) {
        const iv_added_token *a = &t->spec.added[i];
        if (a->normalized != normalized) continue;
        entries[count].token = a;
        status = added_text(t, work, a, &entries[count++].text, err);
    }
    iv_regex_work_free(work);
    if (status == IV_OK) return iv_added_set_open(name, entries, count, out, err);
    free(entries);
    return status;
}

static iv_status mark_special(iv_tokenizer *t, iv_error *err) {
    t->special = calloc(t->spec.id_count / 8 + 1, 1);
    if (!t->special) return no_memory(err);
    for (size_t i = 0; i < t->spec.added_count; i++) {
        const iv_added_token *a = &t->spec.added[i];
        if (a->special) t->special[a->id / 8] |= (uint8_t)(1u << (a->id % 8));
    }
    return IV_OK;
}

static int compare_forms(const void *a, const void *b) {
    int32_t x = ((const normal_form *)a)->id, y = ((const normal_form *)b)->id;
    return (x > y) - (x < y);
}

static iv_status collect_forms(iv_tokenizer *t, iv_error *err) {
    const iv_added_set *set = &t->normalized;
    t->forms = calloc(iv_size_max(set->count, 1), sizeof *t->forms);
    if (!t->forms) return no_memory(err);
    for (size_t i = 0; i < set->count; i++) {
        iv_str text = set->entries[i].text, content = set->entries[i].token->content;
        if (text.len == content.len && memcmp(text.data, content.data, text.len) == 0) continue;
        const iv_token *same = iv_token_map_find(&t->spec.added_map, text.data, text.len);
        t->forms[t->form_count++] =
            (normal_form){set->entries[i].token->id, same && iv_tokenizer_is_special(t, same->id), text};
    }
    if (t->form_count) qsort(t->forms, t->form_count, sizeof *t->forms, compare_forms);
    return IV_OK;
}

static iv_status open_parts(const char *name, iv_tokenizer *t, iv_error *err) {
    const iv_tokenizer_json *s = &t->spec;
    IV_TRY(iv_normalizer_open(name, s->normalizers, s->normalizer_count, &t->normalizer, err));
    IV_TRY(iv_pretokenizer_open(name, s->pretokenizers, s->pretokenizer_count, &t->splitter, err));
    IV_TRY(iv_bpe_open(s, &t->bpe, err));
    IV_TRY(iv_decoder_open(name, s, &t->decoder, err));
    IV_TRY(open_added(name, t, false, &t->raw, err));
    IV_TRY(open_added(name, t, true, &t->normalized, err));
    IV_TRY(mark_special(t, err));
    return collect_forms(t, err);
}

iv_status iv_tokenizer_parse(const char *name, const char *json, size_t n, iv_tokenizer **out, iv_error *err) {
    iv_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    iv_status status = iv_tokenizer_json_parse(name, json, n, &t->spec, err);
    if (status == IV_OK) status = open_parts(name, t, err);
    if (status != IV_OK) {
        iv_tokenizer_close(t);
        return status;
    }
    iv_digest_of(json, n, t->digest);
    *out = t;
    return IV_OK;
}

iv_status iv_tokenizer_open(const char *dir, iv_tokenizer **out, iv_error *err) {
    iv_buf path = {0}, json = {0};
    iv_status status = iv_model_file_read(dir, "tokenizer.json", IV_TOKENIZER_FILE_BYTES_MAX, &path, &json, err);
    if (status == IV_OK) status = iv_tokenizer_parse(path.data, json.data, json.len, out, err);
    iv_buf_free(&path);
    iv_buf_free(&json);
    return status;
}

void iv_tokenizer_close(iv_tokenizer *t) {
    if (!t) return;
    iv_normalizer_close(&t->normalizer);
    iv_pretokenizer_close(&t->splitter);
    iv_bpe_close(&t->bpe);
    iv_decoder_close(&t->decoder);
    iv_added_set_close(&t->raw);
    iv_added_set_close(&t->normalized);
    iv_tokenizer_json_free(&t->spec);
    free(t->forms);
    free(t->special);
    free(t);
}

/* ---- encoding ---- */

/* Adds the ends of the ids from `first` on in a piece of n bytes. A token ends after its first match from the previous
 * end on; an unknown token is one character. */
static bool add_ends(tracer *r, const encoder *e, size_t first, const char *piece, size_t n) {
    const iv_tokenizer_json *s = &e->t->spec;
    size_t base = r->pieces.len - n, at = 0;
    for (size_t i = first; i < e->out->count; i++) {
        int32_t id = e->out->data[i];
        iv_str text = s->by_id[id];
        uint8_t byte = (uint8_t)piece[at < n ? at : n - 1];
        if (i > first && text.len >= s->prefix.len) text.data += s->prefix.len, text.len -= s->prefix.len;
        if (i + 1 == e->out->count && text.len >= s->suffix.len) text.len -= s->suffix.len;
        const char *match = id == s->unk_id ? NULL : memmem(piece + at, n - at, text.data, text.len);
        if (s->byte_fallback && id == e->t->bpe.bytes[byte])
            at += at < n;
        else if (match)
            at = (size_t)(match - piece) + text.len;
        else
            at += iv_utf8_length((const uint8_t *)piece + at, n - at);
        size_t end = base + (i + 1 == e->out->count ? n : at);
        if (!iv_buf_append(&r->ends, &end, sizeof end)) return false;
    }
    return true;
}

static iv_status encode_piece(void *user, const char *piece, size_t n, iv_error *err) {
    encoder *e = user;
    size_t first = e->out->count;
    if (e->trace && !iv_buf_append(&e->trace->pieces, piece, n)) return no_memory(err);
    if (e->trace && e->trace->probing) return IV_OK;
    IV_TRY(iv_bpe_encode(&e->t->bpe, &e->bpe, piece, n, e->out, err));
    return !e->trace || add_ends(e->trace, e, first, piece, n) ? IV_OK : no_memory(err);
}

/* An added token in normalized text. */
static iv_status encode_added(encoder *e, const char *text, size_t n, int32_t id) {
    tracer *r = e->trace;
    if (r && !iv_buf_append(&r->pieces, text, n)) return no_memory(e->err);
    if (r && r->probing) return IV_OK;
    if (r && !iv_buf_append(&r->ends, &r->pieces.len, sizeof r->pieces.len)) return no_memory(e->err);
    return iv_ids_push(e->out, id) ? IV_OK : no_memory(e->err);
}

static iv_status encode_run(encoder *e, const char *text, size_t n, bool at_start) {
    return iv_pretokenizer_apply(&e->t->splitter, e->regex, &e->split, text, n, at_start, encode_piece, e, e->err);
}

/* Text between the added tokens of the original text. */
static iv_status encode_text(encoder *e, const char *text, size_t n, bool at_start) {
    iv_added_walk walk = {0};
    bool more, special = e->special;
    if (e->marked && memmem(text, n, MARK, sizeof MARK - 1)) {
        iv_buf_clear(&e->bare);
        if (!iv_buf_append(&e->bare, text, n)) return no_memory(e->err);
        text = e->bare.data, n = iv_tokenizer_unmark(e->bare.data, n), special = false;
    }
    IV_TRY(iv_normalizer_apply(&e->t->normalizer, e->regex, text, n, &e->normal, &e->spare, e->err));
    if (e->normal.len == 0) return IV_OK;
    for (;;) {
        IV_TRY(
            iv_added_next(&e->t->normalized, e->regex, e->normal.data, e->normal.len, special, &walk, &more, e->err));
        if (!more) return IV_OK;
        if (!walk.token)
            IV_TRY(encode_run(e, e->normal.data + walk.start, walk.end - walk.start, at_start && walk.start == 0));
        else
            IV_TRY(encode_added(e, e->normal.data + walk.start, walk.end - walk.start, walk.token->id));
    }
}

/* The place in `pieces` of byte `at` of a text of n bytes. */
static iv_status place_of(encoder *e, const char *text, size_t n, size_t at, bool at_start, size_t *place) {
    tracer *r = e->trace;
    iv_buf whole = r->pieces;
    *place = at ? whole.len : 0;
    if (at == 0 || at >= n) return IV_OK;
    r->pieces = (iv_buf){0}, r->probing = true;
    iv_status status = encode_text(e, text, at, at_start);
    size_t both = iv_size_min(whole.len, r->pieces.len), same = 0;
    while (same < both && whole.data[same] == r->pieces.data[same]) same++;
    while (same > 0 && same < whole.len && ((uint8_t)whole.data[same] & 0xc0) == 0x80) same--;
    iv_buf_free(&r->pieces);
    r->pieces = whole, r->probing = false;
    *place = same;
    return status;
}

/* Encodes the text between added tokens, from byte `start` of the whole text, and finds its ids in the spans. */
static iv_status trace_text(encoder *e, const char *text, size_t n, size_t start) {
    tracer *r = e->trace;
    size_t first = r->inside->len, end, previous;
    iv_buf_clear(&r->pieces), iv_buf_clear(&r->ends);
    IV_TRY(encode_text(e, text, n, start == 0));
    size_t count = r->ends.len / sizeof end;
    if (!iv_buf_reserve(r->inside, count)) return no_memory(e->err);
    if (count) memset(r->inside->data + first, 0, count);
    r->inside->len += count;
    for (size_t k = 0; k < r->count; k++) {
        size_t from = iv_size_max(r->spans[k].start, start), to = iv_size_min(r->spans[k].end, start + n);
        if (from >= to) continue;
        IV_TRY(place_of(e, text, n, from - start, start == 0, &from));
        IV_TRY(place_of(e, text, n, to - start, start == 0, &to));
        previous = 0;
        for (size_t i = 0; i < count; i++, previous = end) {
            memcpy(&end, r->ends.data + i * sizeof end, sizeof end);
            if (previous < to && end > from) r->inside->data[first + i] = 1;
        }
    }
    return IV_OK;
}

/* An added token of the original text. */
static iv_status trace_added(encoder *e, size_t start, size_t end) {
    char in = 0;
    for (size_t k = 0; k < e->trace->count; k++) in |= e->trace->spans[k].start < end && e->trace->spans[k].end > start;
    return iv_buf_putc(e->trace->inside, in) ? IV_OK : no_memory(e->err);
}

static iv_status encode_all(encoder *e, const char *text, size_t n) {
    iv_added_walk walk = {0};
    bool more;
    for (;;) {
        IV_TRY(iv_added_next(&e->t->raw, e->regex, text, n, e->special, &walk, &more, e->err));
        if (!more) return IV_OK;
        if (!walk.token && e->trace)
            IV_TRY(trace_text(e, text + walk.start, walk.end - walk.start, walk.start));
        else if (!walk.token)
            IV_TRY(encode_text(e, text + walk.start, walk.end - walk.start, walk.start == 0));
        else if (!iv_ids_push(e->out, walk.token->id))
            return no_memory(e->err);
        else if (e->trace)
            IV_TRY(trace_added(e, walk.start, walk.end));
    }
}

static iv_status encode_with(encoder *e, const char *text, size_t n, bool add_special) {
    const iv_tokenizer_json *s = &e->t->spec;
    size_t limit = IV_TOKENIZE_GROWTH_BASE + n * IV_TOKENIZE_GROWTH_MAX;
    e->normal.limit = e->spare.limit = limit;
    iv_pretokenize_work_limit(&e->split, limit);
    e->regex = iv_regex_work_new();
    if (!e->regex) return no_memory(e->err);
    if (add_special && !iv_ids_append(e->out, s->before, s->before_count)) return no_memory(e->err);
    IV_TRY(encode_all(e, text, n));
    if (add_special && !iv_ids_append(e->out, s->after, s->after_count)) return no_memory(e->err);
    return IV_OK;
}

static iv_status encode(const iv_tokenizer *t, const char *text, size_t n, unsigned flags, tracer *trace, iv_ids *out,
                        iv_error *err) {
    size_t bad, before = out->count;
    if (n > IV_TOKENIZE_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "tokenizer: a text of %zu bytes, at most %d are encoded", n,
                       IV_TOKENIZE_BYTES_MAX);
    if (!iv_utf8_valid((const uint8_t *)text, n, &bad))
        return iv_fail(err, IV_INVALID, "tokenizer: the text is not UTF-8 at byte %zu", bad);
    encoder e = {.t = t,
                 .special = flags & IV_ENCODE_PARSE_SPECIAL,
                 .marked = flags & IV_ENCODE_MARKED,
                 .trace = trace,
                 .out = out,
                 .err = err};
    iv_status status = encode_with(&e, text, n, flags & IV_ENCODE_ADD_SPECIAL);
    if (status != IV_OK) out->count = before;
    iv_regex_work_free(e.regex);
    iv_pretokenize_work_free(&e.split);
    iv_bpe_work_free(&e.bpe);
    iv_buf_free(&e.normal);
    iv_buf_free(&e.spare);
    iv_buf_free(&e.bare);
    return status;
}

iv_status iv_tokenizer_encode(const iv_tokenizer *t, const char *text, size_t n, unsigned flags, iv_ids *out,
                              iv_error *err) {
    return encode(t, text, n, flags, NULL, out, err);
}

iv_status iv_tokenizer_encode_spans(const iv_tokenizer *t, const char *text, size_t n, unsigned flags,
                                    const iv_text_span *spans, size_t span_count, iv_ids *out, iv_buf *inside,
                                    iv_error *err) {
    static const char outside[IV_TEMPLATE_TOKENS_MAX] = {0};
    size_t before = inside->len, ids_before = out->count;
    tracer trace = {.spans = spans, .count = span_count, .inside = inside};
    bool around = flags & IV_ENCODE_ADD_SPECIAL;
    IV_ASSERT(!(flags & IV_ENCODE_MARKED));
    iv_status status = IV_OK;
    if (around && !iv_buf_append(inside, outside, t->spec.before_count)) status = no_memory(err);
    if (status == IV_OK) status = encode(t, text, n, flags, &trace, out, err);
    if (status == IV_OK && around && !iv_buf_append(inside, outside, t->spec.after_count)) status = no_memory(err);
    if (status != IV_OK) inside->len = before, out->count = ids_before;
    iv_buf_free(&trace.pieces);
    iv_buf_free(&trace.ends);
    return status;
}

/* ---- marks ---- */

size_t iv_tokenizer_unmark(char *text, size_t n) {
    size_t mark = sizeof MARK - 1, out = 0;
    for (size_t i = 0; i < n;)
        if (n - i >= mark && memcmp(text + i, MARK, mark) == 0)
            i += mark;
        else
            text[out++] = text[i++];
    return out;
}

static bool put_marked(const char *text, size_t n, iv_buf *out) {
    for (size_t i = 0, len; i < n; i += len) {
        len = iv_utf8_length((const uint8_t *)text + i, n - i);
        if (!iv_buf_append(out, text + i, len) || !iv_buf_puts(out, MARK)) return false;
    }
    return true;
}

/* Marks the special tokens of one set. */
static iv_status mark_set(const iv_added_set *set, iv_regex_work *work, const char *text, size_t n, iv_buf *out,
                          iv_error *err) {
    iv_added_walk walk = {0};
    for (bool more;;) {
        IV_TRY(iv_added_next(set, work, text, n, true, &walk, &more, err));
        if (!more) return IV_OK;
        bool special = walk.token && walk.token->special;
        const char *part = text + walk.start;
        size_t bytes = walk.end - walk.start;
        if (!(special ? put_marked(part, bytes, out) : iv_buf_append(out, part, bytes))) return no_memory(err);
    }
}

iv_status iv_tokenizer_mark(const iv_tokenizer *t, const char *text, size_t n, iv_buf *out, iv_error *err) {
    iv_buf bare = {0}, once = {0};
    size_t bad;
    if (!iv_utf8_valid((const uint8_t *)text, n, &bad))
        return iv_fail(err, IV_INVALID, "tokenizer: the text is not UTF-8 at byte %zu", bad);
    iv_regex_work *work = iv_regex_work_new();
    iv_status status = work && iv_buf_append(&bare, text, n) ? IV_OK : no_memory(err);
    if (status == IV_OK) bare.len = iv_tokenizer_unmark(bare.data, n);
    if (status == IV_OK) status = mark_set(&t->raw, work, bare.data, bare.len, &once, err);
    if (status == IV_OK && !iv_buf_append(&once, "", 0)) status = no_memory(err);
    if (status == IV_OK) status = mark_set(&t->normalized, work, once.data, once.len, out, err);
    iv_regex_work_free(work);
    iv_buf_free(&bare), iv_buf_free(&once);
    return status;
}

/* ---- decoding ---- */

static iv_status decode_id(const iv_tokenizer *t, bool skip_special, iv_decode_run *run, int32_t id, iv_buf *out,
                           iv_error *err) {
    if (id < 0) return iv_fail(err, IV_INVALID, "tokenizer: %d is not a token id", id);
    if ((size_t)id >= t->spec.id_count || !t->spec.by_id[id].data) return IV_OK;
    const normal_form key = {.id = id}, *form = NULL;
    if (t->form_count) form = bsearch(&key, t->forms, t->form_count, sizeof key, compare_forms);
    /* The reference tests the text, not the id; the results differ only for normalized tokens. */
    if (skip_special && (form ? form->skippable : iv_tokenizer_is_special(t, id))) return IV_OK;
    return iv_decode_token(run, form ? form->text : t->spec.by_id[id], out, err);
}

iv_status iv_tokenizer_decode(const iv_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, iv_buf *out,
                              iv_error *err) {
    iv_decode_run run;
    IV_TRY(iv_decode_begin(&t->decoder, &run, err));
    iv_status status = IV_OK;
    for (size_t i = 0; i < n && status == IV_OK; i++) status = decode_id(t, skip_special, &run, ids[i], out, err);
    if (status == IV_OK) status = iv_decode_flush(&run, out, err);
    iv_decode_end(&run);
    return status;
}

iv_status iv_token_stream_open(const iv_tokenizer *t, bool skip_special, iv_token_stream **out, iv_error *err) {
    iv_token_stream *s = malloc(sizeof *s);
    if (!s) return no_memory(err);
    *s = (iv_token_stream){.tokenizer = t, .skip_special = skip_special};
    iv_status status = iv_decode_begin(&t->decoder, &s->run, err);
    if (status == IV_OK)
        *out = s;
    else
        free(s);
    return status;
}

iv_status iv_token_stream_follow(iv_token_stream *s, const int32_t *ids, size_t n, bool text, iv_error *err) {
    iv_buf before = {0};
    iv_status status = IV_OK;
    /* After the first text the beginning is over; later ids do not matter. */
    for (size_t i = 0; i < n && before.len == 0 && status == IV_OK; i++)
        status = decode_id(s->tokenizer, s->skip_special, &s->run, ids[i], &before, err);
    for (size_t i = 0; text && i < s->tokenizer->spec.id_count && before.len == 0 && status == IV_OK; i++)
        status = decode_id(s->tokenizer, true, &s->run, (int32_t)i, &before, err); /* any token with text */
    if (status == IV_OK) status = iv_decode_boundary(&s->run, &before, err);
    iv_buf_free(&before);
    return status;
}

iv_status iv_token_stream_reserve(iv_token_stream *s, size_t bytes, iv_error *err) {
    return iv_decode_reserve(&s->run, bytes) ? IV_OK : no_memory(err);
}

iv_status iv_token_stream_push(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err) {
    return decode_id(s->tokenizer, s->skip_special, &s->run, id, out, err);
}

iv_status iv_token_stream_show(iv_token_stream *s, int32_t id, iv_buf *out, iv_error *err) {
    return decode_id(s->tokenizer, false, &s->run, id, out, err);
}

iv_status iv_token_stream_flush(iv_token_stream *s, iv_buf *out, iv_error *err) {
    return iv_decode_flush(&s->run, out, err);
}

void iv_token_stream_close(iv_token_stream *s) {
    if (!s) return;
    iv_decode_end(&s->run);
    free(s);
}

/* ---- looking up ---- */

size_t iv_tokenizer_vocab_size(const iv_tokenizer *t) { return t->spec.id_count; }

bool iv_tokenizer_find(const iv_tokenizer *t, const char *token, size_t n, int32_t *id) {
    const iv_token *found = iv_token_map_find(&t->spec.added_map, token, n);
    if (!found) found = iv_token_map_find(&t->spec.vocab, token, n);
    if (found) *id = found->id;
    return found != NULL;
}

const char *iv_tokenizer_token(const iv_tokenizer *t, int32_t id, size_t *n) {
    if (id < 0 || (size_t)id >= t->spec.id_count) return NULL;
    if (n) *n = t->spec.by_id[id].len;
    return t->spec.by_id[id].data;
}

bool iv_tokenizer_is_special(const iv_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->spec.id_count && (t->special[id / 8] >> (id % 8) & 1);
}

bool iv_tokenizer_token_bytes(const iv_tokenizer *t, int32_t id, iv_buf *out, bool *known) {
    *known = false;
    if (id < 0 || (size_t)id >= t->spec.id_count || !t->spec.by_id[id].data) return true;
    const normal_form key = {.id = id}, *form = NULL;
    if (t->form_count) form = bsearch(&key, t->forms, t->form_count, sizeof key, compare_forms);
    return iv_decode_token_bytes(&t->decoder, form ? form->text : t->spec.by_id[id], out, known);
}

void iv_tokenizer_digest(const iv_tokenizer *t, uint8_t out[32]) { memcpy(out, t->digest, 32); }
