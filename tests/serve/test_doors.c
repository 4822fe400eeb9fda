/* One conversation, one list of token ids: the server and its batch files (iv_render), training data
 * (iv_train_data_parse), and invar generate, chat, eval and the Python package (iv_render_chat). Also the marks of
 * known templates. */
#include "template_folder.h"
#include "chat_templates.h"
#include "serve/api/handlers.h"
#include "train/data/data.h"

#include <unistd.h>

static int make_folder(void **state) {
    (void)state;
    char path[256];
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    fputs("{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}", file);
    fclose(file);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return symlink(source_path("models/tiny-math/tokenizer.json"), path);
}

/* What a door made: ids and their text, or an error. */
typedef struct result {
    iv_ids ids;
    char text[1 << 13];
    iv_status status;
} result;

static void take_ids(result *m, const char *text, size_t n) {
    iv_error err;
    ASSERT_OK(iv_tokenize(text_model, text, n, false, &m->ids, &err), &err);
}

static void by_server(const char *messages, result *m) {
    json_t *list = json_loads(messages, 0, NULL);
    iv_text text = {0};
    iv_error err;
    bool open;
    m->status =
        iv_render(text_model, &(iv_render_input){.messages = list, .generation_prompt = true}, &text, &open, &err);
    snprintf(m->text, sizeof m->text, "%s", m->status == IV_OK ? text.data : err.message);
    if (m->status == IV_OK) take_ids(m, text.data, text.bytes);
    iv_text_free(&text);
    json_decref(list);
}

static void by_public_call(const char *messages, result *m) {
    char variables[4096];
    iv_text text = {0};
    iv_error err;
    snprintf(variables, sizeof variables, "{\"messages\":%s,\"add_generation_prompt\":true}", messages);
    m->status = iv_render_chat(text_model, variables, strlen(variables), NULL, &text, &err);
    snprintf(m->text, sizeof m->text, "%s", m->status == IV_OK ? text.data : err.message);
    if (m->status == IV_OK) take_ids(m, text.data, text.bytes);
    iv_text_free(&text);
}

static void by_training_data(const char *messages, result *m) {
    char line[4096];
    iv_train_data *data = NULL;
    iv_error err;
    snprintf(line, sizeof line, "{\"messages\":%s}", messages);
    m->status = iv_train_data_parse(&(iv_train_data_options){.path = "d", .kind = IV_TRAIN_RL}, text_model, line,
                                    strlen(line), &data, &err);
    snprintf(m->text, sizeof m->text, "%s", m->status == IV_OK ? "" : err.message);
    if (m->status != IV_OK) return;
    iv_train_example e = iv_train_data_example(data, 0);
    for (size_t i = 0; i < e.count; i++) assert_true(iv_ids_push(&m->ids, e.ids[i]));
    iv_train_data_close(data);
}

/* The text that all doors have. */
static const char *text_of_all(const char *messages) {
    static result made[3];
    for (size_t i = 0; i < 3; i++) iv_ids_free(&made[i].ids), made[i] = (result){0};
    by_server(messages, &made[0]);
    by_public_call(messages, &made[1]);
    by_training_data(messages, &made[2]);
    for (size_t i = 0; i < 3; i++)
        if (made[i].status != IV_OK) fail_msg("door %zu, %s\n%s", i, messages, made[i].text);
    assert_string_equal(made[1].text, made[0].text);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(made[i].ids.count, made[0].ids.count);
        assert_memory_equal(made[i].ids.data, made[0].ids.data, made[0].ids.count * sizeof *made[0].ids.data);
    }
    return made[0].text;
}

static void refused_by_all(const char *messages, const char *wanted) {
    static result made[3];
    by_server(messages, &made[0]);
    by_public_call(messages, &made[1]);
    by_training_data(messages, &made[2]);
    for (size_t i = 0; i < 3; i++)
        if (made[i].status == IV_OK || !strstr(made[i].text, wanted))
            fail_msg("door %zu, %s\nwanted '%s', found %s", i, messages, wanted, made[i].text);
}

static void shown(const char *messages, const char *part) {
    const char *text = text_of_all(messages);
    if (!strstr(text, part)) fail_msg("%s\nwanted '%s' in: %s", messages, part, text);
}

static void not_shown(const char *messages, const char *part) {
    const char *text = text_of_all(messages);
    if (strstr(text, part)) fail_msg("%s\nwanted no '%s' in: %s", messages, part, text);
}

#define U(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALL(arguments)                                                                                               \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"123456789\",\"type\":\"function\","           \
    "\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]},{\"role\":\"tool\",\"tool_call_id\":\"123456789\"," \
    "\"name\":\"f\",\"content\":\"2\"}"
#define PARTS \
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"pa\"},{\"type\":\"text\",\"text\":\"pb\"}]}"

