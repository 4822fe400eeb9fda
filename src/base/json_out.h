/* json_out.h: JSON written straight into a buffer: no tree, commas by themselves.
 *
 * Invariant: what is written is valid UTF-8 and parses. Bytes that are not UTF-8 become U+FFFD; a float is printed
 * with nine digits, so that it reads back as the same float; one that JSON cannot hold becomes -9999.0 (minus
 * infinity, NaN) or 9999.0. Memory that runs out is remembered in `failed`, and looked at once at the end. */
#ifndef IV_BASE_JSON_OUT_H
#define IV_BASE_JSON_OUT_H

#include "base/buf.h"

#include <stdint.h>

typedef struct iv_json_out {
    iv_buf *buf;
    bool comma, failed;
} iv_json_out;

void iv_out_open(iv_json_out *o, char bracket); /* '{' or '[' */
void iv_out_close(iv_json_out *o, char bracket);
void iv_out_key(iv_json_out *o, const char *key); /* a plain name: not escaped */
void iv_out_string(iv_json_out *o, const char *s, size_t n);
void iv_out_text(iv_json_out *o, const char *s); /* NULL becomes null */
void iv_out_uint(iv_json_out *o, uint64_t v);
void iv_out_int(iv_json_out *o, int64_t v);
void iv_out_float(iv_json_out *o, float v);
void iv_out_shortest(iv_json_out *o, float v); /* finite: the shortest text that reads back as it */
void iv_out_real(iv_json_out *o, double v);    /* times: six digits after the point */
void iv_out_bool(iv_json_out *o, bool v);
void iv_out_null(iv_json_out *o);
void iv_out_raw(iv_json_out *o, const char *json, size_t n); /* a value that is JSON already */
void iv_out_ids(iv_json_out *o, const int32_t *ids, size_t count);

/* "key": value */
void iv_out_kv_text(iv_json_out *o, const char *key, const char *s);
void iv_out_kv_uint(iv_json_out *o, const char *key, uint64_t v);
void iv_out_kv_bool(iv_json_out *o, const char *key, bool v);
void iv_out_kv_null(iv_json_out *o, const char *key);

#endif
