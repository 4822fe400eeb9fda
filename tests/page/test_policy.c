/* test_policy.c: the page in the program is complete, refers to nothing outside itself, and its policy has the
 * hashes of its parts. */
#include "base/digest.h"
#include "serve/page/page.h"
#include "support.h"

static size_t count(const char *needle) {
    size_t n = 0;
    for (const char *at = iv_page; (at = strstr(at, needle)) != NULL; at++) n++;
    return n;
}

static void one_whole_document(void **state) {
    (void)state;
    assert_int_equal(strlen(iv_page), iv_page_bytes);
    assert_int_equal(strncmp(iv_page, "<!doctype html>", 15), 0);
    assert_string_equal(iv_page + iv_page_bytes - 8, "</html>\n");
    /* The policy hashes the first script and style: there must be only one of each. */
    assert_int_equal(count("<script"), 1);
    assert_int_equal(count("</script"), 1);
    assert_int_equal(count("<style"), 1);
    assert_int_equal(count("</style"), 1);
    assert_true(iv_page_bytes < 160 * 1024);
}

static void nothing_from_outside(void **state) {
    (void)state;
    /* The only addresses are names of the SVG namespace. */
    assert_int_equal(count("http://"), count("http://www.w3.org/2000/svg"));
    assert_int_equal(count("https://"), 0);
    assert_int_equal(count("src="), 0);
    assert_int_equal(count("@import"), 0);
    assert_int_equal(count("url("), 0);
    /* What the policy forbids would fail only in a browser. */
    assert_int_equal(count(" style=\""), 0);
    assert_int_equal(count(" onclick=\""), 0);
}

/* The same hash computed differently: base64 decoded by hand. */
static void hash_of(const char *open, const char *close, uint8_t out[32]) {
    const char *from = strstr(iv_page, open) + strlen(open);
    iv_digest_of(from, (size_t)(strstr(from, close) - from), out);
}

static void unbase64(const char *text, uint8_t out[33]) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t word = 0;
    for (size_t i = 0; i < 44; i++) {
        const char *letter = strchr(letters, text[i]);
        word = word << 6 | (uint32_t)(letter && text[i] != '=' ? letter - letters : 0);
        if (i % 4 == 3)
            for (size_t k = 0; k < 3; k++) out[i / 4 * 3 + k] = (uint8_t)(word >> (16 - 8 * k));
    }
}

static void policy_names_the_parts(void **state) {
    (void)state;
    char policy[IV_PAGE_POLICY_MAX];
    uint8_t wanted[32], found[33];
    iv_error err;
    assert_int_equal(iv_page_policy(NULL, policy, &err), IV_OK);
    assert_non_null(strstr(policy, "default-src 'none'"));
    assert_non_null(strstr(policy, "connect-src 'self'"));
    assert_null(strstr(policy, "unsafe"));
    const char *script = strstr(policy, "script-src 'sha256-"), *style = strstr(policy, "style-src 'sha256-");
    assert_non_null(script);
    assert_non_null(style);
    hash_of("<script>", "</script>", wanted);
    unbase64(script + strlen("script-src 'sha256-"), found);
    assert_memory_equal(wanted, found, 32);
    unbase64(style + strlen("style-src 'sha256-"), found);
    assert_memory_not_equal(wanted, found, 32);
    hash_of("<style>", "</style>", wanted);
    assert_memory_equal(wanted, found, 32);
}

static void peers(void **state) {
    (void)state;
    static const char *const bad[] = {"a",
                                      "http://",
                                      "http://a/b",
                                      "http://a;script-src *",
                                      "http://a'",
                                      "ftp://a",
                                      "http://*",
                                      "http://a:",
                                      "http://a\tb",
                                      "http://ok,javascript:x",
                                      "http://a http://b 'unsafe-inline'"};
    char policy[IV_PAGE_POLICY_MAX], many[IV_PAGE_POLICY_MAX] = "";
    iv_error err;
    assert_int_equal(iv_page_policy("http://a:8001, https://b.c ,http://[::1]:9", policy, &err), IV_OK);
    assert_non_null(strstr(policy, "; connect-src 'self' http://a:8001 https://b.c http://[::1]:9; img-src"));
    assert_int_equal(iv_page_policy("", policy, &err), IV_OK);
    assert_non_null(strstr(policy, "; connect-src 'self'; img-src"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(iv_page_check_peers(bad[i], &err), IV_INVALID);
        assert_int_equal(iv_page_policy(bad[i], policy, &err), IV_INVALID);
    }
    /* The longest allowed list fits; a longer one does not. */
    for (size_t i = 0; i < IV_PAGE_PEERS_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%shttp://%080zu", i ? "," : "", i);
    assert_int_equal(iv_page_policy(many, policy, &err), IV_OK);
    assert_non_null(strstr(policy, "frame-ancestors 'none'"));
    strcat(many, ",http://a");
    assert_int_equal(iv_page_check_peers(many, &err), IV_INVALID);
    memset(many, 'a', IV_PAGE_PEERS_BYTES_MAX + 1), memcpy(many, "http://", 7), many[IV_PAGE_PEERS_BYTES_MAX + 1] = 0;
    assert_int_equal(iv_page_check_peers(many, &err), IV_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_whole_document),
        cmocka_unit_test(nothing_from_outside),
        cmocka_unit_test(policy_names_the_parts),
        cmocka_unit_test(peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
