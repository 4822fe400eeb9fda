/* The form of a model's reasoning, by its template and its tokens; the state after a prompt; the parts of an answer. */
#include "../format/scratch.h"
#include "chat_templates.h"
#include "format/json.h"
#include "invar.h"

#include <invar.h>

#define TOKEN(id, text)                                                                                           \
    "{\"id\": " #id ", \"content\": \"" text "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, " \
    "\"normalized\": false, \"special\": true}"

/* A tokenizer with these two tokens. */
static iv_text_model *open_model(scratch *s, const char *template, const char *one, const char *two) {
    static const char tokens[] = "{\"eos_token\": \"</s>\"}";
    char json[1000];
    iv_text_model *t = NULL;
    iv_error err;
    snprintf(json, sizeof json,
             "{\"version\": \"1.0\", \"added_tokens\": [" TOKEN(1, "%s") "," TOKEN(
                 2, "%s") "], \"normalizer\": null, "
                          "\"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": null, \"model\": {\"type\": "
                          "\"BPE\", "
                          "\"vocab\": {\"a\": 0}, \"merges\": []}}",
             one, two);
    scratch_open(s);
    scratch_write(s, "tokenizer.json", json, strlen(json));
    scratch_write(s, "tokenizer_config.json", tokens, strlen(tokens));
    if (template) scratch_write(s, "chat_template.jinja", template, strlen(template));
    ASSERT_OK(iv_text_model_open(s->dir, &t, &err), &err);
    return t;
}

static void close_model(scratch *s, iv_text_model *t) {
    iv_text_model_close(t);
    scratch_close(s);
}

static void forms(void **state) {
    (void)state;
    static const struct {
        const char *template, *one, *two;
        iv_reasoning_form form;
    } cases[] = {
        {"{{ messages }}", "x", "y", IV_REASONING_FORM_THINK},
        {"{{ '<think>' }}", "x", "y", IV_REASONING_FORM_THINK},
        {"{{ '<|start|>assistant<|channel|>final<|message|>' }}", "x", "y", IV_REASONING_FORM_HARMONY},
        {"{% set begin = '<seed:think>' %}", "x", "y", IV_REASONING_FORM_SEED_OSS},
        {"[THINK]{{ m }}[/THINK]", "x", "y", IV_REASONING_FORM_MISTRAL},
        {"<think>x</think><answer>", "x", "y", IV_REASONING_FORM_HUNYUAN},
        {"<think>x</think><response>", "x", "y", IV_REASONING_FORM_ERNIE45},
        {"Write 'Here is my thought process:' and 'Here is my response:'", "x", "y", IV_REASONING_FORM_GRANITE},
        {"<answer>", "x", "y", IV_REASONING_FORM_THINK},
        {NULL, "<|channel|>", "<|message|>", IV_REASONING_FORM_HARMONY},
        {NULL, "<|channel|>", "x", IV_REASONING_FORM_THINK},
        {NULL, "<seed:think>", "</seed:think>", IV_REASONING_FORM_SEED_OSS},
        {NULL, "[THINK]", "[/THINK]", IV_REASONING_FORM_MISTRAL},
        {"{{ messages }}", "[THINK]", "[/THINK]", IV_REASONING_FORM_THINK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        iv_text_model *t = open_model(&s, cases[i].template, cases[i].one, cases[i].two);
        if (iv_reasoning_form_of(t) != cases[i].form)
            fail_msg("%s: found %s", cases[i].template, iv_reasoning_form_name(iv_reasoning_form_of(t)));
        close_model(&s, t);
    }
}

/* Templates that are not listed write <think>, or nothing. */
static void real_templates(void **state) {
    (void)state;
    json_t *all = read_chat_templates(), *one;
    size_t i;
    json_array_foreach(json_object_get(all, "templates"), i, one) {
        const char *text = json_string_value(json_object_get(one, "template"));
        scratch s;
        iv_text_model *t = open_model(&s, text, "x", "y");
        const char *model = json_string_value(json_object_get(one, "model"));
        iv_reasoning_form form = iv_reasoning_form_of(t), wanted = IV_REASONING_FORM_THINK;
        if (strcmp(model, "library/granite3.3:2b") == 0) wanted = IV_REASONING_FORM_ERNIE45;
        if (form != wanted) fail_msg("%s: found %s", model, iv_reasoning_form_name(form));
        close_model(&s, t);
    }
    json_decref(all);
}

static void after_prompts(void **state) {
    (void)state;
    static const struct {
        iv_reasoning_form form;
        const char *prompt;
        iv_reasoning after;
    } cases[] = {
        {IV_REASONING_FORM_THINK, "x<think>\n", IV_REASONING_OPEN},
        {IV_REASONING_FORM_THINK, "x</think>\n\n", IV_REASONING_NONE},
        {IV_REASONING_FORM_THINK, "x", IV_REASONING_OPTIONAL},
        {IV_REASONING_FORM_SEED_OSS, "x<seed:think>", IV_REASONING_OPEN},
        {IV_REASONING_FORM_SEED_OSS, "x", IV_REASONING_NONE}, /* no tokens of its own */
        {IV_REASONING_FORM_HUNYUAN, "<think>\n\n</think>\n<answer>\n", IV_REASONING_NONE},
        {IV_REASONING_FORM_GRANITE, "Begin with Here is my thought process: and", IV_REASONING_OPTIONAL},
        {IV_REASONING_FORM_GRANITE, "x", IV_REASONING_NONE},
        {IV_REASONING_FORM_HARMONY, "<|start|>user<|message|>x<|end|><|start|>assistant", IV_REASONING_OPTIONAL},
        {IV_REASONING_FORM_HARMONY, "<|start|>assistant<|channel|>analysis<|message|>x", IV_REASONING_OPEN},
        {IV_REASONING_FORM_HARMONY, "<|start|>assistant<|channel|>final<|message|>x", IV_REASONING_NONE},
        {IV_REASONING_FORM_HARMONY, "<|start|>assistant<|channel|>analysis<|message|>x<|end|>", IV_REASONING_OPTIONAL},
        {IV_REASONING_FORM_HARMONY, "", IV_REASONING_OPTIONAL},
        {IV_REASONING_FORM_NONE, "x<think>", IV_REASONING_NONE},
    };
    scratch s;
    iv_text_model *t = open_model(&s, NULL, "<think>", "</think>");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned wanted = cases[i].after ? (unsigned)cases[i].form * IV_REASONING_FORM_STEP + cases[i].after : 0;
        iv_reasoning found = iv_reasoning_after(t, cases[i].form, cases[i].prompt, strlen(cases[i].prompt));
        if (found != wanted) fail_msg("%s: found %u", cases[i].prompt, (unsigned)found);
    }
    close_model(&s, t);
}

