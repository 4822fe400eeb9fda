/* The form of a model's tool calls, from templates made for this test, from real ones, and from tokenizers alone. */
#include "../format/scratch.h"
#include "chat_templates.h"
#include "format/json.h"
#include "invar.h"

#include <invar.h>

static iv_tool_form form_of(const char *template) {
    scratch s;
    iv_text_model *t = NULL;
    iv_error err;
    static const char tokens[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    scratch_open(&s);
    scratch_write(&s, "tokenizer_config.json", tokens, strlen(tokens));
    if (template) scratch_write(&s, "chat_template.jinja", template, strlen(template));
    ASSERT_OK(iv_text_model_open(s.dir, &t, &err), &err);
    iv_tool_form form = iv_tool_form_of(t);
    iv_text_model_close(t);
    scratch_close(&s);
    return form;
}

#define EACH_CALL "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% set f = c.function %}"
#define END "{% endfor %}{% endfor %}"
#define TAGS                                                                                                     \
    "<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n" \
    "{% endfor %}</function>\n"

#define LOW "\xe2\x96\x81"
#define MARK(words) "<\xef\xbd\x9ctool" LOW words "\xef\xbd\x9c>"
#define made_v31                                                                \
    EACH_CALL MARK("calls" LOW "begin")                                         \
        MARK("call" LOW "begin") "{{ f.name }}" MARK("sep") "{{ f.arguments | " \
                                                            "tojson }}" MARK("call" LOW "end") END

static void made_templates(void **state) {
    (void)state;
    static const struct {
        const char *text;
        iv_tool_form form;
    } cases[] = {
        {"{{ messages }}", IV_TOOL_FORM_HERMES},
        {"{{ raise_exception('no') }}", IV_TOOL_FORM_HERMES},
        {"{{ tools }}{{ messages[0].content }}", IV_TOOL_FORM_HERMES},
        {EACH_CALL
         "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>" END,
         IV_TOOL_FORM_HERMES},
        {EACH_CALL "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}}" END,
         IV_TOOL_FORM_LLAMA3_JSON},
        {EACH_CALL "{{ '{\"tool\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}}" END,
         IV_TOOL_FORM_HERMES},
        {EACH_CALL "[TOOL_CALLS] [{{ f | tojson }}]" END, IV_TOOL_FORM_MISTRAL},
        {EACH_CALL "[TOOL_CALLS]{{ f.name }}{{ f.arguments | tojson }}" END, IV_TOOL_FORM_MISTRAL_NAME},
        {EACH_CALL "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}" END, IV_TOOL_FORM_MISTRAL_ARGS},
        {EACH_CALL "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}" END,
         IV_TOOL_FORM_MISTRAL_CALL_ID},
        {EACH_CALL "[TOOL_CALLS]{{ f.name }}[OTHER]{{ f.arguments | tojson }}" END, IV_TOOL_FORM_HERMES},
        {EACH_CALL "<tool_call>\n" TAGS "</tool_call>" END, IV_TOOL_FORM_QWEN3_CODER},
        {EACH_CALL "<tool_call>" TAGS END "{\"probe_key\"}", IV_TOOL_FORM_QWEN3_CODER},
        {EACH_CALL "<other:tool_call>\n" TAGS "</other:tool_call>" END, IV_TOOL_FORM_HERMES},
        {EACH_CALL "<seed:tool_call>\n" TAGS "</seed:tool_call>" END, IV_TOOL_FORM_SEED_OSS},
        {EACH_CALL "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments | items %}"
                   "<parameter name=\"{{ k }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>" END,
         IV_TOOL_FORM_MINIMAX_M2},
        {EACH_CALL "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
                   "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>" END,
         IV_TOOL_FORM_GLM},
        {EACH_CALL "<|tool_call|>[{{ f | tojson }}]" END, IV_TOOL_FORM_GRANITE},
        {EACH_CALL "functools[{{ f | tojson }}]" END, IV_TOOL_FORM_PHI4_MINI},
        {EACH_CALL "<tool_calls>[{{ f | tojson }}]</tool_calls>" END, IV_TOOL_FORM_HUNYUAN},
        {EACH_CALL MARK("calls" LOW "begin") MARK("call" LOW "begin") "function" MARK(
             "sep") "{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```" MARK("call" LOW "end") END,
         IV_TOOL_FORM_DEEPSEEK_V3},
        {made_v31, IV_TOOL_FORM_DEEPSEEK_V31},
        {EACH_CALL "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}"
                   "<|tool_call_end|>" END,
         IV_TOOL_FORM_KIMI_K2},
        {EACH_CALL "[{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}{% endfor %})]" END,
         IV_TOOL_FORM_PYTHONIC},
        {EACH_CALL "<|python_start|>[{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}"
                   "{% endfor %})]<|python_end|>" END,
         IV_TOOL_FORM_LLAMA4_PYTHONIC},
        {EACH_CALL "<function_calls>{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}"
                   "{% endfor %})</function_calls>" END,
         IV_TOOL_FORM_OLMO3},
        {EACH_CALL "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
                   "{{ f.arguments | tojson }}<|call|>" END,
         IV_TOOL_FORM_HARMONY},
        {EACH_CALL "<tool_call><function={{ f.name }}>{{ f.arguments | tojson }}</function></tool_call>" END,
         IV_TOOL_FORM_HERMES},
    };
    assert_int_equal(form_of(NULL), IV_TOOL_FORM_HERMES);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (form_of(cases[i].text) != cases[i].form)
            fail_msg("%s: found %s", cases[i].text, iv_tool_form_name(form_of(cases[i].text)));
}

/* Templates that are not listed have Hermes' form, or an unknown one. */
static const struct {
    const char *model;
    iv_tool_form form;
} real[] = {
    {"tokenizer:mistral_nemo", IV_TOOL_FORM_MISTRAL},     {"library/llama3.1:8b", IV_TOOL_FORM_LLAMA3_JSON},
    {"library/llama3.2:3b", IV_TOOL_FORM_LLAMA3_JSON},    {"library/llama3.2-vision:90b", IV_TOOL_FORM_LLAMA3_JSON},
    {"library/llama4:latest", IV_TOOL_FORM_LLAMA3_JSON},  {"library/nemotron:70b", IV_TOOL_FORM_LLAMA3_JSON},
    {"library/qwen3-coder:30b", IV_TOOL_FORM_QWEN3_CODER}};

static void real_templates(void **state) {
    (void)state;
    json_t *all = read_chat_templates(), *one;
    size_t i, met = 0, wanted = 0;
    for (i = 0; i < sizeof real / sizeof *real; i++) wanted += chat_template_of(all, real[i].model) != NULL;
    json_array_foreach(json_object_get(all, "templates"), i, one) {
        const char *model = json_string_value(json_object_get(one, "model"));
        iv_tool_form want = IV_TOOL_FORM_HERMES, found;
        for (size_t k = 0; k < sizeof real / sizeof *real; k++)
            if (strcmp(model, real[k].model) == 0) want = real[k].form, met++;
        found = form_of(json_string_value(json_object_get(one, "template")));
        if (found != want)
            fail_msg("%s: wanted %s, found %s", model, iv_tool_form_name(want), iv_tool_form_name(found));
    }
    assert_int_equal(met, wanted);
    json_decref(all);
}

static void real_tokenizers(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        iv_tool_form form; /* of the tokenizer next to its own template */
    } cases[] = {{"tokenizers/qwen3", IV_TOOL_FORM_HERMES},
                 {"tokenizers/mistral_nemo", IV_TOOL_FORM_MISTRAL},
                 {"tokenizers/gpt2", IV_TOOL_FORM_HERMES}};
    SKIP_WITHOUT(shared_path("tokenizers/qwen3"), "shared/tokenizers");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_text_model *t = NULL;
        iv_error err;
        ASSERT_OK(iv_text_model_open(shared_path(cases[i].dir), &t, &err), &err);
        assert_int_equal(iv_tool_form_of(t), cases[i].form);
        iv_text_model_close(t);
    }
}

