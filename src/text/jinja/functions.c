/* functions.c: the global functions: Jinja2's range, dict, namespace, cycler, joiner; Hugging Face's
 * raise_exception and strftime_now. */
#include "text/jinja/iter.h"
#include "text/jinja/text.h"

#include <string.h>
#include <time.h>

enum { TIME_BYTES_MAX = 512 };

#define FUNCTION(name) static iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

FUNCTION(make_range) {
    (void)self;
    ivj_value arg[3];
    int64_t start, stop, step;
    IV_TRY(ivj_bind(r, "range", call, "start! stop step", arg));
    IV_TRY(ivj_arg_int(r, "range", arg[0], 0, &start));
    IV_TRY(ivj_arg_int(r, "range", arg[1], 0, &stop));
    IV_TRY(ivj_arg_int(r, "range", arg[2], 1, &step));
    if (arg[1].type == IVJ_MISSING) stop = start, start = 0;
    if (step == 0) return ivj_fail(r, "the step of a range is zero");
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, span = 0;
    if (step > 0 && stop > start) span = (uint64_t)stop - (uint64_t)start;
    if (step < 0 && start > stop) span = (uint64_t)start - (uint64_t)stop;
    uint64_t n = span ? (span - 1) / stride + 1 : 0;
    if (n > IVJ_MAX_RANGE) return ivj_fail(r, "a range has at most %d items", IVJ_MAX_RANGE);
    ivj_range *range;
    IV_TRY(ivj_alloc(r, 1, sizeof *range, &range));
    *range = (ivj_range){.start = start, .stop = stop, .step = step, .n = (size_t)n};
    *out = (ivj_value){.type = IVJ_RANGE, .u.range = range};
    return IV_OK;
}

/* dict(mapping or pairs, **more) */
static iv_status fill_dict(ivj_run *r, const char *what, const ivj_call *call, ivj_dict *d) {
    if (call->n_args > 1) return ivj_fail(r, "%s takes at most 1 positional argument, found %zu", what, call->n_args);
    if (call->n_args && call->args[0].type == IVJ_DICT) {
        const ivj_dict *from = call->args[0].u.dict;
        for (size_t i = 0; i < from->n; i++) IV_TRY(ivj_dict_set(r, d, from->entries[i].key, from->entries[i].value));
    } else if (call->n_args) {
        ivj_list *pairs, *pair;
        IV_TRY(ivj_to_list(r, call->args[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            IV_TRY(ivj_to_list(r, pairs->items[i], &pair));
            if (pair->n != 2) return ivj_fail(r, "%s wants pairs, found %zu items", what, pair->n);
            IV_TRY(ivj_dict_set(r, d, pair->items[0], pair->items[1]));
        }
    }
    for (size_t i = 0; i < call->n_keywords; i++)
        IV_TRY(ivj_dict_set(r, d, call->keywords[i].name, call->keywords[i].value));
    return IV_OK;
}

FUNCTION(make_dict) {
    (void)self;
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = ivj_dict_value(d);
    return fill_dict(r, "dict", call, d);
}

FUNCTION(make_namespace) {
    (void)self;
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = (ivj_value){.type = IVJ_NAMESPACE, .u.dict = d};
    return fill_dict(r, "namespace", call, d);
}

FUNCTION(make_cycler) {
    (void)self;
    ivj_cycler *cycler;
    if (call->n_keywords || call->n_args == 0) return ivj_fail(r, "cycler wants the values to cycle through");
    IV_TRY(ivj_alloc(r, 1, sizeof *cycler, &cycler));
    *cycler = (ivj_cycler){.items = call->args, .n = call->n_args};
    *out = (ivj_value){.type = IVJ_CYCLER, .u.cycler = cycler};
    return IV_OK;
}

FUNCTION(make_joiner) {
    (void)self;
    ivj_value separator, *item;
    ivj_cycler *joiner;
    IV_TRY(ivj_bind(r, "joiner", call, "sep", &separator));
    IV_TRY(ivj_alloc(r, 1, sizeof *item, &item));
    IV_TRY(ivj_alloc(r, 1, sizeof *joiner, &joiner));
    *item = separator.type == IVJ_MISSING ? ivj_text(", ") : separator;
    *joiner = (ivj_cycler){.items = item, .n = 1};
    *out = (ivj_value){.type = IVJ_JOINER, .u.cycler = joiner};
    return IV_OK;
}

FUNCTION(raise_exception) {
    (void)self;
    (void)out;
    ivj_value message;
    IV_TRY(ivj_bind(r, "raise_exception", call, "message!", &message));
    IV_TRY(ivj_str(r, message, &message));
    return ivj_fail(r, "%.*s", (int)(message.n < 800 ? message.n : 800), message.u.s);
}

FUNCTION(strftime_now) {
    (void)self;
    ivj_value format;
    IV_TRY(ivj_bind(r, "strftime_now", call, "format!", &format));
    IV_TRY(ivj_arg_string(r, "strftime_now", format, NULL, &format));
    if (r->now) {
        *out = ivj_text(r->now);
        return IV_OK;
    }
    char pattern[TIME_BYTES_MAX], text[TIME_BYTES_MAX * 4];
    if (format.n >= sizeof pattern - 1 || (format.n && memchr(format.u.s, 0, format.n)))
        return ivj_fail_limit(r, "the format of strftime_now has at most %d bytes", TIME_BYTES_MAX - 2);
    /* A final byte of our own tells an empty result from one that does not fit. */
    if (format.n) memcpy(pattern, format.u.s, format.n);
    memcpy(pattern + format.n, "x", 2);
    time_t now = time(NULL);
    struct tm tm;
    if (now == (time_t)-1 || !localtime_r(&now, &tm)) return ivj_fail(r, "the clock cannot be read");
    size_t n = strftime(text, sizeof text, pattern, &tm);
    if (n == 0) return ivj_fail_limit(r, "the text of strftime_now is too long");
    return ivj_copy_string(r, text, n - 1, out);
}

static const ivj_function globals[] = {{"cycler", make_cycler},       {"dict", make_dict},
                                       {"joiner", make_joiner},       {"namespace", make_namespace},
                                       {"range", make_range},         {"raise_exception", raise_exception},
                                       {"strftime_now", strftime_now}};

const ivj_function *ivj_find_global(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (strlen(globals[i].name) == n && memcmp(globals[i].name, name, n) == 0) return &globals[i];
    return NULL;
}
