/* tokenizer_json.h: a Hugging Face tokenizer.json as validated structs (docs/formats/tokenizer.md).
 *
 * Every id is in range and names one token, every merge resolves to three ids, every step is one that
 * src/text knows how to do. What is well formed but unknown is IV_UNSUPPORTED, and named. */
#ifndef IV_FORMAT_TOKENIZER_JSON_H
#define IV_FORMAT_TOKENIZER_JSON_H

#include "base/arena.h"
#include "base/status.h"
#include "format/token_map.h"

#include <jansson.h>

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

/* What to look for: a literal string or a pattern in Oniguruma's syntax. Never empty. */
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

/* What becomes of the matches when a text is split. */
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
    bool invert;                /* SPLIT: matches and the rest change places */
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

/* The parts that describe steps: fills the arrays of *out from the four members of the top-level object.
 * Internal to src/format. */
iv_status iv_tokenizer_json_steps(const char *name, const json_t *root, iv_tokenizer_json *out, iv_error *err);

/* Field access shared by the two files of this parser: `where` is the path of obj for errors. Internal. */
typedef struct iv_field {
    const char *name, *where; /* file, and JSON path of the object */
    const json_t *obj;
    iv_arena *arena;
    iv_error *err;
} iv_field;

iv_status iv_field_bool(const iv_field *f, const char *key, bool *out);                   /* required */
iv_status iv_field_bool_or(const iv_field *f, const char *key, bool fallback, bool *out); /* absent, null */
iv_status iv_field_str(const iv_field *f, const char *key, iv_str *out);                  /* required */
iv_status iv_field_str_or_null(const iv_field *f, const char *key, iv_str *out);          /* data NULL if absent */
iv_status iv_field_count(const iv_field *f, const char *key, size_t max, size_t *out);    /* required */

#endif
