/* page.c: concatenates the files of the page, and computes the policy with their hashes. */
#include "serve/page/page.h"
#include "base/digest.h"

#include <stdio.h>
#include <string.h>

/* The order matters: top.html ends inside <style>, body.html inside <script>. Compilers search these files like
 * headers. */
/* clang-format off */
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".globl iv_page\n"
        ".hidden iv_page\n"
        ".type iv_page, @object\n"
        "iv_page:\n"
        ".incbin \"serve/page/top.html\"\n"
        ".incbin \"serve/page/style.css\"\n"
        ".incbin \"serve/page/body.html\"\n"
        ".incbin \"serve/page/base.js\"\n"
        ".incbin \"serve/page/api.js\"\n"
        ".incbin \"serve/page/markdown.js\"\n"
        ".incbin \"serve/page/fields.js\"\n"
        ".incbin \"serve/page/answer.js\"\n"
        ".incbin \"serve/page/chat.js\"\n"
        ".incbin \"serve/page/history.js\"\n"
        ".incbin \"serve/page/tokens.js\"\n"
        ".incbin \"serve/page/proof.js\"\n"
        ".incbin \"serve/page/live.js\"\n"
        ".incbin \"serve/page/main.js\"\n"
        ".incbin \"serve/page/end.html\"\n"
        ".local iv_page_end\n"
        "iv_page_end: .byte 0\n"
        ".size iv_page, . - iv_page\n"
        ".balign 8\n"
        ".globl iv_page_bytes\n"
        ".hidden iv_page_bytes\n"
        ".type iv_page_bytes, @object\n"
        ".size iv_page_bytes, 8\n"
        "iv_page_bytes: .quad iv_page_end - iv_page\n"
        ".popsection\n");
/* clang-format on */

enum { BASE64_BYTES = 44 }; /* of a SHA-256 */

static void base64(const uint8_t digest[32], char out[BASE64_BYTES + 1]) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0, o = 0; i < 32; i += 3) {
        uint32_t word = (uint32_t)digest[i] << 16 | (i + 1 < 32 ? (uint32_t)digest[i + 1] << 8 : 0) |
                        (i + 2 < 32 ? (uint32_t)digest[i + 2] : 0);
        for (int shift = 18; shift >= 0; shift -= 6) out[o++] = letters[word >> shift & 63];
    }
    out[BASE64_BYTES - 1] = '=';
    out[BASE64_BYTES] = 0;
}

/* The hash of the text between the first `open` and the next `close`, as a browser computes it. */
static bool hash_of_part(const char *open, const char *close, char out[BASE64_BYTES + 1]) {
    uint8_t digest[32];
    const char *start = strstr(iv_page, open);
    const char *end = start ? strstr(start, close) : NULL;
    if (!end) return false;
    start += strlen(open);
    iv_digest_of(start, (size_t)(end - start), digest);
    base64(digest, out);
    return true;
}

/* ---- peers -------------------------------------------------------------------------------------------- */

size_t iv_page_next_peer(const char **list, const char **origin) {
    if (!*list) return 0;
    *list += strspn(*list, " ,");
    size_t n = strcspn(*list, " ,");
    *origin = *list;
    *list += n;
    return n;
}

/* Only bytes that cannot form another word of the policy: no quotes, semicolons, stars or paths. */
static bool is_origin(const char *s, size_t n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]";
    size_t scheme = strncmp(s, "http://", 7) == 0 ? 7 : strncmp(s, "https://", 8) == 0 ? 8 : 0;
    return scheme && n > scheme && strspn(s + scheme, letters) >= n - scheme && s[n - 1] != ':';
}

iv_status iv_page_check_peers(const char *peers, iv_error *err) {
    const char *origin;
    size_t count = 0;
    if (peers && strlen(peers) > IV_PAGE_PEERS_BYTES_MAX)
        return iv_fail(err, IV_INVALID, "proof-urls: wanted at most %d bytes", IV_PAGE_PEERS_BYTES_MAX);
    for (size_t n; (n = iv_page_next_peer(&peers, &origin)) != 0;) {
        if (!is_origin(origin, n))
            return iv_fail(err, IV_INVALID,
                           "proof-urls: wanted http://HOST[:PORT] or https, without a path, found \"%.*s\"",
                           (int)(n < 100 ? n : 100), origin);
        if (++count > IV_PAGE_PEERS_MAX)
            return iv_fail(err, IV_INVALID, "proof-urls: wanted at most %d, found more", IV_PAGE_PEERS_MAX);
    }
    return IV_OK;
}

iv_status iv_page_policy(const char *peers, char out[IV_PAGE_POLICY_MAX], iv_error *err) {
    char script[BASE64_BYTES + 1], style[BASE64_BYTES + 1], more[IV_PAGE_PEERS_BYTES_MAX + 2] = "";
    const char *origin;
    IV_TRY(iv_page_check_peers(peers, err));
    for (size_t n, at = 0; (n = iv_page_next_peer(&peers, &origin)) != 0;)
        at += (size_t)snprintf(more + at, sizeof more - at, " %.*s", (int)n, origin);
    if (!hash_of_part("<script>", "</script>", script) || !hash_of_part("<style>", "</style>", style))
        return iv_fail(err, IV_FORMAT, "page: wanted one script and one style, found none");
    snprintf(out, IV_PAGE_POLICY_MAX,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'%s; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             script, style, more);
    return IV_OK;
}
