/* training_template.c: the changes of each family. */
#include "text/training_template.h"

#include <string.h>

/* Every `from`, which is in the source `count` times, becomes `to`. */
typedef struct change {
    const char *from, *to;
    size_t count;
} change;

#define HEADER "{{- '<|im_start|>' + message.role + '\\n"

/* Qwen3 (hybrid and thinking): it drops the reasoning of earlier turns, so that turns cannot be found by rendering
 * prefixes. The three places that write the turn's header give it to one place before the block. */
static const change qwen3[] = {
    {"{%- if loop.index0 > ns.last_query_index %}",
     HEADER "' }}{% generation %}{%- if loop.index0 > ns.last_query_index %}", 1},
    {HEADER "<think>\\n' + reasoning_content", "{{- '<think>\\n' + reasoning_content", 1},
    {HEADER "' + content }}", "{{- content }}", 2},
    {"{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
     "{{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}{%- elif message.role == \"tool\" %}", 1},
};

static const struct {
    const char *name;
    const change *changes;
    size_t count;
} families[] = {{"qwen3", qwen3, sizeof qwen3 / sizeof *qwen3}};

static size_t occurrences(const char *s, size_t n, const char *what) {
    size_t found = 0, length = strlen(what);
    for (const char *at = s; (at = memmem(at, n - (size_t)(at - s), what, length)); at += length) found++;
    return found;
}

static bool applies(size_t family, const char *source, size_t n) {
    for (size_t i = 0; i < families[family].count; i++) {
        const change *c = &families[family].changes[i];
        if (occurrences(source, n, c->from) != c->count) return false;
    }
    return true;
}

/* The change whose text stands at s, or NULL. */
static const change *change_at(size_t family, const char *s, size_t n) {
    for (size_t i = 0; i < families[family].count; i++) {
        const change *c = &families[family].changes[i];
        size_t length = strlen(c->from);
        if (n >= length && memcmp(s, c->from, length) == 0) return c;
    }
    return NULL;
}

static bool rewrite(size_t family, const char *source, size_t n, iv_buf *out) {
    for (size_t at = 0; at < n;) {
        const change *c = source[at] == '{' ? change_at(family, source + at, n - at) : NULL;
        if (!(c ? iv_buf_puts(out, c->to) : iv_buf_putc(out, source[at]))) return false;
        at += c ? strlen(c->from) : 1;
    }
    return true;
}

bool iv_training_template(const char *source, size_t n, iv_buf *out, const char **family) {
    *family = NULL;
    iv_buf_clear(out);
    for (size_t f = 0; n > 0 && f < sizeof families / sizeof *families; f++) {
        if (!applies(f, source, n)) continue;
        *family = families[f].name;
        return rewrite(f, source, n, out);
    }
    return true;
}
