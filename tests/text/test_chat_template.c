/* Chat templates: locations, special tokens, the choice of tool_use, and the errors of broken directories. */
#include "format/scratch.h"
#include "base/digest.h"
#include "format/json.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"

static scratch make_directory(const char *jinja, const char *config) {
    scratch d;
    scratch_open(&d);
    if (jinja) scratch_write(&d, "chat_template.jinja", jinja, strlen(jinja));
    if (config) scratch_write(&d, "tokenizer_config.json", config, strlen(config));
    return d;
}

/* Opens the directory and renders `variables` (JSON), both of which must succeed. */
static void assert_renders(const char *jinja, const char *config, const char *variables, const char *wanted) {
    scratch d = make_directory(jinja, config);
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0};
    json_t *json;
    ASSERT_OK(iv_json_parse("variables", variables, strlen(variables), &json, &err), &err);
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    ASSERT_OK(iv_chat_template_render(t, json, "today", &out, &err), &err);
    assert_string_equal(out.data, wanted);
    iv_buf_free(&out);
    iv_chat_template_close(t);
    json_decref(json);
    scratch_close(&d);
}

static void assert_open_fails(const char *jinja, const char *config, iv_status status, const char *part) {
    scratch d = make_directory(jinja, config);
    iv_chat_template *t;
    iv_error err;
    assert_int_equal(iv_chat_template_open(d.dir, &t, &err), status);
    if (!strstr(err.message, part)) fail_msg("'%s' is not in: %s", part, err.message);
    scratch_close(&d);
}

static void finds_the_template(void **state) {
    (void)state;
    assert_renders("{{ bos_token }}{{ x }}\n", "{\"bos_token\": \"<s>\", \"chat_template\": \"no\"}", "{\"x\": 1}",
                   "<s>1");
    assert_renders("{{ x }}{{ bos_token }}", NULL, "{\"x\": 1}", "1");
    assert_renders(NULL,
                   "{\"chat_template\": \"{{ eos_token ~ pad_token }}\", \"eos_token\": {\"content\": \"</s>\"},"
                   " \"pad_token\": null}",
                   "{}", "</s>");
    assert_renders("{{ bos_token }}", "{\"bos_token\": \"<s>\"}", "{\"bos_token\": \"mine\"}", "mine");
    assert_renders("{{ strftime_now('%Y') }}", NULL, "{}", "today");
}

/* Renders the template without variables; spans: the text of its generation blocks, each after a '|'. */
static void assert_spans(const char *jinja, const char *wanted) {
    scratch d = make_directory(jinja, NULL);
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0}, texts = {0};
    iv_text_spans spans = {0};
    bool tagged;
    json_t *none = json_object();
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    for (int twice = 0; twice < 2; twice++)
        ASSERT_OK(iv_chat_template_render_spans(t, none, "today", &out, &spans, &tagged, &err), &err);
    assert_int_equal(tagged, strstr(jinja, "generation") != NULL);
    iv_buf_puts(&texts, "");
    for (size_t i = 0; i < spans.count; i++)
        iv_buf_printf(&texts, "|%.*s", (int)(spans.at[i].end - spans.at[i].start), out.data + spans.at[i].start);
    assert_string_equal(texts.data, wanted);
    free(spans.at);
    iv_buf_free(&out), iv_buf_free(&texts);
    iv_chat_template_close(t);
    json_decref(none);
    scratch_close(&d);
}

static void reports_generation_blocks(void **state) {
    (void)state;
    assert_spans("abc", "");
    assert_spans("a{% generation %}b{% endgeneration %}c", "|b");
    assert_spans("a{%- generation -%} b {%- endgeneration -%} c{%generation%}\n{{ 7 }}{%endgeneration%}", "|b|7");
    assert_spans("a{% generation %}{% endgeneration %}b", "");
    assert_spans("{% for i in range(3) %}x{% generation %}{{ i }}{% endgeneration %}{% endfor %}", "|0|1|2");
    assert_spans("a{% generation %}b{% generation %}c{% endgeneration %}d{% endgeneration %}", "|c|bcd");
    assert_spans("{% macro m() %}{% generation %}b{% endgeneration %}c{% endmacro %}a{{ m() }}{{ m() }}", "|b|b");
    assert_spans("a{% filter trim %}{% generation %}b{% endgeneration %} {% endfilter %}", "|b");
    assert_spans("{% if false %}{% generation %}b{% endgeneration %}{% endif %}", "");
}

