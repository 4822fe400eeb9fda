/* http_host.c: by which names this server may be asked. A web page whose name an attacker's DNS points to this machine
 * (DNS rebinding) is of the same origin as the server, for the browser: only the name in Host gives it away. An address
 * cannot be pointed elsewhere, so addresses pass, as do names that never leave the machine. */
#include "serve/http_internal.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

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
    if (!host || h->api_keys.count > 0) return true; /* no browser; a page does not know the key */
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
