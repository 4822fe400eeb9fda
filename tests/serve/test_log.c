/* Log entries with any content are one line each, and valid JSON. */
#include "support.h"
#include "serve/state/log.h"

#include <jansson.h>

static char said[8192];
static size_t lines;

static void on_line(void *user, const char *line) {
    assert_ptr_equal(user, said);
    assert_null(strchr(line, '\n'));
    lines++;
    snprintf(said, sizeof said, "%s", line);
}

static iv_log_sink options(bool json) { return (iv_log_sink){.json = json, .write = on_line, .user = said}; }

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
    o.write = NULL;
    iv_log(&o, "info", "some", "without a sink");
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
    memset(endless, 0xc3, sizeof endless - 1); /* cut between characters */
    assert_in_range(strlen(message_of(endless)), 1000, sizeof endless);
}

/* A full or missing file loses lines, which are counted; later a line reports how many. */
static void lines_that_cannot_be_written(void **state) {
    (void)state;
    char folder[] = "/tmp/invar_log_XXXXXX", path[64], text[1000] = "";
    iv_log_writer *w;
    iv_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/log", folder);
    assert_int_equal(symlink("/dev/full", path), 0);
    ASSERT_OK(iv_log_writer_open(path, false, &w, &err), &err);
    for (int i = 0; i < 3; i++) iv_log_writer_put(w, "lost");
    while (iv_log_writer_dropped(w) < 3) usleep(1000);
    assert_int_equal(unlink(path), 0);
    iv_log_writer_reopen(w);
    iv_log_writer_put(w, "kept");
    iv_log_writer_close(w, 5000);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    const char *opened = strstr(text, ": opened again\n"), *kept = strstr(text, "kept\n"),
               *count = strstr(text, "Z warning: 3 log lines were dropped: they could not be written\n");
    assert_true(opened && kept && count && !strstr(text, "lost"));
    unlink(path);
    rmdir(folder);
    assert_int_equal(iv_log_writer_open("/no/such/folder/log", false, &w, &err), IV_IO);
    assert_non_null(strstr(err.message, "log file /no/such/folder/log: cannot write: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_lines), cmocka_unit_test(json_lines),
                                       cmocka_unit_test(lines_that_cannot_be_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
