/* line.c: the forms of a line, except conversations: which one a line has, strings, ids and masks, answers. */
#include "train/data/line.h"
#include "base/size.h"
#include "format/json.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

static iv_status wrong(const iv_train_line *l, const char *place, const char *wanted, const json_t *found) {
    char shown[IV_JSON_SHOWN_BYTES];
    return iv_train_line_fail(l, "%s: wanted %s, found %s", place, wanted, iv_json_shown(found, shown));
}

static iv_status wrong_at(const iv_train_line *l, const char *list, size_t i, const char *wanted, const json_t *found) {
    char place[64];
    snprintf(place, sizeof place, "%s[%zu]", list, i);
    return wrong(l, place, wanted, found);
}

/* ---- JSON ---- */

/* jansson counts the lines of what it is given, here one: its ":1:COLUMN" becomes the file's ":LINE:COLUMN". */
static iv_status parse(iv_train_line *l) {
    iv_error inner;
    iv_status status = iv_json_parse("", l->json, l->bytes, &l->root, &inner);
    if (status != IV_OK) {
        const char *m = inner.message;
        return iv_fail(l->err, status, "%.300s:%zu%s", l->options->path, l->number,
                       strncmp(m, ":1:", 3) == 0 ? m + 2 : m);
    }
    if (json_is_object(l->root)) return IV_OK;
    return wrong(l, "line", "a JSON object", l->root);
}

/* A member that is not null. */
static json_t *member(const iv_train_line *l, const char *key) {
    json_t *value = json_object_get(l->root, key);
    return json_is_null(value) ? NULL : value;
}

static iv_status string_of(const iv_train_line *l, const char *key, const char **text, size_t *bytes) {
    const json_t *value = member(l, key);
    if (!json_is_string(value)) return wrong(l, key, "a string", value);
    *text = json_string_value(value), *bytes = json_string_length(value);
    return IV_OK;
}

/* ---- text ---- */

enum { TEXT_FLAGS = IV_ENCODE_PARSE_SPECIAL | IV_ENCODE_ADD_SPECIAL };

/* A text of n bytes, learned from byte `from` on, with the end-of-sequence token after it. */
static iv_status learn_text(iv_train_line *l, const char *text, size_t n, size_t from) {
    const iv_text_span span = {from, n};
    IV_TRY(iv_train_line_encode(l, text, n, TEXT_FLAGS, &span, 1));
    int32_t eos = l->text->eos_id;
    if (eos < 0 || l->ids.count == 0 || l->ids.data[l->ids.count - 1] == eos) return IV_OK;
    if (!iv_ids_push(&l->ids, eos) || !iv_train_line_push_mask(l, 1)) return iv_train_line_no_memory(l);
    return iv_train_line_check_ids(l);
}

/* ---- "ids" ---- */

static iv_status read_ids(iv_train_line *l) {
    const json_t *list = member(l, "ids"), *item;
    char wanted[64];
    size_t i;
    if (!json_is_array(list)) return wrong(l, "ids", "a list of token ids", list);
    snprintf(wanted, sizeof wanted, "a token id from 0 to %zu", l->vocab_size - 1);
    json_array_foreach(list, i, item) {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX || (uint64_t)id >= l->vocab_size)
            return wrong_at(l, "ids", i, wanted, item);
        if (!iv_ids_push(&l->ids, (int32_t)id)) return iv_train_line_no_memory(l);
    }
    return IV_OK;
}

static iv_status read_mask(iv_train_line *l) {
    const json_t *list = member(l, "mask"), *item;
    size_t n = l->ids.count, i;
    for (i = 0; !list && i < n; i++)
        if (!iv_train_line_push_mask(l, i ? 1.0f : 0.0f)) return iv_train_line_no_memory(l);
    if (!list) return IV_OK;
    if (!json_is_array(list)) return wrong(l, "mask", "a list of numbers", list);
    if (json_array_size(list) != n)
        return iv_train_line_fail(l, "mask: wanted %zu numbers, one for each id, found %zu", n, json_array_size(list));
    json_array_foreach(list, i, item) {
        double v = json_number_value(item);
        if (!json_is_number(item) || !(v >= 0) || v > (double)FLT_MAX)
            return wrong_at(l, "mask", i, "a number of at least 0 that a float holds", item);
        if (i == 0 && v != 0) return wrong_at(l, "mask", i, "0, as nothing predicts the first token", item);
        if (!iv_train_line_push_mask(l, v > 0 ? (float)v : 0.0f)) return iv_train_line_no_memory(l);
    }
    return IV_OK;
}

static iv_status mask_nothing(iv_train_line *l) {
    iv_buf_clear(&l->mask);
    for (size_t i = 0; i < l->ids.count; i++)
        if (!iv_train_line_push_mask(l, 0)) return iv_train_line_no_memory(l);
    return IV_OK;
}

/* ---- forms ---- */

