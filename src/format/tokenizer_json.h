/* tokenizer_json.h: a Hugging Face tokenizer.json as validated structs (docs/formats/tokenizer.md).
 *
 * Every id is in range and names one token, every merge resolves to three ids, src/text implements every step.
 * Well-formed but unknown items are IV_UNSUPPORTED, and named. */
#ifndef IV_FORMAT_TOKENIZER_JSON_H
#define IV_FORMAT_TOKENIZER_JSON_H

#include "base/arena.h"
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- the token map ---- */

/* A view of bytes; the owner is stated at each use. */
typedef struct iv_str {
    const char *data;
    size_t len;
} iv_str;

typedef struct iv_token {
    iv_str text;
    int32_t id;
} iv_token;

typedef struct iv_token_map {
    iv_token *tokens; /* count of them, in order of insertion */
    size_t count, capacity;
    uint32_t *slots; /* index into tokens + 1, or 0 */
    size_t slot_mask;
} iv_token_map;

/* Room for capacity tokens (below 2^31), from the arena. False when memory is out. */
bool iv_token_map_init(iv_token_map *map, iv_arena *arena, size_t capacity);

/* Adds a token; text must outlive the map. False if the text is already there. At most capacity calls. */
bool iv_token_map_put(iv_token_map *map, iv_str text, int32_t id);

/* NULL when absent. An empty (never initialised) map holds nothing. */
const iv_token *iv_token_map_find(const iv_token_map *map, const char *text, size_t n);

/* ---- tokenizer.json ---- */

enum {
    IV_TOKENIZER_FILE_BYTES_MAX = 256 << 20,
    IV_TOKEN_ID_MAX = (1 << 24) - 1,
    IV_TOKEN_BYTES_MAX = 1 << 16,    /* one token's text */
    IV_ADDED_TOKEN_BYTES_MAX = 4096, /* an added token's content */
    IV_TOKEN_AFFIX_BYTES_MAX = 64,   /* continuing_subword_prefix, end_of_word_suffix */
    IV_TOKENIZER_MERGES_MAX = 1 << 24,
    IV_TOKENIZER_STEPS_MAX = 32,  /* normalizers, pre-tokenizers, decoders: each at most */
    IV_TOKENIZER_NESTING_MAX = 8, /* Sequence inside Sequence */
    IV_TEMPLATE_TOKENS_MAX = 64   /* special tokens put around a text, on each side */
};

/* A search pattern: a literal string, or Oniguruma's syntax. Never empty. */
typedef struct iv_pattern {
    iv_str text;
    bool regex;
} iv_pattern;

typedef enum iv_normalizer_kind {
    IV_NORMALIZE_NFC,
    IV_NORMALIZE_NFD,
    IV_NORMALIZE_NFKC,
    IV_NORMALIZE_NFKD,
    IV_NORMALIZE_LOWERCASE,
    IV_NORMALIZE_PREPEND, /* content before any text that is not empty */
    IV_NORMALIZE_REPLACE, /* every match of pattern becomes content */
    IV_NORMALIZE_STRIP    /* white space at the left and right ends */
} iv_normalizer_kind;

typedef struct iv_normalizer_spec {
    iv_normalizer_kind kind;
    iv_pattern pattern;
    iv_str content;
    bool left, right;
} iv_normalizer_spec;

/* The treatment of matches when a text is cut into pieces. */
typedef enum iv_match_behavior {
    IV_MATCH_REMOVED,
    IV_MATCH_ISOLATED,
    IV_MATCH_MERGED_WITH_PREVIOUS,
    IV_MATCH_MERGED_WITH_NEXT,
    IV_MATCH_CONTIGUOUS
} iv_match_behavior;

typedef enum iv_prepend_scheme { IV_PREPEND_NEVER, IV_PREPEND_FIRST, IV_PREPEND_ALWAYS } iv_prepend_scheme;

typedef enum iv_pretokenizer_kind {
    IV_PRETOKENIZE_SPLIT,
    IV_PRETOKENIZE_BYTE_LEVEL,
    IV_PRETOKENIZE_METASPACE,
    IV_PRETOKENIZE_DIGITS,
    IV_PRETOKENIZE_PUNCTUATION,
    IV_PRETOKENIZE_WHITESPACE,
    IV_PRETOKENIZE_WHITESPACE_SPLIT
} iv_pretokenizer_kind;

typedef struct iv_pretokenizer_spec {
    iv_pretokenizer_kind kind;
    iv_pattern pattern;         /* SPLIT */
    iv_match_behavior behavior; /* SPLIT, DIGITS, PUNCTUATION */
    bool invert;                /* SPLIT: swap matches and the rest */
    bool add_prefix_space;      /* BYTE_LEVEL */
    bool use_regex;             /* BYTE_LEVEL: split with GPT-2's pattern first */
    iv_str replacement;         /* METASPACE: one character */
    iv_prepend_scheme prepend;  /* METASPACE */
    bool split;                 /* METASPACE */
} iv_pretokenizer_spec;

typedef enum iv_decoder_kind {
    IV_DECODE_BYTE_LEVEL,
    IV_DECODE_REPLACE,
    IV_DECODE_BYTE_FALLBACK,
    IV_DECODE_FUSE,
    IV_DECODE_STRIP,
    IV_DECODE_METASPACE
} iv_decoder_kind;

typedef struct iv_decoder_spec {
    iv_decoder_kind kind;
    iv_pattern pattern;        /* REPLACE */
    iv_str content;            /* REPLACE; STRIP and METASPACE: one character */
    size_t start, stop;        /* STRIP: at most so many at either end */
    iv_prepend_scheme prepend; /* METASPACE */
} iv_decoder_spec;

typedef struct iv_added_token {
    iv_str content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} iv_added_token;

/* The pair (left, right) becomes the token merged; a merge's index is its rank, lowest first. */
typedef struct iv_merge {
    int32_t left, right, merged;
} iv_merge;

typedef struct iv_tokenizer_json {
    iv_arena arena; /* owns every string and array below except by_id */

    iv_token_map vocab; /* the model's own tokens */
    iv_merge *merges;
    size_t merge_count;
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk_id;        /* -1: no unk_token */
    iv_str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix; may be empty */

    iv_added_token *added;
    size_t added_count;
    iv_token_map added_map; /* content -> id of the added tokens */

    iv_str *by_id;   /* id -> token text (data NULL: no such id); malloc'd */
    size_t id_count; /* 1 + the largest id */

    iv_normalizer_spec normalizers[IV_TOKENIZER_STEPS_MAX];
    iv_pretokenizer_spec pretokenizers[IV_TOKENIZER_STEPS_MAX];
    iv_decoder_spec decoders[IV_TOKENIZER_STEPS_MAX];
    size_t normalizer_count, pretokenizer_count, decoder_count;
    bool has_decoder; /* false: tokens are joined with spaces */

    int32_t before[IV_TEMPLATE_TOKENS_MAX], after[IV_TEMPLATE_TOKENS_MAX]; /* the post-processor's template */
    size_t before_count, after_count;
} iv_tokenizer_json;

/* Parses and validates n bytes; name heads every error. On success the caller owns *out
 * (iv_tokenizer_json_free); on failure nothing is left to free. */
iv_status iv_tokenizer_json_parse(const char *name, const char *json, size_t n, iv_tokenizer_json *out, iv_error *err);

void iv_tokenizer_json_free(iv_tokenizer_json *t);

#endif
