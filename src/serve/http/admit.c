/* admit.c: the handler of a request, and whether the request is allowed: host names, keys, origins, paths,
 * methods.
 *
 * A web page whose name an attacker's DNS points to this machine (DNS rebinding) has the same origin as the server for
 * the browser; only the name in Host gives it away. An address cannot be pointed elsewhere, so addresses are allowed,
 * as are names that never leave the machine. */
#include "base/digest.h"
#include "base/file.h"
#include "base/utf8.h"
#include "serve/http/internal.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- host names --------------------------------------------------------------------------------------- */

enum { NAME_BYTES_MAX = 256 };

static bool is_address(const char *name) {
    struct in6_addr unused;
    return inet_pton(AF_INET, name, &unused) == 1 || inet_pton(AF_INET6, name, &unused) == 1;
}

/* HOST[:PORT] or [ADDRESS][:PORT]: the name without port, brackets, zone and the dot at its end. False: none of these.
 */
static bool take_name(const char *host, char name[NAME_BYTES_MAX]) {
    bool bracket = *host == '[';
    host += bracket;
    size_t n = strcspn(host, bracket ? "]" : ":");
    const char *port = host + n + (bracket && host[n]);
    if ((bracket && host[n] != ']') || (*port && *port != ':') || n == 0 || n >= NAME_BYTES_MAX) return false;
    if (*port && port[1 + strspn(port + 1, "0123456789")]) return false;
    memcpy(name, host, n), name[n] = 0;
    if (bracket) name[strcspn(name, "%")] = 0;
    if (bracket != (strchr(name, ':') != NULL)) return false;
    if (!bracket && n > 1 && name[n - 1] == '.') name[n - 1] = 0;
    return true;
}

/* Whether the name is the pattern's n bytes; "*.NAME" is every name below NAME, "*" every name. */
static bool matches(const char *name, const char *pattern, size_t n) {
    size_t length = strlen(name);
    if (n == 1 && *pattern == '*') return true;
    if (n > 2 && strncmp(pattern, "*.", 2) == 0)
        return length > n - 1 && strncasecmp(name + length - (n - 1), pattern + 1, n - 1) == 0;
    return length == n && strncasecmp(name, pattern, n) == 0;
}

bool iv_http_host_allowed(const iv_http *h, const char *host) {
    char name[NAME_BYTES_MAX];
    if (!host || h->api_keys.count > 0) return true; /* not a browser, or a page that does not know the key */
    if (!take_name(host, name)) return false;
    if (is_address(name) || strcasecmp(name, "localhost") == 0 || matches(name, "*.localhost", 11)) return true;
    if (strcasecmp(name, h->host) == 0) return true;
    for (const char *item = h->allowed_hosts; item && *item;) {
        item += strspn(item, " ,");
        size_t n = strcspn(item, " ,");
        if (n && matches(name, item, n)) return true;
        item += n;
    }
    return false;
}

static bool is_pattern(const char *s, size_t n) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._";
    if (n == 1 && *s == '*') return true;
    if (n > 2 && strncmp(s, "*.", 2) == 0) s += 2, n -= 2;
    return n < NAME_BYTES_MAX && strspn(s, letters) >= n && s[n - 1] != '.';
}

