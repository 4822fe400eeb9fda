/* Messages to prompts, over templates of several kinds: where a message that is continued ends. */
#include "support.h"
#include "api_fake.h"
#include "serve/api/render.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/invar_render_XXXXXX";
static iv_bridge bridge;
static iv_server server = {.bridge = &bridge, .model_name = "x"};

static int make_folder(void **state) {
    (void)state;
    char path[256];
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return symlink(source_path("models/tiny-math/tokenizer.json"), path);
}

static int remove_folder(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void use_template(const char *text) {
    char path[256];
    iv_error err;
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    iv_textual_close(bridge.words);
    bridge.words = NULL;
    ASSERT_OK(iv_textual_open(folder, &bridge.words, &err), &err);
}

typedef struct seen {
    char text[1000];
    bool inside;
    iv_status status;
    size_t ids, calls;
} seen;

static void finished(void *owner, iv_render *r) {
    seen *s = owner;
    snprintf(s->text, sizeof s->text, "%s", r->status == IV_OK ? r->text.data : r->err.message);
    assert_true(r->status != IV_OK || strlen(s->text) == r->text.bytes);
    s->status = r->status, s->inside = iv_render_opens_reasoning(r), s->ids = r->ids.count;
    s->calls++;
}

/* Renders one message of the user and `content`, which is continued. */
static seen go_on(const char *content) {
    seen s = {0};
    iv_render *r;
    iv_error err;
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "u", "role", "assistant", "content", content);
    iv_render_input in = {.messages = messages, .continue_final = true, .want_ids = true, .owner = &s};
    in.finished = finished;
    ASSERT_OK(iv_render_start(&server, &in, &r, &err), &err);
    assert_null(r);
    assert_int_equal(s.calls, 1);
    json_decref(messages);
    return s;
}

#define EACH(content) "{% for m in messages %}<{{ m.role }}>" content "</>\n{% endfor %}"

static void plain(void **state) {
    (void)state;
    use_template(EACH("{{ m.content }}") "{% if add_generation_prompt %}<assistant>{% endif %}");
    assert_string_equal(go_on("so ").text, "<user>u</>\n<assistant>so ");
    assert_string_equal(go_on("").text, "<user>u</>\n<assistant>");
    assert_string_equal(go_on("</>").text, "<user>u</>\n<assistant></>");
    assert_string_equal(go_on("u").text, "<user>u</>\n<assistant>u");
    assert_true(go_on("so").ids > 3);
    /* Not even the mark itself in the text can mislead it. */
    assert_string_equal(go_on("[[invar: continue here]] and").text,
                        "<user>u</>\n<assistant>[[invar: continue here]] and");
}

static void trimming(void **state) {
    (void)state;
    use_template(EACH("{{ m.content | trim }}"));
    assert_string_equal(go_on("so \n").text, "<user>u</>\n<assistant>so");
    assert_string_equal(go_on(" so").text, "<user>u</>\n<assistant>so");
    assert_string_equal(go_on("  ").text, "<user>u</>\n<assistant>");
}

static void thinking(void **state) {
    (void)state;
    use_template(EACH("{{ m.content }}"));
    assert_true(go_on("<think>\nhm").inside);
    assert_false(go_on("<think>\nhm</think>\n\nso").inside);
    assert_true(go_on("<think>a</think><think>b").inside);
    assert_true(go_on("<think>\n").inside);
    /* As templates do that give the last message's thoughts a place of their own. */
    use_template(
        "{% for m in messages %}<{{ m.role }}>{% if '</think>' in m.content %}<think>"
        "{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>\n"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}</>{% endfor %}");
    assert_string_equal(go_on("<think>hm</think>\n\nso").text, "<user>u</><assistant><think>hm</think>\nso");
    assert_string_equal(go_on("<think>hm").text, "<user>u</><assistant><think>hm");
}

static void not_shown(void **state) {
    (void)state;
    use_template("{% for m in messages %}{{ m.role }}{% endfor %}");
    seen s = go_on("so");
    assert_int_equal(s.status, IV_INVALID);
    assert_non_null(strstr(s.text, "continue_final_message: the chat template does not show"));
    use_template("{{ raise_exception('no ' + messages[1].role) }}");
    s = go_on("so");
    assert_true(s.status != IV_OK && strstr(s.text, "no assistant"));
}

/* What a model wrote comes back as the client got it. */
static void calls_made_before(void **state) {
    (void)state;
    seen s = {0};
    iv_render *r;
    iv_error err;
    use_template("{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}");
    json_t *messages = json_pack("[{s:s,s:[{s:s,s:s,s:{s:s,s:s}}]}]", "role", "assistant", "tool_calls", "id", "1",
                                 "type", "function", "function", "name", "f", "arguments",
                                 "{\"a\":1,\"a\":2, \"p\":19.99,\"n\":5,\"id\":12345678901234567890}");
    assert_non_null(messages);
    iv_render_input in = {.messages = messages, .owner = &s, .finished = finished};
    ASSERT_OK(iv_render_start(&server, &in, &r, &err), &err);
    assert_string_equal(s.text, "{\"a\": 2, \"p\": 19.99, \"n\": 5, \"id\": 1.2345678901234567e+19}");
    json_decref(messages);
}

/* How much to think, as templates ask for it; what the caller says of enable_thinking is not overruled. */
static void efforts(void **state) {
    (void)state;
    static const struct {
        const char *effort, *kwargs, *wanted; /* wanted: or a part of the error */
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
        seen s = {0};
        iv_render *r;
        iv_error err;
        json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "u");
        json_t *effort = cases[i].effort ? json_string(cases[i].effort) : NULL;
        json_t *kwargs = cases[i].kwargs ? json_loads(cases[i].kwargs, 0, NULL) : NULL;
        iv_render_input in = {
            .messages = messages, .kwargs = kwargs, .effort = effort, .owner = &s, .finished = finished};
        iv_status status = iv_render_start(&server, &in, &r, &err);
        if (cases[i].wanted)
            assert_string_equal(s.text, cases[i].wanted);
        else
            assert_true(status == IV_INVALID && strstr(err.message, "chat_template_kwargs.reasoning_effort: "));
        json_decref(messages), json_decref(effort), json_decref(kwargs);
    }
}

/* An owner that has left hears nothing; the rendering ends all the same. */
static void leaving(void **state) {
    (void)state;
    iv_error err;
    seen stays = {0}, leaves = {0};
    iv_render *a, *b;
    use_template(EACH("{{ m.content }}"));
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "u");
    iv_render_input in = {.messages = messages, .owner = &stays, .finished = finished};
    ASSERT_OK(iv_work_open(2, &server.work, &err), &err);
    ASSERT_OK(iv_render_start(&server, &in, &a, &err), &err);
    in.owner = &leaves;
    ASSERT_OK(iv_render_start(&server, &in, &b, &err), &err);
    json_decref(messages); /* it has its own copy */
    assert_non_null(a), assert_non_null(b);
    iv_render_leave(b);
    while (!stays.calls) iv_work_take(server.work), usleep(1000);
    iv_work_close(server.work);
    server.work = NULL;
    assert_true(stays.calls == 1 && leaves.calls == 0);
    assert_string_equal(stays.text, "<user>u</>\n");
    iv_textual_close(bridge.words);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),     cmocka_unit_test(trimming),          cmocka_unit_test(thinking),
        cmocka_unit_test(not_shown), cmocka_unit_test(calls_made_before), cmocka_unit_test(efforts),
        cmocka_unit_test(leaving)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
