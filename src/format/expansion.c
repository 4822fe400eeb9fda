/* expansion.c: each stored tensor has a role; packed ones get the shape of their expansion. */
#include "format/expansion.h"
#include "base/file.h"
#include "base/size.h"
#include "format/json.h"
#include "format/model_config.h"
#include "format/quantization.h"
#include "numerics/dequantize.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 21 };

typedef struct stored {
    const iv_tensor_info *tensors;
    size_t count;
} stored;

static int by_name(const void *a, const void *b) {
    return strcmp(((const iv_tensor_info *)a)->name, ((const iv_tensor_info *)b)->name);
}

static const iv_tensor_info *find(const void *user, const char *name) {
    const stored *s = user;
    iv_tensor_info key = {.name = name};
    return s->count ? bsearch(&key, s->tensors, s->count, sizeof key, by_name) : NULL;
}

/* The dtype of config.json, in which the expansion is published; bfloat16 where it gives none of three. */
static iv_dtype configured(const char *dir) {
    static const iv_dtype known[] = {IV_BF16, IV_F16, IV_F32};
    iv_buf path = {0};
    iv_error unused;
    json_t *root = NULL;
    iv_dtype type = IV_BF16;
    if (iv_path_join(dir, "config.json", &path, &unused) == IV_OK && iv_file_exists(path.data))
        iv_json_read(path.data, IV_CONFIG_BYTES_MAX, &root, &unused);
    const char *name = json_string_value(json_object_get(root, "dtype"));
    if (!name) name = json_string_value(json_object_get(root, "torch_dtype"));
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
        if (strcmp(name + (strncmp(name, "torch.", 6) == 0 ? 6 : 0), iv_dtype_name(known[i])) == 0) type = known[i];
    json_decref(root);
    iv_buf_free(&path);
    return type;
}

static iv_status shape(const iv_tensor_info *t, const iv_packed *p, const char *name, iv_dtype type, iv_arena *arena,
                       iv_tensor_info *out, iv_error *err) {
    *out = (iv_tensor_info){.dtype = type, .ndim = 2, .shape = {(int64_t)p->rows, (int64_t)p->columns}};
    out->shard = t->shard;
    if (p->format == IV_WEIGHT_MXFP4 && t->ndim == 4) { /* experts in one tensor */
        out->ndim = 3, out->shape[0] = t->shape[0];
        out->shape[1] = (int64_t)(p->rows / (size_t)t->shape[0]), out->shape[2] = (int64_t)p->columns;
    }
    out->name = iv_arena_strndup(arena, name, strlen(name));
    if (!out->name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", t->name);
    if (!iv_safetensors_shape_bytes(out->shape, out->ndim, iv_dtype_bytes(type), &out->elements, &out->bytes))
        return iv_fail(err, IV_LIMIT, "%s: its expansion is too large", t->name);
    return IV_OK;
}

/* A list of pairs is sorted as one: the tensor's offset leads to its packed form, then is dropped. */
iv_status iv_expansion_sort(const char *name, iv_expansion *x, iv_error *err) {
    iv_packed *ordered = malloc((x->count + 1) * sizeof *ordered);
    size_t *offset = malloc((x->count + 1) * sizeof *offset);
    iv_status status =
        ordered && offset ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to sort its tensors", name);
    if (status == IV_OK) {
        for (size_t i = 0; i < x->count; i++) offset[i] = x->tensors[i].offset, x->tensors[i].offset = i;
        if (x->count > 1) qsort(x->tensors, x->count, sizeof *x->tensors, by_name);
        for (size_t i = 0; i < x->count; i++) {
            size_t from = x->tensors[i].offset;
            ordered[i] = x->packed[from], x->tensors[i].offset = offset[from];
        }
        memcpy(x->packed, ordered, x->count * sizeof *ordered);
    }
    free(ordered), free(offset);
    for (size_t i = 1; status == IV_OK && i < x->count; i++)
        if (by_name(&x->tensors[i - 1], &x->tensors[i]) == 0)
            status = iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' is there twice", name, x->tensors[i].name);
    return status;
}

static iv_status expand(const iv_quantization *q, const stored *s, iv_dtype type, iv_arena *arena, iv_expansion *x,
                        iv_error *err) {
    char *name = malloc(IV_TENSOR_NAME_BYTES_MAX + 1);
    iv_status status = name ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for names");
    for (size_t i = 0; status == IV_OK && i < s->count; i++) {
        iv_quant_role role = IV_ROLE_PLAIN;
        iv_packed *p = &x->packed[x->count];
        status = iv_quantization_role(q, &s->tensors[i], find, s, &role, p, name, err);
        if (status != IV_OK || role == IV_ROLE_COMPANION) continue;
        if (role == IV_ROLE_PLAIN)
            *p = (iv_packed){0}, x->tensors[x->count] = s->tensors[i];
        else
            status = shape(&s->tensors[i], p, name, type, arena, &x->tensors[x->count], err);
        x->count++;
    }
    free(name);
    return status;
}

iv_status iv_expansion_make(const char *dir, const iv_tensor_info *tensors, size_t count, iv_dtype type,
                            iv_arena *arena, iv_expansion *out, iv_error *err) {
    iv_quantization q;
    stored s = {tensors, count};
    *out = (iv_expansion){0};
    IV_TRY(iv_quantization_read(dir, &q, err));
    if (q.method == IV_QUANT_NONE) return IV_OK;
    if (type == IV_DTYPE_COUNT) type = configured(dir);
    out->tensors = IV_ARENA_NEW(arena, count + 1, iv_tensor_info);
    out->packed = IV_ARENA_NEW(arena, count + 1, iv_packed);
    out->activations = q.activations;
    iv_status status = out->tensors && out->packed ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    if (status == IV_OK) status = expand(&q, &s, type, arena, out, err);
    if (status == IV_OK) status = iv_expansion_sort(dir, out, err);
    iv_quantization_free(&q);
    return status;
}

/* A piece of whole rows. */
static iv_status read_piece(const iv_packed *p, iv_dtype type, iv_packed_source *source, void *user, size_t first,
                            size_t rows, float *values, void *rounded, iv_error *err) {
    IV_TRY(iv_packed_rows(p, source, user, first, rows, values, err));
    iv_weights_round(type, values, rows * p->columns, rounded);
    return IV_OK;
}

iv_status iv_expansion_read(const iv_packed *p, const iv_tensor_info *t, iv_packed_source *source, void *user,
                            void *dst, size_t offset, size_t n, iv_error *err) {
    size_t row = p->columns * iv_dtype_bytes(t->dtype), step = iv_size_max(1, PIECE_BYTES / row);
    size_t end = offset + n, last = n ? (end - 1) / row : 0;
    if (n == 0) return IV_OK;
    step = iv_size_min(step, last + 1 - offset / row);
    float *values = malloc(step * p->columns * sizeof *values);
    unsigned char *rounded = malloc(step * row), *to = dst;
    iv_status status = values && rounded ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to expand it", t->name);
    for (size_t first = offset / row, rows; status == IV_OK && first <= last; first += rows) {
        rows = iv_size_min(step, last + 1 - first);
        status = read_piece(p, t->dtype, source, user, first, rows, values, rounded, err);
        size_t begin = iv_size_max(offset, first * row), stop = iv_size_min(end, (first + rows) * row);
        if (status == IV_OK) memcpy(to + (begin - offset), rounded + (begin - first * row), stop - begin);
    }
    free(values), free(rounded);
    return status == IV_OK ? IV_OK : iv_error_prefix(err, "tensor '%.200s'", t->name);
}