/* What every template must show in the same way. */
static void common(bool calls) {
    shown("[" PARTS "]", "pa\npb");
    if (calls) {
        not_shown("[" U("a") "," CALL("\"{\\\"x\\\": 1}\"") "]", "\\\"");
        not_shown("[" U("a") "," CALL("{\"x\":1}") "]", "None");
        char *as_text = strdup(text_of_all("[" U("a") "," CALL("\"{\\\"x\\\": 1}\"") "]"));
        assert_string_equal(text_of_all("[" U("a") "," CALL("{\"x\":1}") "]"), as_text);
        free(as_text);
    }
    shown("[{\"role\":\"developer\",\"content\":\"dev text\"}," U("a") "]", "dev text");
    shown(
        "[{\"role\":\"system\",\"content\":\"sys text\"},{\"role\":\"developer\",\"content\":\"dev text\"}," U("a") "]",
        "sys text");
    shown(
        "[{\"role\":\"system\",\"content\":\"sys text\"},{\"role\":\"developer\",\"content\":\"dev text\"}," U("a") "]",
        "dev text");
    refused_by_all("[" U("a") ",{\"role\":\"user\",\"content\":\"b\",\"xyzzy\":1}]", "messages[1].xyzzy: ");
    refused_by_all("[" U("a") ",{\"role\":\"ghost\",\"content\":\"b\"}]", "messages[1].role: wanted system");
    refused_by_all("[" U("a") ",{\"role\":\"user\",\"content\":7}]", "messages[1].content: wanted a string");
    refused_by_all(
        "[" U("a") ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"image_url\","
                   "\"image_url\":{\"url\":\"data:,\"}}]}]",
        "messages[1].content[1].type: wanted \"text\", as models read text alone here, found \"image_url\"");
    refused_by_all("[" U("a") "," CALL("\"{\\\"x\\\": \"") "]", "messages[1].tool_calls[0].function.arguments: wanted");
    refused_by_all("[" U("a") "," CALL("[1]") "]", "messages[1].tool_calls[0].function.arguments: wanted");
    refused_by_all("[" U("a") ",{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"a\",\"thinking\":\"b\"}]",
                   "messages[1].thinking: wanted the text of \"reasoning\", found another");
}

/* In the manner of gpt-oss: reads "thinking" and one instruction, of either role. */
static const char reads_thinking[] =
    "{%- if messages[0].role == 'developer' or messages[0].role == 'system' %}[I]{{ messages[0].content }}{%- set rest "
    "= "
    "messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}{%- for m in rest %}{%- if m.role == 'assistant' "
    "%}"
    "{%- if m.thinking %}[T]{{ m.thinking }}{% endif %}[A]{{ m.content }}{%- if m.tool_calls %}[C]"
    "{{ m.tool_calls[0].function.arguments|tojson }}{%- endif %}{%- elif m.role == 'user' or m.role == 'tool' %}[U]"
    "{{ m.content }}{%- endif %}{%- endfor %}[A]";

static void templates_of_our_own(void **state) {
    (void)state;
    static const char *const names[] = {"thinking", "reasoning", "reasoning_content"};
    char messages[300], template[400];
    use_template(reads_thinking);
    common(true);
    assert_string_equal(
        text_of_all("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":\"d\"}," U("a") "]"),
        "[I]s\n\nd[U]a[A]");
    refused_by_all("[" U("a") "," A("b") ",{\"role\":\"developer\",\"content\":\"d\"}," U("c") "]",
                   "messages[2].role: wanted no \"developer\" after other messages");
    for (size_t given = 0; given < 3; given++)
        for (size_t read = 0; read < 3; read++) {
            snprintf(template, sizeof template,
                     "{%% for m in messages %%}<{{ m.role }}>{{ m['%s'] or '' }}|{{ m.content }}{%% endfor %%}",
                     names[read]);
            use_template(template);
            snprintf(messages, sizeof messages,
                     "[" U("a") ",{\"role\":\"assistant\",\"content\":\"b\",\"%s\":\"why\"}," U("c") "]", names[given]);
            assert_string_equal(text_of_all(messages), "<user>|a<assistant>why|b<user>|c");
        }
    /* What a template names, it gets. */
    use_template("{% for m in messages %}{{ m.content }}{% if m.prefix %}+{% endif %}{% if m.role == 'ipython' %}!"
                 "{% endif %}{% endfor %}");
    assert_string_equal(text_of_all("[{\"role\":\"ipython\",\"content\":\"a\",\"prefix\":true}]"), "a+!");
    /* Chat templates that show any role still get the known one. */
    use_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    assert_string_equal(
        text_of_all("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":\"d\"}," U("a") "]"),
        "<system>s<system>d<user>a");
}

