/* run.c: the state of one rendering: memory, limits, errors, output, scopes. */
#include "text/jinja/interp.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

enum { ALIGN = 16, CHUNK_BYTES = 16 * 1024 };

void ivj_pool_init(ivj_pool *pool, size_t limit_bytes) {
    *pool = (ivj_pool){0};
    iv_arena_init(&pool->arena, limit_bytes);
}

void ivj_pool_free(ivj_pool *pool) {
    iv_arena_free(&pool->arena);
    pool->at = pool->end = NULL;
}

void *ivj_pool_alloc(ivj_pool *pool, size_t count, size_t size) {
    size_t bytes;
    if (!iv_size_mul(count, size, &bytes) || !iv_size_round_up(bytes, ALIGN, &bytes)) return NULL;
    if (bytes == 0) bytes = ALIGN;
    if (bytes > CHUNK_BYTES / 4) return iv_arena_alloc(&pool->arena, 1, bytes);
    if ((size_t)(pool->end - pool->at) < bytes) {
        char *chunk = iv_arena_alloc(&pool->arena, 1, CHUNK_BYTES);
        if (!chunk) return NULL;
        pool->at = chunk;
        pool->end = chunk + CHUNK_BYTES;
    }
    void *p = pool->at;
    pool->at += bytes;
    return p;
}

bool ivj_pool_full(const ivj_pool *pool, size_t bytes) {
    size_t limit = pool->arena.limit_bytes, used = pool->arena.used_bytes;
    if (!limit) return false;
    return bytes > limit || used > limit - bytes || limit - used - bytes < CHUNK_BYTES;
}

/* ---- one rendering ---- */

enum { STEP_BYTES = 64, TAIL_FROM = 1024 };

static iv_status fail_with(ivj_run *r, iv_status status, const char *fmt, va_list args) {
    char message[sizeof r->err->message];
    vsnprintf(message, sizeof message, fmt, args);
    return iv_fail(r->err, status, "%.200s:%u: %s", r->name, r->line, message);
}

iv_status ivj_fail(ivj_run *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    iv_status status = fail_with(r, IV_TEMPLATE, fmt, args);
    va_end(args);
    return status;
}

iv_status ivj_fail_limit(ivj_run *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    iv_status status = fail_with(r, IV_LIMIT, fmt, args);
    va_end(args);
    return status;
}

static iv_status fail_memory(ivj_run *r, size_t bytes) {
    if (ivj_pool_full(&r->pool, bytes))
        return ivj_fail_limit(r, "the values of the template need more than %zu bytes", r->pool.arena.limit_bytes);
    return iv_fail(r->err, IV_NO_MEMORY, "%.200s:%u: no memory for %zu bytes", r->name, r->line, bytes);
}

iv_status ivj_charge(ivj_run *r, size_t steps) {
    r->steps += steps;
    if (r->steps <= IVJ_MAX_STEPS) return IV_OK;
    return ivj_fail_limit(r, "the template takes more than %zu steps", IVJ_MAX_STEPS);
}

iv_status ivj_charge_bytes(ivj_run *r, size_t bytes) { return ivj_charge(r, bytes / STEP_BYTES); }

iv_status ivj_enter(ivj_run *r) {
    if (r->depth >= IVJ_MAX_EVAL_DEPTH)
        return ivj_fail_limit(r, "expressions and calls are nested more than %d deep", IVJ_MAX_EVAL_DEPTH);
    r->depth++;
    return ivj_charge(r, 1);
}

iv_status ivj_alloc(ivj_run *r, size_t count, size_t size, void *out) {
    void *p = ivj_pool_alloc(&r->pool, count, size);
    size_t bytes;
    memcpy(out, &p, sizeof p);
    if (!p) return fail_memory(r, iv_size_mul(count, size, &bytes) ? bytes : SIZE_MAX);
    return ivj_charge(r, count / STEP_BYTES);
}

iv_status ivj_grow(ivj_run *r, void *items, size_t n, size_t size, size_t *cap) {
    size_t wider = *cap ? *cap * 2 : 4;
    void *old, *copy;
    memcpy(&old, items, sizeof old);
    IV_TRY(ivj_alloc(r, wider, size, &copy));
    if (n) memcpy(copy, old, n * size);
    memcpy(items, &copy, sizeof copy);
    *cap = wider;
    return IV_OK;
}

iv_status ivj_write(ivj_run *r, iv_buf *buf, const char *s, size_t n) {
    size_t len;
    if (!iv_size_add(buf->len, n, &len) || len > IVJ_MAX_OUTPUT_BYTES)
        return ivj_fail_limit(r, "the text is longer than %zu bytes", IVJ_MAX_OUTPUT_BYTES);
    r->written += n;
    if (r->written > IVJ_MAX_WRITTEN_BYTES)
        return ivj_fail_limit(r, "the template writes more than %zu bytes", IVJ_MAX_WRITTEN_BYTES);
    if (!iv_buf_append(buf, s, n))
        return iv_fail(r->err, IV_NO_MEMORY, "%.200s:%u: no memory for %zu bytes of text", r->name, r->line, len);
    return IV_OK;
}

iv_status ivj_write_text(ivj_run *r, iv_buf *buf, const char *s) { return ivj_write(r, buf, s, strlen(s)); }

