/* decision_questions.c: predicates, choices and scores, as the OpenAI SDK sends them. */
#include "serve/api/decision_questions.h"
#include "format/json.h"
#include "serve/api/handlers.h"

#include <stdio.h>
#include <string.h>

/* By iv_decision_kind. */
static const struct {
    const char *type, *list, *option; /* its list of options, and what an option is called there */
    const char *keys;
    size_t most;
} kinds[] = {
    [IV_DECISION_PREDICATE] = {"predicate", NULL, NULL, "|type|name|instructions|", 0},
    [IV_DECISION_CHOICE] = {"choice", "choices", "value", "|type|name|instructions|choices|", IV_DECISION_CHOICES_MAX},
    [IV_DECISION_SCORE] = {"score", "levels", "label", "|type|name|instructions|levels|", IV_DECISION_LEVELS_MAX},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

const char *iv_decision_list_name(iv_decision_kind kind) { return kinds[kind].list; }

/* ---- checks ------------------------------------------------------------------------------------------- */

static iv_status check_keys(const char *place, const json_t *object, const char *known, iv_error *err) {
    const char *key;
    json_t *value;
    char bars[64];
    if (!json_is_object(object))
        return iv_fail(err, IV_INVALID, "%s: wanted an object, found %s", place, iv_json_type_name(object));
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        snprintf(bars, sizeof bars, "|%.60s|", key);
        if (!json_is_null(value) && !strstr(known, bars)) /* null is treated as absent */
            return iv_fail(err, IV_INVALID, "%s.%.60s: this field is not known here", place, key);
    }
    return IV_OK;
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static iv_status check_string(const char *place, const char *key, const json_t *object, bool wanted, iv_error *err) {
    const json_t *value = member(object, key);
    if (json_is_string(value) || (!value && !wanted)) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s.%s: wanted a string, found %s", place, key,
                   value ? iv_json_type_name(value) : "nothing");
}

/* Strings and booleans that print alike are different values. */
static iv_status check_option(const char *place, size_t at, const json_t *list, iv_decision_kind kind, iv_error *err) {
    const json_t *option = json_array_get(list, at);
    const char *key = kinds[kind].option;
    char name[96];
    snprintf(name, sizeof name, "%s.%s[%zu]", place, kinds[kind].list, at);
    IV_TRY(check_keys(name, option, kind == IV_DECISION_CHOICE ? "|value|description|" : "|label|description|", err));
    IV_TRY(check_string(name, "description", option, false, err));
    const json_t *value = member(option, key);
    if (!json_is_string(value) && !(kind == IV_DECISION_CHOICE && json_is_boolean(value)))
        return iv_fail(err, IV_INVALID, "%s.%s: wanted a string%s, found %s", name, key,
                       kind == IV_DECISION_CHOICE ? " or a boolean" : "", value ? iv_json_type_name(value) : "nothing");
    for (size_t i = 0; i < at; i++)
        if (json_equal(value, json_object_get(json_array_get(list, i), key)))
            return iv_fail(err, IV_INVALID, "%s.%s: %s[%zu] has the same", name, key, kinds[kind].list, i);
    return IV_OK;
}

static iv_status check_question(size_t at, const json_t *question, iv_error *err) {
    char place[32];
    size_t kind = 0;
    snprintf(place, sizeof place, "questions[%zu]", at);
    if (!json_is_object(question))
        return iv_fail(err, IV_INVALID, "%s: wanted an object, found %s", place, iv_json_type_name(question));
    IV_TRY(check_string(place, "type", question, true, err));
    const char *type = json_string_value(json_object_get(question, "type"));
    while (kind < KINDS && strcmp(kinds[kind].type, type) != 0) kind++;
    if (kind == KINDS)
        return iv_fail(err, IV_INVALID, "%s.type: wanted predicate, choice or score, found \"%.40s\"", place, type);
    IV_TRY(check_keys(place, question, kinds[kind].keys, err));
    IV_TRY(check_string(place, "name", question, false, err));
    if (!member(question, "instructions"))
        return iv_fail(err, IV_INVALID, "%s.instructions: wanted a string or a list of parts, found nothing", place);
    if (!kinds[kind].list) return IV_OK;
    const json_t *list = member(question, kinds[kind].list);
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 2 || n > kinds[kind].most)
        return iv_fail(err, IV_INVALID, "%s.%s: wanted a list of 2 to %zu, found %s", place, kinds[kind].list,
                       kinds[kind].most,
                       !list                  ? "nothing"
                       : !json_is_array(list) ? iv_json_type_name(list)
                       : n < 2                ? "fewer"
                                              : "more");
    for (size_t i = 0; i < n; i++) IV_TRY(check_option(place, i, list, (iv_decision_kind)kind, err));
    return IV_OK;
}

