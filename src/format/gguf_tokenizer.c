/* gguf_tokenizer.c: the tokenizer of a GGUF's metadata as tokenizer.json and tokenizer_config.json, so that one reader
 * (tokenizer_json.h) checks and runs all of them. */
#include "base/json_out.h"
#include "base/size.h"
#include "format/gguf_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens in tokenizer.ggml.token_type. */
enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

#define SPLIT_LLAMA3                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                             \
    "\\s+(?!\\S)|\\s+"
#define SPLIT_QWEN2                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" \
    "\\s+(?!\\S)|\\s+"

/* tokenizer.ggml.pre: how a text is cut before merging. */
typedef struct pre {
    const char *name, *split; /* split: a pattern; NULL: GPT-2's, inside ByteLevel */
    bool digits, nfc, ignore_merges, bos;
} pre;

static const pre pres[] = {
    {"smollm", NULL, true, false, false, false},           {"gpt-2", NULL, false, false, false, false},
    {"default", NULL, false, false, false, false},         {"qwen2", SPLIT_QWEN2, false, true, false, false},
    {"llama-bpe", SPLIT_LLAMA3, false, false, true, true}, {"llama3", SPLIT_LLAMA3, false, false, true, true},
    {"llama-v3", SPLIT_LLAMA3, false, false, true, true}};
enum { PRES = sizeof pres / sizeof *pres };

typedef struct vocabulary {
    const iv_gguf *g;
    const char *path;
    const iv_gguf_value *tokens, *types, *scores, *merges;
    iv_str *text; /* [tokens->count] */
    iv_error *err;
} vocabulary;

static bool spells(iv_str s, const char *word) { return s.len == strlen(word) && memcmp(s.data, word, s.len) == 0; }

static bool is_array(const iv_gguf_value *v, bool strings) {
    return v && v->type == IV_GGUF_ARRAY && (v->item == IV_GGUF_STRING) == strings;
}

static iv_status open_vocabulary(const iv_gguf_set *s, vocabulary *v, iv_error *err) {
    *v = (vocabulary){.g = &s->g, .path = s->paths[0], .err = err};
    v->tokens = iv_gguf_find(v->g, "tokenizer.ggml.tokens"), v->types = iv_gguf_find(v->g, "tokenizer.ggml.token_type");
    v->scores = iv_gguf_find(v->g, "tokenizer.ggml.scores"), v->merges = iv_gguf_find(v->g, "tokenizer.ggml.merges");
    if (!is_array(v->tokens, true))
        return iv_fail(err, IV_FORMAT, "%s: tokenizer.ggml.tokens: wanted an array of strings, found %s", v->path,
                       v->tokens ? "another type" : "nothing");
    const iv_gguf_value *others[] = {v->types, v->scores};
    static const char *const keys[] = {"token_type", "scores"};
    for (size_t i = 0; i < 2; i++)
        if (others[i] && (!is_array(others[i], false) || others[i]->count != v->tokens->count))
            return iv_fail(err, IV_FORMAT, "%s: tokenizer.ggml.%s: wanted an array of %zu numbers", v->path, keys[i],
                           v->tokens->count);
    v->text = calloc(v->tokens->count + 1, sizeof *v->text);
    if (!v->text) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its vocabulary", v->path);
    for (size_t at = 0, i = 0; i < v->tokens->count && iv_gguf_next_string(v->tokens, &at, &v->text[i]); i++) {}
    return IV_OK;
}

static int64_t type_of(const vocabulary *v, size_t id) { return v->types ? iv_gguf_integer_at(v->types, id) : 1; }

static bool is_added(const vocabulary *v, size_t id) {
    int64_t type = type_of(v, id);
    return type == TOKEN_CONTROL || type == TOKEN_USER;
}

/* The token of an id key; false: none. */
static bool named(const vocabulary *v, const char *key, size_t *id) {
    const iv_gguf_value *k = iv_gguf_find(v->g, key);
    if (!k || k->type == IV_GGUF_STRING || k->type == IV_GGUF_ARRAY || k->integer < 0) return false;
    *id = (size_t)k->integer;
    return k->type != IV_GGUF_F32 && k->type != IV_GGUF_F64 && *id < v->tokens->count;
}

static bool flag(const vocabulary *v, const char *key, bool fallback) {
    const iv_gguf_value *k = iv_gguf_find(v->g, key);
    return k && k->type == IV_GGUF_BOOL ? k->integer != 0 : fallback;
}

