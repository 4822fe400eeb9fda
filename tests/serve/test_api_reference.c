/* The reference of all fields: the page in docs is current (INVAR_WRITE_DOCS=1 writes it), /openapi.json describes
 * every field of every body, and a misspelt field gets a suggestion. */
#include "api_case.h"
#include "base/file.h"
#include "serve/api/handlers.h"
#include "serve/api/params_table.h"

static void page_is_current(void **state) {
    (void)state;
    iv_buf made = {0}, kept = {0};
    iv_error err;
    const char *path = source_path("docs/REQUESTS.md");
    iv_api_write_reference(&made);
    if (getenv("INVAR_WRITE_DOCS")) {
        FILE *f = fopen(path, "w");
        assert_true(f && fwrite(made.data, 1, made.len, f) == made.len && fclose(f) == 0);
    }
    ASSERT_OK(iv_file_read(path, 1 << 20, &kept, &err), &err);
    if (kept.len != made.len || memcmp(kept.data, made.data, made.len) != 0)
        fail_msg("docs/REQUESTS.md is not what the table says: INVAR_WRITE_DOCS=1 %s",
                 "build/tests/test_serve_api_reference");
    iv_buf_free(&made), iv_buf_free(&kept);
}

static void every_field_is_described(void **state) {
    (void)state;
    for (size_t i = 0; i < iv_api_field_count; i++)
        if (!iv_api_field_help(iv_api_fields[i].name)) fail_msg("no help for %s", iv_api_fields[i].name);
}

static void openapi(void **state) {
    (void)state;
    static const struct {
        const char *path;
        unsigned body;
    } paths[] = {{"/v1/chat/completions", IV_API_CHAT}, {"/v1/completions", IV_API_COMPLETIONS},
                 {"/v1/responses", IV_API_RESPONSES},   {"/v1/messages", IV_API_MESSAGES},
                 {"/generate", IV_API_GENERATE},        {"/tokenize", IV_API_TOKENIZE}};
    iv_http_request q = make_request("/openapi.json", NULL);
    run(&q);
    assert_int_equal(q.status, 200);
    json_t *root = parse_json(q.out.data, q.out.len);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        json_t *at = json_object_get(json_object_get(root, "paths"), paths[i].path);
        static const char *const steps[] = {"post",   "requestBody", "content", "application/json",
                                            "schema", "properties"};
        size_t count = 0;
        for (size_t k = 0; k < 6; k++) at = json_object_get(at, steps[k]);
        for (size_t k = 0; k < iv_api_field_count; k++) {
            if (!(iv_api_fields[k].bodies & paths[i].body)) continue;
            json_t *schema = json_object_get(at, iv_api_fields[k].name);
            count++;
            if (!json_object_get(schema, "description")) fail_msg("%s %s", paths[i].path, iv_api_fields[k].name);
        }
        assert_int_equal(json_object_size(at), count);
    }
    json_t *properties = json_object_get(
        json_object_get(json_object_get(json_object_get(root, "components"), "schemas"), "sampling_params"),
        "properties");
    assert_non_null(json_object_get(properties, "max_new_tokens"));
    json_decref(root);
    fake_close(&q);
}

static void suggestions(void **state) {
    (void)state;
    static const struct {
        unsigned body;
        const char *name, *wanted; /* NULL: nothing is near */
    } cases[] = {{IV_API_CHAT, "temprature", "temperature"},
                 {IV_API_CHAT, "max_token", "max_tokens"},
                 {IV_API_CHAT, "maxtokens", "max_tokens"},
                 {IV_API_CHAT, "top_q", "top_p"},
                 {IV_API_CHAT, "tool_choise", "tool_choice"},
                 {IV_API_CHAT, "smeinput", NULL},
                 {IV_API_CHAT, "max_output_tokens", NULL},
                 {IV_API_RESPONSES, "max_output_token", "max_output_tokens"},
                 {IV_API_MESSAGES, "ssytem", "system"},
                 {IV_API_GENERATE, "smapling_params", "sampling_params"},
                 {IV_API_CHAT, "x", NULL},
                 {IV_API_CHAT, "", NULL},
                 {IV_API_CHAT, "a_name_that_is_much_longer_than_any_of_the_fields_here", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = iv_api_field_like(cases[i].body, cases[i].name);
        if (!found != !cases[i].wanted || (found && strcmp(found, cases[i].wanted) != 0))
            fail_msg("%s: %s", cases[i].name, found ? found : "nothing");
    }
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"temprature\":0}");
    run(&q);
    assert_non_null(strstr(q.out.data, "temprature: this field is not known here; did you mean \\\"temperature\\\"?"));
    fake_close(&q);
    q = make_request("/generate", "{\"text\":\"a\",\"sampling_params\":{\"top_pp\":0}}");
    run(&q);
    assert_non_null(
        strstr(q.out.data, "sampling_params.top_pp: this field is not known here; did you mean \\\"top_p\\\"?"));
    fake_close(&q);
}

static void input_tokens(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"input\":\"hello\"}",
        "{\"model\":\"tiny-math\",\"input\":[{\"role\":\"user\",\"content\":\"hello\"}],\"instructions\":\"be\"}",
        "{\"input\":\"hello\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}"};
    long long last = 0;
    for (size_t i = 0; i < 3; i++) {
        iv_http_request q = make_request("/v1/responses/input_tokens", bodies[i]);
        run(&q);
        assert_int_equal(q.status, 200);
        json_t *v = parse_json(q.out.data, q.out.len);
        assert_string_equal(json_string_value(json_object_get(v, "object")), "response.input_tokens");
        long long n = json_integer_value(json_object_get(v, "input_tokens"));
        assert_true(n > last || i == 2);
        last = n;
        json_decref(v);
        fake_close(&q);
    }
    iv_http_request q =
        make_request("/v1/responses/input_tokens", "{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}");
    run(&q);
    assert_true(q.status == 400 && strstr(q.out.data, "previous_response_id: wanted null"));
    fake_close(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(page_is_current), cmocka_unit_test(every_field_is_described),
                                       cmocka_unit_test(openapi), cmocka_unit_test(suggestions),
                                       cmocka_unit_test(input_tokens)};
    return cmocka_run_group_tests(tests, begin, close_text_model);
}
