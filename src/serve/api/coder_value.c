/* coder_value.c: by the kinds of values that may be meant. */
#include "serve/api/coder_value.h"
#include "format/json.h"
#include "format/json_schema.h"
#include "base/json_out.h"

#include <string.h>
#include <strings.h>

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static bool is_word(const char *s, size_t n, const char *word) {
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* Of JSON; 0: it is none. */
static unsigned kind_of(const char *s, size_t n) {
    iv_error unused;
    json_t *v = NULL;
    if (n == 0 || iv_json_parse_repeating("value", s, n, &v, &unused) != IV_OK) return 0;
    unsigned kind = iv_json_kind_of(v);
    if (json_is_real(v)) { /* an integer beyond 64 bits is one */
        bool fraction = memchr(s, '.', n) || memchr(s, 'e', n) || memchr(s, 'E', n);
        kind = fraction ? IV_KIND_NUMBER : IV_KIND_INTEGER;
    }
    json_decref(v);
    return kind;
}

/* Templates write true, false and null back as Python does: True, False, None. */
static const char *word_of(const char *s, size_t n) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(s, n, words[i])) return words[i];
    return is_word(s, n, "none") ? "null" : NULL;
}

static bool write_string(const char *s, size_t n, iv_buf *out) {
    iv_json_out o = {.buf = out};
    iv_out_string(&o, s, n);
    return !o.failed;
}

bool iv_coder_value_write(unsigned kinds, const char *text, size_t n, iv_buf *out) {
    unsigned others = kinds & ~(unsigned)IV_KIND_STRING;
    if (!others) return write_string(text, n, out);
    if (kinds & IV_KIND_STRING) {
        if (others & IV_KIND_NULL && is_word(text, n, "null")) return iv_buf_puts(out, "null");
        bool tight = n && !is_space(text[0]) && !is_space(text[n - 1]);
        return tight && kind_of(text, n) & others ? iv_buf_append(out, text, n) : write_string(text, n, out);
    }
    const char *s = text;
    size_t bytes = n;
    while (bytes && is_space(*s)) s++, bytes--;
    while (bytes && is_space(s[bytes - 1])) bytes--;
    const char *word = word_of(s, bytes);
    if (word) return iv_buf_puts(out, word);
    return kind_of(s, bytes) ? iv_buf_append(out, s, bytes) : write_string(text, n, out);
}
