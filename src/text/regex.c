/* regex.c: PCRE2 behind a find-all loop. The subject is known to be UTF-8, so PCRE2 never checks it again
 * (its check of the rest of the subject at every match would make the loop quadratic). */
#include "text/regex.h"
#include "base/utf8.h"
#include "text/dialect.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

struct iv_regex {
    pcre2_code *code; /* NULL: look for the literal */
    char *literal;
    size_t literal_len;
    char *where; /* for errors while matching */
};

struct iv_regex_work {
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

static iv_status compile(const char *where, const char *pattern, size_t n, iv_regex *re, iv_error *err) {
    int code;
    size_t offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!re->code) {
        char text[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return iv_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? IV_NO_MEMORY : IV_UNSUPPORTED, "%s: pattern: %s", where,
                       text);
    }
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* where there is no JIT the interpreter does the same */
    return IV_OK;
}

static iv_status open_empty(const char *where, iv_regex **out, iv_error *err) {
    iv_regex *re = calloc(1, sizeof *re);
    if (re) re->where = strdup(where);
    if (!re || !re->where) {
        free(re);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    }
    *out = re;
    return IV_OK;
}

iv_status iv_regex_open_raw(const char *where, const char *pattern, iv_regex **out, iv_error *err) {
    iv_regex *re = NULL;
    IV_TRY(open_empty(where, &re, err));
    iv_status status = compile(where, pattern, strlen(pattern), re, err);
    if (status == IV_OK)
        *out = re;
    else
        iv_regex_close(re);
    return status;
}

iv_status iv_regex_open(const char *where, const iv_pattern *pattern, iv_regex **out, iv_error *err) {
    iv_regex *re = NULL;
    iv_status status;
    IV_TRY(open_empty(where, &re, err));
    if (pattern->regex) {
        iv_buf translated = {0};
        status = iv_dialect_translate(where, pattern->text.data, pattern->text.len, &translated, err);
        if (status == IV_OK) status = compile(where, translated.data ? translated.data : "", translated.len, re, err);
        iv_buf_free(&translated);
    } else {
        IV_ASSERT(pattern->text.len > 0);
        re->literal_len = pattern->text.len;
        re->literal = malloc(re->literal_len);
        if (re->literal) memcpy(re->literal, pattern->text.data, re->literal_len);
        status = re->literal ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    }
    if (status == IV_OK)
        *out = re;
    else
        iv_regex_close(re);
    return status;
}

void iv_regex_close(iv_regex *re) {
    if (!re) return;
    pcre2_code_free(re->code);
    free(re->literal);
    free(re->where);
    free(re);
}

iv_regex_work *iv_regex_work_new(void) {
    iv_regex_work *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->context = pcre2_match_context_create(NULL);
    w->data = pcre2_match_data_create(1, NULL);
    if (!w->context || !w->data) {
        iv_regex_work_free(w);
        return NULL;
    }
    pcre2_set_heap_limit(w->context, IV_REGEX_HEAP_KIB_MAX);
    /* NULL where there is no JIT: then it is not needed. */
    w->stack = pcre2_jit_stack_create(32 * 1024, IV_REGEX_JIT_STACK_MAX, NULL);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void iv_regex_work_free(iv_regex_work *work) {
    if (!work) return;
    pcre2_match_context_free(work->context);
    pcre2_match_data_free(work->data);
    pcre2_jit_stack_free(work->stack);
    free(work);
}

/* One search from an offset. */
static iv_status find(const iv_regex *re, iv_regex_work *work, const char *text, size_t n, size_t from, size_t *start,
                      size_t *end, bool *found, iv_error *err) {
    if (!re->code) {
        const char *hit = memmem(text + from, n - from, re->literal, re->literal_len);
        *found = hit != NULL;
        *start = hit ? (size_t)(hit - text) : 0;
        *end = *start + re->literal_len;
        return IV_OK;
    }
    size_t steps = IV_REGEX_STEPS_BASE + (n < (size_t)1 << 25 ? n : (size_t)1 << 25) * IV_REGEX_STEPS_PER_BYTE;
    pcre2_set_match_limit(work->context, (uint32_t)steps);
    int rc = pcre2_match(re->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, work->data, work->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work->data,
                         work->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const size_t *ovector = pcre2_get_ovector_pointer(work->data);
        *start = ovector[0], *end = ovector[1];
        /* \K, which alone could put the start after the end, is refused by the translator. */
        IV_ASSERT(*start >= from && *start <= *end && *end <= n);
        return IV_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return IV_OK;
    char message[160];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return iv_fail(err, rc == PCRE2_ERROR_NOMEMORY ? IV_NO_MEMORY : IV_LIMIT, "%s: pattern on a text of %zu bytes: %s",
                   re->where, n, message);
}

iv_status iv_regex_next(const iv_regex *re, iv_regex_work *work, const char *text, size_t n, iv_regex_scan *scan,
                        bool *found, iv_error *err) {
    *found = false;
    while (scan->from <= n) {
        size_t start, end;
        bool hit;
        IV_TRY(find(re, work, text, n, scan->from, &start, &end, &hit, err));
        if (!hit) {
            scan->from = n + 1;
            return IV_OK;
        }
        if (start == end && scan->matched && scan->end == end) {
            size_t len = iv_utf8_length((const uint8_t *)text + scan->from, n - scan->from);
            scan->from += len ? len : 1;
            continue;
        }
        scan->start = start, scan->end = end, scan->from = end, scan->matched = true;
        *found = true;
        return IV_OK;
    }
    return IV_OK;
}
