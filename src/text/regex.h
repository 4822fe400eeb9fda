/* regex.h: finding every match of a tokenizer's pattern, with the results of the reference engine.
 *
 * A compiled iv_regex is immutable and shared by threads; each thread has its own iv_regex_work. The cost of matching
 * is limited (IV_LIMIT): a hostile pattern gives an error and not a hang. */
#ifndef IV_TEXT_REGEX_H
#define IV_TEXT_REGEX_H

#include "base/buf.h"
#include "base/status.h"
#include "format/tokenizer_json.h"

typedef struct iv_regex iv_regex;
typedef struct iv_regex_work iv_regex_work;

enum {
    IV_REGEX_STEPS_PER_BYTE = 64,      /* step limit of one search: this many per byte of its subject, */
    IV_REGEX_STEPS_BASE = 20000,       /* plus this many */
    IV_REGEX_HEAP_KIB_MAX = 64 * 1024, /* backtracking memory of the interpreter */
    IV_REGEX_JIT_STACK_MAX = 1 << 20
};

/* Compiles a pattern of a tokenizer.json: a literal, or Oniguruma's language. */
iv_status iv_regex_open(const char *where, const iv_pattern *pattern, iv_regex **out, iv_error *err);

/* Compiles a pattern in PCRE2's language. */
iv_status iv_regex_open_raw(const char *where, const char *pattern, iv_regex **out, iv_error *err);

void iv_regex_close(iv_regex *re); /* NULL is allowed */

iv_regex_work *iv_regex_work_new(void); /* NULL when memory is out */
void iv_regex_work_free(iv_regex_work *work);

/* A search through one subject; zero-initialise before the first iv_regex_next. */
typedef struct iv_regex_scan {
    size_t start, end; /* of the match found last */
    size_t from;       /* internal: start of the next search */
    bool matched;      /* internal: start and end hold a match */
} iv_regex_scan;

/* Finds the next match in the n bytes of valid UTF-8 and sets *found. Matches do not overlap; an empty match right
 * after another match is skipped, as in the reference engine. */
iv_status iv_regex_next(const iv_regex *re, iv_regex_work *work, const char *text, size_t n, iv_regex_scan *scan,
                        bool *found, iv_error *err);

#endif
