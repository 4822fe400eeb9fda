/* reward.c: the specification of a reward, and the built-in rules. */
#include "train/reward/reward.h"
#include "base/utf8.h"
#include "text/regex.h"
#include "train/reward/process.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RULES = 5, SPEC_MAX = 4096 };
static const char *const names[RULES] = {"exact", "numeric", "boxed", "format", "length"};
enum { EXACT, NUMERIC, BOXED, FORMAT, LENGTH };

struct iv_reward {
    double weight[RULES]; /* NaN: not used */
    double length;
    iv_regex *format;
    iv_regex_work *work;
    iv_reward_process *process; /* instead of rules */
};

static int rule_of(const char *s, size_t n) {
    for (int i = 0; i < RULES; i++)
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0) return i;
    return -1;
}

bool iv_reward_is_command(const char *spec) { return rule_of(spec, strcspn(spec, ":,")) < 0; }

/* Of one term "name" or "name:weight". */
static iv_status read_term(iv_reward *r, const char *spec, const char *term, size_t n, iv_error *err) {
    const char *colon = memchr(term, ':', n);
    size_t length = colon ? (size_t)(colon - term) : n;
    int rule = rule_of(term, length);
    if (rule < 0)
        return iv_fail(err, IV_INVALID, "reward '%s': wanted exact, numeric, boxed, format or length, found '%.*s'",
                       spec, (int)length, term);
    if (!isnan(r->weight[rule]))
        return iv_fail(err, IV_INVALID, "reward '%s': wanted each name once, found %s again", spec, names[rule]);
    r->weight[rule] = 1.0;
    if (!colon) return IV_OK;
    char digits[64], *end;
    size_t m = n - length - 1;
    if (m < sizeof digits) {
        memcpy(digits, colon + 1, m), digits[m] = 0;
        r->weight[rule] = strtod(digits, &end);
        if (m > 0 && *end == 0 && strspn(digits, "+-0123456789.eE") == m && isfinite(r->weight[rule])) return IV_OK;
    }
    return iv_fail(err, IV_INVALID, "reward '%s': wanted a finite weight after %s:, found '%.*s'", spec, names[rule],
                   (int)m, colon + 1);
}

/* A plain word must be a program that the shell would find. */
static iv_status check_word(const char *spec, iv_error *err) {
    if (strpbrk(spec, " \t/=;|&<>()$`\"'\\")) return IV_OK;
    char path[SPEC_MAX + 256];
    for (const char *p = getenv("PATH"); p && *p;) {
        size_t n = strcspn(p, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)(n < SPEC_MAX ? n : SPEC_MAX), p, spec);
        if (access(path, X_OK) == 0) return IV_OK;
        p += n, p += *p == ':';
    }
    return iv_fail(err, IV_INVALID, "reward: wanted exact, numeric, boxed, format, length or a command, found '%s'",
                   spec);
}

static iv_status open_rules(iv_reward *r, const iv_reward_options *o, iv_error *err) {
    for (const char *term = o->spec;;) {
        size_t n = strcspn(term, ",");
        IV_TRY(read_term(r, o->spec, term, n, err));
        if (term[n] == 0) break;
        term += n + 1;
    }
    if (!isnan(r->weight[LENGTH]) && !(o->length > 0.0 && isfinite(o->length)))
        return iv_fail(err, IV_INVALID, "reward length: wanted a length above 0 tokens, found %g", o->length);
    r->length = o->length;
    if (isnan(r->weight[FORMAT])) return IV_OK;
    if (!o->format) return iv_fail(err, IV_INVALID, "reward format: wanted a regular expression, found none");
    r->work = iv_regex_work_new();
    if (!r->work) return iv_fail(err, IV_NO_MEMORY, "reward format: no memory");
    /* The pattern by itself first: a stray bracket must not pair with ours. */
    IV_TRY(iv_regex_open_raw("reward format", o->format, &r->format, err));
    iv_regex_close(r->format), r->format = NULL;
    iv_buf whole = {0};
    iv_status status;
    if (iv_buf_printf(&whole, "\\A(?:%s)\\z", o->format))
        status = iv_regex_open_raw("reward format", whole.data, &r->format, err);
    else
        status = iv_fail(err, IV_NO_MEMORY, "reward format: no memory");
    iv_buf_free(&whole);
    return status;
}

iv_status iv_reward_open(const iv_reward_options *o, iv_reward **out, iv_error *err) {
    *out = NULL;
    if (!o->spec || !o->spec[0] || strlen(o->spec) >= SPEC_MAX)
        return iv_fail(err, IV_INVALID, "reward: wanted 1 to %d bytes, found %zu", SPEC_MAX - 1,
                       o->spec ? strlen(o->spec) : 0);
    iv_reward *r = calloc(1, sizeof *r);
    if (!r) return iv_fail(err, IV_NO_MEMORY, "reward: no memory");
    for (int i = 0; i < RULES; i++) r->weight[i] = (double)NAN;
    iv_status status;
    if (!iv_reward_is_command(o->spec)) {
        status = open_rules(r, o, err);
    } else {
        status = check_word(o->spec, err);
        if (status == IV_OK) status = iv_reward_process_open(o->spec, o->seconds, &r->process, err);
    }
    if (status == IV_OK) return *out = r, IV_OK;
    iv_reward_close(r);
    return status;
}

bool iv_reward_needs_answer(const iv_reward *r) {
    return !isnan(r->weight[EXACT]) || !isnan(r->weight[NUMERIC]) || !isnan(r->weight[BOXED]);
}

/* A completion that is not UTF-8 matches no pattern. */
static iv_status matches(const iv_reward *r, iv_text_view text, bool *found, iv_error *err) {
    iv_regex_scan scan = {0};
    *found = false;
    if (!iv_utf8_valid((const uint8_t *)text.bytes, text.n, NULL)) return IV_OK;
    return iv_regex_next(r->format, r->work, text.n ? text.bytes : "", text.n, &scan, found, err);
}

static iv_status score_rule(const iv_reward *r, int rule, const iv_reward_item *item, double *out, iv_error *err) {
    bool good = false;
    double distance;
    switch (rule) {
    case EXACT: good = iv_reward_exact(item->completion, item->answer); break;
    case NUMERIC: good = iv_reward_numeric(item->completion, item->answer); break;
    case BOXED: good = iv_reward_boxed(item->completion, item->answer); break;
    case FORMAT: IV_TRY(matches(r, item->completion, &good, err)); break;
    default:
        distance = fabs((double)item->tokens - r->length) / r->length;
        *out = distance < 1.0 ? 1.0 - distance : 0.0;
        return IV_OK;
    }
    *out = good ? 1.0 : 0.0;
    return IV_OK;
}

iv_status iv_reward_score(iv_reward *r, const iv_reward_item *items, size_t n, double *reward, iv_error *err) {
    if (r->process) return iv_reward_process_score(r->process, items, n, reward, err);
    for (size_t i = 0; i < n; i++) {
        if (!items[i].answer.bytes && iv_reward_needs_answer(r))
            return iv_fail(err, IV_INVALID, "reward: wanted an answer for completion %zu, found none", i);
        reward[i] = 0.0;
        for (int rule = 0; rule < RULES; rule++) {
            double one;
            if (isnan(r->weight[rule])) continue;
            IV_TRY(score_rule(r, rule, &items[i], &one, err));
            reward[i] += r->weight[rule] * one;
        }
    }
    return IV_OK;
}

void iv_reward_close(iv_reward *r) {
    if (!r) return;
    iv_regex_close(r->format);
    iv_regex_work_free(r->work);
    iv_reward_process_close(r->process);
    free(r);
}
