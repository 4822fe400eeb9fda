/* fuzz_load.c: any bytes are a stream of events or an error, independent of packet boundaries; any text is a URL or is
 * refused. Input: a byte for the packet size, then the stream. */
#include "serve/load.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_in_pieces(const uint8_t *data, size_t size, size_t piece, iv_load_events *e, iv_load_result *r) {
    iv_load_events_begin(e);
    for (size_t at = 0; at < size; at += piece)
        iv_load_events_feed(e, r, data + at, size - at < piece ? size - at : piece, 1);
}

static void read_url(const uint8_t *data, size_t size) {
    iv_load_url url;
    iv_error err = {0};
    char *text = malloc(size + 1);
    IV_ASSERT(text);
    if (size) memcpy(text, data, size);
    text[size] = 0;
    if (iv_load_url_parse(text, &url, &err) == IV_OK)
        IV_ASSERT(url.host[0] && url.port && !strpbrk(url.host, " @/\r\n") && !strpbrk(url.path, " \r\n?#"));
    else
        IV_ASSERT(err.message[0]);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_load_events a = {0}, b = {0};
    iv_load_result r = {0}, s = {0};
    if (size == 0) return 0;
    read_url(data, size);
    read_in_pieces(data + 1, size - 1, size, &a, &r);
    read_in_pieces(data + 1, size - 1, 1 + data[0], &b, &s);
    IV_ASSERT(a.finished == b.finished && r.gap_count == s.gap_count && r.generated == s.generated);
    IV_ASSERT(strcmp(r.error, s.error) == 0 && strcmp(r.digest, s.digest) == 0);
    IV_ASSERT((r.first > 0) == (s.first > 0) && (r.first > 0 || r.gap_count == 0));
    iv_load_results_free(&r, 1), iv_load_results_free(&s, 1);
    iv_buf_free(&a.bytes), iv_buf_free(&b.bytes);
    return 0;
}