/* Without a template the vocabulary decides. */
static void tokens_alone(void **state) {
    (void)state;
    static const struct {
        const char *tokens[2];
        iv_tool_form form;
    } cases[] = {{{"<tool_call>", "[TOOL_CALLS]"}, IV_TOOL_FORM_HERMES},
                 {{"[TOOL_CALLS]", "<|python_tag|>"}, IV_TOOL_FORM_MISTRAL},
                 {{"[TOOL_CALLS]", "[ARGS]"}, IV_TOOL_FORM_MISTRAL_ARGS},
                 {{"<|python_tag|>", "x"}, IV_TOOL_FORM_LLAMA3_JSON},
                 {{"<|channel|>", "<|call|>"}, IV_TOOL_FORM_HARMONY},
                 {{"<tool_call>", "<arg_key>"}, IV_TOOL_FORM_GLM},
                 {{"<seed:tool_call>", "x"}, IV_TOOL_FORM_SEED_OSS},
                 {{"<|tool_call|>", "x"}, IV_TOOL_FORM_GRANITE},
                 {{"<|tool_call|>", "<|tool|>"}, IV_TOOL_FORM_PHI4_MINI},
                 {{"y", "x"}, IV_TOOL_FORM_HERMES}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        char json[1000];
        iv_text_model *t = NULL;
        iv_error err;
        snprintf(json, sizeof json,
                 "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 1, \"content\": \"%s\", \"single_word\": false, "
                 "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 2, "
                 "\"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": "
                 "false, \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": null, "
                 "\"decoder\": null, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}",
                 cases[i].tokens[0], cases[i].tokens[1]);
        scratch_open(&s);
        scratch_write(&s, "tokenizer.json", json, strlen(json));
        ASSERT_OK(iv_text_model_open(s.dir, &t, &err), &err);
        assert_int_equal(iv_tool_form_of(t), cases[i].form);
        iv_text_model_close(t);
        scratch_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_templates),
        cmocka_unit_test(real_templates),
        cmocka_unit_test(real_tokenizers),
        cmocka_unit_test(tokens_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