static void refuses_generation_blocks_without_a_place(void **state) {
    (void)state;
    static const char *const bad[] = {
        "{% macro m() %}a{% generation %}b{% endgeneration %}{% endmacro %}{{ m() }}",
        "{% set x %}{% generation %}b{% endgeneration %}{% endset %}abc{{ x }}",
        "{% set x %}{% generation %}b{% endgeneration %}{% endset %}",
        "{% filter upper %}{% generation %}b{% endgeneration %}{% endfilter %}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iv_template *t;
        iv_error err;
        iv_buf out = {0};
        iv_text_spans spans = {0};
        json_t *none = json_object();
        ASSERT_OK(iv_template_parse("t", bad[i], strlen(bad[i]), IV_JINJA_CHAT, &t, &err), &err);
        assert_true(iv_template_has_generation(t));
        assert_int_equal(iv_template_render_spans(t, none, "today", &out, &spans, &err), IV_TEMPLATE);
        assert_non_null(strstr(err.message, "t:1: {% generation %} inside of a macro, call, filter or set"));
        ASSERT_OK(iv_template_render(t, none, "today", &out, &err), &err); /* text alone is fine */
        free(spans.at);
        iv_buf_free(&out);
        iv_template_close(t);
        json_decref(none);
    }
}

static void gives_the_defaults_of_apply_chat_template(void **state) {
    (void)state;
    const char *all = "{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ messages }}";
    assert_renders(all, NULL, "{}", "None None False ");
    assert_renders(all, NULL, "{\"tools\": [1], \"documents\": 2, \"add_generation_prompt\": true, \"messages\": []}",
                   "[1] 2 True []");
}

/* transformers 5 renders it too */
static void a_byte_order_mark_is_text(void **state) {
    (void)state;
    assert_renders("\xef\xbb\xbf{{ n }}", NULL, "{\"n\": 1}",
                   "\xef\xbb\xbf"
                   "1");
}

static void chooses_between_named_templates(void **state) {
    (void)state;
    const char *config = "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"},"
                         "{\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"rag\", \"template\": \"{{\"}]}";
    assert_renders(NULL, config, "{}", "D");
    assert_renders(NULL, config, "{\"tools\": []}", "D");
    assert_renders(NULL, config, "{\"tools\": null}", "D");
    assert_renders(NULL, config, "{\"tools\": [1, 2]}", "T2");
}

static void assert_joined(const char *jinja, const char *content, const char *wanted) {
    scratch d = make_directory(jinja, NULL);
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0};
    json_t *json = json_pack("{s:[{s:s, s:o}, {s:s, s:o}]}", "messages", "role", "system", "content",
                             json_loads(content, JSON_DECODE_ANY, NULL), "role", "user", "content",
                             json_loads(content, JSON_DECODE_ANY, NULL));
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    ASSERT_OK(iv_chat_template_fit(t, json, "messages", &err), &err);
    ASSERT_OK(iv_chat_template_render(t, json, NULL, &out, &err), &err);
    assert_string_equal(out.data, wanted);
    iv_buf_free(&out);
    iv_chat_template_close(t);
    json_decref(json);
    scratch_close(&d);
}

