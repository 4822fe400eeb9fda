/* fuzz_http_head.c: input is refused, or becomes a request that later code may trust; the result does not depend on
 * packet boundaries. */
#include "base/buf.h"
#include "base/size.h"
#include "base/utf8.h"
#include "serve/http/parse.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool good) {
    if (!good) abort();
}

static bool printable(const char *s) {
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7f) return false;
    return true;
}

static void check_head(const iv_http_head *head) {
    check(iv_http_is_token(head->method) && strlen(head->method) <= IV_HTTP_METHOD_BYTES_MAX);
    check(head->path[0] == '/' || (strcmp(head->path, "*") == 0 && strcmp(head->method, "OPTIONS") == 0));
    check(printable(head->path) && !strchr(head->path, '\t'));
    check(iv_utf8_valid((const uint8_t *)head->path, strlen(head->path), NULL));
    check(head->minor == 0 || head->minor == 1);
    check(head->field_count <= IV_HTTP_FIELDS_MAX && head->query_count <= IV_HTTP_QUERY_MAX);
    for (size_t i = 0; i < head->field_count; i++)
        check(iv_http_is_token(head->fields[i].name) && printable(head->fields[i].value));
    for (size_t i = 0; i < head->query_count; i++) {
        const char *name = head->query[i].name, *value = head->query[i].value;
        check(iv_utf8_valid((const uint8_t *)name, strlen(name), NULL));
        check(iv_utf8_valid((const uint8_t *)value, strlen(value), NULL));
    }
    check(!(head->chunked && iv_http_head_field(head, "Content-Length")));
    check(!head->chunked || head->minor == 1);
    check(head->minor == 0 || iv_http_head_field(head, "Host"));
    check(head->minor == 0 || (head->host && *head->host));
}

/* Feeds `step` bytes at a time; 0: all at once. */
static int take_chunks(const char *bytes, size_t n, size_t step, iv_buf *body, size_t *used, bool *done) {
    iv_http_chunks c = {0};
    iv_error err;
    int status = 0;
    *used = 0, *done = false;
    while (*used < n && !*done && !status) {
        size_t part = step ? iv_size_min(step, n - *used) : n, took = 0;
        status = iv_http_chunks_feed(&c, bytes + *used, part, body, BODY_MAX, &took, done, &err);
        check(took <= part && (took == part || *done || status));
        *used += took;
    }
    check(body->len <= BODY_MAX && (!status || status == 400 || status == 413));
    return status;
}

static void try_chunks(const char *bytes, size_t n) {
    iv_buf whole = {0}, parts = {0};
    size_t used_whole, used_parts;
    bool done_whole, done_parts;
    int a = take_chunks(bytes, n, 0, &whole, &used_whole, &done_whole);
    for (size_t step = 1; step <= 3; step += 2) {
        iv_buf_clear(&parts);
        int b = take_chunks(bytes, n, step, &parts, &used_parts, &done_parts);
        check(a == b && used_whole == used_parts && done_whole == done_parts && whole.len == parts.len);
        check(whole.len == 0 || memcmp(whole.data, parts.data, whole.len) == 0);
    }
    iv_buf_free(&whole);
    iv_buf_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *bytes = (const char *)data;
    size_t scanned = 0, again = 0;
    iv_error err;
    iv_http_scanned found = iv_http_head_scan(bytes, n, &scanned, &err), slowly = IV_HTTP_SCAN_MORE;
    for (size_t i = 0; i <= n && slowly == IV_HTTP_SCAN_MORE; i++) slowly = iv_http_head_scan(bytes, i, &again, &err);
    check(found == slowly && (found == IV_HTTP_SCAN_BAD || scanned == again));
    if (found != IV_HTTP_SCAN_END) return 0;
    if (scanned == 2) { /* an empty line before the request */
        try_chunks(bytes + 2, n - 2);
        return 0;
    }
    char *text = malloc(scanned + 1);
    check(text);
    memcpy(text, bytes, scanned);
    text[scanned] = 0;
    static iv_http_head head;
    int status = iv_http_head_parse(text, scanned, &head, &err);
    check(status == 0 || status == 400 || status == 415 || status == 417 || status == 431 || status == 505);
    if (status == 0) {
        check_head(&head);
        if (head.chunked) try_chunks(bytes + scanned, n - scanned);
    }
    free(text);
    return 0;
}