static iv_status sft_ids(iv_train_line *l, const char *key) {
    (void)key;
    IV_TRY(read_ids(l));
    return read_mask(l);
}

#define NONE_TO_LEARN "%s: wanted at least one message of the role \"assistant\" to learn, found none"

static iv_status sft_messages(iv_train_line *l, const char *key) {
    size_t assistant;
    json_t *messages;
    IV_TRY(iv_train_line_read_messages(l, key, member(l, key), &messages, &assistant));
    iv_status status =
        assistant ? iv_train_line_learn(l, messages, 0) : iv_train_line_fail(l, NONE_TO_LEARN, "messages");
    json_decref(messages);
    return status;
}

static iv_status sft_text(iv_train_line *l, const char *key) {
    const char *text = "";
    size_t n = 0;
    IV_TRY(string_of(l, key, &text, &n));
    return learn_text(l, text, n, 0);
}

/* Of lists of messages. */
static iv_status sft_turns(iv_train_line *l, const json_t *prompt, const json_t *completion) {
    json_t *all = NULL, *more = NULL;
    size_t assistant;
    IV_TRY(iv_train_line_read_messages(l, "prompt", prompt, &all, &assistant));
    size_t from = json_array_size(all);
    iv_status status = iv_train_line_read_messages(l, "completion", completion, &more, &assistant);
    if (status == IV_OK && !assistant) status = iv_train_line_fail(l, NONE_TO_LEARN, "completion");
    if (status == IV_OK && json_array_extend(all, more) != 0) status = iv_train_line_no_memory(l);
    if (status == IV_OK) status = iv_train_line_learn(l, all, from);
    json_decref(all), json_decref(more);
    return status;
}

static iv_status sft_prompt(iv_train_line *l, const char *key) {
    const json_t *prompt = member(l, key);
    const char *text = "", *more = "";
    size_t n = 0, more_n = 0;
    if (json_is_array(prompt)) return sft_turns(l, prompt, member(l, "completion"));
    if (!json_is_string(prompt)) return wrong(l, "prompt", "a string or a list of messages", prompt);
    IV_TRY(string_of(l, key, &text, &n));
    IV_TRY(string_of(l, "completion", &more, &more_n));
    iv_buf_clear(&l->rendered);
    if (!iv_buf_append(&l->rendered, text, n) || !iv_buf_append(&l->rendered, more, more_n))
        return iv_train_line_no_memory(l);
    return learn_text(l, l->rendered.data, l->rendered.len, n);
}

static iv_status rl_ids(iv_train_line *l, const char *key) {
    (void)key;
    IV_TRY(read_ids(l));
    return mask_nothing(l);
}

static iv_status rl_messages(iv_train_line *l, const char *key) {
    size_t assistant;
    json_t *messages;
    IV_TRY(iv_train_line_read_messages(l, key, member(l, key), &messages, &assistant));
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    iv_status status =
        strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0
            ? iv_train_line_fail(l,
                                 "%s: wanted a prompt, which the model continues, found the assistant's message at "
                                 "the end",
                                 key)
            : iv_train_line_prompt(l, key, messages);
    json_decref(messages);
    return status;
}

/* A problem as one user message, or as plain text if the model has no template. */
static iv_status rl_problem(iv_train_line *l, const char *key) {
    json_t *problem = member(l, key);
    if (json_is_array(problem)) return rl_messages(l, key);
    if (!json_is_string(problem)) return wrong(l, key, "a string or a list of messages", problem);
    if (!iv_train_line_has_template(l)) {
        IV_TRY(iv_train_line_encode(l, json_string_value(problem), json_string_length(problem), TEXT_FLAGS, NULL, 0));
        return IV_OK;
    }
    json_t *messages = json_pack("[{s:s, s:O}]", "role", "user", "content", problem);
    if (!messages) return iv_train_line_no_memory(l);
    iv_status status = iv_train_line_prompt(l, key, messages);
    json_decref(messages);
    return status;
}

typedef struct form {
    const char *key;
    iv_status (*read)(iv_train_line *l, const char *key);
} form;

static const form sft_forms[] = {
    {"messages", sft_messages}, {"prompt", sft_prompt}, {"text", sft_text}, {"ids", sft_ids}};
static const form rl_forms[] = {{"messages", rl_messages},
                                {"problem", rl_problem},
                                {"question", rl_problem},
                                {"prompt", rl_problem},
                                {"ids", rl_ids}};

