/* json_scan.c: brackets as bits of a stack, strings, and runs of other bytes. */
#include "chat/json_scan.h"

#include <string.h>

static iv_json_scanned in_string(iv_json_scan *j, char c) {
    if ((unsigned char)c < 0x20) return IV_JSON_WRONG;
    if (j->escaped)
        j->escaped = false;
    else if (c == '"')
        j->in_string = false;
    else
        j->escaped = c == '\\';
    return IV_JSON_MORE;
}

static iv_json_scanned open_bracket(iv_json_scan *j, bool object) {
    if (j->depth == IV_JSON_SCAN_DEPTH_MAX) return IV_JSON_WRONG;
    uint64_t bit = (uint64_t)1 << (j->depth % 64), *word = &j->objects[j->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    j->depth++;
    return IV_JSON_MORE;
}

static iv_json_scanned close_bracket(iv_json_scan *j, bool object) {
    j->depth--;
    if ((j->objects[j->depth / 64] >> (j->depth % 64) & 1) != object) return IV_JSON_WRONG;
    return j->depth ? IV_JSON_MORE : IV_JSON_DONE;
}

iv_json_scanned iv_json_scan_byte(iv_json_scan *j, char c) {
    if (j->in_string) return in_string(j, c);
    if (c == '{' || c == '[') return open_bracket(j, c == '{');
    if (j->depth == 0) return IV_JSON_WRONG;
    if (c == '}' || c == ']') return close_bracket(j, c == '}');
    if (c == '"') {
        j->in_string = true;
        return IV_JSON_MORE;
    }
    /* Bytes of numbers and literals, and those between values. */
    return c && strchr(" \t\r\n,:0123456789+-.Eaeflnrstu", c) ? IV_JSON_MORE : IV_JSON_WRONG;
}

size_t iv_json_scan_end(const char *s, size_t n) {
    iv_json_scan j = {0};
    for (size_t i = 0; i < n; i++) {
        iv_json_scanned found = iv_json_scan_byte(&j, s[i]);
        if (found != IV_JSON_MORE) return found == IV_JSON_DONE ? i + 1 : 0;
    }
    return 0;
}
