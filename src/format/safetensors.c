/* safetensors.c: the parser.
 *
 * Invariant: after a successful parse the tensors' bytes tile the file from the end of the header to its last
 * byte, in order, without a hole or an overlap, so every read inside a tensor is inside the file. */
#include "format/safetensors.h"
#include "base/file.h"
#include "base/size.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

static const char *const dtype_names[IV_DTYPE_COUNT] = {
    [IV_BF16] = "BF16",       [IV_F16] = "F16",         [IV_F32] = "F32",        [IV_F64] = "F64", [IV_I8] = "I8",
    [IV_U8] = "U8",           [IV_BOOL] = "BOOL",       [IV_I16] = "I16",        [IV_I32] = "I32", [IV_I64] = "I64",
    [IV_F8_E4M3] = "F8_E4M3", [IV_F8_E8M0] = "F8_E8M0", [IV_F8_E5M2] = "F8_E5M2"};

const char *iv_safetensors_dtype_name(iv_dtype dtype) {
    IV_ASSERT((size_t)dtype < IV_DTYPE_COUNT);
    return dtype_names[dtype];
}

static iv_status parse_dtype(const char *file, const char *tensor, const json_t *value, iv_dtype *out, iv_error *err) {
    if (!json_is_string(value))
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': dtype: wanted a string, found %s", file, tensor,
                       iv_json_type_name(value));
    for (int i = 0; i < IV_DTYPE_COUNT; i++)
        if (json_string_length(value) == strlen(dtype_names[i]) &&
            strcmp(json_string_value(value), dtype_names[i]) == 0) {
            *out = (iv_dtype)i;
            return IV_OK;
        }
    return iv_fail(err, IV_UNSUPPORTED, "%s: tensor '%.200s': element type '%.40s' is not supported", file, tensor,
                   json_string_value(value));
}

/* shape x size without overflow. Zeros are excluded from the checked product, so that accepting a shape does not depend
 * on the position of its zero. */
bool iv_safetensors_shape_bytes(const int64_t *shape, int ndim, size_t size, size_t *elements, size_t *bytes) {
    size_t product = 1, ignored;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0)
            empty = true;
        else if (!iv_size_mul(product, (size_t)shape[i], &product))
            return false;
    }
    if (!iv_size_mul(product, size, &ignored)) return false;
    *elements = empty ? 0 : product;
    *bytes = *elements * size;
    return true;
}

static iv_status parse_shape(const char *file, const json_t *value, iv_tensor_info *t, iv_error *err) {
    if (!json_is_array(value))
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': shape: wanted an array, found %s", file, t->name,
                       iv_json_type_name(value));
    size_t ndim = json_array_size(value);
    if (ndim > IV_TENSOR_DIMS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: tensor '%.200s': shape has %zu dimensions, at most %d are read", file,
                       t->name, ndim, IV_TENSOR_DIMS_MAX);
    for (size_t i = 0; i < ndim; i++) {
        const json_t *d = json_array_get(value, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': shape[%zu]: wanted an integer >= 0, found %s%s", file,
                           t->name, i, json_is_integer(d) ? "a negative " : "", iv_json_type_name(d));
        t->shape[i] = json_integer_value(d);
    }
    t->ndim = (int)ndim;
    if (!iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &t->elements, &t->bytes))
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': the shape's size overflows", file, t->name);
    return IV_OK;
}

/* Sets t->offset; the end is implied by t->bytes, which must agree. */
static iv_status parse_offsets(const char *file, const json_t *value, size_t data_start, size_t data_bytes,
                               iv_tensor_info *t, iv_error *err) {
    const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': data_offsets: wanted two integers", file, t->name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin >= 0 && begin <= end && (uint64_t)end > data_bytes)
        return iv_fail(err, IV_FORMAT,
                       "%s: %zu bytes, but its header says at least %" PRIu64
                       " (the end of tensor '%.200s'): the file was "
                       "cut short, as by an interrupted download",
                       file, data_start + data_bytes, data_start + (uint64_t)end, t->name);
    if (begin < 0 || end < begin)
        return iv_fail(err, IV_FORMAT,
                       "%s: tensor '%.200s': data_offsets: wanted 0 <= begin <= end <= %zu (the file's data bytes), "
                       "found [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT "]",
                       file, t->name, data_bytes, begin, end);
    if ((size_t)(end - begin) != t->bytes)
        return iv_fail(err, IV_FORMAT,
                       "%s: tensor '%.200s': its shape and type take %zu bytes, its data_offsets span %zu", file,
                       t->name, t->bytes, (size_t)(end - begin));
    t->offset = data_start + (size_t)begin;
    return IV_OK;
}

static iv_status parse_tensor(const char *file, json_t *value, size_t data_start, size_t data_bytes, iv_tensor_info *t,
                              iv_error *err) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(value))
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': wanted an object, found %s", file, t->name,
                       iv_json_type_name(value));
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(value, keys[i]))
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': %s is missing", file, t->name, keys[i]);
    if (json_object_size(value) != 3)
        return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s': wanted dtype, shape and data_offsets only, found %zu keys",
                       file, t->name, json_object_size(value));
    IV_TRY(parse_dtype(file, t->name, json_object_get(value, "dtype"), &t->dtype, err));
    IV_TRY(parse_shape(file, json_object_get(value, "shape"), t, err));
    return parse_offsets(file, json_object_get(value, "data_offsets"), data_start, data_bytes, t, err);
}

