/* Stored responses of a running server: a conversation continued by previous_response_id is the one whose items are
 * sent as a whole, bit for bit; a stored response is read as it was sent; limits, restarts, servers that store nothing.
 */
#include "server.h"

static char body_text[1 << 16], first_id[80];

/* A POST to /v1/responses; the body of the answer is in body_text. */
static int respond(uint16_t port, const char *body) {
    static char text[1 << 15];
    snprintf(text, sizeof text,
             "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    int status = ask_text(port, text);
    const char *begin = strstr(reply, "\r\n\r\n");
    snprintf(body_text, sizeof body_text, "%s", begin ? begin + 4 : "");
    return status;
}

/* The text between `before` and a quote, of the last place in body_text. */
static const char *field(const char *before) {
    static char out[4][200];
    static int next;
    char *o = out[next++ % 4];
    const char *at = NULL;
    for (const char *found = body_text; (found = strstr(found, before)); found++) at = found;
    if (!at) fail_msg("no %s in %s", before, body_text);
    at += strlen(before);
    snprintf(o, sizeof out[0], "%.*s", (int)strcspn(at, "\""), at);
    return o;
}

static int read_stored(uint16_t port, const char *method, const char *id) {
    char head[200];
    snprintf(head, sizeof head, "%s /v1/responses/%s", method, id);
    return ask(port, head, "");
}

static const char first[] = "{\"input\":\"What is 17 * 6?\",\"max_output_tokens\":12,\"seed\":4}",
                  second[] =
                      "\"input\":\"And 2 + 2?\",\"max_output_tokens\":12,\"seed\":5,\"instructions\":\"Be brief.\"";

/* The second turn with all items in it: those of the first answer, and the new message. */
static const char *second_as_a_whole(void) {
    static char text[1 << 14];
    json_error_t why;
    json_t *answer = json_loads(body_text, 0, &why), *items = json_array();
    if (!answer) fail_msg("%s: %s", why.text, body_text);
    json_array_append_new(items, json_pack("{ss,ss}", "role", "user", "content", "What is 17 * 6?"));
    json_array_extend(items, json_object_get(answer, "output"));
    json_array_append_new(items, json_pack("{ss,ss}", "role", "user", "content", "And 2 + 2?"));
    json_t *whole = json_pack("{so,si,si,ss,sb}", "input", items, "max_output_tokens", 12, "seed", 5, "instructions",
                              "Be brief.", "store", 0);
    char *dumped = json_dumps(whole, JSON_REAL_PRECISION(17));
    snprintf(text, sizeof text, "%s", dumped);
    free(dumped);
    json_decref(whole), json_decref(answer);
    return text;
}

static void a_conversation(void **state) {
    (void)state;
    char directory[256], text[1000], digest[200];
    uint16_t port;
    snprintf(directory, sizeof directory, "%s", in_folder("responses"));
    const char *const flags[] = {"--response-dir", directory, "--max-stored-responses", "4", NULL};
    pid_t pid = serve(&port, flags);
    assert_int_equal(respond(port, first), 200);
    assert_non_null(strstr(body_text, "\"store\":true"));
    assert_non_null(strstr(body_text, "\"previous_response_id\":null"));
    snprintf(first_id, sizeof first_id, "%.70s", field("\"id\":\"resp_"));
    assert_int_equal(strlen(first_id), 32);
    snprintf(first_id, sizeof first_id, "resp_%.32s", field("\"id\":\"resp_"));
    assert_int_equal(read_stored(port, "GET", first_id), 200);
    assert_string_equal(strstr(reply, "\r\n\r\n") + 4, body_text); /* byte for byte */
    const char *whole = second_as_a_whole();
    snprintf(text, sizeof text, "{%s,\"previous_response_id\":\"%s\"}", second, first_id);
    assert_int_equal(respond(port, text), 200);
    assert_string_equal(field("\"previous_response_id\":\""), first_id);
    snprintf(digest, sizeof digest, "%s", field("\"digest\":\"sha256:"));
    assert_int_equal(respond(port, whole), 200);
    assert_string_equal(field("\"digest\":\"sha256:"), digest);
    assert_non_null(strstr(body_text, "\"store\":false"));
    assert_int_equal(read_stored(port, "GET", field("\"id\":\"")), 404);
    /* A stream, and a third turn behind it; after a restart. */
    snprintf(text, sizeof text, "{%s,\"previous_response_id\":\"%s\",\"stream\":true}", second, first_id);
    assert_int_equal(respond(port, text), 200);
    assert_string_equal(field("\"digest\":\"sha256:"), digest);
    char streamed[80];
    snprintf(streamed, sizeof streamed, "resp_%.32s", field("\"id\":\"resp_"));
    end(pid, SIGTERM);
    pid = serve(&port, flags);
    assert_int_equal(read_stored(port, "GET", streamed), 200);
    assert_non_null(strstr(reply, "\"object\":\"response\""));
    snprintf(text, sizeof text, "{\"input\":\"Why?\",\"max_output_tokens\":4,\"previous_response_id\":\"%s\"}",
             streamed);
    assert_int_equal(respond(port, text), 200);
    /* The errors of its input name its own positions. */
    snprintf(text, sizeof text, "{\"input\":[{\"role\":\"user\"}],\"previous_response_id\":\"%s\"}", streamed);
    assert_int_equal(respond(port, text), 400);
    assert_non_null(strstr(body_text, "input[0].content: wanted"));
    /* Removed, and no longer continued. */
    assert_int_equal(read_stored(port, "DELETE", streamed), 200);
    assert_non_null(strstr(reply, "\"deleted\":true"));
    assert_int_equal(read_stored(port, "DELETE", streamed), 404);
    assert_int_equal(read_stored(port, "GET", streamed), 404);
    snprintf(text, sizeof text, "{\"input\":\"x\",\"previous_response_id\":\"%s\"}", streamed);
    assert_int_equal(respond(port, text), 400);
    assert_non_null(strstr(body_text, "previous_response_id: no stored response has the id"));
    assert_int_equal(read_stored(port, "PUT", streamed), 405);
    /* The fourth pushes out the first. */
    assert_int_equal(read_stored(port, "GET", first_id), 200);
    for (int i = 0; i < 4; i++) assert_int_equal(respond(port, first), 200);
    assert_int_equal(read_stored(port, "GET", first_id), 404);
    assert_int_equal(ask(port, "GET /metrics", ""), 200);
    assert_non_null(strstr(reply, "invar_stored_responses{model_name=\"tiny-math\"} 4\n"));
    RUN("serve", "tiny-math", "--port", "0", "--response-dir", directory);
    expect_error(1, "another process keeps its responses there");
    end(pid, SIGTERM);
}

static void nothing_is_stored(void **state) {
    (void)state;
    uint16_t port;
    pid_t pid = serve(&port, NULL);
    assert_int_equal(respond(port, first), 200);
    assert_non_null(strstr(body_text, "\"store\":false"));
    assert_int_equal(read_stored(port, "GET", field("\"id\":\"")), 404);
    assert_non_null(strstr(reply, "without --response-dir"));
    assert_int_equal(read_stored(port, "DELETE", "resp_1"), 404);
    assert_int_equal(respond(port, "{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}"), 400);
    assert_non_null(strstr(body_text, "this server keeps no responses"));
    assert_int_equal(respond(port, "{\"input\":\"x\",\"max_output_tokens\":2,\"previous_response_id\":null}"), 200);
    end(pid, SIGTERM);
    RUN("serve", "tiny-math", "--port", "0", "--response-dir", "/no/such/folder");
    expect_error(1, "/no/such/folder: cannot create it");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_conversation), cmocka_unit_test(nothing_is_stored)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
