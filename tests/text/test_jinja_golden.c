/* Real chat templates: every text that Jinja2 renders is rendered to the byte, and what Jinja2 refuses is
 * refused. */
#include "support.h"
#include "format/json.h"
#include "text/jinja/template.h"

enum { FILE_BYTES_MAX = 64 << 20 };

typedef struct tally {
    size_t texts, errors, wrong;
} tally;

static void check(const char *model, const char *name, const iv_template *t, const json_t *variables,
                  const char *now, const json_t *expect, tally *count) {
    iv_buf out = {0};
    iv_error err;
    const json_t *text = json_object_get(expect, "text");
    iv_status status = iv_template_render(t, variables, now, &out, &err);
    if (!text) {
        assert_non_null(json_object_get(expect, "error"));
        if (status == IV_TEMPLATE) count->errors++;
        else print_error("%s, %s: wanted an error, rendered %s\n", model, name, out.data);
        count->wrong += status != IV_TEMPLATE;
    } else if (status != IV_OK) {
        print_error("%s, %s: %s\n", model, name, err.message);
        count->wrong++;
    } else if (out.len != json_string_length(text) || memcmp(out.data, json_string_value(text), out.len) != 0) {
        print_error("%s, %s: wanted\n%s\nrendered\n%s\n", model, name, json_string_value(text), out.data);
        count->wrong++;
    } else count->texts++;
    iv_buf_free(&out);
}

static void golden_templates(void **state) {
    (void)state;
    const char *path = shared_path("golden/chat_templates.json");
    SKIP_WITHOUT(path, "golden/chat_templates.json");
    iv_error err;
    json_t *root, *entry, *each, *conversation;
    ASSERT_OK(iv_json_read(path, FILE_BYTES_MAX, &root, &err), &err);
    const char *now = json_string_value(json_object_get(root, "strftime_now")), *name;
    tally count = {0};
    size_t i;
    json_array_foreach(json_object_get(root, "templates"), i, entry) {
        const char *model = json_string_value(json_object_get(entry, "model"));
        const json_t *source = json_object_get(entry, "template");
        iv_template *t;
        ASSERT_OK(iv_template_parse(model, json_string_value(source), json_string_length(source), &t, &err), &err);
        json_object_foreach(json_object_get(root, "cases"), name, conversation) {
            each = json_copy(json_object_get(root, "variables"));
            assert_int_equal(json_object_update(each, conversation), 0);
            check(model, name, t, each, now, json_object_get(json_object_get(entry, "expect"), name), &count);
            json_decref(each);
        }
        iv_template_close(t);
    }
    printf("%zu templates: %zu texts equal, %zu errors raised, %zu wrong\n",
           json_array_size(json_object_get(root, "templates")), count.texts, count.errors, count.wrong);
    assert_int_equal(count.wrong, 0);
    assert_true(count.texts > 0 && count.errors > 0);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
