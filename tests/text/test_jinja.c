/* Jinja templates: small and published ones against the answers of Jinja2; hostile and damaged ones. */
#include "support.h"
#include "chat_templates.h"
#include "base/digest.h"
#include "format/json.h"
#include "text/jinja/template.h"

#include <ctype.h>
#include <time.h>

enum { FILE_BYTES_MAX = 64 << 20 };

/* ---- small templates with Jinja2's answers (written by python/jinja_cases.py) ---- */

/* Whether a case agrees with Jinja2; a difference is printed. */
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

/* ---- published chat templates: Jinja2's texts to the byte, and its refusals ---- */

typedef struct tally {
    size_t texts, errors, generations, wrong;
} tally;

/* The file was made by plain Jinja2, without the `generation` tag of Hugging Face's environment; its answer for the one
 * template that uses the tag is a syntax error. These are the SHA-256 of the text that Jinja2 renders with the tag
 * (printed by python/jinja_cases.py chat_templates.json). */
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

/* The same template in the dialect with the tag, as models' templates are read. */
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
    /* A template that does not parse counts as an error in every case. */
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

/* As datetime.now().strftime of Python, whose time has no zone. */
static void the_time_is_pythons(void **state) {
    (void)state;
    static const struct {
        const char *format, *text; /* #: a digit */
    } cases[] = {
        {"%f", "######"}, {"%Z|%z|%:z|%Ez", "|||"}, {"%%f %%Z%", "%f %Z%"},     {"%Y.%f%%%fZ", "####.######%######Z"},
        {"%H", "##"},     {"%-f", "%-f"},           {"a%%%%fb%Y", "a%%fb####"}, {"", ""}};
    const char *zone = getenv("TZ");
    char *before = zone ? strdup(zone) : NULL;
    setenv("TZ", "Asia/Tokyo", 1);
    tzset();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_template *t;
        iv_buf out = {0};
        iv_error err;
        char source[100];
        json_t *none = json_object();
        snprintf(source, sizeof source, "{{ strftime_now('%s') }}.", cases[i].format);
        ASSERT_OK(iv_template_parse("time", source, strlen(source), IV_JINJA_PLAIN, &t, &err), &err);
        ASSERT_OK(iv_template_render(t, none, NULL, &out, &err), &err);
        bool same = out.len == strlen(cases[i].text) + 1;
        for (size_t k = 0; same && k + 1 < out.len; k++)
            same = cases[i].text[k] == '#' ? isdigit((unsigned char)out.data[k]) != 0 : cases[i].text[k] == out.data[k];
        if (!same) fail_msg("%s: wanted %s, found %s", cases[i].format, cases[i].text, out.data);
        iv_buf_free(&out);
        iv_template_close(t);
        json_decref(none);
    }
    before ? setenv("TZ", before, 1) : unsetenv("TZ");
    tzset();
    free(before);
}

