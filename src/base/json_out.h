/* json_out.h: a JSON writer. It builds no tree, and it writes the commas.
 *
 * Invariant: the output is valid UTF-8 and valid JSON if brackets are paired. Bytes that are not UTF-8 become U+FFFD. A
 * failed allocation or write sets `failed`; callers check it once, at the end. */
#ifndef IV_BASE_JSON_OUT_H
#define IV_BASE_JSON_OUT_H

#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>

typedef struct iv_json_out {
    iv_buf *buf;        /* the output, unless file is set */
    FILE *file;         /* the output, or NULL */
    bool spaced;        /* a space after each comma and colon */
    bool comma, failed; /* comma: the next value needs one */
} iv_json_out;

void iv_out_open(iv_json_out *o, char bracket); /* '{' or '[' */
void iv_out_close(iv_json_out *o, char bracket);
void iv_out_key(iv_json_out *o, const char *key); /* a plain name: not escaped */
void iv_out_string(iv_json_out *o, const char *s, size_t n);
void iv_out_text(iv_json_out *o, const char *s); /* NULL becomes null */
void iv_out_uint(iv_json_out *o, uint64_t v);
void iv_out_int(iv_json_out *o, int64_t v);
/* Nine digits, which read back as the same float; minus infinity and NaN become -9999.0, infinity 9999.0. */
void iv_out_float(iv_json_out *o, float v);
/* The fewest digits that read back as the same number; null if it is not finite. */
void iv_out_shortest(iv_json_out *o, float v);
void iv_out_double(iv_json_out *o, double v);
void iv_out_real(iv_json_out *o, double v); /* times: six digits after the point */
void iv_out_bool(iv_json_out *o, bool v);
void iv_out_null(iv_json_out *o);
void iv_out_raw(iv_json_out *o, const char *json, size_t n); /* a value that is JSON already */
void iv_out_ids(iv_json_out *o, const int32_t *ids, size_t count);

/* "key": value. A NULL key writes the value only, as in an array. */
void iv_out_kv_open(iv_json_out *o, const char *key, char bracket);
void iv_out_kv_string(iv_json_out *o, const char *key, const char *s, size_t n);
void iv_out_kv_text(iv_json_out *o, const char *key, const char *s);
void iv_out_kv_uint(iv_json_out *o, const char *key, uint64_t v);
void iv_out_kv_int(iv_json_out *o, const char *key, int64_t v);
void iv_out_kv_shortest(iv_json_out *o, const char *key, float v);
void iv_out_kv_double(iv_json_out *o, const char *key, double v);
void iv_out_kv_bool(iv_json_out *o, const char *key, bool v);
void iv_out_kv_null(iv_json_out *o, const char *key);

/* The fewest digits, from six, that read back as the same float. Returns out. */
const char *iv_float_digits(float v, char out[32]);

#endif
