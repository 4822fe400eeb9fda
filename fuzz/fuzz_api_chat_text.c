/* fuzz_api_chat_text.c: the parse of a text does not depend on its division into pieces; calls have arguments; a text
 * without calls is complete. Input: a byte of flags, a byte of sizes, perhaps one of the form, then text. */
#include "base/status.h"
#include "format/json.h"
#include "chat/chat_text.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_of_coder[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"o\":{\"type\":[\"object\",\"array\"]},\"m\":{\"type\":[\"string\",\"array\","
    "\"null\"]}}}}}]";

static bool equal(const iv_buf *a, const iv_buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void check_call(const iv_chat_call *call) {
    json_t *v = NULL;
    iv_error err;
    IV_ASSERT(*call->name);
    IV_ASSERT(iv_json_parse_repeating("arguments", call->arguments, strlen(call->arguments), &v, &err) == IV_OK);
    IV_ASSERT(json_is_object(v));
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const iv_tool_form forms[] = {IV_TOOL_FORM_HERMES, IV_TOOL_FORM_LLAMA3_JSON, IV_TOOL_FORM_MISTRAL,
                                         IV_TOOL_FORM_NONE};
    static iv_chat_text whole, cut;
    static json_t *schemas;
    if (!schemas) IV_ASSERT((schemas = json_loads(tools_of_coder, 0, NULL)));
    if (size < 2) return 0;
    bool other = size > 2 && data[2] < 32; /* a third byte: another form */
    const char *text = (const char *)data + 2 + other;
    size_t n = size - 2 - other, at = 0;
    bool split = data[0] & 1, inside = data[0] & 2, tools = data[0] & 4, one = data[0] & 8;
    bool calls_or_json = data[1] & 128;
    iv_chat_text_init(&whole, split || calls_or_json, inside, tools, one);
    iv_chat_text_init(&cut, split || calls_or_json, inside, tools, one);
    whole.calls_or_json = cut.calls_or_json = calls_or_json, whole.joined = cut.joined = calls_or_json && !split;
    whole.form = cut.form = data[0] & 64 ? IV_TOOL_FORM_QWEN3_CODER : forms[data[0] >> 4 & 3];
    if (other) {
        whole.form = cut.form = (iv_tool_form)(data[2] % (IV_TOOL_FORM_NONE + 1));
        whole.reasoning_form = cut.reasoning_form = (iv_reasoning_form)(data[1] / 16 % IV_REASONING_FORM_NONE);
        if (whole.form == IV_TOOL_FORM_HARMONY) whole.reasoning_form = cut.reasoning_form = IV_REASONING_FORM_HARMONY;
    }
    if (data[0] & 128) whole.schemas = cut.schemas = schemas;
    iv_chat_text_push(&whole, text, n);
    for (uint32_t state = data[1]; at < n; state = state * 1664525u + 1013904223u) {
        size_t step = (state >> 24) % (1 + data[1] % 23) + 1;
        if (step > n - at) step = n - at;
        iv_chat_text_push(&cut, text + at, step);
        at += step;
    }
    iv_chat_text_end(&whole), iv_chat_text_end(&cut);
    IV_ASSERT(!whole.failed && !cut.failed && whole.call_count == cut.call_count);
    IV_ASSERT(equal(&whole.content, &cut.content) && equal(&whole.reasoning, &cut.reasoning));
    for (size_t i = 0; i < whole.call_count; i++) {
        IV_ASSERT(strcmp(whole.calls[i].name, cut.calls[i].name) == 0);
        IV_ASSERT(strcmp(whole.calls[i].arguments, cut.calls[i].arguments) == 0);
        check_call(&whole.calls[i]);
    }
    if (whole.call_count == 0 && !split)
        IV_ASSERT(equal(&whole.content, &(iv_buf){.data = (char *)(uintptr_t)text, .len = n}));
    IV_ASSERT(whole.call_count <= 1 || !one);
    IV_ASSERT(!whole.no_calls || whole.call_count == 0);
    iv_chat_text_free(&whole), iv_chat_text_free(&cut);
    return 0;
}