static iv_status no_form(const iv_train_line *l, const char *wanted) {
    const char *key;
    json_t *value;
    char keys[300] = "";
    size_t at = 0;
    json_object_foreach(l->root, key, value) {
        if (at + strlen(key) + 5 > sizeof keys) break;
        at += (size_t)snprintf(keys + at, sizeof keys - at, "%s\"%s\"", at ? ", " : "", key);
    }
    return iv_train_line_fail(l, "wanted %s, found %s", wanted, at ? keys : "no key");
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Members besides the forms'. "id" to "metadata" say something about a line and change nothing. One file may serve both
 * kinds of training: members of the other kind are known. */
static const char *const more_members[] = {"completion", "mask",    "answer", "tools",   "chat_template_kwargs",
                                           "id",         "comment", "source", "metadata"};

static bool is_known(const char *key) {
    for (size_t i = 0; i < COUNT(sft_forms); i++)
        if (strcmp(sft_forms[i].key, key) == 0) return true;
    for (size_t i = 0; i < COUNT(rl_forms); i++)
        if (strcmp(rl_forms[i].key, key) == 0) return true;
    for (size_t i = 0; i < COUNT(more_members); i++)
        if (strcmp(more_members[i], key) == 0) return true;
    return false;
}

static iv_status check_members(const iv_train_line *l) {
    bool sft = l->options->kind == IV_TRAIN_SFT;
    const char *key;
    json_t *value;
    if (l->options->any_members) return IV_OK;
    json_object_foreach(l->root, key, value) {
        if (!is_known(key) && !json_is_null(value))
            return iv_train_line_fail(l,
                                      "%.60s: this member is not known here and would be ignored; remove it, or put it "
                                      "into \"metadata\"",
                                      key);
    }
    /* Each belongs to one form. */
    if (sft && member(l, "mask") && !member(l, "ids"))
        return iv_train_line_fail(l, "mask: wanted \"ids\" with it, found none");
    if (sft && member(l, "completion") && !member(l, "prompt"))
        return iv_train_line_fail(l, "completion: wanted \"prompt\" with it, found none");
    return IV_OK;
}

static iv_status read_form(iv_train_line *l) {
    bool sft = l->options->kind == IV_TRAIN_SFT;
    const form *forms = sft ? sft_forms : rl_forms, *found = NULL;
    size_t n = sft ? sizeof sft_forms / sizeof *sft_forms : sizeof rl_forms / sizeof *rl_forms;
    for (size_t i = 0; i < n; i++) {
        if (!member(l, forms[i].key)) continue;
        if (found)
            return iv_train_line_fail(l, "wanted one source of the tokens, found both \"%s\" and \"%s\"", found->key,
                                      forms[i].key);
        found = &forms[i];
    }
    if (found) IV_TRY(check_members(l));
    if (found) return found->read(l, found->key);
    return no_form(l, sft ? "\"messages\", \"prompt\" with \"completion\", \"text\" or \"ids\""
                          : "\"messages\", \"problem\", \"question\", \"prompt\" or \"ids\"");
}

/* ---- answers ---- */

static iv_status read_answer(iv_train_line *l) {
    const json_t *answer = member(l, "answer");
    const char *text;
    size_t n;
    l->has_answer = answer != NULL;
    if (!answer && l->options->need_answer) return wrong(l, "answer", "a string or a number", NULL);
    if (!answer) return IV_OK;
    if (json_is_string(answer))
        text = json_string_value(answer), n = json_string_length(answer);
    else if (!json_is_number(answer) || !iv_json_member_text(l->json, l->bytes, "answer", &text, &n))
        return wrong(l, "answer", "a string or a number", answer);
    return iv_buf_append(&l->answer, text, n) ? IV_OK : iv_train_line_no_memory(l);
}

/* ---- a line ---- */

static iv_status check_mask(const iv_train_line *l) {
    const float *mask = (const float *)(const void *)l->mask.data;
    IV_ASSERT(l->mask.len == l->ids.count * sizeof *mask);
    if (l->ids.count == 0) return iv_train_line_fail(l, "wanted at least one token, found none");
    if (l->options->kind == IV_TRAIN_RL) return IV_OK;
    for (size_t i = 0; i < l->ids.count; i++)
        if (mask[i] > 0) return IV_OK;
    return iv_train_line_fail(l, "wanted at least one token to learn, found a mask that is zero for all %zu tokens",
                              l->ids.count);
}

iv_status iv_train_line_read(iv_train_line *l) {
    l->ids.count = 0;
    iv_buf_clear(&l->mask), iv_buf_clear(&l->answer), iv_buf_clear(&l->inside);
    l->has_answer = false;
    IV_TRY(parse(l));
    iv_status status = read_form(l);
    if (status == IV_OK && l->options->kind == IV_TRAIN_RL) status = read_answer(l);
    if (status == IV_OK) status = check_mask(l);
    json_decref(l->root);
    l->root = NULL;
    return status;
}

void iv_train_line_free(iv_train_line *l) {
    json_decref(l->root);
    iv_ids_free(&l->ids);
    iv_buf_free(&l->mask), iv_buf_free(&l->answer), iv_buf_free(&l->inside);
    iv_buf_free(&l->rendered), iv_buf_free(&l->partial);
    free(l->spans.at);
}
