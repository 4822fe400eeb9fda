/* A template and its variables: the input is the template up to the first NUL byte, then JSON. */
#include "format/json.h"
#include "text/jinja/template.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    if (!nul) return 0;
    size_t n = (size_t)(nul - data);
    iv_error err;
    json_t *variables = NULL;
    iv_template *t = NULL;
    iv_buf out = {0};
    if (iv_json_parse("variables", (const char *)nul + 1, size - n - 1, &variables, &err) == IV_OK &&
        json_is_object(variables) && iv_template_parse("fuzz", (const char *)data, n, IV_JINJA_CHAT, &t, &err) == IV_OK)
        iv_template_render(t, variables, "now", &out, &err);
    iv_buf_free(&out);
    iv_template_close(t);
    json_decref(variables);
    return 0;
}