iv_status iv_http_check_hosts(const char *list, iv_error *err) {
    for (const char *item = list; item && *item;) {
        item += strspn(item, " ,");
        size_t n = strcspn(item, " ,");
        if (n && !is_pattern(item, n))
            return iv_fail(err, IV_INVALID,
                           "allowed-hosts: wanted names without ports, such as llm.example.org, *.example.org or *, "
                           "found \"%.*s\"",
                           (int)(n < 100 ? n : 100), item);
        item += n;
    }
    return IV_OK;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

/* SHA-256 of each key, compared in constant time. */
enum { KEY_FILE_BYTES_MAX = 64 << 10 };

iv_status iv_keys_add(iv_keys *keys, const char *key, const char *where, iv_error *err) {
    if (!*key) return iv_fail(err, IV_INVALID, "%s: wanted a key, found nothing", where);
    for (const char *c = key; *c; c++)
        if (*c <= 0x20 || *c > 0x7e)
            return iv_fail(err, IV_INVALID, "%s: wanted visible ASCII without spaces, found something else", where);
    if (keys->count == IV_KEYS_MAX) return iv_fail(err, IV_LIMIT, "%s: more than %d keys", where, IV_KEYS_MAX);
    iv_digest_of(key, strlen(key), keys->digests[keys->count++]);
    return IV_OK;
}

static iv_status read_lines(iv_keys *keys, const char *path, char *text, size_t bytes, iv_error *err) {
    char where[IV_KEYS_MAX + 1000];
    size_t number = 1;
    if (memchr(text, 0, bytes)) return iv_fail(err, IV_FORMAT, "%.800s: a NUL byte is no part of a key", path);
    for (char *line = text; *line; number++) {
        char *next = line + strcspn(line, "\n");
        if (*next) *next++ = 0;
        for (size_t n = strlen(line); n > 0 && strchr(" \t\r", line[n - 1]);) line[--n] = 0;
        snprintf(where, sizeof where, "%.800s:%zu", path, number);
        if (*line && *line != '#') IV_TRY(iv_keys_add(keys, line, where, err));
        line = next;
    }
    return keys->count ? IV_OK : iv_fail(err, IV_FORMAT, "%.800s: wanted a key a line, found none", path);
}

iv_status iv_keys_read(iv_keys *keys, const char *path, iv_error *err) {
    iv_buf text = {0};
    iv_keys found = {.count = 0};
    iv_status status = iv_file_read(path, KEY_FILE_BYTES_MAX, &text, err);
    if (status == IV_OK) status = read_lines(&found, path, text.data ? text.data : (char[]){0}, text.len, err);
    if (status == IV_OK) *keys = found;
    if (text.data) explicit_bzero(text.data, text.cap);
    iv_buf_free(&text);
    return status;
}

/* Whether `given` is one of the keys, in constant time. */
static bool keys_have(const iv_keys *keys, const char *given) {
    uint8_t digest[32];
    bool have = false;
    iv_digest_of(given, strlen(given), digest);
    for (size_t i = 0; i < keys->count; i++) {
        unsigned difference = 0;
        for (size_t k = 0; k < sizeof digest; k++) difference |= keys->digests[i][k] ^ digest[k];
        have |= difference == 0;
    }
    return have;
}

/* ---- paths and methods -------------------------------------------------------------------------------- */

static bool same_path(const iv_http_route *route, const char *path, bool *exact) {
    size_t n = strlen(route->path);
    *exact = n == 0 || route->path[n - 1] != '*';
    return *exact ? strcmp(route->path, path) == 0 : strncmp(route->path, path, n - 1) == 0;
}

static bool same_method(const iv_http_route *route, const char *method) {
    if (strcmp(method, "HEAD") == 0) method = "GET";
    if (strcmp(route->method, "*") == 0) return strcmp(method, "GET") == 0 || strcmp(method, "POST") == 0;
    return strcmp(route->method, method) == 0;
}

/* Finds the route of path and method: exact before prefix, the longest prefix first. *known: the path exists,
 * perhaps with other methods. */
static const iv_http_route *find_route(const iv_http *h, const char *path, const char *method, bool *known) {
    const iv_http_route *best = NULL;
    *known = false;
    for (size_t i = 0; i < h->route_count; i++) {
        const iv_http_route *route = &h->routes[i];
        bool exact;
        if (!same_path(route, path, &exact)) continue;
        *known = true;
        if (!same_method(route, method)) continue;
        if (exact) return route;
        if (!best || strlen(route->path) > strlen(best->path)) best = route;
    }
    return best;
}

/* Lists the allowed methods of a path, such as "GET, HEAD, POST, OPTIONS"; "*": of all paths. */
static void allowed_methods(const iv_http *h, const char *path, char *out, size_t n) {
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"};
    size_t at = 0;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        bool any = false, exact;
        for (size_t i = 0; i < h->route_count && !any; i++)
            any = same_method(&h->routes[i], methods[m]) &&
                  (strcmp(path, "*") == 0 || same_path(&h->routes[i], path, &exact));
        if (any) at += (size_t)snprintf(out + at, n - at, "%s, ", methods[m]);
    }
    snprintf(out + at, n - at, "OPTIONS");
}

bool iv_http_control_is_open(const iv_http *h) {
    return h->loopback && h->api_keys.count == 0 && h->admin_keys.count == 0;
}

