/* keys.c: SHA-256 of each key, compared in constant time. */
#include "serve/keys.h"
#include "base/digest.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>

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

bool iv_keys_have(const iv_keys *keys, const char *given) {
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
