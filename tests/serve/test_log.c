/* Log lines: one line each whatever is in them, and JSON that parses. */
#include "support.h"
#include "serve/log.h"

#include <jansson.h>

static char said[8192];
static size_t lines;

static void on_line(void *user, const char *line) {
    assert_ptr_equal(user, said);
    assert_null(strchr(line, '\n'));
    lines++;
    snprintf(said, sizeof said, "%s", line);
}

static iv_log_sink options(bool json) {
    return (iv_log_sink){.json = json, .say = on_line, .user = said};
}

static void text_lines(void **state) {
    (void)state;
    iv_log_sink o = options(false);
    iv_log(&o, "info", "some", "%d of %s", 3, "them");
    assert_non_null(strstr(said, "Z 3 of them"));
    assert_int_equal(said[4], '-');
    iv_log(&o, "warning", "some", "mind");
    assert_non_null(strstr(said, "Z warning: mind"));
    iv_log(&o, "info", "some", "a\nb\033[31m\x7f");
    assert_non_null(strstr(said, "Z a?b?[31m?"));
    iv_log(&o, "info", "some", "mind");
    o.say = NULL;
    iv_log(&o, "info", "some", "nobody listens");
    assert_non_null(strstr(said, "mind"));
}

static const char *message_of(const char *message) {
    static char out[4096];
    iv_log_sink o = options(true);
    json_error_t why;
    size_t before = lines;
    iv_log(&o, "error", "event", "%s", message);
    assert_int_equal(lines, before + 1);
    json_t *object = json_loads(said, JSON_REJECT_DUPLICATES, &why);
    if (!object) fail_msg("%s: %s", why.text, said);
    assert_string_equal(json_string_value(json_object_get(object, "level")), "error");
    assert_string_equal(json_string_value(json_object_get(object, "event")), "event");
    snprintf(out, sizeof out, "%s", json_string_value(json_object_get(object, "message")));
    json_decref(object);
    return out;
}

static void json_lines(void **state) {
    (void)state;
    char endless[5000];
    assert_string_equal(message_of("a \"b\" \\ \t \xc3\xa9"), "a \"b\" \\ \t \xc3\xa9");
    assert_string_equal(message_of("no \xff UTF-8"), "no \\xff UTF-8");
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = 0;
    size_t plain = strlen(message_of(endless));
    assert_in_range(plain, 1000, sizeof endless - 1);
    memset(endless, 0xc3, sizeof endless - 1); /* cut in the middle of nothing */
    assert_in_range(strlen(message_of(endless)), 1000, sizeof endless);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_lines), cmocka_unit_test(json_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
