/* fuzz_packed.c: any quantization_config over any safetensors header either fails or describes rows whose reads stay
 * inside their tensors. Input: the configuration, a NUL, then the header; the data are zeros. */
#include "format/quantization.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct list {
    const iv_tensor_info *tensors;
    size_t count;
} list;

static const iv_tensor_info *find(const void *user, const char *name) {
    const list *l = user;
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->tensors[i].name, name) == 0) return &l->tensors[i];
    return NULL;
}

static iv_status zeros(void *user, const iv_tensor_info *t, void *dst, size_t offset, size_t n, iv_error *err) {
    (void)user, (void)err;
    IV_ASSERT(offset <= t->bytes && n <= t->bytes - offset);
    memset(dst, 0, n);
    return IV_OK;
}

static void read_rows(const iv_packed *p) {
    iv_error err = {0};
    size_t rows = p->rows < 40 ? p->rows : 40;
    if (p->columns > 1 << 16) return;
    float *out = malloc(rows * p->columns * sizeof *out);
    if (!out) return;
    iv_packed_rows(p, zeros, NULL, 0, rows, out, &err);
    iv_packed_rows(p, zeros, NULL, p->rows - rows, rows, out, &err);
    free(out);
}

static void every_role(const iv_quantization *q, const list *l) {
    char name[IV_TENSOR_NAME_BYTES_MAX + 1];
    for (size_t i = 0; i < l->count; i++) {
        iv_quant_role role;
        iv_packed p;
        iv_error err = {0};
        if (iv_quantization_role(q, &l->tensors[i], find, l, &role, &p, name, &err) != IV_OK)
            IV_ASSERT(err.message[0]);
        else if (role == IV_ROLE_PACKED)
            read_rows(&p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, 0, size);
    if (!end || size > 1 << 16) return 0;
    const char *header = (const char *)end + 1;
    json_t *json = json_loadb((const char *)data, (size_t)(end - data), JSON_DECODE_ANY, NULL);
    size_t n = size - (size_t)(end - data) - 1, total = 0;
    iv_quantization q = {0};
    iv_arena arena = {0};
    iv_tensor_info *tensors = NULL;
    size_t count = 0;
    iv_error err = {0};
    if (!json) return 0;
    iv_arena_init(&arena, (size_t)1 << 26);
    iv_status status = iv_quantization_parse("fuzz", json, &q, &err);
    for (size_t end_of_data = 8 + n; status == IV_OK && end_of_data > total;) { /* the message says where tensors end */
        total = end_of_data;
        if (iv_safetensors_parse("fuzz", header, n, total, &arena, &tensors, &count, &err) == IV_OK) break;
        const char *at = strstr(err.message, "the tensors end at byte ");
        count = 0, end_of_data = at ? strtoul(at + 24, NULL, 10) : 0;
    }
    if (status == IV_OK && count) every_role(&q, &(list){tensors, count});
    iv_quantization_free(&q);
    iv_arena_free(&arena);
    json_decref(json);
    return 0;
}
