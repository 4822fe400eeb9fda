/* http_chunks.c: size lines, data, trailers; extensions and trailers are checked and dropped. */
#include "serve/http_chunks.h"
#include "base/size.h"

enum {
    SIZE_LINE, /* hexadecimal digits */
    EXTENSION, /* after ";" */
    SIZE_FEED, /* the line feed that ends the line */
    DATA,
    DATA_RETURN,
    DATA_FEED,
    TRAILER,     /* at the start of a line */
    TRAILER_ROW, /* inside one */
    TRAILER_ROW_FEED,
    LAST_FEED,
    DONE
};

static int bad(iv_error *err, const char *what) {
    iv_fail(err, IV_FORMAT, "chunked body: %s", what);
    return 400;
}

static bool is_control(unsigned char b) { return (b < 0x20 && b != '\t') || b == 0x7f; }

int iv_http_body_too_long(size_t body_max, size_t found, bool or_more, iv_error *err) {
    iv_fail(err, IV_LIMIT, "body: wanted at most %zu bytes (--max-request-body), found %zu%s", body_max, found,
            or_more ? " or more" : "");
    return 413;
}

static int size_digit(iv_http_chunks *c, unsigned char b, size_t have, size_t body_max, iv_error *err) {
    int value = b >= '0' && b <= '9'   ? b - '0'
                : b >= 'a' && b <= 'f' ? b - 'a' + 10
                : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                       : -1;
    if (value < 0) return bad(err, "wanted a hexadecimal size");
    size_t size, whole;
    bool fits =
        iv_size_mul(c->left, 16, &size) && iv_size_add(size, (size_t)value, &size) && iv_size_add(have, size, &whole);
    if (!fits || whole > body_max) return iv_http_body_too_long(body_max, fits ? whole : SIZE_MAX, true, err);
    c->left = size;
    return 0;
}

/* One byte of a size line or of the lines after the last chunk. */
static int take_byte(iv_http_chunks *c, unsigned char b, size_t have, size_t body_max, iv_error *err) {
    if (c->state >= TRAILER && ++c->trailer > IV_HTTP_TRAILER_BYTES_MAX) return bad(err, "trailers are too long");
    switch (c->state) {
    case SIZE_LINE:
    case EXTENSION:
        if (++c->line > IV_HTTP_CHUNK_LINE_MAX) return bad(err, "a size line is too long");
        if (b == '\r') {
            c->state = SIZE_FEED;
            return c->line > 1 ? 0 : bad(err, "wanted a hexadecimal size");
        }
        if (c->state == EXTENSION) return is_control(b) ? bad(err, "a control byte") : 0;
        if (b == ';' && c->line > 1) {
            c->state = EXTENSION;
            return 0;
        }
        return size_digit(c, b, have, body_max, err);
    case SIZE_FEED:
        c->line = 0;
        c->state = c->left ? DATA : TRAILER;
        return b == '\n' ? 0 : bad(err, "a size line ends with CR LF");
    case DATA_RETURN: c->state = DATA_FEED; return b == '\r' ? 0 : bad(err, "a chunk is longer than its size");
    case DATA_FEED: c->state = SIZE_LINE; return b == '\n' ? 0 : bad(err, "a chunk ends with CR LF");
    case TRAILER:
        c->state = b == '\r' ? LAST_FEED : TRAILER_ROW;
        return b != '\r' && is_control(b) ? bad(err, "a control byte in a trailer") : 0;
    case TRAILER_ROW:
        if (b == '\r') c->state = TRAILER_ROW_FEED;
        return b != '\r' && is_control(b) ? bad(err, "a control byte in a trailer") : 0;
    case TRAILER_ROW_FEED: c->state = TRAILER; return b == '\n' ? 0 : bad(err, "a trailer ends with CR LF");
    default: c->state = DONE; return b == '\n' ? 0 : bad(err, "the body ends with CR LF");
    }
}

int iv_http_chunks_feed(iv_http_chunks *c, const char *bytes, size_t n, iv_buf *body, size_t body_max, size_t *used,
                        bool *done, iv_error *err) {
    size_t i = 0;
    int status = 0;
    while (i < n && c->state != DONE && !status) {
        if (c->state != DATA) {
            status = take_byte(c, (unsigned char)bytes[i++], body->len, body_max, err);
            continue;
        }
        size_t take = iv_size_min(n - i, c->left);
        if (!iv_buf_append(body, bytes + i, take)) {
            iv_fail(err, IV_NO_MEMORY, "body: out of memory");
            status = 503;
            break;
        }
        i += take;
        c->left -= take;
        if (c->left == 0) c->state = DATA_RETURN;
    }
    *used = i;
    *done = c->state == DONE && !status;
    return status;
}
