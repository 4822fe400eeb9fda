/* What bodies name, and the routes that load and unload, over a bridge in plain memory: the command that the engine
 * gets, the answer that follows its result, and clients that leave before it. */
#include "api_case.h"

#include "serve/api/reply.h"

static iv_adapter_entry *add(const char *name, const char *digest) {
    iv_served_adapter a = {.rank = 4, .modules = 2, .bytes = 100};
    snprintf(a.name, sizeof a.name, "%s", name);
    snprintf(a.path, sizeof a.path, "/adapters/%s", name);
    snprintf(a.digest, sizeof a.digest, "%s", digest);
    iv_adapter_entry *e = iv_adapter_list_add(&bridge.adapters, &a);
    assert_non_null(e);
    return e;
}

static int begin_with_adapters(void **state) {
    if (begin(state) != 0) return -1;
    iv_adapter_list_open(&bridge.adapters);
    options.bridge.engine.max_loras = 2;
    return 0;
}

static int end_with_adapters(void **state) {
    iv_adapter_list_close(&bridge.adapters);
    iv_admin_close(&server);
    options.bridge.engine.max_loras = 0;
    return end(state);
}

/* ---- the list ------------------------------------------------------------------------------------------- */

static void entries(void **state) {
    (void)state;
    iv_adapter_list *l = &bridge.adapters;
    iv_served_adapter a;
    iv_adapter_entry *one = add("one", "11"), *two = add("two", "22");
    iv_adapter_list_use(one);
    assert_true(iv_adapter_list_at(l, 1, &a) && strcmp(a.name, "two") == 0);
    iv_adapter_entry *again = add("one", "33"); /* in place: the first stays for its user */
    assert_true(l->first == one && one->retired && iv_adapter_list_entry(l, "one") == again);
    assert_true(iv_adapter_list_at(l, 0, &a) && strcmp(a.name, "two") == 0);
    assert_true(iv_adapter_list_at(l, 1, &a) && strcmp(a.digest, "33") == 0);
    assert_false(iv_adapter_list_at(l, 2, NULL));
    iv_adapter_list_leave(l, one);
    assert_true(l->first == two);
    iv_adapter_list_retire(l, two);
    assert_true(l->first == again && !again->next && !iv_adapter_list_find(l, "two", NULL));
}

/* A name cannot change what the command says. */
static void texts(void **state) {
    (void)state;
    static const char *const refused[] = {"", "a\nb", "a\x7f", "\xff", NULL};
    char longer[300];
    iv_buf text = {0};
    iv_error err;
    iv_adapter_command c = {.name = "a b", .path = "dir\nwith a line\n", .digest = "ab", .in_place = true}, back;
    ASSERT_OK(iv_adapter_command_write(&c, &text, &err), &err);
    assert_true(iv_adapter_command_read(text.data, &back));
    assert_string_equal(back.name, c.name), assert_string_equal(back.path, c.path);
    assert_true(back.in_place && strcmp(back.digest, "ab") == 0);
    iv_buf_free(&text);
    for (size_t i = 0; refused[i]; i++) {
        c.name = refused[i];
        assert_int_equal(iv_adapter_command_write(&c, &text, &err), IV_INVALID);
    }
    memset(longer, 'x', sizeof longer), longer[sizeof longer - 1] = 0;
    c.name = longer;
    assert_int_equal(iv_adapter_command_write(&c, &text, &err), IV_INVALID);
    c.name = "a", c.path = "";
    assert_int_equal(iv_adapter_command_write(&c, &text, &err), IV_INVALID);
    char broken[][20] = {"", "load", "load\n\na", "lead\n\na\nb"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) assert_false(iv_adapter_command_read(broken[i], &back));
}

/* ---- names ---------------------------------------------------------------------------------------------- */

static const char *adapter_of(const char *model, iv_status wanted) {
    static iv_error err;
    const char *adapter;
    server.model_names = "base,other:name";
    assert_int_equal(iv_api_find_model(&server, model, &adapter, &err), wanted);
    server.model_names = NULL;
    return wanted == IV_OK ? adapter : err.message;
}

static void names(void **state) {
    (void)state;
    assert_non_null(strstr(adapter_of("one", IV_NOT_FOUND), "the only one here"));
    add("one", "11"), add("x:y", "22");
    assert_null(adapter_of(NULL, IV_OK));
    assert_null(adapter_of("base", IV_OK));
    assert_null(adapter_of("other:name", IV_OK));
    assert_string_equal(adapter_of("one", IV_OK), "one");
    assert_string_equal(adapter_of("x:y", IV_OK), "x:y");
    assert_string_equal(adapter_of("base:one", IV_OK), "one");
    assert_string_equal(adapter_of("other:name:x:y", IV_OK), "x:y");
    const char *message = adapter_of("base:two", IV_NOT_FOUND);
    assert_non_null(strstr(message, "an adapter (\"one\", \"x:y\"), found \"base:two\""));
}

/* ---- routes --------------------------------------------------------------------------------------------- */

/* The result of the command that the bridge got. */
static void result(iv_status status, const char *message) {
    assert_non_null(bridge.command_owner);
    iv_server_take_event(&server, &(iv_bridge_event){.kind = IV_BRIDGE_EVENT_COMMAND,
                                                     .owner = bridge.command_owner,
                                                     .status = status,
                                                     .message = message});
    bridge.command_owner = NULL;
}

