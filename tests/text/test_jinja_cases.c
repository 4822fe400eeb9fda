/* Small templates with Jinja2's own answers (python/jinja_cases.py wrote them): each is rendered to the same
 * text, or refused where Jinja2 refuses. */
#include "support.h"
#include "format/json.h"
#include "text/jinja/template.h"

enum { FILE_BYTES_MAX = 16 << 20 };

/* Counts towards the texts (or errors) that agree; false and a line on stderr for what does not. */
static bool agrees(const json_t *entry, const json_t *variables, const char *now) {
    const json_t *source = json_object_get(entry, "template"), *text = json_object_get(entry, "text");
    const char *shown = json_string_value(source), *wanted = text ? json_string_value(text) : "an error";
    iv_template *t = NULL;
    iv_buf out = {0};
    iv_error err;
    iv_status status = iv_template_parse("case", shown, json_string_length(source), IV_JINJA_CHAT, &t, &err);
    if (status == IV_OK) status = iv_template_render(t, variables, now, &out, &err);
    bool same = text ? status == IV_OK && out.len == json_string_length(text) &&
                           memcmp(out.data ? out.data : "", wanted, out.len) == 0
                     : status == IV_TEMPLATE || status == IV_LIMIT;
    if (!same) {
        print_error("%s\n  wanted %s\n  found  %s\n", shown,
                    text ? wanted : json_string_value(json_object_get(entry, "error")),
                    status == IV_OK ? (out.data ? out.data : "") : err.message);
    }
    iv_buf_free(&out);
    iv_template_close(t);
    return same;
}

static void cases_as_jinja2(void **state) {
    (void)state;
    iv_error err;
    json_t *root, *entry;
    ASSERT_OK(iv_json_read(source_path("tests/data/jinja_cases.json"), FILE_BYTES_MAX, &root, &err), &err);
    const json_t *variables = json_object_get(root, "variables"), *cases = json_object_get(root, "cases");
    const char *now = json_string_value(json_object_get(root, "strftime_now"));
    size_t i, texts = 0, errors = 0, wrong = 0;
    json_array_foreach(cases, i, entry) {
        bool same = agrees(entry, variables, now), is_text = json_object_get(entry, "text") != NULL;
        texts += same && is_text;
        errors += same && !is_text;
        wrong += !same;
    }
    printf("%zu cases: %zu texts equal, %zu errors raised, %zu wrong\n", json_array_size(cases), texts, errors, wrong);
    assert_int_equal(wrong, 0);
    assert_true(texts > 1000 && errors > 500);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_as_jinja2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