static void shown_tokens(void **state) {
    (void)state;
    int32_t ids[IV_FORM_IDS_MAX];
    scratch s;
    iv_text_model *t = open_model(&s, NULL, "<|channel|>", "<tool_call>");
    assert_int_equal(iv_form_ids(t, IV_REASONING_FORM_HARMONY, IV_TOOL_FORM_HARMONY, ids), 1);
    assert_int_equal(ids[0], 1);
    assert_int_equal(iv_form_ids(t, IV_REASONING_FORM_THINK, IV_TOOL_FORM_NONE, ids), 0);
    assert_int_equal(iv_form_ids(t, IV_REASONING_FORM_THINK, IV_TOOL_FORM_HERMES, ids), 1);
    assert_int_equal(ids[0], 2);
    close_model(&s, t);
}

static void parts(void **state) {
    (void)state;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    static const char text[] = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
                               "to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>";
    iv_text json = {0};
    iv_error err;
    ASSERT_OK(iv_answer_parts(IV_REASONING_FORM_HARMONY, IV_REASONING_NONE, IV_TOOL_FORM_HARMONY, tools, text,
                              strlen(text), &json, &err),
              &err);
    assert_string_equal(json.data, "{\"reasoning\":\"a\",\"content\":\"\",\"tool_calls\":[{\"name\":\"f\","
                                   "\"arguments\":\"{\\\"x\\\": 1}\"}]}");
    iv_text_free(&json);
    ASSERT_OK(iv_answer_parts(IV_REASONING_FORM_THINK, IV_REASONING_OPEN, IV_TOOL_FORM_HERMES, NULL, "a</think>b", 10,
                              &json, &err),
              &err);
    assert_string_equal(json.data, "{\"reasoning\":\"a\",\"content\":\"b\",\"tool_calls\":[]}");
    iv_text_free(&json);
    assert_int_equal(
        iv_answer_parts(IV_REASONING_FORM_THINK, IV_REASONING_OPEN, IV_TOOL_FORM_HERMES, "{}", "", 0, &json, &err),
        IV_INVALID);
    assert_string_equal(err.message, "tools: wanted a list, found object");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms), cmocka_unit_test(real_templates),
                                       cmocka_unit_test(after_prompts), cmocka_unit_test(shown_tokens),
                                       cmocka_unit_test(parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
