/* http_route.c: which handler a request is for, and whether it may come in: paths, methods, keys, origins. */
#include "serve/http_internal.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- paths and methods */

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

/* The route of path and method; an exact one before a prefix, the longest prefix before others. *known: the path
 * exists, perhaps with other methods. */
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

/* "GET, HEAD, POST, OPTIONS": what may be asked of a path; "*" asks for all. */
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

/* ---- keys */

/* 0, or the status to refuse with and *why. */
static int check_key(const iv_http *h, const iv_http_request *x, unsigned access, const char **why) {
    bool cache = access == IV_HTTP_CACHE;
    if (cache) access = h->o.open_cache ? IV_HTTP_KEY : IV_HTTP_ADMIN;
    if (access == IV_HTTP_OPEN || (access == IV_HTTP_KEY && h->api_keys.count == 0)) return 0;
    if (access == IV_HTTP_ADMIN && h->admin_keys.count == 0) {
        *why = cache ? "this route is off: the server was started with neither --admin-api-key nor --allow-flush"
                     : "this route is off: the server was started without --admin-api-key";
        return 403;
    }
    const char *given = iv_http_head_field(&x->head, "Authorization");
    if (!given || strncasecmp(given, "Bearer ", 7) != 0) {
        *why = "Authorization: wanted Bearer and a key";
        return 401;
    }
    given += 7 + strspn(given + 7, " ");
    bool admin = iv_keys_have(&h->admin_keys, given);
    bool user = iv_keys_have(&h->api_keys, given);
    if (admin || (user && access == IV_HTTP_KEY)) return 0;
    *why = user ? "Authorization: this route wants the admin key" : "Authorization: this key is not known";
    return user ? 403 : 401;
}

/* ---- origins */

/* As browsers write one: SCHEME://HOST[:PORT] and nothing behind it, or null. Anything else would never be met. */
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

static bool origin_allowed(const char *allowed, const char *origin) {
    size_t n = strlen(origin);
    for (const char *item = allowed; *item;) {
        item += strspn(item, " ,");
        size_t length = strcspn(item, " ,");
        if ((length == 1 && *item == '*') || (length > 0 && length == n && strncmp(item, origin, n) == 0)) return true;
        item += length;
    }
    return false;
}

/* A page of this very server, as the browser names that, whichever of http and https is spoken in front of it. */
static bool origin_is_own(const iv_http_request *x, const char *origin) {
    static const struct {
        const char *scheme, *port; /* that both may leave out */
    } schemes[] = {{"http://", ":80"}, {"https://", ":443"}};
    const char *host = x->head.host;
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

/* Browsers send some requests of foreign pages without asking first (a POST of plain text, of a form), and only what
 * comes back is kept from the page: the work would be done. */
static bool may_ask(const iv_http_request *x, const char **origin) {
    const char *allowed = x->http->allowed_origins;
    *origin = iv_http_head_field(&x->head, "Origin");
    return !*origin || origin_is_own(x, *origin) || (allowed && origin_allowed(allowed, *origin));
}

bool iv_http_put_origin(const iv_http_request *x, iv_buf *out) {
    const char *allowed = x->http->allowed_origins;
    if (!allowed || !*allowed) return true;
    bool all = origin_allowed(allowed, "*");
    if (!all && !iv_buf_puts(out, "Vary: Origin\r\n")) return false;
    const char *origin = iv_http_head_field(&x->head, "Origin");
    if (!origin || !origin_allowed(allowed, origin)) return true;
    return iv_buf_printf(out, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: x-request-id\r\n",
                         all ? "*" : origin);
}

static void answer_options(iv_http_request *x, const char *methods) {
    const iv_http *h = x->http;
    iv_http_request_add_header(x, "Allow", methods);
    const char *origin = iv_http_head_field(&x->head, "Origin");
    if (h->allowed_origins && origin && origin_allowed(h->allowed_origins, origin)) {
        const char *fields = iv_http_head_field(&x->head, "Access-Control-Request-Headers");
        iv_http_request_add_header(x, "Access-Control-Allow-Methods", methods);
        if (fields) iv_http_request_add_header(x, "Access-Control-Allow-Headers", fields);
        iv_http_request_add_header(x, "Access-Control-Max-Age", "600");
    }
    iv_http_request_reply(x, 204, NULL, NULL, 0);
}

/* ---- all of it */

static void cut_slash(iv_http_request *x) {
    char *path = (char *)(uintptr_t)x->head.path; /* ours, but for the constant "/" */
    size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '/') path[n - 1] = 0;
}

