/* Rendered messages, with templates of several kinds; the end of a continued message. */
#include "template_folder.h"
#include "chat_templates.h"
#include "serve/api/handlers.h"
#include "serve/server.h"

#include <sys/stat.h>
#include <unistd.h>

static int make_folder(void **state) {
    (void)state;
    char path[256];
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return symlink(source_path("models/tiny-math/tokenizer.json"), path);
}

typedef struct seen {
    char text[1 << 14];
    bool inside;
    iv_status status;
    size_t ids;
} seen;

static seen render(const iv_render_input *in) {
    seen s = {0};
    iv_text text = {0};
    iv_ids ids = {0};
    iv_error err;
    s.status = iv_render(text_model, in, &text, &s.inside, &err);
    snprintf(s.text, sizeof s.text, "%s", s.status == IV_OK ? text.data : err.message);
    assert_true(s.status != IV_OK || strlen(s.text) == text.bytes);
    if (s.status == IV_OK) ASSERT_OK(iv_tokenize(text_model, text.data, text.bytes, false, &ids, &err), &err);
    s.ids = ids.count;
    iv_text_free(&text), iv_ids_free(&ids);
    return s;
}

/* Renders a user message and `content`, which is continued. */
static seen continued(const char *content) {
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "u", "role", "assistant", "content", content);
    seen s = render(&(iv_render_input){.messages = messages, .continue_final = true});
    json_decref(messages);
    return s;
}

#define EACH(content) "{% for m in messages %}<{{ m.role }}>" content "</>\n{% endfor %}"

static void plain(void **state) {
    (void)state;
    use_template(EACH("{{ m.content }}") "{% if add_generation_prompt %}<assistant>{% endif %}");
    assert_string_equal(continued("so ").text, "<user>u</>\n<assistant>so ");
    assert_string_equal(continued("").text, "<user>u</>\n<assistant>");
    assert_string_equal(continued("</>").text, "<user>u</>\n<assistant></>");
    assert_string_equal(continued("u").text, "<user>u</>\n<assistant>u");
    assert_true(continued("so").ids > 3);
    /* The mark in the text does not confuse it. */
    assert_string_equal(continued("[[invar: continue here]] and").text,
                        "<user>u</>\n<assistant>[[invar: continue here]] and");
}

static void trimming(void **state) {
    (void)state;
    use_template(EACH("{{ m.content | trim }}"));
    assert_string_equal(continued("so \n").text, "<user>u</>\n<assistant>so");
    assert_string_equal(continued(" so").text, "<user>u</>\n<assistant>so");
    assert_string_equal(continued("  ").text, "<user>u</>\n<assistant>");
}

static void thinking(void **state) {
    (void)state;
    use_template(EACH("{{ m.content }}"));
    assert_true(continued("<think>\nhm").inside);
    assert_false(continued("<think>\nhm</think>\n\nso").inside);
    assert_true(continued("<think>a</think><think>b").inside);
    assert_true(continued("<think>\n").inside);
    /* Like templates that put the last message's reasoning elsewhere. */
    use_template(
        "{% for m in messages %}<{{ m.role }}>{% if '</think>' in m.content %}<think>"
        "{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>\n"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}</>{% endfor %}");
    assert_string_equal(continued("<think>hm</think>\n\nso").text, "<user>u</><assistant><think>hm</think>\nso");
    assert_string_equal(continued("<think>hm").text, "<user>u</><assistant><think>hm");
}

static void not_shown(void **state) {
    (void)state;
    use_template("{% for m in messages %}{{ m.role }}{% endfor %}");
    seen s = continued("so");
    assert_int_equal(s.status, IV_INVALID);
    assert_non_null(strstr(s.text, "continue_final_message: the chat template does not show"));
    use_template("{{ raise_exception('no ' + messages[1].role) }}");
    s = continued("so");
    assert_true(s.status != IV_OK && strstr(s.text, "no assistant"));
}

/* A model's message comes back as the client received it. */
static void calls_made_before(void **state) {
    (void)state;
    use_template("{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}");
    json_t *messages = json_pack("[{s:s,s:[{s:s,s:s,s:{s:s,s:s}}]}]", "role", "assistant", "tool_calls", "id", "1",
                                 "type", "function", "function", "name", "f", "arguments",
                                 "{\"a\":1,\"a\":2, \"p\":19.99,\"n\":5,\"id\":12345678901234567890}");
    assert_non_null(messages);
    seen s = render(&(iv_render_input){.messages = messages});
    assert_string_equal(s.text, "{\"a\": 2, \"p\": 19.99, \"n\": 5, \"id\": 1.2345678901234567e+19}");
    json_decref(messages);
}

#define PARTS(content) \
    "{%- if m.content is string %}" content "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"