/* 0, or the status of the refusal and *why. */
static int check_key(const iv_http *h, const iv_http_request *q, unsigned access, const char **why) {
    bool cache = access == IV_HTTP_CACHE;
    if (cache) access = h->o.open_cache ? IV_HTTP_KEY : IV_HTTP_ADMIN;
    if (access == IV_HTTP_OPEN || (access == IV_HTTP_KEY && h->api_keys.count == 0)) return 0;
    if (iv_http_control_is_open(h)) return 0;
    if (access == IV_HTTP_ADMIN && h->admin_keys.count == 0) {
        *why = cache ? "this route is off: the server was started with neither --admin-api-key nor --allow-flush"
                     : "this route is off: the server was started without --admin-api-key";
        return 403;
    }
    const char *given = iv_http_head_field(&q->head, "Authorization");
    bool bearer = given && strncasecmp(given, "Bearer ", 7) == 0;
    given = bearer ? given + 7 + strspn(given + 7, " ") : iv_http_head_field(&q->head, "X-Api-Key"); /* Anthropic's */
    if (!given) {
        *why = "Authorization: wanted Bearer and a key";
        return 401;
    }
    bool admin = keys_have(&h->admin_keys, given);
    bool user = keys_have(&h->api_keys, given);
    if (admin || (user && access == IV_HTTP_KEY)) return 0;
    *why = user ? "Authorization: this route needs the admin key" : "Authorization: unknown key";
    return user ? 403 : 401;
}

/* ---- origins ------------------------------------------------------------------------------------------ */

/* As browsers spell it: SCHEME://HOST[:PORT] without a path, or null. Others would never match. */
static bool is_origin(const char *s, size_t n) {
    const char *host = memmem(s, n, "://", 3);
    if (!host) return (n == 1 && *s == '*') || (n == 4 && strncmp(s, "null", 4) == 0);
    size_t before = (size_t)(host - s) + 3;
    return host > s && n > before && !memchr(s + before, '/', n - before);
}

iv_status iv_http_check_origins(const char *list, iv_error *err) {
    for (const char *item = list; item && *item;) {
        item += strspn(item, " ,");
        size_t n = strcspn(item, " ,");
        if (n && !is_origin(item, n))
            return iv_fail(err, IV_INVALID,
                           "allowed-origins: wanted *, null or SCHEME://HOST[:PORT] without a path, found \"%.*s\"",
                           (int)(n < 100 ? n : 100), item);
        item += n;
    }
    return IV_OK;
}

/* Whether the origin is this server, over http or https in front of it. */
static bool origin_is_own(const iv_http_request *q, const char *origin) {
    static const struct {
        const char *scheme, *port; /* default port, which both may omit */
    } schemes[] = {{"http://", ":80"}, {"https://", ":443"}};
    const char *host = q->head.host;
    for (size_t i = 0; host && i < 2; i++) {
        size_t n = strlen(schemes[i].scheme), bytes = strlen(host);
        if (strncmp(origin, schemes[i].scheme, n) != 0) continue;
        if (strcasecmp(origin + n, host) == 0) return true;
        size_t port = strlen(schemes[i].port);
        if (bytes <= port || strcmp(host + bytes - port, schemes[i].port) != 0) continue;
        if (strlen(origin + n) == bytes - port && strncasecmp(origin + n, host, bytes - port) == 0) return true;
    }
    return false;
}

/* Browsers send some cross-origin requests without a preflight (POST of plain text or of a form) and only hide the
 * response from the page. The work would be done, so the server refuses them. */
static bool may_ask(const iv_http_request *q, const char **origin) {
    const char *allowed = q->http->allowed_origins;
    *origin = iv_http_head_field(&q->head, "Origin");
    return !*origin || origin_is_own(q, *origin) || (allowed && iv_http_origin_allowed(allowed, *origin));
}

static void answer_options(iv_http_request *q, const char *methods) {
    const iv_http *h = q->http;
    iv_http_request_add_header(q, "Allow", methods);
    const char *origin = iv_http_head_field(&q->head, "Origin");
    if (h->allowed_origins && origin && iv_http_origin_allowed(h->allowed_origins, origin)) {
        const char *fields = iv_http_head_field(&q->head, "Access-Control-Request-Headers");
        iv_http_request_add_header(q, "Access-Control-Allow-Methods", methods);
        if (fields) iv_http_request_add_header(q, "Access-Control-Allow-Headers", fields);
        iv_http_request_add_header(q, "Access-Control-Max-Age", "600");
    }
    iv_http_request_reply(q, 204, NULL, NULL, 0);
}

