/* parse.c: RFC 9112 without its tolerances. Chunk extensions and trailers are checked and dropped. */
#include "serve/http/parse.h"
#include "base/size.h"
#include "base/utf8.h"

#include <string.h>
#include <strings.h>

/* ---- the head ----------------------------------------------------------------------------------------- */

iv_http_scanned iv_http_head_scan(const char *bytes, size_t n, size_t *scanned, iv_error *err) {
    for (size_t i = *scanned; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        bool after_return = i > 0 && bytes[i - 1] == '\r';
        if (c == '\n' ? !after_return : after_return) {
            iv_fail(err, IV_FORMAT, "request head: a bare %s at byte %zu; lines end with CR LF",
                    after_return ? "carriage return" : "line feed", i);
            return IV_HTTP_SCAN_BAD;
        }
        if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7f) {
            iv_fail(err, IV_FORMAT, "request head: control byte 0x%02x at byte %zu", c, i);
            return IV_HTTP_SCAN_BAD;
        }
        if (c == '\n' && (i == 1 || (i >= 3 && bytes[i - 2] == '\n'))) {
            *scanned = i + 1;
            return IV_HTTP_SCAN_END;
        }
    }
    *scanned = n;
    return IV_HTTP_SCAN_MORE;
}

static bool is_token_byte(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

bool iv_http_is_token(const char *s) {
    if (!*s) return false;
    while (is_token_byte((unsigned char)*s)) s++;
    return !*s;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Decodes percent-encoding in place. False: a broken escape, a NUL, or invalid UTF-8. */
static bool decode(char *s, bool plus_is_space) {
    char *to = s;
    for (const char *from = s; *from; from++) {
        char c = *from;
        if (c == '%') {
            int high = hex_value(from[1]), low = high < 0 ? -1 : hex_value(from[2]);
            if (low < 0 || high + low == 0) return false;
            c = (char)(high * 16 + low);
            from += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        *to++ = c;
    }
    *to = 0;
    return iv_utf8_valid((const uint8_t *)s, (size_t)(to - s), NULL);
}

static bool has_control(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return true;
    return false;
}

static int parse_query(char *query, iv_http_head *head, iv_error *err) {
    while (query && *query) {
        char *next = strchr(query, '&');
        if (next) *next++ = 0;
        char *value = strchr(query, '=');
        if (value) *value++ = 0;
        if (*query || value) {
            if (head->query_count == IV_HTTP_QUERY_MAX)
                return iv_fail(err, IV_LIMIT, "query: more than %d parameters", IV_HTTP_QUERY_MAX), 400;
            iv_http_pair *pair = &head->query[head->query_count++];
            *pair = (iv_http_pair){query, value ? value : ""};
            if (!decode(query, true) || (value && !decode(value, true)))
                return iv_fail(err, IV_FORMAT, "query: a broken percent-escape, NUL or UTF-8"), 400;
        }
        query = next;
    }
    return 0;
}

static bool is_host(const char *s) {
    size_t good = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=%:[]");
    return good > 0 && !s[good];
}

/* origin-form, absolute-form (http://HOST/...), and * for OPTIONS. */
static int parse_target(char *target, iv_http_head *head, iv_error *err) {
    for (const char *c = target; *c; c++)
        if (*c <= 0x20 || *c == 0x7f || *c == '#')
            return iv_fail(err, IV_FORMAT, "request target: byte 0x%02x must be percent-encoded", (unsigned char)*c),
                   400;
    if (strcmp(target, "*") == 0 && strcmp(head->method, "OPTIONS") == 0) {
        head->path = target;
        return 0;
    }
    size_t scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
    if (scheme) {
        target += scheme;
        size_t authority = strcspn(target, "/?");
        char *host = target - 1; /* over the last slash, so that a NUL fits after it */
        memmove(host, target, authority);
        host[authority] = 0;
        if (!is_host(host)) return iv_fail(err, IV_FORMAT, "request target: no host in its URI"), 400;
        head->host = host;
        target += authority;
    } else if (*target != '/') {
        return iv_fail(err, IV_FORMAT, "request target: wanted a path that begins with /"), 400;
    }
    char *query = strchr(target, '?');
    if (query) *query++ = 0;
    head->path = *target ? target : "/"; /* http://host?a=b */
    if (!decode(target, false) || has_control(target))
        return iv_fail(err, IV_FORMAT, "request target: a broken percent-escape, control byte or UTF-8"), 400;
    return parse_query(query, head, err);
}

static int parse_request_line(char *line, iv_http_head *head, iv_error *err) {
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version) return iv_fail(err, IV_FORMAT, "request line: wanted METHOD TARGET HTTP/1.1"), 400;
    *target++ = 0, *version++ = 0;
    head->method = line;
    if (!iv_http_is_token(line) || strlen(line) > IV_HTTP_METHOD_BYTES_MAX)
        return iv_fail(err, IV_FORMAT, "request line: the method is no token of 1 to %d bytes",
                       IV_HTTP_METHOD_BYTES_MAX),
               400;
    bool shaped = strlen(version) == 8 && strncmp(version, "HTTP/", 5) == 0 && version[5] >= '0' && version[5] <= '9' &&
                  version[6] == '.' && version[7] >= '0' && version[7] <= '9';
    if (!shaped) return iv_fail(err, IV_FORMAT, "request line: wanted HTTP/1.1 after the target"), 400;
    if (version[5] != '1' || version[7] > '1')
        return iv_fail(err, IV_UNSUPPORTED, "request line: %s; this server speaks HTTP/1.1 and HTTP/1.0", version), 505;
    head->minor = version[7] - '0';
    return parse_target(target, head, err);
}

static int parse_field(char *line, iv_http_head *head, iv_error *err) {
    if (head->field_count == IV_HTTP_FIELDS_MAX)
        return iv_fail(err, IV_LIMIT, "request head: more than %d fields", IV_HTTP_FIELDS_MAX), 431;
    char *value = strchr(line, ':');
    if (!value) return iv_fail(err, IV_FORMAT, "request head: a line without a colon"), 400;
    *value++ = 0;
    if (!iv_http_is_token(line)) /* also an indented line, and a space before the colon */
        return iv_fail(err, IV_FORMAT, "request head: a field's name is no token"), 400;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = 0;
    head->fields[head->field_count++] = (iv_http_pair){line, value};
    return 0;
}

const char *iv_http_head_field(const iv_http_head *head, const char *name) {
    for (size_t i = 0; i < head->field_count; i++)
        if (strcasecmp(head->fields[i].name, name) == 0) return head->fields[i].value;
    return NULL;
}

/* True if the comma-separated value has the word. */
static bool has_word(const char *value, const char *word) {
    size_t n = strlen(word);
    while (*value) {
        value += strspn(value, " \t,");
        size_t item = strcspn(value, " \t,");
        if (item == n && strncasecmp(value, word, n) == 0) return true;
        value += item;
    }
    return false;
}

static int check_once(const iv_http_head *head, iv_error *err) {
    static const char *const once[] = {"Content-Length", "Transfer-Encoding", "Host", "Authorization", "Expect"};
    for (size_t k = 0; k < sizeof once / sizeof *once; k++) {
        size_t seen = 0;
        for (size_t i = 0; i < head->field_count; i++) seen += strcasecmp(head->fields[i].name, once[k]) == 0;
        if (seen > 1) return iv_fail(err, IV_FORMAT, "%s: given %zu times", once[k], seen), 400;
    }
    return 0;
}

static int check_host(iv_http_head *head, iv_error *err) {
    const char *host = iv_http_head_field(head, "Host");
    if (!host) return head->minor == 0 ? 0 : (iv_fail(err, IV_FORMAT, "Host: missing"), 400);
    if (!is_host(host)) return iv_fail(err, IV_FORMAT, "Host: no host name in it"), 400;
    if (!head->host) head->host = host; /* RFC 9112, 3.2.2: the target takes precedence */
    return 0;
}

/* Determines the body's length. All servers of a chain must agree on it. */
static int check_framing(iv_http_head *head, iv_error *err) {
    const char *coding = iv_http_head_field(head, "Transfer-Encoding");
    const char *length = iv_http_head_field(head, "Content-Length");
    if (coding) {
        if (length) return iv_fail(err, IV_FORMAT, "Content-Length together with Transfer-Encoding"), 400;
        if (head->minor == 0) return iv_fail(err, IV_FORMAT, "Transfer-Encoding in an HTTP/1.0 request"), 400;
        if (strcasecmp(coding, "chunked") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "Transfer-Encoding: wanted chunked and no other coding"), 400;
        head->chunked = true;
    }
    if (!length) return 0;
    size_t digits = strspn(length, "0123456789");
    if (digits == 0 || length[digits]) return iv_fail(err, IV_FORMAT, "Content-Length: wanted decimal digits"), 400;
    for (const char *c = length; *c; c++) {
        size_t times, more;
        bool fits = iv_size_mul(head->length, 10, &times) && iv_size_add(times, (size_t)(*c - '0'), &more);
        head->length = fits ? more : SIZE_MAX;
        if (!fits) break;
    }
    return 0;
}

/* Compressed bodies are refused: they could expand a thousandfold. */
static int check_coding(const iv_http_head *head, iv_error *err) {
    const char *coding = iv_http_head_field(head, "Content-Encoding");
    if (!coding || !*coding || strcasecmp(coding, "identity") == 0) return 0;
    return iv_fail(err, IV_UNSUPPORTED, "Content-Encoding: wanted none, found %.40s",
                   iv_http_is_token(coding) ? coding : "several"),
           415;
}

static int check_expect(iv_http_head *head, iv_error *err) {
    const char *expect = iv_http_head_field(head, "Expect");
    if (!expect || head->minor == 0) return 0;
    if (strcasecmp(expect, "100-continue") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "Expect: only 100-continue is known"), 417;
    head->expects_continue = true;
    return 0;
}

int iv_http_head_parse(char *text, size_t n, iv_http_head *head, iv_error *err) {
    *head = (iv_http_head){.method = "", .path = ""};
    IV_ASSERT(n >= 4 && memcmp(text + n - 4, "\r\n\r\n", 4) == 0);
    text[n - 2] = 0;
    int status = 0;
    bool first = true;
    for (char *line = text; *line && !status; first = false) {
        char *end = strstr(line, "\r\n");
        *end = 0;
        status = first ? parse_request_line(line, head, err) : parse_field(line, head, err);
        line = end + 2;
    }
    bool close = false, keep = false;
    for (size_t i = 0; i < head->field_count; i++) {
        if (strcasecmp(head->fields[i].name, "Connection") != 0) continue;
        close = close || has_word(head->fields[i].value, "close");
        keep = keep || has_word(head->fields[i].value, "keep-alive");
    }
    head->keep_alive = !status && !close && (head->minor == 1 || keep);
    if (!status) status = check_once(head, err);
    if (!status) status = check_host(head, err);
    if (!status) status = check_framing(head, err);
    if (!status) status = check_coding(head, err);
    if (!status) status = check_expect(head, err);
    return status;
}

/* ---- a chunked body ----------------------------------------------------------------------------------- */

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