/* As transformers renders them; where it would print a list, the parts are joined as in vLLM. */
static void parts_are_for_templates_that_read_them(void **state) {
    (void)state;
    static const char two[] = "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]";
#define LOOP(iterable)                                                                                   \
    "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}{% for c in " iterable \
    " %}{{ c.text }}{% endfor %}{% endif %}]{% endfor %}"
    static const char plain[] = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    assert_joined(plain, two, "[a\nb][a\nb]");
    assert_joined(plain, "\"a\"", "[a][a]");
    assert_joined(plain, "[]", "[][]");
    assert_joined(LOOP("m.content"), two, "[a\nb][ab]");
    assert_joined(LOOP("m['content'][::-1]"), two, "[a\nb][ba]");
    assert_joined(LOOP("m.content|reverse"), two, "[a\nb][ba]");
    assert_joined(LOOP("m.content"), "\"a\"", "[a][a]");
    assert_joined(LOOP("m.contents"), two, "[a\nb][a\nb]");
    assert_joined(LOOP("m['content'].x"), two, "[a\nb][a\nb]");
#undef LOOP
}

/* Older directories keep the tokens in a separate file; newer ones may have a copy, which is ignored. */
static void tokens_of_their_own_file(void **state) {
    (void)state;
    static const struct {
        const char *config, *wanted;
    } cases[] = {{NULL, "<s>/</s>"},
                 {"{\"bos_token\": \"<b>\", \"pad_token\": \"<p>\"}", "<s>/</s><p>"},
                 {"{\"bos_token\": \"<b>\", \"added_tokens_decoder\": {}}", "<b>/"}};
    static const char map[] = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch d = make_directory("{{ bos_token }}/{{ eos_token }}{{ pad_token }}", cases[i].config);
        iv_chat_template *t;
        iv_error err;
        iv_buf out = {0};
        json_t *none = json_object();
        scratch_write(&d, "special_tokens_map.json", map, sizeof map - 1);
        ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
        ASSERT_OK(iv_chat_template_render(t, none, NULL, &out, &err), &err);
        assert_string_equal(out.data, cases[i].wanted);
        iv_chat_template_close(t);
        json_decref(none);
        iv_buf_free(&out);
        scratch_close(&d);
    }
}

/* The files that transformers saves for a list of named templates today. */
static void chooses_between_template_files(void **state) {
    (void)state;
    scratch d = make_directory("D", "{\"chat_template\": \"no\"}");
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0};
    json_t *none = json_object(), *tools = json_pack("{s[i]}", "tools", 1);
    assert_int_equal(mkdir(scratch_path(&d, "additional_chat_templates"), 0777), 0);
    scratch_write(&d, "additional_chat_templates/tool_use.jinja", "T{{ tools|length }}", 19);
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    ASSERT_OK(iv_chat_template_render(t, none, NULL, &out, &err), &err);
    assert_string_equal(out.data, "D");
    iv_buf_clear(&out);
    ASSERT_OK(iv_chat_template_render(t, tools, NULL, &out, &err), &err);
    assert_string_equal(out.data, "T1");
    iv_chat_template_close(t);
    scratch_write(&d, "additional_chat_templates/tool_use.jinja", "{{", 2);
    iv_buf_clear(&out);
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err); /* chats without tools still work */
    ASSERT_OK(iv_chat_template_render(t, none, NULL, &out, &err), &err);
    assert_string_equal(out.data, "D");
    assert_int_equal(iv_chat_template_render(t, tools, NULL, &out, &err), IV_TEMPLATE);
    assert_non_null(strstr(err.message, "additional_chat_templates/tool_use.jinja:1: "));
    iv_chat_template_close(t);
    unlink(scratch_path(&d, "additional_chat_templates/tool_use.jinja"));
    json_decref(none), json_decref(tools);
    iv_buf_free(&out);
    scratch_close(&d);
}

static void refuses_broken_directories(void **state) {
    (void)state;
    assert_open_fails(NULL, NULL, IV_NOT_FOUND, "no chat template");
    assert_open_fails(NULL, "{}", IV_NOT_FOUND, "no chat template");
    assert_open_fails(NULL, "{\"chat_template\": null}", IV_NOT_FOUND, "no chat template");
    assert_open_fails(NULL, "{\"chat_template\": 5}", IV_FORMAT, "wanted a string or an array, found integer");
    assert_open_fails(NULL, "{\"chat_template\": [5]}", IV_FORMAT, "chat_template[0]");
    assert_open_fails(NULL, "{\"chat_template\": []}", IV_NOT_FOUND, "\"default\"");
    assert_open_fails(NULL, "[]", IV_FORMAT, "wanted an object, found array");
    assert_open_fails(NULL, "{", IV_FORMAT, "not valid JSON");
    assert_open_fails("x", "{\"bos_token\": 5}", IV_FORMAT, "bos_token: wanted a string, found integer");
    iv_chat_template *t;
    iv_error err;
    assert_int_equal(iv_chat_template_open("/nonexistent", &t, &err), IV_NOT_FOUND);
}