/* How much of a path an error shows: whole characters. */
static int shown_bytes(const char *path) {
    size_t n = strnlen(path, 100), bad = n;
    if (!iv_utf8_valid((const uint8_t *)path, n, &bad)) n = bad;
    return (int)n;
}

/* Clients put a path behind a base that has /v1 at its end, or has it not: the served path with it, or without, or "".
 */
static const char *path_meant(const iv_http *h, const char *path, char out[128]) {
    bool known = false;
    if ((size_t)snprintf(out, 128, "/v1%s", path) < 128) find_route(h, out, "", &known);
    if (known) return out;
    if (strncmp(path, "/v1/", 4) != 0) return "";
    find_route(h, path + 3, "", &known);
    return known ? path + 3 : "";
}

static void refuse_path(iv_http_request *x, bool unread) {
    const char *path = x->head.path;
    char room[128], message[320];
    const char *meant = path_meant(x->http, path, room);
    snprintf(message, sizeof message, "%s %.*s: no such path on this server%s%.*s%s", x->head.method, shown_bytes(path),
             path, *meant ? ": did you mean " : "", shown_bytes(meant), meant, *meant ? "?" : "");
    iv_http_request_refuse(x, 404, unread, message);
}

bool iv_http_admit(iv_http_request *x) {
    const iv_http *h = x->http;
    bool unread = x->head.chunked || x->head.length > 0;
    const char *why = "";
    char methods[64], message[200];
    cut_slash(x);
    if (!iv_http_host_allowed(h, x->head.host)) {
        snprintf(message, sizeof message,
                 "Host: \"%.80s\" is no name of this server: it wants an address, localhost, or one of its "
                 "--allowed-hosts",
                 x->head.host);
        iv_http_request_refuse(x, 403, unread, message);
        return false;
    }
    bool known;
    const iv_http_route *route = find_route(h, x->head.path, x->head.method, &known);
    x->connection->late = h->draining;
    if (h->draining && !(route && route->access & IV_HTTP_ALWAYS)) {
        iv_http_request_refuse(x, 503, unread, "the server is shutting down");
        return false;
    }
    allowed_methods(h, x->head.path, methods, sizeof methods);
    if (!route && strcmp(x->head.method, "OPTIONS") == 0 && (known || strcmp(x->head.path, "*") == 0)) {
        if (unread) x->connection->closing = x->connection->unread = true;
        answer_options(x, methods);
        return false;
    }
    if (!route && !known) {
        refuse_path(x, unread);
        return false;
    }
    if (!route) {
        iv_http_request_add_header(x, "Allow", methods);
        snprintf(message, sizeof message, "%s: not a method of this path; it has %s", x->head.method, methods);
        iv_http_request_refuse(x, 405, unread, message);
        return false;
    }
    const char *origin;
    if (!may_ask(x, &origin)) {
        snprintf(message, sizeof message,
                 "Origin: wanted this server's own, or one of its --allowed-origins, found \"%.80s\"", origin);
        iv_http_request_refuse(x, 403, unread, message);
        return false;
    }
    int status = check_key(h, x, route->access & ~(unsigned)IV_HTTP_ALWAYS, &why);
    if (status) {
        if (status == 401) iv_http_request_add_header(x, "WWW-Authenticate", "Bearer");
        iv_http_request_refuse(x, status, unread, why);
        return false;
    }
    if (x->head.length > h->o.body_bytes_max) {
        iv_error err;
        int code = iv_http_body_too_long(h->o.body_bytes_max, x->head.length, x->head.length == SIZE_MAX, &err);
        iv_http_request_refuse(x, code, true, err.message);
        return false;
    }
    x->route = route;
    return true;
}
