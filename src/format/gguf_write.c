/* gguf_write.c: little-endian bytes, and rows of tensors as blocks. */
#include "format/gguf_write.h"
#include "base/size.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"
#include "numerics/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, VERSION = 3, PIECE_BYTES = 1 << 22 };

/* ---- metadata ---------------------------------------------------------------------------------------------- */

static void number(iv_gguf_keys *k, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        if (!iv_buf_putc(&k->bytes, (char)(value >> (8 * i) & 0xff))) k->failed = true;
}

void iv_gguf_add_text(iv_gguf_keys *k, const char *text, size_t n) {
    number(k, n, 8);
    if (n && !iv_buf_append(&k->bytes, text, n)) k->failed = true;
}

void iv_gguf_add_i32(iv_gguf_keys *k, int32_t value) { number(k, (uint32_t)value, 4); }
void iv_gguf_add_f32(iv_gguf_keys *k, float value) { number(k, iv_bits(value), 4); }

static void key_of(iv_gguf_keys *k, const char *key, iv_gguf_type type) {
    iv_gguf_add_text(k, key, strlen(key));
    number(k, type, 4);
    k->count++;
}

void iv_gguf_put_text(iv_gguf_keys *k, const char *key, const char *text, size_t n) {
    key_of(k, key, IV_GGUF_STRING);
    iv_gguf_add_text(k, text, n);
}

void iv_gguf_put_u32(iv_gguf_keys *k, const char *key, uint32_t value) {
    key_of(k, key, IV_GGUF_U32);
    number(k, value, 4);
}

void iv_gguf_put_f32(iv_gguf_keys *k, const char *key, float value) {
    key_of(k, key, IV_GGUF_F32);
    iv_gguf_add_f32(k, value);
}

void iv_gguf_put_bool(iv_gguf_keys *k, const char *key, bool value) {
    key_of(k, key, IV_GGUF_BOOL);
    number(k, value, 1);
}

void iv_gguf_begin_array(iv_gguf_keys *k, const char *key, iv_gguf_type item, size_t count) {
    key_of(k, key, IV_GGUF_ARRAY);
    number(k, item, 4);
    number(k, count, 8);
}

void iv_gguf_keys_free(iv_gguf_keys *k) {
    iv_buf_free(&k->bytes);
    *k = (iv_gguf_keys){0};
}

/* ---- the header -------------------------------------------------------------------------------------------- */

bool iv_gguf_out_size(iv_gguf_out *t) {
    const iv_weight_facts *f = iv_weight_facts_of(t->format);
    size_t width = iv_weight_is_plain(t->format) ? iv_dtype_bytes((iv_dtype)t->format) : f->block_bytes;
    t->elements = 1;
    for (int i = 0; i < t->ndim; i++)
        if (!iv_size_mul(t->elements, (size_t)t->shape[i], &t->elements)) return false;
    size_t units = iv_weight_is_plain(t->format) ? t->elements : t->elements / f->block;
    return iv_size_mul(units, width, &t->bytes) && t->bytes <= PTRDIFF_MAX - ALIGNMENT;
}

/* llama.cpp's number of a type. */
static uint32_t type_number(iv_weight_format format) {
    switch (format) {
    case IV_WEIGHT_F32: return 0;
    case IV_WEIGHT_F16: return 1;
    case IV_WEIGHT_Q4_0: return 2;
    case IV_WEIGHT_Q4_1: return 3;
    case IV_WEIGHT_Q5_0: return 6;
    case IV_WEIGHT_Q5_1: return 7;
    case IV_WEIGHT_Q8_0: return 8;
    default: IV_ASSERT(format == IV_WEIGHT_BF16); return 30;
    }
}