static void published_templates(void **state) {
    (void)state;
    static const struct {
        const char *model;
        bool calls;
    } models[] = {{"tokenizer:mistral_nemo", true},
                  {"library/llama3.1:8b", true},
                  {"tokenizer:qwen3", true},
                  {"library/qwen3-next:80b", true},
                  {"library/qwen2.5:0.5b", true}};
    json_t *file = read_chat_templates();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *source = chat_template_of(file, models[i].model);
        if (!source) continue;
        use_template(source);
        common(models[i].calls);
    }
    const char *llama = chat_template_of(file, "library/llama3.1:8b");
    if (llama) {
        use_template(llama);
        not_shown("[" U("a") "," A("b") ",{\"role\":\"assistant\",\"content\":null}," U("c") "]", "None");
    }
    use_template(chat_template_of(file, "tokenizer:qwen3"));
    shown("[" U("a") ",{\"role\":\"assistant\",\"thinking\":\"why\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                     "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"2\"}]",
          "<think>\nwhy\n</think>");
    json_decref(file);
}

/* ---- marks of known templates --------------------------------------------------------------------------- */

/* The learned text, with '|' before each part. */
static void learns(const char *line, const char *wanted) {
    iv_train_data *data = NULL;
    iv_error err;
    iv_buf got = {0};
    ASSERT_OK(iv_train_data_parse(&(iv_train_data_options){.path = "d", .kind = IV_TRAIN_SFT}, text_model, line,
                                  strlen(line), &data, &err),
              &err);
    iv_train_example e = iv_train_data_example(data, 0);
    for (size_t i = 0; i < e.count; i++) {
        iv_text one;
        if (!(e.mask[i] > 0)) continue;
        if (!(e.mask[i - 1] > 0)) assert_true(iv_buf_putc(&got, '|'));
        ASSERT_OK(iv_detokenize(text_model, e.ids + i, 1, true, &one, &err), &err);
        assert_true(iv_buf_append(&got, one.data, one.bytes));
        iv_text_free(&one);
    }
    assert_string_equal(got.len ? got.data : "", wanted);
    iv_buf_free(&got);
    iv_train_data_close(data);
}

#define THOUGHT(why, text) "{\"role\":\"assistant\",\"reasoning_content\":\"" why "\",\"content\":\"" text "\"}"

static void qwen3_learns_turns_without_marks_of_its_own(void **state) {
    (void)state;
    json_t *file = read_chat_templates();
    use_template(chat_template_of(file, "tokenizer:qwen3"));
    learns("{\"messages\":[" U("a") "," THOUGHT("r", "b") "," U("c") "," THOUGHT("s", "d") "]}",
           "|b<|im_end|>|<think>\ns\n</think>\n\nd<|im_end|>");
    learns("{\"messages\":[" U(
               "a") ",{\"role\":\"assistant\",\"thinking\":\"r\",\"content\":\"x\",\"tool_calls\":[{\"name\":"
                    "\"f\",\"arguments\":\"{\\\"n\\\":1}\"}]},{\"role\":\"tool\",\"content\":\"2\"}," A("d") "," U(
                        "e") "," A("f") "]}",
           "|x\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call><|im_end|>|d<|im_end|>"
           "|<think>\n\n</think>\n\nf<|im_end|>");
    learns("{\"chat_template_kwargs\":{\"enable_thinking\":false},\"messages\":[" U("a") "," A("b") "," U("c") "," A(
               "d") "]}",
           "|b<|im_end|>|d<|im_end|>");
    learns("{\"messages\":[" U("a") ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0}," U("c") "," A("d") "]}",
           "|<think>\n\n</think>\n\nd<|im_end|>");
    learns("{\"prompt\":[" U("a") "," A("b") "," U("c") "],\"completion\":[" A("d") "]}",
           "|<think>\n\n</think>\n\nd<|im_end|>");
    use_template(chat_template_of(file, "library/qwen3-next:80b")); /* its prompt opens <think> */
    learns("{\"messages\":[" U("a") "," THOUGHT("r", "b") "," U("c") "," THOUGHT("s", "d") "]}",
           "|b<|im_end|>|s\n</think>\n\nd<|im_end|>");
    json_decref(file);
}

/* Marks change no text: every conversation of the recorded cases. */
static void marks_change_no_text(void **state) {
    (void)state;
    static const char *const models[] = {"tokenizer:qwen3", "library/qwen3-next:80b"};
    json_t *file = read_chat_templates(), *common_variables = json_object_get(file, "variables");
    size_t compared = 0;
    const char *name;
    for (size_t m = 0; m < 2; m++) {
        use_template(chat_template_of(file, models[m]));
        json_t *c;
        json_object_foreach(json_object_get(file, "cases"), name, c) {
            iv_buf text = {0};
            iv_text_spans spans = {0};
            iv_error err;
            bool tagged;
            json_t *all = json_copy(common_variables);
            assert_int_equal(json_object_update(all, c), 0);
            if (iv_chat_template_render_spans(text_model->chat, all, "d", &text, &spans, &tagged, &err) == IV_OK) {
                assert_true(tagged); /* false: the texts differ */
                compared++;
            }
            free(spans.at);
            iv_buf_free(&text);
            json_decref(all);
        }
    }
    assert_true(compared >= 14);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates_of_our_own), cmocka_unit_test(published_templates),
                                       cmocka_unit_test(qwen3_learns_turns_without_marks_of_its_own),
                                       cmocka_unit_test(marks_change_no_text)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
