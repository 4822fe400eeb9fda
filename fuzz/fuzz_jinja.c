/* Any bytes as a template, with fixed variables that have every type. */
#include "format/json.h"
#include "text/jinja/template.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": "
    "\"h\u00e9\"},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", "
    "\"arguments\": {\"a\": 1}}}]}],"
    " \"tools\": [{\"type\": \"function\"}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"n\": "
    "7, \"f\": 2.5,"
    " \"s\": \"Hello, W\u00f6rld\", \"xs\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [1, 2]}, \"no\": false}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *variables;
    iv_error err;
    if (!variables && iv_json_parse("variables", variables_text, sizeof variables_text - 1, &variables, &err) != IV_OK)
        abort();
    iv_template *t;
    iv_buf out = {0};
    if (iv_template_parse("fuzz", (const char *)data, size, IV_JINJA_CHAT, &t, &err) != IV_OK) return 0;
    if (iv_template_render(t, variables, "now", &out, &err) != IV_OK && err.message[0] == 0) abort();
    iv_buf_free(&out);
    iv_template_close(t);
    return 0;
}
