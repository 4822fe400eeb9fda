/* parameters.c: offsets, and copies between the row and the packed weights. */
#include "model/parameters.h"
#include "base/size.h"
#include "model/tensor_data.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

size_t iv_parameters_layout(iv_model *first) {
    size_t at = 0;
    for (size_t i = 0; i < first->tensor_count; i++) {
        iv_tensor *t = &first->tensors[i];
        size_t padded;
        if (!iv_parameter_is_trained(t)) continue;
        t->offset = at, t->changed |= t->info.dtype != t->held, t->info.dtype = t->held;
        if (!iv_size_round_up(t->rows * t->columns, IV_PARAMETER_BLOCK, &padded) || !iv_size_add(at, padded, &at))
            return 0;
    }
    return at;
}

size_t iv_parameters_tied_elements(const iv_model *first) {
    size_t n = first->embedding_tensor->rows * first->embedding_tensor->columns;
    if (!first->config.tie_embeddings) return 0;
    return (n + IV_PARAMETER_BLOCK - 1) / IV_PARAMETER_BLOCK * IV_PARAMETER_BLOCK;
}

iv_parameters_part iv_parameters_tensor_part(const iv_tensor *t) {
    size_t n = (t->rows * t->columns + IV_PARAMETER_BLOCK - 1) / IV_PARAMETER_BLOCK * IV_PARAMETER_BLOCK;
    return (iv_parameters_part){t->offset, t->offset + n};
}

/* A layer's names have one prefix, so they are neighbours in the byte order of all names. */
iv_parameters_part iv_parameters_layer_part(const iv_model *first, size_t layer) {
    char prefix[40];
    size_t n = (size_t)snprintf(prefix, sizeof prefix, "model.layers.%zu.", layer);
    iv_parameters_part out = {SIZE_MAX, 0};
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_trained(t) || strncmp(t->info.name, prefix, n) != 0) continue;
        iv_parameters_part one = iv_parameters_tensor_part(t);
        out.begin = iv_size_min(out.begin, one.begin), out.end = iv_size_max(out.end, one.end);
    }
    IV_ASSERT(out.begin < out.end);
    return out;
}

size_t iv_parameters_longest_part(const iv_model *first) {
    size_t longest = 0;
    for (size_t i = 0; i < first->tensor_count; i++) { /* the head, look-ups and the final norm are tensors */
        iv_parameters_part one = iv_parameters_tensor_part(&first->tensors[i]);
        if (iv_parameter_is_trained(&first->tensors[i])) longest = iv_size_max(longest, one.end - one.begin);
    }
    for (size_t i = 0; i < (size_t)first->config.layers; i++) {
        iv_parameters_part one = iv_parameters_layer_part(first, i);
        longest = iv_size_max(longest, one.end - one.begin);
    }
    return longest;
}

size_t iv_parameters_vectors(const iv_model *first, size_t *at) {
    enum { ALIGN = 64 };
    size_t n = 0;
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_vector(t)) continue;
        if (at) at[i] = n;
        n += (t->rows + ALIGN - 1) / ALIGN * ALIGN;
    }
    return n;
}

typedef struct copying {
    iv_model *first;
    float *row;
    size_t begin, end;
    bool writes;
    atomic_flag failed;
    iv_status status;
    iv_error *err;
} copying;

static void copy_tensor(void *context, size_t index, size_t worker) {
    (void)worker;
    copying *x = context;
    iv_tensor *t = &x->first->tensors[index];
    size_t n = t->rows * t->columns;
    if (!iv_parameter_is_trained(t) || t->offset + n <= x->begin || t->offset >= x->end) return;
    iv_error err;
    float *at = x->row + t->offset;
    iv_status s = x->writes ? iv_tensor_write(x->first, t, IV_F32, at, n * sizeof *at, &err)
                            : iv_tensor_read(t, IV_F32, at, n * sizeof *at, &err);
    if (s == IV_OK || atomic_flag_test_and_set(&x->failed)) return;
    x->status = s;
    if (x->err) *x->err = err;
}

static iv_status copy(copying *x, iv_pool *pool) {
    atomic_flag_clear(&x->failed);
    iv_pool_run(pool, x->first->tensor_count, copy_tensor, x);
    return x->status;
}

iv_status iv_parameters_read(const iv_model *first, iv_pool *pool, float *row, iv_error *err) {
    copying x = {.first = (iv_model *)(uintptr_t)first, .row = row, .end = SIZE_MAX, .status = IV_OK, .err = err};
    return copy(&x, pool);
}

iv_status iv_parameters_write(iv_model *first, iv_pool *pool, const float *row, size_t begin, size_t end,
                              iv_error *err) {
    copying x = {.first = first,
                 .row = (float *)(uintptr_t)row,
                 .begin = begin,
                 .end = end,
                 .writes = true,
                 .status = IV_OK,
                 .err = err};
    return copy(&x, pool);
}

const iv_tensor *iv_parameter_at(const iv_model *first, size_t i) {
    const iv_tensor *found = NULL;
    size_t low = 0, high = first->tensor_count; /* offsets of trained tensors ascend */
    while (low < high) {
        size_t middle = low + (high - low) / 2, t = middle;
        while (t < high && !iv_parameter_is_trained(&first->tensors[t])) t++;
        if (t < high && first->tensors[t].offset <= i)
            found = &first->tensors[t], low = t + 1;
        else
            high = middle;
    }
    return found;
}
