/* fuzz_batch.c: every line of any batch file is a request or is refused with a message. Input: a file of lines. */
#include "serve/batch.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_batch_lines l = {0};
    iv_error err = {0};
    IV_ASSERT(iv_buf_append(&l.file, data, size));
    iv_status status = iv_batch_lines_split("fuzz", &l, &err);
    IV_ASSERT(status == IV_OK ? l.count > 0 : err.message[0] && l.count == 0);
    for (size_t i = 0; i < 2 * l.count; i++) { /* twice: a line does not repeat itself */
        iv_batch_request r;
        size_t index = i % l.count;
        const iv_batch_line *line = &l.lines[index];
        IV_ASSERT(line->bytes > 0 && !memchr(line->text, '\n', line->bytes) && line->number > index);
        err = (iv_error){0};
        status = iv_batch_line_read(&l, index, &r, &err);
        if (status == IV_OK)
            IV_ASSERT(json_is_string(r.id) && json_is_object(r.body));
        else
            IV_ASSERT(err.status == status && err.message[0]);
        IV_ASSERT(!r.id || r.root);
        json_decref(r.root);
    }
    iv_batch_lines_free(&l);
    return 0;
}
