/* safetensors_write.c: header first, then the data as it comes. */
#include "format/safetensors_write.h"
#include "base/size.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };

static bool put_json_string(iv_buf *buf, const char *s) {
    bool ok = iv_buf_putc(buf, '"');
    for (; *s && ok; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20)
            ok = iv_buf_printf(buf, "\\u%04x", c);
        else
            ok = (c != '"' && c != '\\') ? iv_buf_putc(buf, (char)c) : iv_buf_printf(buf, "\\%c", c);
    }
    return ok && iv_buf_putc(buf, '"');
}

static iv_status check_for_write(const char *path, const iv_tensor_info *t, size_t *bytes, iv_error *err) {
    size_t elements, length = t->name ? strlen(t->name) : 0;
    if (length == 0 || length > IV_TENSOR_NAME_BYTES_MAX || !iv_utf8_valid((const uint8_t *)t->name, length, NULL) ||
        strcmp(t->name, "__metadata__") == 0)
        return iv_fail(err, IV_INVALID, "%s: '%.200s' cannot name a tensor", path, t->name ? t->name : "(null)");
    if ((size_t)t->dtype >= IV_DTYPE_COUNT || t->ndim < 0 || t->ndim > IV_TENSOR_DIMS_MAX)
        return iv_fail(err, IV_INVALID, "%s: tensor '%.200s': type %d with %d dimensions cannot be written", path,
                       t->name, (int)t->dtype, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return iv_fail(err, IV_INVALID, "%s: tensor '%.200s': shape[%d] is %" PRId64, path, t->name, i,
                           t->shape[i]);
    if (!iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &elements, bytes))
        return iv_fail(err, IV_INVALID, "%s: tensor '%.200s': the shape's size overflows", path, t->name);
    return IV_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static iv_status check_names_differ(const char *path, const iv_tensor_info *tensors, size_t count, iv_error *err) {
    if (count < 2) return IV_OK;
    const char **names = calloc(count, sizeof *names);
    if (!names) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu names", path, count);
    for (size_t i = 0; i < count; i++) names[i] = tensors[i].name;
    qsort(names, count, sizeof *names, by_name);
    iv_status status = IV_OK;
    for (size_t i = 1; i < count && status == IV_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = iv_fail(err, IV_INVALID, "%s: tensor '%.200s' is given twice", path, names[i]);
    free(names);
    return status;
}

iv_status iv_safetensors_header(const char *path, const iv_tensor_info *tensors, size_t count, const char *format,
                                iv_buf *out, size_t *data_bytes, iv_error *err) {
    size_t at = 0;
    bool ok = iv_buf_append(out, "\0\0\0\0\0\0\0\0", LENGTH_BYTES) && iv_buf_putc(out, '{');
    if (ok && format) ok = iv_buf_printf(out, "\"__metadata__\":{\"format\":\"%s\"}", format);
    for (size_t i = 0; i < count && ok; i++) {
        const iv_tensor_info *t = &tensors[i];
        size_t bytes = 0, end;
        IV_TRY(check_for_write(path, t, &bytes, err));
        if (!iv_size_add(at, bytes, &end) || end > PTRDIFF_MAX)
            return iv_fail(err, IV_INVALID, "%s: the tensors' size overflows", path);
        ok = ((i == 0 && !format) || iv_buf_putc(out, ',')) && put_json_string(out, t->name) &&
             iv_buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", iv_safetensors_dtype_name(t->dtype));
        for (int d = 0; d < t->ndim && ok; d++) ok = iv_buf_printf(out, "%s%" PRId64, d ? "," : "", t->shape[d]);
        ok = ok && iv_buf_printf(out, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    ok = ok && iv_buf_putc(out, '}');
    while (ok && out->len % 8 != 0) ok = iv_buf_putc(out, ' ');
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for the header", path);
    uint64_t n = out->len - LENGTH_BYTES;
    if (n > IV_SAFETENSORS_HEADER_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: the header would take %" PRIu64 " bytes, at most %zu can be read back", path,
                       n, IV_SAFETENSORS_HEADER_BYTES_MAX);
    for (int i = 0; i < LENGTH_BYTES; i++) out->data[i] = (char)(n >> (8 * i) & 0xff);
    *data_bytes = at;
    return check_names_differ(path, tensors, count, err);
}

iv_status iv_safetensors_writer_open(const char *path, const iv_tensor_info *tensors, size_t count, const char *format,
                                     iv_safetensors_writer *w, iv_error *err) {
    iv_buf header = {0};
    iv_status status = iv_safetensors_header(path, tensors, count, format, &header, &w->left, err);
    if (status == IV_OK) status = iv_file_writer_open(path, &w->file, err);
    if (status == IV_OK) {
        status = iv_file_writer_put(&w->file, header.data, header.len, err);
        if (status != IV_OK) iv_file_writer_close(&w->file, status, err);
    }
    iv_buf_free(&header);
    return status;
}

iv_status iv_safetensors_writer_put(iv_safetensors_writer *w, const void *bytes, size_t n, iv_error *err) {
    if (n > w->left)
        return iv_fail(err, IV_INVALID, "%s: %zu bytes more than the tensors' shapes take", w->file.path, n - w->left);
    w->left -= n;
    return iv_file_writer_put(&w->file, bytes, n, err);
}

iv_status iv_safetensors_writer_close(iv_safetensors_writer *w, iv_status status, iv_error *err) {
    const char *path = w->file.path;
    if (status == IV_OK && w->left)
        status = iv_fail(err, IV_INVALID, "%s: %zu bytes less than the tensors' shapes take", path, w->left);
    if (status == IV_OK && fsync(w->file.fd) != 0 && errno != EINVAL && errno != ENOTSUP) /* a pipe or a device */
        status = iv_fail(err, IV_IO, "%s: write failed: %s", path, strerror(errno));
    return iv_file_writer_close(&w->file, status, err);
}

/* The tensors without their data. */
static iv_status infos_of(const char *path, const iv_tensor_data *tensors, size_t count, iv_tensor_info **out,
                          iv_error *err) {
    *out = calloc(count + 1, sizeof **out);
    if (!*out) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", path, count);
    for (size_t i = 0; i < count; i++) {
        const iv_tensor_data *t = &tensors[i];
        iv_tensor_info *info = &(*out)[i];
        *info = (iv_tensor_info){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(info->shape, t->shape, sizeof t->shape);
        IV_TRY(check_for_write(path, info, &info->bytes, err));
        if (info->bytes && !t->data) return iv_fail(err, IV_INVALID, "%s: tensor '%.200s' has no data", path, t->name);
    }
    return IV_OK;
}

iv_status iv_safetensors_write(const char *path, const iv_tensor_data *tensors, size_t count, iv_error *err) {
    iv_tensor_info *infos;
    iv_safetensors_writer w;
    iv_status status = infos_of(path, tensors, count, &infos, err);
    if (status == IV_OK) status = iv_safetensors_writer_open(path, infos, count, NULL, &w, err);
    if (status == IV_OK) {
        for (size_t i = 0; status == IV_OK && i < count; i++)
            status = iv_safetensors_writer_put(&w, tensors[i].data, infos[i].bytes, err);
        status = iv_safetensors_writer_close(&w, status, err);
    }
    free(infos);
    return status;
}