/* Only chats need a template. */
static void a_template_that_does_not_parse_fails_when_it_is_wanted(void **state) {
    (void)state;
    scratch d = make_directory("a\n{% if %}", NULL);
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0};
    uint8_t digest[32], none[32] = {0};
    json_t *variables = json_object();
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    assert_int_equal(iv_chat_template_render(t, variables, NULL, &out, &err), IV_TEMPLATE);
    assert_non_null(strstr(err.message, "chat_template.jinja:2: "));
    iv_chat_template_digest(t, digest);
    assert_memory_not_equal(digest, none, sizeof none);
    iv_chat_template_close(t);
    json_decref(variables);
    iv_buf_free(&out);
    scratch_close(&d);
}

static void render_errors_name_the_line(void **state) {
    (void)state;
    scratch d = make_directory("a\n{{ raise_exception('Roles\nmust alternate') }}", NULL);
    iv_chat_template *t;
    iv_error err;
    iv_buf out = {0};
    json_t *list = json_array(), *none = json_object();
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    assert_int_equal(iv_chat_template_render(t, none, NULL, &out, &err), IV_TEMPLATE);
    assert_non_null(strstr(err.message, "chat_template.jinja:2: Roles\\x0amust alternate"));
    assert_int_equal(iv_chat_template_render(t, list, NULL, &out, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "wanted an object, found array"));
    json_decref(list);
    json_decref(none);
    iv_buf_free(&out);
    iv_chat_template_close(t);
    scratch_close(&d);
}

static void digest_of(const char *jinja, const char *config, char hex[65]) {
    scratch d = make_directory(jinja, config);
    iv_chat_template *t;
    iv_error err;
    uint8_t digest[32];
    ASSERT_OK(iv_chat_template_open(d.dir, &t, &err), &err);
    iv_chat_template_digest(t, digest);
    iv_digest_hex(digest, hex);
    iv_chat_template_close(t);
    scratch_close(&d);
}

static void digest_covers_templates_and_tokens(void **state) {
    (void)state;
    static const char *const inputs[][2] = {
        {"a", NULL}, {"b", NULL}, {"a", "{\"bos_token\": \"x\"}"}, {"a", "{\"eos_token\": \"x\"}"}};
    enum { N = sizeof inputs / sizeof *inputs };
    char hex[N][65], other[65];
    for (int i = 0; i < N; i++) {
        digest_of(inputs[i][0], inputs[i][1], hex[i]);
        for (int k = 0; k < i; k++) assert_string_not_equal(hex[i], hex[k]);
    }
    digest_of(NULL, "{\"chat_template\": \"a\", \"bos_token\": {\"content\": \"x\"}}", other);
    assert_string_equal(other, hex[2]); /* its location does not matter */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_the_template),
                                       cmocka_unit_test(gives_the_defaults_of_apply_chat_template),
                                       cmocka_unit_test(reports_generation_blocks),
                                       cmocka_unit_test(refuses_generation_blocks_without_a_place),
                                       cmocka_unit_test(a_byte_order_mark_is_text),
                                       cmocka_unit_test(chooses_between_named_templates),
                                       cmocka_unit_test(parts_are_for_templates_that_read_them),
                                       cmocka_unit_test(tokens_of_their_own_file),
                                       cmocka_unit_test(chooses_between_template_files),
                                       cmocka_unit_test(refuses_broken_directories),
                                       cmocka_unit_test(a_template_that_does_not_parse_fails_when_it_is_wanted),
                                       cmocka_unit_test(render_errors_name_the_line),
                                       cmocka_unit_test(digest_covers_templates_and_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
