/* Real chat templates: every text that Jinja2 renders is rendered to the byte, and what Jinja2 refuses is
 * refused. */
#include "support.h"
#include "base/digest.h"
#include "format/json.h"
#include "text/jinja/template.h"

enum { FILE_BYTES_MAX = 64 << 20 };

typedef struct tally {
    size_t texts, errors, generations, wrong;
} tally;

/* The file was made by Jinja2 as such, without the `generation` tag of Hugging Face's environment; its answer for the
 * one template that uses the tag is a syntax error. These are the SHA-256 of what Jinja2 renders with the tag
 * (python/jinja_cases.py chat_templates.json prints them). */
static const struct {
    const char *model, *name, *digest;
} generations[] = {
    {"library/rnj-1:latest", "user", "9d5f2f4bb99a6cb1d3ea83ada35cbf4e077a4851bd58c0acad6079e59480c3ca"},
    {"library/rnj-1:latest", "system_turns", "4c156d3e033e220c7deeecd68960af441d7ed2b7a88298bf775f6757424705e6"},
    {"library/rnj-1:latest", "no_generation_prompt",
     "16c8cf7ca108a9b6310cb8cb63eca83c3065443229b9f7c35bac0726bab41f1b"},
    {"library/rnj-1:latest", "think", "0996b06c4dae0e7e306fa9ac7487a358f047145913d453f739d143623c2e380d"},
    {"library/rnj-1:latest", "no_think", "79b85379f314df0c5e9a9ac33fbbce5a323bdfc20b5afa4de523b75172144ff6"},
    {"library/rnj-1:latest", "tools", "ccdda07f0d7d785150cb033404b92112099ada801bf887c92fc45f5ab2418013"},
    {"library/rnj-1:latest", "tool_call", "8689fe4768d0416880481f80db71e64391579230d68b2ded9583abeedc10a53a"}};

static const char *generation_digest(const char *model, const char *name) {
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
        if (strcmp(generations[i].model, model) == 0 && strcmp(generations[i].name, name) == 0)
            return generations[i].digest;
    return NULL;
}

static bool has_digest(const iv_buf *out, const char *wanted) {
    uint8_t digest[32];
    char hex[65];
    iv_digest_of(out->data, out->len, digest);
    iv_digest_hex(digest, hex);
    return strcmp(hex, wanted) == 0;
}

/* The same template with the tag understood, as a model's own template is read. */
static void check_generation(const char *model, const char *name, const json_t *source, const json_t *variables,
                             const char *now, tally *count) {
    iv_template *t;
    iv_buf out = {0};
    iv_error err;
    const char *digest = generation_digest(model, name);
    if (!digest) return;
    ASSERT_OK(iv_template_parse(model, json_string_value(source), json_string_length(source), IV_JINJA_CHAT, &t, &err),
              &err);
    ASSERT_OK(iv_template_render(t, variables, now, &out, &err), &err);
    if (has_digest(&out, digest))
        count->generations++;
    else
        print_error("%s, %s: not as Jinja2 with the generation tag\n", model, name), count->wrong++;
    iv_buf_free(&out);
    iv_template_close(t);
}

static void check(const char *model, const char *name, const iv_template *t, const json_t *variables, const char *now,
                  const json_t *expect, tally *count) {
    iv_buf out = {0};
    iv_error err;
    const json_t *text = json_object_get(expect, "text");
    /* A template that does not parse is its own error in every case. */
    iv_status status = t ? iv_template_render(t, variables, now, &out, &err) : IV_TEMPLATE;
    if (!text) {
        assert_non_null(json_object_get(expect, "error"));
        if (status == IV_TEMPLATE)
            count->errors++;
        else
            print_error("%s, %s: wanted an error, rendered %s\n", model, name, out.data);
        count->wrong += status != IV_TEMPLATE;
    } else if (status != IV_OK) {
        print_error("%s, %s: %s\n", model, name, err.message);
        count->wrong++;
    } else if (out.len != json_string_length(text) || memcmp(out.data, json_string_value(text), out.len) != 0) {
        print_error("%s, %s: wanted\n%s\nrendered\n%s\n", model, name, json_string_value(text), out.data);
        count->wrong++;
    } else
        count->texts++;
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
        iv_template *t = NULL;
        if (iv_template_parse(model, json_string_value(source), json_string_length(source), IV_JINJA_PLAIN, &t, &err) !=
            IV_OK)
            assert_int_equal(err.status, IV_TEMPLATE);
        json_object_foreach(json_object_get(root, "cases"), name, conversation) {
            each = json_copy(json_object_get(root, "variables"));
            assert_int_equal(json_object_update(each, conversation), 0);
            check(model, name, t, each, now, json_object_get(json_object_get(entry, "expect"), name), &count);
            check_generation(model, name, source, each, now, &count);
            json_decref(each);
        }
        iv_template_close(t);
    }
    printf("%zu templates: %zu texts equal, %zu errors raised, %zu equal by digest (generation tag), %zu "
           "wrong\n",
           json_array_size(json_object_get(root, "templates")), count.texts, count.errors, count.generations,
           count.wrong);
    assert_int_equal(count.wrong, 0);
    assert_true(count.texts > 0 && count.errors > 0);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
