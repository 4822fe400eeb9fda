/* fuzz_engine_frames.c: any bytes from the other process are records, or are refused; what is a record is written again
 * and read again as the same bytes. */
#include "serve/engine/frames.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const iv_frame *f) {
    static iv_frame back;
    iv_buf once = {0}, twice = {0};
    iv_error err;
    size_t used;
    IV_ASSERT(iv_frame_encode(f, &once));
    IV_ASSERT(iv_frame_decode(once.data, once.len, &back, &used, &err) == IV_OK && used == once.len);
    IV_ASSERT(iv_frame_encode(&back, &twice));
    IV_ASSERT(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    iv_buf_free(&once), iv_buf_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static iv_frame f;
    iv_frame_reader r = {0};
    iv_error err;
    r.data = malloc(size ? size : 1); /* aligned, and nothing behind it */
    if (!r.data) return 0;
    if (size) memcpy(r.data, data, size);
    r.capacity = r.end = size;
    for (bool got = true; got;) {
        if (iv_frame_next(&r, &f, &got, NULL, NULL, &err) != IV_OK) break;
        if (got) check_again(&f);
    }
    iv_frame_reader_free(&r);
    return 0;
}