static void golden_templates(void **state) {
    (void)state;
    iv_error err;
    json_t *root = read_chat_templates(), *entry, *each, *conversation;
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

/* ---- hostile templates: every maximum gives its error; damaged templates only fail ---- */

static iv_status render(const char *source, size_t n, const json_t *variables, iv_buf *out, iv_error *err) {
    iv_template *t = NULL;
    iv_status status = iv_template_parse("hostile", source, n, IV_JINJA_CHAT, &t, err);
    if (status == IV_OK) status = iv_template_render(t, variables, "now", out, err);
    iv_template_close(t);
    return status;
}

static void assert_refused(const char *source, iv_status wanted, const char *part) {
    json_t *none = json_object();
    iv_buf out = {0};
    iv_error err;
    iv_status status = render(source, strlen(source), none, &out, &err);
    if (status != wanted || !strstr(err.message, part))
        fail_msg("%.100s: wanted %s with '%s', found %s: %s", source, iv_status_name(wanted), part,
                 iv_status_name(status), status == IV_OK ? out.data : err.message);
    iv_buf_free(&out);
    json_decref(none);
}

/* n times `piece` between head and tail. The caller frees. */
static char *repeated(const char *head, const char *piece, size_t n, const char *tail) {
    iv_buf buf = {0};
    assert_true(iv_buf_puts(&buf, head));
    for (size_t i = 0; i < n; i++) assert_true(iv_buf_puts(&buf, piece));
    assert_true(iv_buf_puts(&buf, tail));
    return buf.data;
}

static void assert_deep_refused(const char *head, const char *piece, const char *tail) {
    char *source = repeated(head, piece, 20000, tail);
    assert_refused(source, IV_LIMIT, "nested more than");
    free(source);
}

static void maxima_are_errors(void **state) {
    (void)state;
    assert_refused("{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}", IV_LIMIT,
                   "steps");
    assert_refused("{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s * 2 %}{% endfor %}",
                   IV_LIMIT, "bytes");
    assert_refused("{{ 'x' * 999999999999 }}", IV_LIMIT, "bytes");
    assert_refused("{{ [0] * 99999999 }}", IV_LIMIT, "bytes");
    assert_refused("{{ 'x' * 20000000 }}", IV_LIMIT, "text is longer");
    assert_refused("{% for i in range(100) %}{% set x %}{{ 'x' * 9999999 }}{% endset %}{% endfor %}", IV_LIMIT,
                   "writes more");
    assert_refused("{{ range(100001) }}", IV_TEMPLATE, "range");
    assert_refused("{{ '%999999d' % 1 }}", IV_LIMIT, "wide");
    assert_refused("{{ '{:.9999f}'.format(1.5) }}", IV_LIMIT, "precise");
    assert_refused("{{ 'x'.ljust(99999999999) }}", IV_LIMIT, "padded");
    assert_refused("{{ 'aaaa'.replace('', 'x' * 9999999) }}", IV_LIMIT, "longer than");
    assert_refused("{{ 9223372036854775807 + 1 }}", IV_LIMIT, "64 bits");
    assert_refused("{{ 9223372036854775808 }}", IV_TEMPLATE, "64 bits");
    assert_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", IV_LIMIT, "nested more than");
    assert_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", IV_LIMIT, "nested more than");
    assert_refused("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", IV_LIMIT, "nested more than");
    assert_refused("{% set ns = namespace(a=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a] %}{% endfor "
                   "%}{{ ns.a|tojson }}",
                   IV_LIMIT, "nested more than");
    assert_refused("{% set ns = namespace(a=[], b=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a] %}"
                   "{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
                   IV_LIMIT, "nested more than");
    assert_refused("{% set ns = namespace(a=[1]) %}{% for i in range(5000) %}{% set ns.a = ns.a|map('abs') "
                   "%}{% endfor %}"
                   "{{ ns.a|list }}",
                   IV_LIMIT, "nested more than");
    assert_refused("{% set ns = namespace(a=()) %}{% for i in range(5000) %}{% set ns.a = (ns.a,) %}{% "
                   "endfor %}{{ {ns.a: 1} }}",
                   IV_TEMPLATE, "key");
}

static void nesting_is_bounded(void **state) {
    (void)state;
    assert_deep_refused("{{ ", "[", "");
    assert_deep_refused("{{ ", "(", "");
    assert_deep_refused("{{ ", "not ", "x }}");
    assert_deep_refused("{{ ", "-", "x }}");
    assert_deep_refused("{{ x", " if x else x", " }}");
    assert_deep_refused("{{ x", "[x", "");
    assert_deep_refused("{{ x", "|d(x", "");
    assert_deep_refused("{{ 1", " + 1", " }}");
    assert_deep_refused("{{ x", "|d", " }}");
    assert_deep_refused("", "{% if 1 %}", "");
    assert_deep_refused("", "{% for x in y %}", "");
    assert_deep_refused("", "{% macro m() %}", "");
    assert_deep_refused("{% set ", "(", "");
    char *names = repeated("", "{% if 1 %}{% endif %}", 20000, "ok"); /* long is not deep */
    json_t *none = json_object();
    iv_buf out = {0};
    iv_error err;
    ASSERT_OK(render(names, strlen(names), none, &out, &err), &err);
    assert_string_equal(out.data, "ok");
    iv_buf_free(&out);
    json_decref(none);
    free(names);
}

static void deep_variables_are_refused(void **state) {
    (void)state;
    json_t *deep = json_array(), *variables = json_object();
    for (int i = 0; i < 1000; i++) {
        json_t *outer = json_array();
        assert_int_equal(json_array_append_new(outer, deep), 0);
        deep = outer;
    }
    assert_int_equal(json_object_set_new(variables, "x", deep), 0);
    iv_buf out = {0};
    iv_error err;
    assert_int_equal(render("{{ x }}", 7, variables, &out, &err), IV_LIMIT);
    ASSERT_OK(render("{{ y }}", 7, variables, &out, &err), &err); /* unused variables are not read */
    iv_buf_free(&out);
    json_decref(variables);
}

static void bad_bytes_are_refused(void **state) {
    (void)state;
    assert_refused("a\xff", IV_TEMPLATE, "byte 1 is not UTF-8");
    assert_refused("{{ '\\ud800' }}", IV_TEMPLATE, "Unicode");
    assert_refused("{{ \x01 }}", IV_TEMPLATE, "unexpected character");
    char *large = repeated("", "0123456789abcdef", (IVJ_MAX_SOURCE_BYTES >> 4) + 1, "");
    assert_refused(large, IV_LIMIT, "at most");
    free(large);
}

/* Long appends in a loop take linear time and memory. */
static void appending_is_linear(void **state) {
    (void)state;
    const char *source = "{% set ns = namespace(s='') %}{% for i in range(50000) %}"
                         "{% set ns.s = ns.s + '0123456789abcdef' %}{% endfor %}{{ ns.s|length }}";
    json_t *none = json_object();
    iv_buf out = {0};
    iv_error err;
    ASSERT_OK(render(source, strlen(source), none, &out, &err), &err);
    assert_string_equal(out.data, "800000");
    iv_buf_free(&out);
    json_decref(none);
}

static const char damaged[] =
    "{%- set ns = namespace(a=1, b=[1, 2.5, 'x\\n']) -%}\n{# note #}{% raw %}{{ {% endraw %}\n"
    "{% macro m(x, y='d') %}{{ x ~ y|upper }}{{ caller(x) if caller is defined }}{% endmacro %}\n"
    "{% for k, v in d.items() if (v is not none) recursive %}{{ loop.index0 }}{{ k }}: {{ v|tojson(indent=2) "
    "}}\n"
    "  {%- if loop.last %}{% break %}{% elif not loop.first %}{% continue %}{% else %}!{% endif %}{% else "
    "%}0{% endfor %}\n"
    "{% call(z) m(1, y='e') %}{{ z }}{% endcall %}{% filter trim %} f {% endfilter %}{% set q | lower %}Q{% "
    "endset %}\n"
    "{{ s[1:-1:2] ~ s.split(',', 1)|join('-') }}{{ '%05.1f|%s' % (2.25, xs) }}{{ '{0:>6}{x!r}'.format(1, "
    "x='y') }}\n"
    "{% with w = xs|sort(reverse=true)|map('string')|list %}{{ w }}{% endwith %}{% generation %}g{% "
    "endgeneration %}\n"
    "{{ users|groupby('age')|first }}{{ users|selectattr('age', '>', 1)|map(attribute='name')|join(', ') }}";

static json_t *damage_variables(void) {
    static const char text[] =
        "{\"d\": {\"a\": [1, {\"b\": null}], \"c\": \"\u00e9\"}, \"s\": \"a,b,c\", \"xs\": [3, 1, 2],"
        " \"users\": [{\"name\": \"n\", \"age\": 3}, {\"name\": \"m\", \"age\": 3}]}";
    json_t *json;
    iv_error err;
    ASSERT_OK(iv_json_parse("variables", text, sizeof text - 1, &json, &err), &err);
    return json;
}

/* Renders a copy of exactly n bytes, so that a sanitizer detects reads past its end. */
static iv_status render_exact(const char *source, size_t n, const json_t *variables) {
    char *copy = malloc(n ? n : 1);
    iv_buf out = {0};
    iv_error err;
    assert_non_null(copy);
    memcpy(copy, source, n);
    iv_status status = render(copy, n, variables, &out, &err);
    if (status != IV_OK) assert_int_equal(err.status, status);
    iv_buf_free(&out);
    free(copy);
    return status;
}

static void damaged_templates_only_fail(void **state) {
    (void)state;
    const size_t n = sizeof damaged - 1;
    json_t *variables = damage_variables();
    size_t rendered = 0, refused = 0;
    assert_int_equal(render_exact(damaged, n, variables), IV_OK);
    for (size_t cut = 0; cut < n; cut++) *(render_exact(damaged, cut, variables) == IV_OK ? &rendered : &refused) += 1;
    uint64_t seed = 0x9e3779b97f4a7c15ULL;
    printf("bit flips: seed %#llx\n", (unsigned long long)seed);
    for (int i = 0; i < 4000; i++) {
        char copy[sizeof damaged];
        memcpy(copy, damaged, sizeof copy);
        for (int flips = 1 + i % 3; flips > 0; flips--) {
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            copy[(seed >> 33) % n] ^= (char)(1 << (seed >> 61));
        }
        *(render_exact(copy, n, variables) == IV_OK ? &rendered : &refused) += 1;
    }
    printf("%zu damaged templates rendered, %zu refused\n", rendered, refused);
    assert_true(rendered > 0 && refused > 0);
    json_decref(variables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_as_jinja2),
        cmocka_unit_test(the_time_is_pythons),
        cmocka_unit_test(golden_templates),
        cmocka_unit_test(maxima_are_errors),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(deep_variables_are_refused),
        cmocka_unit_test(bad_bytes_are_refused),
        cmocka_unit_test(appending_is_linear),
        cmocka_unit_test(damaged_templates_only_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
