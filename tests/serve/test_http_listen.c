/* A name with several addresses: the server listens on all of them, on one port. */
#include "support.h"

#include "serve/http/internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a resolver with results set by the test ----------------------------------------------------------- */

enum { MANY = 8 };
static const char *const *names; /* NULL-terminated */

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
void __wrap_freeaddrinfo(struct addrinfo *list);

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    static struct addrinfo list[MANY];
    static struct sockaddr_storage addresses[MANY];
    size_t n = 0;
    (void)host;
    for (; names[n]; n++) {
        struct sockaddr_in *four = (struct sockaddr_in *)(void *)&addresses[n];
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&addresses[n];
        bool is_six = strchr(names[n], ':') != NULL;
        memset(&addresses[n], 0, sizeof addresses[n]);
        addresses[n].ss_family = is_six ? AF_INET6 : AF_INET;
        assert_int_equal(
            inet_pton(addresses[n].ss_family, names[n], is_six ? (void *)&six->sin6_addr : &four->sin_addr), 1);
        if (is_six)
            six->sin6_port = htons((uint16_t)atoi(service));
        else
            four->sin_port = htons((uint16_t)atoi(service));
        list[n] = (struct addrinfo){.ai_family = addresses[n].ss_family,
                                    .ai_socktype = hints->ai_socktype,
                                    .ai_addr = (struct sockaddr *)&addresses[n],
                                    .ai_addrlen = is_six ? sizeof *six : sizeof *four};
        if (n) list[n - 1].ai_next = &list[n];
    }
    *out = list;
    return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *list) { (void)list; }

/* ---- tests --------------------------------------------------------------------------------------------- */

static iv_status open_at(const char *const *addresses, uint16_t port, iv_http **out, iv_error *err) {
    iv_http_options o;
    iv_http_options_init(&o);
    o.host = "a-name", o.port = port;
    names = addresses;
    return iv_http_open(&o, NULL, 0, NULL, out, err);
}

static bool reaches(const char *address, uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return ok;
}

static bool has_address(const iv_http *h, const char *wanted) {
    char address[IV_HTTP_ADDRESS_BYTES];
    for (size_t i = 0; iv_http_address(h, i, address); i++)
        if (strcmp(address, wanted) == 0) return true;
    return false;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void all_addresses(void **state) {
    (void)state;
    iv_http *h;
    iv_error err;
    char address[IV_HTTP_ADDRESS_BYTES];
    ASSERT_OK(open_at(LIST("127.0.0.1", "127.0.0.2", "127.0.0.1"), 0, &h, &err), &err);
    uint16_t port = iv_http_port(h);
    assert_true(port && reaches("127.0.0.1", port) && reaches("127.0.0.2", port) && !reaches("127.0.0.3", port));
    assert_true(iv_http_address(h, 0, address) && strcmp(address, "127.0.0.1") == 0);
    assert_true(iv_http_address(h, 1, address) && strcmp(address, "127.0.0.2") == 0);
    assert_false(iv_http_address(h, 2, address));      /* listed twice, bound once */
    assert_true(iv_http_host_allowed(h, "A-Name:80")); /* the host's own name is allowed */
    assert_false(iv_http_host_allowed(h, "another-name:80"));
    iv_http_close(h);
    assert_false(reaches("127.0.0.1", port));
}

/* An address that this machine lacks does not affect the others. */
static void absent_addresses(void **state) {
    (void)state;
    iv_http *h;
    iv_error err;
    ASSERT_OK(open_at(LIST("203.0.113.1", "127.0.0.2"), 0, &h, &err), &err);
    assert_true(reaches("127.0.0.2", iv_http_port(h)) && !has_address(h, "203.0.113.1"));
    iv_http_close(h);
    assert_int_equal(open_at(LIST("203.0.113.1", "203.0.113.2"), 0, &h, &err), IV_IO);
    assert_non_null(strstr(err.message, "cannot listen on a-name (203.0.113.2) port 0: "));
}

/* An address in use is an error: its clients would reach another server. */
static void taken_addresses(void **state) {
    (void)state;
    iv_http *other, *h;
    iv_error err;
    ASSERT_OK(open_at(LIST("127.0.0.2"), 0, &other, &err), &err);
    uint16_t port = iv_http_port(other);
    assert_int_equal(open_at(LIST("127.0.0.1", "127.0.0.2"), port, &h, &err), IV_IO);
    assert_non_null(strstr(err.message, "cannot listen on a-name (127.0.0.2) port "));
    assert_false(reaches("127.0.0.1", port)); /* and no listener is left open */
    iv_http_close(other);
}

static void both_families(void **state) {
    (void)state;
    iv_http *h;
    iv_error err;
    ASSERT_OK(open_at(LIST("::", "0.0.0.0"), 0, &h, &err), &err);
    assert_true(reaches("127.0.0.1", iv_http_port(h)) && has_address(h, "0.0.0.0"));
    iv_http_close(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_addresses), cmocka_unit_test(absent_addresses),
                                       cmocka_unit_test(taken_addresses), cmocka_unit_test(both_families)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