iv_status ivj_copy_string(ivj_run *r, const char *s, size_t n, ivj_value *out) {
    char *copy;
    IV_TRY(ivj_alloc(r, n, 1, &copy));
    if (n) memcpy(copy, s, n);
    *out = ivj_string(copy, n);
    return IV_OK;
}

iv_status ivj_finish_string(ivj_run *r, iv_status status, iv_buf *buf, ivj_value *out) {
    if (status == IV_OK) status = ivj_copy_string(r, buf->data, buf->len, out);
    iv_buf_free(buf);
    return status;
}

iv_status ivj_join_two(ivj_run *r, ivj_value a, ivj_value b, ivj_value *out) {
    size_t n = (size_t)a.n + b.n;
    if (a.n == 0 || b.n == 0) {
        *out = ivj_string(a.n ? a.u.s : b.u.s, n);
        return IV_OK;
    }
    IV_TRY(ivj_charge_bytes(r, b.n));
    if (r->tail == a.u.s && r->tail_len == a.n && n <= r->tail_cap) {
        memcpy(r->tail + a.n, b.u.s, b.n);
        r->tail_len = n;
        *out = ivj_string(r->tail, n);
        return IV_OK;
    }
    IV_TRY(ivj_charge_bytes(r, a.n));
    size_t cap = n < TAIL_FROM ? n : n * 2;
    char *s;
    IV_TRY(ivj_alloc(r, cap, 1, &s));
    memcpy(s, a.u.s, a.n);
    memcpy(s + a.n, b.u.s, b.n);
    if (cap > n) r->tail = s, r->tail_len = n, r->tail_cap = cap;
    *out = ivj_string(s, n);
    return IV_OK;
}

/* ---- spans of generation blocks ---- */

iv_status ivj_add_span(ivj_run *r, size_t start, const char *captured, size_t n) {
    iv_text_spans *s = r->spans;
    size_t end, cap, bytes;
    if (captured) {
        ivj_value copy;
        IV_TRY(ivj_copy_string(r, captured, n, &copy));
        if (r->captured_n == r->captured_cap)
            IV_TRY(ivj_grow(r, &r->captured, r->captured_n, sizeof *r->captured, &r->captured_cap));
        r->captured[r->captured_n++] = (ivj_captured_span){start, n, copy.u.s, r->line};
    }
    if (s->count == s->capacity) {
        cap = s->capacity ? s->capacity * 2 : 8;
        iv_text_span *wider = iv_size_mul(cap, sizeof *wider, &bytes) ? realloc(s->at, bytes) : NULL;
        if (!wider) return iv_fail(r->err, IV_NO_MEMORY, "%.200s:%u: no memory for a span", r->name, r->line);
        s->at = wider, s->capacity = cap;
    }
    if (!iv_size_add(start, n, &end)) return ivj_fail_limit(r, "the text is too long");
    s->at[s->count++] = (iv_text_span){start, end};
    return IV_OK;
}

iv_status ivj_check_spans(ivj_run *r) {
    const iv_buf *out = r->top;
    for (size_t i = 0; i < r->captured_n; i++) {
        const ivj_captured_span *c = &r->captured[i];
        r->line = c->line;
        if (c->start > out->len || c->n > out->len - c->start || memcmp(out->data + c->start, c->text, c->n) != 0)
            return ivj_fail(r,
                            "{%% generation %%} inside of a macro, call, filter or set: wanted its text in the output "
                            "where it was rendered (byte %zu), found other text",
                            c->start);
    }
    return IV_OK;
}

iv_status ivj_scope_new(ivj_run *r, ivj_scope *parent, ivj_scope **out) {
    IV_TRY(ivj_alloc(r, 1, sizeof **out, out));
    (*out)->parent = parent;
    return IV_OK;
}

iv_status ivj_assign(ivj_run *r, ivj_scope *scope, uint32_t atom, ivj_value value) {
    for (size_t i = scope->n; i-- > 0;) {
        if (scope->bindings[i].atom != atom) continue;
        scope->bindings[i].value = value;
        return IV_OK;
    }
    IV_TRY(ivj_charge(r, scope->n / 16));
    if (scope->n == scope->cap) IV_TRY(ivj_grow(r, &scope->bindings, scope->n, sizeof *scope->bindings, &scope->cap));
    scope->bindings[scope->n++] = (ivj_binding){.atom = atom, .value = value};
    return IV_OK;
}

iv_status ivj_lookup(ivj_run *r, uint32_t atom, ivj_value *out) {
    size_t looked = 0;
    for (const ivj_scope *scope = r->scope; scope; scope = scope->parent) {
        looked += scope->n + 1;
        for (size_t i = scope->n; i-- > 0;) {
            if (scope->bindings[i].atom != atom) continue;
            *out = scope->bindings[i].value;
            return ivj_charge(r, looked / 16);
        }
    }
    *out = r->context[atom];
    const ivj_atom *name = &r->t->atoms[atom];
    if (out->type == IVJ_MISSING) *out = (ivj_value){.type = IVJ_UNDEFINED, .n = (uint32_t)name->n, .u.s = name->s};
    return ivj_charge(r, looked / 16);
}