static iv_status check_metadata(const char *file, json_t *metadata, iv_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return iv_fail(err, IV_FORMAT, "%s: __metadata__: wanted an object, found %s", file,
                       iv_json_type_name(metadata));
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return iv_fail(err, IV_FORMAT, "%s: __metadata__ '%.200s': wanted a string, found %s", file, key,
                           iv_json_type_name(value));
    }
    return IV_OK;
}

/* By offset in the file; an empty tensor precedes a tensor with the same offset. */
static int by_offset(const void *a, const void *b) {
    const iv_tensor_info *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static iv_status check_tiling(const char *file, const iv_tensor_info *tensors, size_t count, size_t data_start,
                              size_t file_size, iv_error *err) {
    size_t at = data_start;
    for (size_t i = 0; i < count; i++) {
        const iv_tensor_info *t = &tensors[i];
        if (t->offset > at)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' begins at data byte %zu, leaving a hole from %zu", file,
                           t->name, t->offset - data_start, at - data_start);
        if (t->offset < at)
            return iv_fail(err, IV_FORMAT, "%s: tensors '%.200s' and '%.200s' overlap at data byte %zu", file,
                           tensors[i - 1].name, t->name, t->offset - data_start);
        at = t->offset + t->bytes;
    }
    if (at != file_size)
        return iv_fail(err, IV_FORMAT, "%s: the tensors end at byte %zu, the file at %zu", file, at, file_size);
    return IV_OK;
}

static iv_status parse_object(const char *file, json_t *root, size_t data_start, size_t file_size, iv_arena *arena,
                              iv_tensor_info **tensors, size_t *count, iv_error *err) {
    size_t entries = json_object_size(root), n = 0;
    if (entries > IV_SAFETENSORS_TENSORS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu tensors, at most %zu are read", file, entries,
                       IV_SAFETENSORS_TENSORS_MAX);
    iv_tensor_info *list = IV_ARENA_NEW(arena, entries, iv_tensor_info);
    if (!list) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", file, entries);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            IV_TRY(check_metadata(file, value, err));
            continue;
        }
        size_t length = strlen(key);
        if (length > IV_TENSOR_NAME_BYTES_MAX)
            return iv_fail(err, IV_LIMIT, "%s: a tensor name of %zu bytes, at most %d are read", file, length,
                           IV_TENSOR_NAME_BYTES_MAX);
        list[n].name = iv_arena_strndup(arena, key, length);
        if (!list[n].name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for tensor names", file);
        IV_TRY(parse_tensor(file, value, data_start, file_size - data_start, &list[n], err));
        n++;
    }
    if (n > 1) qsort(list, n, sizeof *list, by_offset);
    IV_TRY(check_tiling(file, list, n, data_start, file_size, err));
    *tensors = list;
    *count = n;
    return IV_OK;
}

static iv_status check_header_bytes(const char *file, uint64_t n, size_t file_size, iv_error *err) {
    if (n > IV_SAFETENSORS_HEADER_BYTES_MAX)
        return iv_fail(err, IV_LIMIT,
                       "%s: a header of %" PRIu64 " bytes, at most %zu are read (is this a safetensors file?)", file, n,
                       IV_SAFETENSORS_HEADER_BYTES_MAX);
    if (file_size < LENGTH_BYTES || n > file_size - LENGTH_BYTES)
        return iv_fail(err, IV_FORMAT,
                       "%s: a header of %" PRIu64 " bytes does not fit a file of %zu bytes (cut short?)", file, n,
                       file_size);
    return IV_OK;
}

iv_status iv_safetensors_parse(const char *name, const char *header, size_t n, size_t file_size, iv_arena *arena,
                               iv_tensor_info **tensors, size_t *count, iv_error *err) {
    IV_TRY(check_header_bytes(name, n, file_size, err));
    if (n == 0 || header[0] != '{')
        return iv_fail(err, IV_FORMAT, "%s: the header does not begin with '{' (is this a safetensors file?)", name);
    json_t *root;
    IV_TRY(iv_json_parse(name, header, n, &root, err));
    iv_status status = parse_object(name, root, LENGTH_BYTES + n, file_size, arena, tensors, count, err);
    json_decref(root);
    return status;
}

iv_status iv_safetensors_read(const char *path, int fd, size_t file_size, iv_arena *arena, iv_tensor_info **tensors,
                              size_t *count, iv_error *err) {
    uint8_t raw[LENGTH_BYTES];
    uint64_t n = 0;
    if (file_size < LENGTH_BYTES)
        return iv_fail(err, IV_FORMAT, "%s: wanted at least 8 bytes, found %zu", path, file_size);
    IV_TRY(iv_file_read_at(fd, path, raw, sizeof raw, 0, err));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | raw[i];
    IV_TRY(check_header_bytes(path, n, file_size, err));
    char *header = malloc(n ? n : 1);
    if (!header) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", path, n);
    iv_status status = iv_file_read_at(fd, path, header, n, LENGTH_BYTES, err);
    if (status == IV_OK) status = iv_safetensors_parse(path, header, n, file_size, arena, tensors, count, err);
    free(header);
    return status;
}