/* Several text parts reach a template that reads parts; else they are one text. */
static void parts(void **state) {
    (void)state;
    json_t *messages = json_loads("[{\"role\":\"system\",\"content\":[\"s\",{\"type\":\"text\",\"text\":\"t\"}]},"
                                  "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                                  "{\"type\":\"input_text\",\"text\":\"b\"}]},"
                                  "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]},"
                                  "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"d\"},\"e\"]}]",
                                  0, NULL);
    const iv_render_input whole = {.messages = messages}, open = {.messages = messages, .continue_final = true};
    use_template(EACH("{{ m.content }}"));
    assert_string_equal(render(&whole).text, "<system>s\nt</>\n<user>a\nb</>\n<user>c</>\n<assistant>d\ne</>\n");
    assert_string_equal(render(&open).text, "<system>s\nt</>\n<user>a\nb</>\n<user>c</>\n<assistant>d\ne");
    use_template(EACH(PARTS("{{ m.content }}")));
    assert_string_equal(render(&whole).text, "<system>s\nt</>\n<user>ab</>\n<user>c</>\n<assistant>de</>\n");
    assert_string_equal(render(&open).text, "<system>s\nt</>\n<user>ab</>\n<user>c</>\n<assistant>d\ne");
    json_decref(messages);
}

static void verbosities(void **state) {
    (void)state;
    use_template("{{ verbosity | default('-') }}|{{ reasoning_effort | default('-') }}");
    json_t *messages = json_pack("[{ss,ss}]", "role", "user", "content", "u"), *verbosity = json_string("low"),
           *kwargs = json_pack("{ss}", "verbosity", "high");
    assert_string_equal(render(&(iv_render_input){.messages = messages}).text, "-|-");
    assert_string_equal(render(&(iv_render_input){.messages = messages, .verbosity = verbosity}).text, "low|-");
    assert_string_equal(render(&(iv_render_input){.messages = messages, .kwargs = kwargs}).text, "high|-");
    seen both = render(&(iv_render_input){.messages = messages, .verbosity = verbosity, .kwargs = kwargs});
    assert_true(both.status == IV_INVALID && strstr(both.text, "chat_template_kwargs.verbosity: "));
    json_decref(messages), json_decref(verbosity), json_decref(kwargs);
}

/* Reasoning effort as templates expect it; the caller's enable_thinking takes precedence. */
static void efforts(void **state) {
    (void)state;
    static const struct {
        const char *effort, *kwargs, *wanted; /* wanted: or part of the error */
    } cases[] = {
        {NULL, NULL, "-|-"},
        {"high", NULL, "high|True"},
        {"none", NULL, "none|False"},
        {"low", "{\"enable_thinking\":false}", "low|False"},
        {"none", "{\"x\":1}", "none|False"},
        {NULL, "{\"reasoning_effort\":\"odd\"}", "odd|-"},
        {"low", "{\"reasoning_effort\":\"odd\"}", NULL},
    };
    use_template("{{ reasoning_effort | default('-') }}|{{ enable_thinking | default('-') }}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "u");
        json_t *effort = cases[i].effort ? json_string(cases[i].effort) : NULL;
        json_t *kwargs = cases[i].kwargs ? json_loads(cases[i].kwargs, 0, NULL) : NULL;
        seen s = render(&(iv_render_input){.messages = messages, .kwargs = kwargs, .effort = effort});
        if (cases[i].wanted)
            assert_string_equal(s.text, cases[i].wanted);
        else
            assert_true(s.status == IV_INVALID && strstr(s.text, "chat_template_kwargs.reasoning_effort: "));
        json_decref(messages), json_decref(effort), json_decref(kwargs);
    }
}

/* `invar render` treats variables as the server treats a body. */
static void same_as_variables(const char *messages, const char *tools) {
    char json[4000];
    iv_text variables = {0}, text = {0};
    iv_error err;
    json_t *list = json_loads(messages, 0, NULL), *tool_list = tools ? json_loads(tools, 0, NULL) : NULL;
    seen s = render(&(iv_render_input){.messages = list, .tools = tool_list, .generation_prompt = true});
    snprintf(json, sizeof json, "{\"messages\":%s,\"add_generation_prompt\":true%s%s}", messages,
             tools ? ",\"tools\":" : "", tools ? tools : "");
    iv_status status = iv_server_chat_variables(json, strlen(json), NULL, &variables, &err);
    if (status == IV_OK) status = iv_render_chat(text_model, variables.data, variables.bytes, NULL, &text, &err);
    assert_int_equal(status, s.status);
    char shown[sizeof s.text];
    snprintf(shown, sizeof shown, "%s", status == IV_OK ? text.data : err.message);
    assert_string_equal(shown, s.text);
    iv_text_free(&variables), iv_text_free(&text);
    json_decref(list), json_decref(tool_list);
}

static const char *const talks[] = {
    "[{\"role\":\"user\",\"content\":\"a\",\"name\":null,\"tool_calls\":null}]",
    "[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
    "\"b\"]}]",
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning\":\"r\"},"
    "{\"role\":\"user\",\"content\":\"c\"}]",
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\","
    "\"refusal\":null,"
    "\"tool_calls\":[{\"id\":\"123456789\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
    "\\\"x\\\": 1}\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"123456789\",\"content\":\"2\"}]",
    "[{\"role\":\"user\",\"content\":\"a\",\"x\":1}]",
    "[{\"role\":\"ghost\",\"content\":\"a\"}]",
};
static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}}}]";

static void variables(void **state) {
    (void)state;
    use_template("{% for m in messages %}{{ m | tojson }}{{ m.content is none }}{{ m.reasoning_content is defined }}\n"
                 "{% endfor %}{{ tools | tojson }}");
    for (size_t i = 0; i < sizeof talks / sizeof *talks; i++) {
        same_as_variables(talks[i], NULL);
        same_as_variables(talks[i], tool_list);
    }
}

/* Published templates. */
static void variables_of_others(void **state) {
    (void)state;
    json_t *golden = read_chat_templates(), *entry;
    size_t at;
    json_array_foreach(json_object_get(golden, "templates"), at, entry) {
        use_template(json_string_value(json_object_get(entry, "template")));
        for (size_t i = 0; i < sizeof talks / sizeof *talks; i++) {
            same_as_variables(talks[i], NULL);
            same_as_variables(talks[i], tool_list);
        }
    }
    assert_true(at > 5);
    json_decref(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(variables), cmocka_unit_test(variables_of_others),
                                       cmocka_unit_test(plain),     cmocka_unit_test(trimming),
                                       cmocka_unit_test(thinking),  cmocka_unit_test(not_shown),
                                       cmocka_unit_test(parts),     cmocka_unit_test(calls_made_before),
                                       cmocka_unit_test(efforts),   cmocka_unit_test(verbosities)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