static void expect(iv_http_request *q, int status, const char *part) {
    iv_buf_putc(&q->out, 0);
    if (q->status != status || !strstr(q->out.data, part))
        fail_msg("wanted %d with '%s', found %d: %s", status, part, q->status, q->out.data);
    fake_close(q);
}

#define LOAD "{\"lora_name\":\"one\",\"lora_path\":\"/adapters/one\"}"

static void loads(void **state) {
    (void)state;
    static const struct {
        iv_status status;
        int vllm;
        const char *kind;
    } failures[] = {{IV_NOT_FOUND, 404, "NotFoundError"}, {IV_FORMAT, 400, "BadRequestError"},
                    {IV_BUSY, 409, "BadRequestError"},    {IV_LIMIT, 400, "BadRequestError"},
                    {IV_IO, 500, "BadRequestError"},      {IV_NO_MEMORY, 503, "BadRequestError"}};
    iv_http_request q = make_request("/v1/load_lora_adapter", LOAD);
    run(&q);
    assert_true(bridge.last_command == IV_COMMAND_LOAD_ADAPTER && q.status == 0);
    result(IV_OK, "11 4 2 100");
    expect(&q, 200, "Success: LoRA adapter 'one' added successfully.");
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        q = make_request("/v1/load_lora_adapter", LOAD);
        run(&q);
        result(failures[i].status, "the reason");
        expect(&q, failures[i].vllm, failures[i].kind);
        q = make_request("/load_lora_adapter", LOAD);
        run(&q);
        result(failures[i].status, "the reason");
        expect(&q, 400, "{\"success\":false,\"error_message\":\"the reason\",\"loaded_adapters\":{}}");
    }
    add("one", "11");
    q = make_request("/load_lora_adapter", LOAD);
    run(&q);
    result(IV_OK, "11 4 2 100");
    expect(&q, 200, "{\"success\":true,\"error_message\":\"\",\"loaded_adapters\":{\"one\":\"/adapters/one\"}}");
    q = make_request("/v1/unload_lora_adapter", "{\"lora_name\":\"one\"}");
    run(&q);
    assert_int_equal(bridge.last_command, IV_COMMAND_UNLOAD_ADAPTER);
    result(IV_OK, "");
    expect(&q, 200, "Success: LoRA adapter 'one' removed successfully.");
}

/* None of these reaches the engine. */
static void refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *part;
        int status;
    } cases[] = {
        {"/v1/load_lora_adapter", "{\"lora_name\":\"one\"}", "Both 'lora_name' and 'lora_path'", 400},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"here\",\"lora_path\":\"x\"}", "has already been loaded", 400},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"tiny-math\",\"lora_path\":\"x\"}", "base model's", 400},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"x\",\"base_model_name\":\"b\"}", "base_model",
         404},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"x\",\"is_3d_lora_weight\":true}", "is_3d", 400},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"x\",\"load_inplace\":1}", "load_inplace", 400},
        {"/v1/load_lora_adapter", "{\"lora_name\":\"a\\u0000b\",\"lora_path\":\"x\"}", "NUL", 400},
        {"/v1/load_lora_adapter", "[]", "body", 400},
        {"/v1/unload_lora_adapter", "{}", "'lora_name' needs to be provided", 400},
        {"/v1/unload_lora_adapter", "{\"lora_name\":\"one\"}", "cannot be found", 404},
        {"/v1/unload_lora_adapter", "{\"lora_name\":\"here\",\"lora_path\":\"x\"}", "lora_path: no such field", 400},
        {"/load_lora_adapter", "{\"lora_path\":\"x\"}", "lora_name: wanted a name", 400},
        {"/load_lora_adapter", "{\"lora_name\":\"a\"}", "wanted a directory", 400},
        {"/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"x\",\"added_tokens_config\":{}}", "added_tokens",
         400},
        {"/unload_lora_adapter", "{\"lora_name\":7}", "lora_name: wanted a string", 400}};
    add("here", "11");
    bridge.last_command = IV_COMMAND_KINDS;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request(cases[i].path, cases[i].body);
        run(&q);
        expect(&q, cases[i].status, cases[i].part);
    }
    options.bridge.engine.max_loras = 0;
    iv_http_request q = make_request("/load_lora_adapter", LOAD);
    run(&q);
    expect(&q, 400, "--enable-lora");
    options.bridge.engine.max_loras = 2;
    assert_int_equal(bridge.last_command, IV_COMMAND_KINDS);
}

static void clients_leave(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/load_lora_adapter", LOAD);
    run(&q);
    fake_leave(&q);
    result(IV_OK, "11 4 2 100"); /* the command was carried out */
    assert_int_equal(q.status, 0);
    fake_close(&q);
    bridge.capacity = 0; /* no more commands */
    q = make_request("/v1/load_lora_adapter", LOAD);
    run(&q);
    expect(&q, 409, "queue: full");
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin_with_adapters, end_with_adapters)
    const struct CMUnitTest tests[] = {CASE(entries), CASE(texts),   CASE(names),
                                       CASE(loads),   CASE(refused), CASE(clients_leave)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}
