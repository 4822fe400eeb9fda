/* fuzz_json.c: iv_json_parse of any bytes gives a value or one clean error line; the source text of an object's member
 * parses to that member. */
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_members(const char *data, size_t n) {
    iv_error err;
    json_t *object = NULL, *value, *again = NULL;
    const char *key, *text;
    size_t bytes;
    if (iv_json_parse_repeating("object", data, n, &object, &err) != IV_OK) return;
    if (json_object_size(object) <= 8) json_object_foreach(object, key, value) {
            if (!iv_json_member_text(data, n, key, &text, &bytes)) abort();
            if (iv_json_parse_repeating("member", text, bytes, &again, &err) != IV_OK) abort();
            if (!json_equal(value, again)) abort();
            json_decref(again);
        }
    json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    iv_error err;
    json_t *value = NULL;
    check_members((const char *)data, n);
    iv_status status = iv_json_parse("fuzz.json", (const char *)data, n, &value, &err);
    if (status != IV_OK) {
        if (value || err.status != status || strncmp(err.message, "fuzz.json", 9) != 0) abort();
        if (strpbrk(err.message, "\n\r\x1b")) abort();
        return 0;
    }
    if (!iv_json_type_name(value)) abort();
    json_decref(value);
    return 0;
}