/* ---- admission ---------------------------------------------------------------------------------------- */

static void cut_slash(iv_http_request *q) {
    char *path = (char *)(uintptr_t)q->head.path; /* writable, except the constant "/" */
    size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '/') path[n - 1] = 0;
}

/* How many bytes of a path an error shows: whole characters. */
static int shown_bytes(const char *path) {
    size_t n = strnlen(path, 100), bad = n;
    if (!iv_utf8_valid((const uint8_t *)path, n, &bad)) n = bad;
    return (int)n;
}

/* Clients may add a path to a base with or without /v1. Returns the served path with or without it, or "". */
static const char *path_meant(const iv_http *h, const char *path, char out[128]) {
    bool known = false;
    if ((size_t)snprintf(out, 128, "/v1%s", path) < 128) find_route(h, out, "", &known);
    if (known) return out;
    if (strncmp(path, "/v1/", 4) != 0) return "";
    find_route(h, path + 3, "", &known);
    return known ? path + 3 : "";
}

static void refuse_path(iv_http_request *q, bool unread) {
    const char *path = q->head.path;
    char buffer[128], message[320];
    const char *meant = path_meant(q->http, path, buffer);
    snprintf(message, sizeof message, "%s %.*s: no such path on this server%s%.*s%s", q->head.method, shown_bytes(path),
             path, *meant ? ": did you mean " : "", shown_bytes(meant), meant, *meant ? "?" : "");
    iv_http_request_refuse(q, 404, unread, message);
}

bool iv_http_admit(iv_http_request *q) {
    const iv_http *h = q->http;
    bool unread = q->head.chunked || q->head.length > 0;
    const char *why = "";
    char methods[64], message[200];
    cut_slash(q);
    if (!iv_http_host_allowed(h, q->head.host)) {
        snprintf(message, sizeof message,
                 "Host: \"%.80s\" is not a name of this server: use an address, localhost, or one of its "
                 "--allowed-hosts",
                 q->head.host);
        iv_http_request_refuse(q, 403, unread, message);
        return false;
    }
    bool known;
    const iv_http_route *route = q->route = find_route(h, q->head.path, q->head.method, &known);
    q->connection->late = h->draining;
    if (h->draining && !(route && route->access & IV_HTTP_ALWAYS)) {
        iv_http_request_refuse(q, 503, unread, "the server is shutting down");
        return false;
    }
    allowed_methods(h, q->head.path, methods, sizeof methods);
    if (!route && strcmp(q->head.method, "OPTIONS") == 0 && (known || strcmp(q->head.path, "*") == 0)) {
        if (unread) q->connection->closing = q->connection->unread = true;
        answer_options(q, methods);
        return false;
    }
    if (!route && !known) {
        refuse_path(q, unread);
        return false;
    }
    if (!route) {
        iv_http_request_add_header(q, "Allow", methods);
        snprintf(message, sizeof message, "%s: not a method of this path; it has %s", q->head.method, methods);
        iv_http_request_refuse(q, 405, unread, message);
        return false;
    }
    const char *origin;
    if (!may_ask(q, &origin)) {
        snprintf(message, sizeof message,
                 "Origin: wanted this server's own, or one of its --allowed-origins, found \"%.80s\"", origin);
        iv_http_request_refuse(q, 403, unread, message);
        return false;
    }
    int status = check_key(h, q, route->access & ~(unsigned)IV_HTTP_ALWAYS, &why);
    if (status) {
        if (status == 401) iv_http_request_add_header(q, "WWW-Authenticate", "Bearer");
        iv_http_request_refuse(q, status, unread, why);
        return false;
    }
    if (q->head.length > h->o.body_bytes_max) {
        iv_error err;
        int code = iv_http_body_too_long(h->o.body_bytes_max, q->head.length, q->head.length == SIZE_MAX, &err);
        iv_http_request_refuse(q, code, true, err.message);
        return false;
    }
    return true;
}