static size_t padded(size_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

iv_status iv_gguf_header(const iv_gguf_keys *k, const iv_gguf_out *tensors, size_t count, iv_buf *out, iv_error *err) {
    iv_gguf_keys h = {0};
    size_t offset = 0;
    if (!iv_buf_append(&h.bytes, "GGUF", 4)) h.failed = true;
    number(&h, VERSION, 4), number(&h, count, 8), number(&h, k->count, 8);
    if (k->bytes.len && !iv_buf_append(&h.bytes, k->bytes.data, k->bytes.len)) h.failed = true;
    for (size_t i = 0; i < count && !h.failed; i++) {
        const iv_gguf_out *t = &tensors[i];
        iv_gguf_add_text(&h, t->name, strlen(t->name));
        number(&h, (uint64_t)t->ndim, 4);
        for (int d = t->ndim; d-- > 0;) number(&h, (uint64_t)t->shape[d], 8);
        number(&h, type_number(t->format), 4), number(&h, offset, 8);
        if (!iv_size_add(offset, padded(t->bytes), &offset)) {
            iv_gguf_keys_free(&h);
            return iv_fail(err, IV_LIMIT, "%s: the tensors' size overflows", t->name);
        }
    }
    while (h.bytes.len % ALIGNMENT != 0 && !h.failed) number(&h, 0, 1);
    if (h.failed || k->failed) {
        iv_gguf_keys_free(&h);
        return iv_fail(err, IV_NO_MEMORY, "no memory for the header of a GGUF");
    }
    iv_buf_free(out);
    *out = h.bytes;
    return IV_OK;
}

/* ---- data -------------------------------------------------------------------------------------------------- */

static iv_status check_values(const iv_gguf_out *t, const float *x, const unsigned char *out, size_t n, iv_error *err) {
    float back[256];
    if (iv_weight_is_plain(t->format)) {
        for (size_t i = 0; i < n; i++)
            if (!isfinite(iv_element((iv_dtype)t->format, out, i)))
                return iv_fail(err, IV_INVALID, "%s: %g is too large for %s", t->name, (double)x[i],
                               iv_dtype_name((iv_dtype)t->format));
        return IV_OK;
    }
    const iv_weight_facts *f = iv_weight_facts_of(t->format);
    for (size_t i = 0; i < n; i += f->block, out += f->block_bytes) {
        iv_dequantize_gguf(t->format, out, f->block, back);
        for (size_t e = 0; e < f->block; e++)
            if (!isfinite(back[e]))
                return iv_fail(err, IV_INVALID, "%s: numbers near %g are too large for %s", t->name, (double)x[i + e],
                               f->name);
    }
    return IV_OK;
}

static void encode(const iv_gguf_out *t, const float *x, size_t n, unsigned char *out) {
    if (iv_weight_is_plain(t->format))
        iv_weights_round((iv_dtype)t->format, x, n, out);
    else
        iv_quantize_gguf(t->format, x, n, out);
}

typedef struct writing {
    iv_file_writer file;
    size_t done, total;
    void (*progress)(void *, size_t, size_t);
    void *user;
} writing;

static iv_status put_tensor(writing *w, const iv_gguf_out *t, size_t index, iv_gguf_source *source, void *user,
                            iv_error *err) {
    static const unsigned char zeros[ALIGNMENT];
    size_t columns = (size_t)t->shape[t->ndim - 1], rows = t->elements / columns, row = t->bytes / iv_size_max(1, rows);
    size_t step = iv_size_min(iv_size_max(1, PIECE_BYTES / (columns * sizeof(float))), iv_size_max(1, rows));
    float *x = malloc(step * columns * sizeof *x);
    unsigned char *bytes = malloc(step * row + 1);
    iv_status status = x && bytes ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", t->name);
    for (size_t at = 0, n; status == IV_OK && at < rows; at += n) {
        n = iv_size_min(step, rows - at);
        status = source(user, index, at, n, x, err);
        if (status != IV_OK) break;
        encode(t, x, n * columns, bytes);
        status = check_values(t, x, bytes, n * columns, err);
        if (status == IV_OK) status = iv_file_writer_put(&w->file, bytes, n * row, err);
        w->done += n * row;
        if (status == IV_OK && w->progress) w->progress(w->user, w->done, w->total);
    }
    if (status == IV_OK) status = iv_file_writer_put(&w->file, zeros, padded(t->bytes) - t->bytes, err);
    free(x), free(bytes);
    return status;
}

iv_status iv_gguf_write(const char *path, const iv_buf *header, const iv_gguf_out *tensors, size_t count,
                        iv_gguf_source *source, void *source_user, void (*progress)(void *, size_t, size_t), void *user,
                        iv_error *err) {
    writing w = {.progress = progress, .user = user};
    for (size_t i = 0; i < count; i++) w.total += tensors[i].bytes;
    IV_TRY(iv_file_writer_open(path, &w.file, err));
    iv_status status = iv_file_writer_put(&w.file, header->data, header->len, err);
    for (size_t i = 0; status == IV_OK && i < count; i++)
        status = put_tensor(&w, &tensors[i], i, source, source_user, err);
    return iv_file_writer_close(&w.file, status, err);
}
