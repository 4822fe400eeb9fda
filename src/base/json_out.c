/* json_out.c: JSON text, value by value, into a buffer or a file. */
#include "base/json_out.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(iv_json_out *o, const void *bytes, size_t n) {
    if (o->file ? fwrite(bytes, 1, n, o->file) != n : !iv_buf_append(o->buf, bytes, n)) o->failed = true;
}

static void before_value(iv_json_out *o) {
    if (o->comma) put(o, ", ", o->spaced ? 2 : 1);
    o->comma = true;
}

void iv_out_open(iv_json_out *o, char bracket) {
    before_value(o);
    put(o, &bracket, 1);
    o->comma = false;
}

void iv_out_close(iv_json_out *o, char bracket) {
    put(o, &bracket, 1);
    o->comma = true;
}

void iv_out_key(iv_json_out *o, const char *key) {
    before_value(o);
    put(o, "\"", 1), put(o, key, strlen(key)), put(o, "\": ", o->spaced ? 3 : 2);
    o->comma = false;
}

static void put_escaped(iv_json_out *o, uint8_t c) {
    char text[8];
    switch (c) {
    case '"': put(o, "\\\"", 2); return;
    case '\\': put(o, "\\\\", 2); return;
    case '\n': put(o, "\\n", 2); return;
    case '\r': put(o, "\\r", 2); return;
    case '\t': put(o, "\\t", 2); return;
    default: snprintf(text, sizeof text, "\\u%04x", (unsigned)c), put(o, text, 6);
    }
}

void iv_out_string(iv_json_out *o, const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    size_t plain = 0; /* bytes before i that need no escape */
    before_value(o);
    put(o, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t length = iv_utf8_length(p + i, n - i);
        if (length == 1 && (p[i] < 0x20 || p[i] == '"' || p[i] == '\\' || p[i] == 0x7f)) {
            put(o, s + i - plain, plain), plain = 0;
            put_escaped(o, p[i++]);
        } else if (length) {
            plain += length, i += length;
        } else {
            put(o, s + i - plain, plain), plain = 0;
            put(o, "\xef\xbf\xbd", 3), i++;
        }
    }
    put(o, s + n - plain, plain);
    put(o, "\"", 1);
}

void iv_out_text(iv_json_out *o, const char *s) {
    if (s)
        iv_out_string(o, s, strlen(s));
    else
        iv_out_null(o);
}

void iv_out_uint(iv_json_out *o, uint64_t v) {
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRIu64, v);
    before_value(o), put(o, text, (size_t)n);
}

void iv_out_int(iv_json_out *o, int64_t v) {
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, v);
    before_value(o), put(o, text, (size_t)n);
}

void iv_out_float(iv_json_out *o, float v) {
    char text[40];
    if (!isfinite(v)) v = v > 0 ? 9999.0f : -9999.0f;
    int n = snprintf(text, sizeof text - 2, "%.9g", (double)v);
    if (!strpbrk(text, ".e")) text[n++] = '.', text[n++] = '0'; /* some readers distinguish integers from floats */
    before_value(o), put(o, text, (size_t)n);
}

const char *iv_float_digits(float v, char out[32]) {
    int digits = 6; /* fewer would write 20 as 2e+01 */
    do snprintf(out, 32, "%.*g", digits, (double)v);
    while (strtof(out, NULL) != v && ++digits <= 9);
    return out;
}

void iv_out_shortest(iv_json_out *o, float v) {
    char text[32];
    if (!isfinite(v)) {
        iv_out_null(o);
        return;
    }
    iv_float_digits(v, text);
    before_value(o), put(o, text, strlen(text));
}

void iv_out_double(iv_json_out *o, double v) {
    char text[32];
    int digits = 6;
    if (!isfinite(v)) {
        iv_out_null(o);
        return;
    }
    do snprintf(text, sizeof text, "%.*g", digits, v);
    while (strtod(text, NULL) != v && ++digits <= 17);
    before_value(o), put(o, text, strlen(text));
}

void iv_out_real(iv_json_out *o, double v) {
    char text[400];
    int n = snprintf(text, sizeof text, "%.6f", isfinite(v) ? v : 0.0);
    before_value(o), put(o, text, (size_t)n);
}

void iv_out_bool(iv_json_out *o, bool v) { before_value(o), put(o, v ? "true" : "false", v ? 4 : 5); }
void iv_out_null(iv_json_out *o) { before_value(o), put(o, "null", 4); }
void iv_out_raw(iv_json_out *o, const char *json, size_t n) { before_value(o), put(o, json, n); }

void iv_out_ids(iv_json_out *o, const int32_t *ids, size_t count) {
    iv_out_open(o, '[');
    for (size_t i = 0; i < count; i++) iv_out_int(o, ids[i]);
    iv_out_close(o, ']');
}

static void key_if_any(iv_json_out *o, const char *key) {
    if (key) iv_out_key(o, key);
}

void iv_out_kv_open(iv_json_out *o, const char *key, char bracket) { key_if_any(o, key), iv_out_open(o, bracket); }
void iv_out_kv_string(iv_json_out *o, const char *key, const char *s, size_t n) {
    key_if_any(o, key), iv_out_string(o, s, n);
}
void iv_out_kv_text(iv_json_out *o, const char *key, const char *s) { key_if_any(o, key), iv_out_text(o, s); }
void iv_out_kv_uint(iv_json_out *o, const char *key, uint64_t v) { key_if_any(o, key), iv_out_uint(o, v); }
void iv_out_kv_int(iv_json_out *o, const char *key, int64_t v) { key_if_any(o, key), iv_out_int(o, v); }
void iv_out_kv_shortest(iv_json_out *o, const char *key, float v) { key_if_any(o, key), iv_out_shortest(o, v); }
void iv_out_kv_double(iv_json_out *o, const char *key, double v) { key_if_any(o, key), iv_out_double(o, v); }
void iv_out_kv_bool(iv_json_out *o, const char *key, bool v) { key_if_any(o, key), iv_out_bool(o, v); }
void iv_out_kv_null(iv_json_out *o, const char *key) { key_if_any(o, key), iv_out_null(o); }
