/* template.c: parsing and rendering. A template is read-only once parsed: all state of a rendering is in its
 * ivj_run. */
#include "text/jinja/interp.h"
#include "base/utf8.h"
#include "text/jinja/parser.h"

#include <stdlib.h>
#include <string.h>

static iv_status parse_into(iv_template *t, const char *source, size_t n, iv_error *err) {
    ivj_value text;
    ivj_tokens tokens = {0};
    size_t bad;
    if (n > IVJ_MAX_SOURCE_BYTES)
        return iv_fail(err, IV_LIMIT, "%.200s: a template has at most %zu bytes, found %zu", t->name,
                       IVJ_MAX_SOURCE_BYTES, n);
    if (!iv_utf8_valid((const uint8_t *)source, n, &bad))
        return iv_fail(err, IV_TEMPLATE, "%.200s: byte %zu is not UTF-8", t->name, bad);
    IV_TRY(ivj_normalise(&t->pool, t->name, source, n, &text, err));
    t->source = text;
    iv_status status = ivj_lex(&t->pool, t->name, text, &tokens, err);
    if (status == IV_OK) status = ivj_parse(t, tokens.at, err);
    free(tokens.at);
    return status;
}

iv_status iv_template_parse(const char *name, const char *source, size_t n, iv_jinja_dialect dialect, iv_template **out,
                            iv_error *err) {
    iv_template *t = calloc(1, sizeof *t);
    if (t) t->name = strdup(name);
    if (!t || !t->name) {
        free(t);
        return iv_fail(err, IV_NO_MEMORY, "%.200s: no memory for a template", name);
    }
    t->dialect = dialect;
    ivj_pool_init(&t->pool, IVJ_MAX_TREE_BYTES);
    iv_status status = parse_into(t, source, n, err);
    if (status != IV_OK) {
        iv_template_close(t);
        return status;
    }
    *out = t;
    return IV_OK;
}

void iv_template_close(iv_template *t) {
    if (!t) return;
    ivj_pool_free(&t->pool);
    free(t->name);
    free(t);
}

/* The value of every name that the template mentions: the caller's variable, else a global function. */
static iv_status fill_context(ivj_run *r, const json_t *variables) {
    const iv_template *t = r->t;
    IV_TRY(ivj_alloc(r, t->n_atoms, sizeof *r->context, &r->context));
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const json_t *json = json_object_getn(variables, t->atoms[i].s, t->atoms[i].n);
        const ivj_function *global = ivj_find_global(t->atoms[i].s, t->atoms[i].n);
        if (json)
            IV_TRY(ivj_from_json(r, json, 0, &r->context[i]));
        else if (global)
            r->context[i] = (ivj_value){.type = IVJ_FUNCTION, .u.function = global};
    }
    return IV_OK;
}

static iv_status render(ivj_run *r, const json_t *variables) {
    ivj_flow flow;
    IV_TRY(fill_context(r, variables));
    IV_TRY(ivj_scope_new(r, NULL, &r->scope));
    return ivj_exec(r, &r->t->body, &flow);
}

static const ivj_library library = {.filter = ivj_find_filter, .test = ivj_find_test, .method = ivj_find_method};

bool iv_template_has_generation(const iv_template *t) { return t->generation; }
bool iv_template_reads_parts(const iv_template *t) { return t->parts; }

static bool in_word(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool iv_template_names(const iv_template *t, const char *word) {
    const char *s = t->source.u.s;
    size_t total = t->source.n, n = strlen(word), at = 0;
    while (n && at + n <= total) {
        const char *next = memmem(s + at, total - at, word, n);
        if (!next) return false;
        at = (size_t)(next - s);
        char before = at ? s[at - 1] : 0, after = at + n < total ? s[at + n] : 0;
        bool attribute = before == '.' && !in_word(after);
        if (attribute || ((before == '\'' || before == '"') && after == before)) return true;
        at++;
    }
    return false;
}

bool iv_template_contains(const iv_template *t, const char *text) {
    return t->source.n && memmem(t->source.u.s, t->source.n, text, strlen(text)) != NULL;
}

iv_status iv_template_render_spans(const iv_template *t, const json_t *variables, const char *strftime_now, iv_buf *out,
                                   iv_text_spans *spans, iv_error *err) {
    IV_ASSERT(json_is_object(variables));
    ivj_run r = {.name = t->name, .t = t, .library = &library, .err = err, .out = out, .now = strftime_now, .line = 1};
    r.top = out, r.spans = spans;
    ivj_pool_init(&r.pool, IVJ_MAX_LIVE_BYTES);
    iv_buf_clear(out);
    if (spans) spans->count = 0;
    iv_status status = render(&r, variables);
    if (status == IV_OK) status = ivj_check_spans(&r);
    ivj_pool_free(&r.pool);
    return status;
}

iv_status iv_template_render(const iv_template *t, const json_t *variables, const char *strftime_now, iv_buf *out,
                             iv_error *err) {
    return iv_template_render_spans(t, variables, strftime_now, out, NULL, err);
}