/* ---- parts of tokenizer.json ---------------------------------------------------------------------------- */

static void out_added(const vocabulary *v, iv_json_out *o) {
    iv_out_kv_open(o, "added_tokens", '[');
    for (size_t i = 0; i < v->tokens->count; i++) {
        if (!is_added(v, i) || v->text[i].len == 0) continue;
        iv_out_open(o, '{');
        iv_out_kv_uint(o, "id", i), iv_out_kv_string(o, "content", v->text[i].data, v->text[i].len);
        iv_out_kv_bool(o, "single_word", false), iv_out_kv_bool(o, "lstrip", false), iv_out_kv_bool(o, "rstrip", false);
        iv_out_kv_bool(o, "normalized", false), iv_out_kv_bool(o, "special", type_of(v, i) == TOKEN_CONTROL);
        iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
}

/* What llama.cpp's converter puts where a vocabulary has rows without a token. */
static bool is_padding(const vocabulary *v, size_t id) {
    char text[32];
    snprintf(text, sizeof text, "[PAD%zu]", id);
    return type_of(v, id) == TOKEN_UNUSED && spells(v->text[id], text);
}

/* Added tokens too, as in published files: other programs take their ids from here. */
static void out_vocabulary(const vocabulary *v, iv_json_out *o) {
    iv_out_kv_open(o, "vocab", '{');
    for (size_t i = 0; i < v->tokens->count; i++) {
        if (is_padding(v, i)) continue;
        iv_out_string(o, v->text[i].data, v->text[i].len);
        o->comma = false;
        if (!iv_buf_puts(o->buf, ":")) o->failed = true;
        iv_out_uint(o, i);
    }
    iv_out_close(o, '}');
}

static void out_template(const vocabulary *v, bool add_bos, bool add_eos, iv_json_out *o) {
    size_t ids[2];
    bool has[2] = {add_bos && named(v, "tokenizer.ggml.bos_token_id", &ids[0]),
                   add_eos && named(v, "tokenizer.ggml.eos_token_id", &ids[1])};
    if (!has[0] && !has[1]) {
        iv_out_kv_null(o, "post_processor");
        return;
    }
    iv_out_kv_open(o, "post_processor", '{');
    iv_out_kv_text(o, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        iv_out_kv_open(o, pair ? "pair" : "single", '[');
        for (int text = 0; text <= pair; text++)
            for (int part = 0; part < 3; part++) {
                if (part != 1 && !has[part / 2]) continue;
                iv_str s = part == 1 ? (iv_str){text ? "B" : "A", 1} : v->text[ids[part / 2]];
                iv_out_open(o, '{'), iv_out_kv_open(o, part == 1 ? "Sequence" : "SpecialToken", '{');
                iv_out_kv_string(o, "id", s.data, s.len), iv_out_kv_uint(o, "type_id", (uint64_t)text);
                iv_out_close(o, '}'), iv_out_close(o, '}');
            }
        iv_out_close(o, ']');
    }
    iv_out_kv_open(o, "special_tokens", '{');
    for (int i = 0; i < 2; i++) {
        if (!has[i] || (i == 1 && has[0] && ids[0] == ids[1])) continue;
        iv_str s = v->text[ids[i]];
        iv_out_string(o, s.data, s.len);
        o->comma = false;
        if (!iv_buf_puts(o->buf, ":")) o->failed = true;
        iv_out_open(o, '{'), iv_out_kv_string(o, "id", s.data, s.len);
        iv_out_kv_open(o, "ids", '['), iv_out_uint(o, ids[i]), iv_out_close(o, ']');
        iv_out_kv_open(o, "tokens", '['), iv_out_string(o, s.data, s.len), iv_out_close(o, ']');
        iv_out_close(o, '}');
    }
    iv_out_close(o, '}'), iv_out_close(o, '}');
}

static void out_byte_level(iv_json_out *o, const char *key, bool use_regex) {
    iv_out_kv_open(o, key, '{');
    iv_out_kv_text(o, "type", "ByteLevel"), iv_out_kv_bool(o, "add_prefix_space", false);
    iv_out_kv_bool(o, "trim_offsets", true), iv_out_kv_bool(o, "use_regex", use_regex);
    iv_out_close(o, '}');
}

static void out_pretokenizer(const pre *p, iv_json_out *o) {
    if (!p->digits && !p->split) {
        out_byte_level(o, "pre_tokenizer", true);
        return;
    }
    iv_out_kv_open(o, "pre_tokenizer", '{');
    iv_out_kv_text(o, "type", "Sequence"), iv_out_kv_open(o, "pretokenizers", '[');
    iv_out_open(o, '{');
    if (p->split) {
        iv_out_kv_text(o, "type", "Split"), iv_out_kv_open(o, "pattern", '{');
        iv_out_kv_text(o, "Regex", p->split), iv_out_close(o, '}');
        iv_out_kv_text(o, "behavior", "Isolated"), iv_out_kv_bool(o, "invert", false);
    } else {
        iv_out_kv_text(o, "type", "Digits"), iv_out_kv_bool(o, "individual_digits", true);
    }
    iv_out_close(o, '}');
    out_byte_level(o, NULL, !p->split);
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

/* ---- gpt2 ----------------------------------------------------------------------------------------------- */

static iv_status find_pre(const vocabulary *v, const pre **out) {
    const iv_gguf_value *name = iv_gguf_find(v->g, "tokenizer.ggml.pre");
    iv_str s = name && name->type == IV_GGUF_STRING ? name->text : (iv_str){"default", 7};
    for (size_t i = 0; i < PRES; i++)
        if (spells(s, pres[i].name)) {
            *out = &pres[i];
            return IV_OK;
        }
    return iv_fail(v->err, IV_UNSUPPORTED,
                   "%s: tokenizer.ggml.pre: wanted smollm, qwen2, llama-bpe, gpt-2 or default, found '%.*s'", v->path,
                   (int)iv_size_min(s.len, 60), s.data);
}

static bool is_split(const iv_pretokenizer_spec *s, const pre *p) {
    if (p->digits) return s->kind == IV_PRETOKENIZE_DIGITS && s->behavior == IV_MATCH_ISOLATED;
    return s->kind == IV_PRETOKENIZE_SPLIT && s->behavior == IV_MATCH_ISOLATED && !s->invert && s->pattern.regex &&
           spells(s->pattern.text, p->split);
}

const char *iv_gguf_pre_of(const iv_tokenizer_json *t) {
    for (size_t i = 0; i < PRES; i++) {
        const pre *p = &pres[i];
        size_t splits = p->digits || p->split ? 1 : 0;
        if (t->pretokenizer_count != splits + 1 || (splits && !is_split(&t->pretokenizers[0], p))) continue;
        const iv_pretokenizer_spec *bytes = &t->pretokenizers[splits];
        bool nfc = t->normalizer_count == 1 && t->normalizers[0].kind == IV_NORMALIZE_NFC;
        if (bytes->kind == IV_PRETOKENIZE_BYTE_LEVEL && !bytes->add_prefix_space && bytes->use_regex == !p->split &&
            t->ignore_merges == p->ignore_merges && (p->nfc ? nfc : t->normalizer_count == 0))
            return p->name;
    }
    return NULL;
}

static iv_status out_gpt2(const vocabulary *v, iv_json_out *o) {
    const pre *p = NULL;
    IV_TRY(find_pre(v, &p));
    if (!is_array(v->merges, true))
        return iv_fail(v->err, IV_FORMAT, "%s: tokenizer.ggml.merges: wanted an array of strings, found %s", v->path,
                       v->merges ? "another type" : "nothing");
    if (p->nfc)
        iv_out_kv_open(o, "normalizer", '{'), iv_out_kv_text(o, "type", "NFC"), iv_out_close(o, '}');
    else
        iv_out_kv_null(o, "normalizer");
    out_pretokenizer(p, o);
    out_template(v, flag(v, "tokenizer.ggml.add_bos_token", p->bos), flag(v, "tokenizer.ggml.add_eos_token", false), o);
    out_byte_level(o, "decoder", true);
    iv_out_kv_open(o, "model", '{');
    iv_out_kv_text(o, "type", "BPE"), iv_out_kv_bool(o, "ignore_merges", p->ignore_merges);
    out_vocabulary(v, o);
    iv_out_kv_open(o, "merges", '[');
    iv_str s;
    for (size_t at = 0; iv_gguf_next_string(v->merges, &at, &s);) iv_out_string(o, s.data, s.len);
    iv_out_close(o, ']'), iv_out_close(o, '}');
    return IV_OK;
}

/* ---- llama: SentencePiece's BPE with scores ------------------------------------------------------------- */

typedef struct merge {
    uint32_t left, right; /* ids */
    uint32_t lengths[2];  /* in characters */
    float score;
    size_t order;
} merge;

/* As transformers orders them: the highest score first, the longest pieces first; else reversed order. */
static int by_rank(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    for (int i = 0; i < 2; i++)
        if (x->lengths[i] != y->lengths[i]) return x->lengths[i] < y->lengths[i] ? 1 : -1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static uint32_t characters(const char *s, size_t n) {
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

typedef struct merges {
    merge *list;
    size_t count, capacity;
} merges;

static int by_parts(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

/* All pairs of tokens that make this one, in the order of their ids. */
static iv_status add_merges(const vocabulary *v, const iv_token_map *map, size_t id, merges *m) {
    iv_str t = v->text[id];
    size_t first = m->count;
    for (size_t cut = 1; cut < t.len && cut < IV_TOKEN_BYTES_MAX; cut++) {
        if (((unsigned char)t.data[cut] & 0xc0) == 0x80) continue;
        const iv_token *left = iv_token_map_find(map, t.data, cut);
        const iv_token *right = left ? iv_token_map_find(map, t.data + cut, t.len - cut) : NULL;
        if (!right) continue;
        if (m->count == IV_TOKENIZER_MERGES_MAX)
            return iv_fail(v->err, IV_LIMIT, "%s: more than %d merges", v->path, IV_TOKENIZER_MERGES_MAX);
        if (m->count == m->capacity) {
            size_t more = m->capacity ? 2 * m->capacity : 1 << 16;
            merge *list = realloc(m->list, more * sizeof *list);
            if (!list) return iv_fail(v->err, IV_NO_MEMORY, "%s: no memory for its merges", v->path);
            m->list = list, m->capacity = more;
        }
        m->list[m->count++] = (merge){.left = (uint32_t)left->id,
                                      .right = (uint32_t)right->id,
                                      .lengths = {characters(t.data, cut), characters(t.data + cut, t.len - cut)},
                                      .score = (float)iv_gguf_real_at(v->scores, id)};
    }
    if (m->count > first + 1) qsort(m->list + first, m->count - first, sizeof *m->list, by_parts);
    for (size_t i = first; i < m->count; i++) m->list[i].order = i;
    return IV_OK;
}

static iv_status out_merges(const vocabulary *v, iv_json_out *o) {
    iv_arena arena = {0};
    iv_token_map map = {0};
    merges m = {0};
    iv_status status = v->tokens->count < INT32_MAX && iv_token_map_init(&map, &arena, v->tokens->count + 1)
                           ? IV_OK
                           : iv_fail(v->err, IV_NO_MEMORY, "%s: no memory for its merges", v->path);
    for (size_t i = 0; status == IV_OK && i < v->tokens->count; i++)
        if (type_of(v, i) != TOKEN_CONTROL) iv_token_map_put(&map, v->text[i], (int32_t)i);
    for (size_t i = 0; status == IV_OK && i < v->tokens->count; i++)
        if (!is_added(v, i) && type_of(v, i) != TOKEN_UNKNOWN) status = add_merges(v, &map, i, &m);
    if (status == IV_OK && m.count > 1) qsort(m.list, m.count, sizeof *m.list, by_rank);
    iv_out_kv_open(o, "merges", '[');
    for (size_t i = 0; status == IV_OK && i < m.count; i++) {
        iv_str l = v->text[m.list[i].left], r = v->text[m.list[i].right];
        iv_out_open(o, '['), iv_out_string(o, l.data, l.len), iv_out_string(o, r.data, r.len), iv_out_close(o, ']');
    }
    iv_out_close(o, ']');
    free(m.list);
    iv_arena_free(&arena);
    return status;
}

static void out_step(iv_json_out *o, const char *type, const char *pattern, const char *content) {
    iv_out_open(o, '{'), iv_out_kv_text(o, "type", type);
    if (strcmp(type, "Prepend") == 0) iv_out_kv_text(o, "prepend", content);
    if (pattern) {
        iv_out_kv_open(o, "pattern", '{'), iv_out_kv_text(o, "String", pattern), iv_out_close(o, '}');
        iv_out_kv_text(o, "content", content);
    }
    if (strcmp(type, "Strip") == 0)
        iv_out_kv_text(o, "content", " "), iv_out_kv_uint(o, "start", 1), iv_out_kv_uint(o, "stop", 0);
    iv_out_close(o, '}');
}

static iv_status out_llama(const vocabulary *v, iv_json_out *o) {
    static const char space[] = "\xe2\x96\x81";
    size_t unknown;
    bool prefix = flag(v, "tokenizer.ggml.add_space_prefix", true);
    if (!v->scores)
        return iv_fail(v->err, IV_FORMAT, "%s: tokenizer.ggml.scores: wanted floats, found nothing", v->path);
    iv_out_kv_open(o, "normalizer", '{'), iv_out_kv_text(o, "type", "Sequence"), iv_out_kv_open(o, "normalizers", '[');
    if (prefix) out_step(o, "Prepend", NULL, space);
    out_step(o, "Replace", " ", space);
    iv_out_close(o, ']'), iv_out_close(o, '}');
    iv_out_kv_null(o, "pre_tokenizer");
    out_template(v, flag(v, "tokenizer.ggml.add_bos_token", true), flag(v, "tokenizer.ggml.add_eos_token", false), o);
    iv_out_kv_open(o, "decoder", '{'), iv_out_kv_text(o, "type", "Sequence"), iv_out_kv_open(o, "decoders", '[');
    out_step(o, "Replace", space, " "), out_step(o, "ByteFallback", NULL, NULL), out_step(o, "Fuse", NULL, NULL);
    if (prefix) out_step(o, "Strip", NULL, NULL);
    iv_out_close(o, ']'), iv_out_close(o, '}');
    iv_out_kv_open(o, "model", '{');
    iv_out_kv_text(o, "type", "BPE"), iv_out_kv_bool(o, "byte_fallback", true), iv_out_kv_bool(o, "fuse_unk", true);
    bool has = named(v, "tokenizer.ggml.unknown_token_id", &unknown);
    for (size_t i = 0; !has && i < v->tokens->count; i++)
        if (type_of(v, i) == TOKEN_UNKNOWN) unknown = i, has = true;
    if (has && type_of(v, unknown) != TOKEN_CONTROL)
        iv_out_kv_string(o, "unk_token", v->text[unknown].data, v->text[unknown].len);
    out_vocabulary(v, o);
    iv_status status = out_merges(v, o);
    iv_out_close(o, '}');
    return status;
}

iv_status iv_gguf_tokenizer_json(const iv_gguf_set *s, iv_buf *out, iv_error *err) {
    vocabulary v;
    iv_json_out o = {.buf = out};
    const iv_gguf_value *model = iv_gguf_find(&s->g, "tokenizer.ggml.model");
    iv_str kind = model && model->type == IV_GGUF_STRING ? model->text : (iv_str){"nothing", 7};
    iv_buf_clear(out);
    IV_TRY(open_vocabulary(s, &v, err));
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "version", "1.0"), iv_out_kv_null(&o, "truncation"), iv_out_kv_null(&o, "padding");
    out_added(&v, &o);
    iv_status status = spells(kind, "gpt2")    ? out_gpt2(&v, &o)
                       : spells(kind, "llama") ? out_llama(&v, &o)
                                               : iv_fail(err, IV_UNSUPPORTED,
                                                         "%s: tokenizer.ggml.model: wanted gpt2 or llama, found '%.*s'",
                                                         v.path, (int)iv_size_min(kind.len, 60), kind.data);
    iv_out_close(&o, '}');
    if (status == IV_OK && o.failed) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for its tokenizer", v.path);
    free(v.text);
    return status;
}

iv_status iv_gguf_tokenizer_config_json(const iv_gguf_set *s, iv_buf *out, iv_error *err) {
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"}};
    vocabulary v;
    iv_json_out o = {.buf = out, .spaced = true};
    iv_buf_clear(out);
    IV_TRY(open_vocabulary(s, &v, err));
    iv_out_open(&o, '{');
    for (size_t i = 0, id; i < sizeof names / sizeof *names; i++)
        if (named(&v, names[i][1], &id)) iv_out_kv_string(&o, names[i][0], v.text[id].data, v.text[id].len);
    const iv_gguf_value *chat = iv_gguf_find(v.g, "tokenizer.chat_template");
    if (chat && chat->type == IV_GGUF_STRING) iv_out_kv_string(&o, "chat_template", chat->text.data, chat->text.len);
    iv_out_close(&o, '}');
    free(v.text);
    return o.failed ? iv_fail(err, IV_NO_MEMORY, "%s: no memory for its tokenizer", s->paths[0]) : IV_OK;
}
