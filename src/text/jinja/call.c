/* call.c: binding arguments to parameters; calling values. */
#include "text/jinja/call.h"
#include "text/jinja/eval.h"
#include "text/jinja/text.h"

#include <string.h>

enum { GENERATOR_ARGS_MAX = 4 };

static iv_status bind_keyword(ivj_run *r, const char *what, const ivj_keyword *k, const char *names, ivj_value *out) {
    int n = (int)(k->name.n < 60 ? k->name.n : 60);
    size_t slot = 0;
    for (const char *word = names; *word; slot++) {
        size_t len = strcspn(word, " "), bare = len && word[len - 1] == '!' ? len - 1 : len;
        if (bare == k->name.n && memcmp(word, k->name.u.s, bare) == 0) {
            if (out[slot].type != IVJ_MISSING) return ivj_fail(r, "%s has two values for '%.*s'", what, n, k->name.u.s);
            out[slot] = k->value;
            return IV_OK;
        }
        word += len;
        word += *word == ' ';
    }
    return ivj_fail(r, "%s has no parameter '%.*s'", what, n, k->name.u.s);
}

iv_status ivj_bind(ivj_run *r, const char *what, const ivj_call *call, const char *names, ivj_value *out) {
    size_t slots = 0;
    for (const char *word = names; *word; slots++) {
        word += strcspn(word, " ");
        word += *word == ' ';
    }
    for (size_t i = 0; i < slots; i++) out[i] = (ivj_value){.type = IVJ_MISSING};
    if (call->n_args > slots)
        return ivj_fail(r, "%s takes at most %zu arguments, found %zu", what, slots, call->n_args);
    for (size_t i = 0; i < call->n_args; i++) out[i] = call->args[i];
    for (size_t i = 0; i < call->n_keywords; i++) IV_TRY(bind_keyword(r, what, &call->keywords[i], names, out));
    size_t slot = 0;
    for (const char *word = names; *word; slot++) {
        size_t len = strcspn(word, " ");
        if (word[len - 1] == '!' && out[slot].type == IVJ_MISSING)
            return ivj_fail(r, "%s needs the argument '%.*s'", what, (int)len - 1, word);
        word += len;
        word += *word == ' ';
    }
    return IV_OK;
}

iv_status ivj_arg_int(ivj_run *r, const char *what, ivj_value v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (v.type == IVJ_MISSING) return IV_OK;
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (!ivj_is_int(v)) return ivj_fail(r, "%s wants an integer, found '%s'", what, ivj_type_name(v));
    *out = ivj_as_int(v);
    return IV_OK;
}

iv_status ivj_arg_string(ivj_run *r, const char *what, ivj_value v, const char *fallback, ivj_value *out) {
    *out = v;
    if (v.type == IVJ_MISSING && fallback) *out = ivj_text(fallback);
    if (out->type == IVJ_STRING) return IV_OK;
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    return ivj_fail(r, "%s wants a string, found '%s'", what, ivj_type_name(v));
}

iv_status ivj_call_filter(ivj_run *r, const ivj_filter *f, ivj_value self, const ivj_call *call, ivj_value *out) {
    if (!f->generator) return f->run(r, self, call, out);
    ivj_value bound[GENERATOR_ARGS_MAX];
    ivj_iter *it;
    if (f->names) IV_TRY(ivj_bind(r, f->name, call, f->names, bound));
    IV_TRY(ivj_alloc(r, 1, sizeof *it, &it));
    *it = (ivj_iter){.kind = IVJ_OVER_FILTER, .name = f->generator, .source = self, .filter = f, .call = *call};
    *out = (ivj_value){.type = IVJ_ITERATOR, .u.iter = it};
    return IV_OK;
}

iv_status ivj_call_value(ivj_run *r, ivj_value callee, const ivj_call *call, ivj_value *out) {
    switch ((ivj_type)callee.type) {
    case IVJ_UNDEFINED: return ivj_fail_undefined(r, callee);
    case IVJ_FUNCTION: return callee.u.function->run(r, (ivj_value){0}, call, out);
    case IVJ_METHOD: return callee.u.bound->method->run(r, callee.u.bound->self, call, out);
    case IVJ_MACRO: return ivj_call_macro(r, callee.u.macro, call, out);
    case IVJ_LOOP: return ivj_call_loop(r, callee.u.loop, call, out);
    case IVJ_JOINER: {
        IV_TRY(ivj_bind(r, "joiner()", call, "", NULL));
        *out = callee.u.cycler->at++ ? callee.u.cycler->items[0] : ivj_string("", 0);
        return IV_OK;
    }
    default: return ivj_fail(r, "'%s' object cannot be called", ivj_type_name(callee));
    }
}
