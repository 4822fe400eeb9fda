/* fuzz_api_body.c: any body to any route receives exactly one answer, valid JSON or events, without leaks.
 * Input: one byte that chooses the route and the engine's behaviour, then the body. */
#include "../tests/serve/api_fake.h"
#include "format/json.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static iv_bridge bridge;
static iv_server_options options;

static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/generate",      "/tokenize",
                                    "/detokenize",     "/v1/responses",        "/abort_request", "/update_weights"};

/* Bit 6 is of use only to routes with several answers; at two others it is another route. */
static const char *path_of(uint8_t choice) {
    if ((choice & 71) == 67) return "/v1/score";
    if ((choice & 71) == 68) return "/v1/messages";
    return paths[choice & 7];
}

/* The model is in the source tree. Without it nothing would be tested. */
static void open_words(void) {
    static const char path[] = INVAR_SOURCE_DIR "/models/tiny-math";
    iv_error err;
    if (bridge.text_model) return;
    options.bridge.engine.model = path;
    IV_ASSERT(iv_text_model_open(path, &bridge.text_model, &err) == IV_OK);
}

static void check_json(const char *text, size_t n) {
    iv_error err;
    json_t *v = NULL;
    IV_ASSERT(iv_json_parse("answer", text, n, &v, &err) == IV_OK);
    json_decref(v);
}

static void check_events(const char *text, size_t n) {
    while (n) {
        const char *end = memmem(text, n, "\n\n", 2);
        if (strncmp(text, "event: ", 7) == 0) { /* an event name precedes its data */
            const char *line = memchr(text, '\n', n);
            IV_ASSERT(line);
            n -= (size_t)(line + 1 - text), text = line + 1;
        }
        IV_ASSERT(end && strncmp(text, "data: ", 6) == 0);
        size_t length = (size_t)(end - text);
        if (strncmp(text, "data: [DONE]", 12) != 0) check_json(text + 6, length - 6);
        text += length + 2, n -= length + 2;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    open_words();
    iv_server s = {.o = &options, .bridge = &bridge, .model_name = "tiny-math"};
    bool mistral = data[0] & 128;
    s.tool_form = mistral ? IV_TOOL_FORM_MISTRAL : IV_TOOL_FORM_HERMES;
    iv_http_request q = {.writes_left = data[0] & 8 ? 1 : 1000};
    char *body = malloc(size); /* NUL-terminated, like the real one */
    IV_ASSERT(body);
    memcpy(body, data + 1, size - 1);
    body[size - 1] = 0;
    bridge.count = 0, bridge.capacity = data[0] & 64 ? 2 : FAKE_CHILDREN_MAX, bridge.command_owner = NULL;
    bridge.info.max_model_len = 2048;
    snprintf(bridge.stats.fingerprint, sizeof bridge.stats.fingerprint, "iv1-test");
    fake_call(&s, &q, path_of(data[0]), body, size - 1);
    for (size_t i = 0; i < bridge.count && !q.ended; i++) {
        fake_token(&s, i, 17, mistral ? "<think>x</think> \xc3\xa9[TOOL_" : "<think>x</think> \xc3\xa9<tool_");
        if (data[0] & 16) fake_refuse(&s, i, IV_INVALID, "prompt: too long");
        fake_token(&s, i, 200, mistral ? "CALLS]f[ARGS]{}" : "call>{\"name\":\"f\"}</tool_call>");
        if (!q.ended) fake_done(&s, i, data[0] & 32 ? IV_FINISH_ERROR : IV_FINISH_STOP);
    }
    if (bridge.command_owner) {
        iv_bridge_event r = {
            .kind = IV_BRIDGE_EVENT_COMMAND, .owner = bridge.command_owner, .status = IV_BUSY, .message = "later"};
        iv_server_take_event(&s, &r);
    }
    IV_ASSERT(q.ended || q.gone_called);
    IV_ASSERT(!s.tasks);
    if (q.stream)
        check_events(q.out.data ? q.out.data : "", q.out.len);
    else
        check_json(q.out.data, q.out.len);
    fake_close(&q);
    free(body);
    return 0;
}
