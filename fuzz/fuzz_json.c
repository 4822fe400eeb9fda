/* fuzz_json.c: any bytes given to iv_json_parse end in a value or in one clean error line. */
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    iv_error err;
    json_t *value = NULL;
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