iv_status iv_decision_check(const json_t *questions, iv_error *err) {
    size_t n = json_array_size(questions);
    if (n == 0 || n > IV_DECISION_QUESTIONS_MAX)
        return iv_fail(err, IV_INVALID, "questions: wanted a list of 1 to %d questions, found %zu",
                       IV_DECISION_QUESTIONS_MAX, n);
    for (size_t i = 0; i < n; i++) IV_TRY(check_question(i, json_array_get(questions, i), err));
    return IV_OK;
}

iv_decision_kind iv_decision_kind_of(const json_t *question) {
    const char *type = json_string_value(json_object_get(question, "type"));
    size_t kind = 0;
    while (strcmp(kinds[kind].type, type) != 0) kind++;
    return (iv_decision_kind)kind;
}

size_t iv_decision_options(const json_t *question) {
    const char *list = kinds[iv_decision_kind_of(question)].list;
    return list ? json_array_size(json_object_get(question, list)) : 2;
}

/* ---- labels ------------------------------------------------------------------------------------------- */

bool iv_decision_candidate(iv_decision_kind kind, size_t at, iv_decision_label out) {
    static const char *const answers[] = {"Yes", "No", "yes", "no", "True", "False", "A", "B"};
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const size_t upper = 26, single = sizeof letters - 1;
    if (kind == IV_DECISION_PREDICATE) {
        if (at >= sizeof answers / sizeof *answers) return false;
        snprintf(out, IV_DECISION_LABEL_BYTES, "%s", answers[at]);
        return true;
    }
    if (kind == IV_DECISION_SCORE) {
        snprintf(out, IV_DECISION_LABEL_BYTES, "%zu", at);
        return at < IV_DECISION_LEVELS_MAX;
    }
    if (at < single) {
        snprintf(out, IV_DECISION_LABEL_BYTES, "%c", letters[at]);
        return true;
    }
    at -= single;
    snprintf(out, IV_DECISION_LABEL_BYTES, "%c%c", letters[at / upper % upper], letters[at % upper]);
    return at < upper * upper;
}

/* ---- the text ----------------------------------------------------------------------------------------- */

static bool put_json_text(const json_t *value, iv_buf *out) {
    if (json_is_boolean(value)) return iv_buf_puts(out, json_is_true(value) ? "true" : "false");
    return iv_buf_append(out, json_string_value(value), json_string_length(value));
}

static bool put_options(const json_t *question, iv_decision_kind kind, const iv_decision_label *labels, iv_buf *out) {
    const json_t *list = json_object_get(question, kinds[kind].list);
    bool ok = iv_buf_puts(out, kind == IV_DECISION_CHOICE ? "\n\nOptions:\n" : "\n\nLevels, from the lowest:\n");
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *option = json_array_get(list, i), *more = member(option, "description");
        ok = iv_buf_printf(out, "%s. ", labels[i]) && put_json_text(json_object_get(option, kinds[kind].option), out) &&
             (!more || (iv_buf_puts(out, ": ") && put_json_text(more, out))) && iv_buf_puts(out, "\n");
    }
    return ok;
}

iv_status iv_decision_text(const json_t *question, const iv_decision_label *labels, iv_buf *out, iv_error *err) {
    iv_decision_kind kind = iv_decision_kind_of(question);
    json_t *text = NULL;
    IV_TRY(iv_api_read_content("instructions", json_object_get(question, "instructions"), &text, err));
    bool ok;
    if (kind == IV_DECISION_PREDICATE)
        ok = iv_buf_puts(out, "Statement: ") && put_json_text(text, out) &&
             iv_buf_printf(out, "\n\nIs this statement about the above true? Answer %s or %s, and nothing else.",
                           labels[0], labels[1]);
    else
        ok = iv_buf_puts(out, "Question about the above: ") && put_json_text(text, out) &&
             put_options(question, kind, labels, out) &&
             iv_buf_puts(out, kind == IV_DECISION_CHOICE ? "\nAnswer with the label of one option, and nothing else."
                                                         : "\nAnswer with the number of one level, and nothing else.");
    json_decref(text);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "questions: no memory");
}
