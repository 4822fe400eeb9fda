/* parameters.c: offsets, and copies between the flat buffer and the packed weights. */
#include "model/parameters.h"
#include "base/size.h"
#include "model/tensor_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t iv_parameters_layout(iv_model *first) {
    for (size_t i = 0; i < first->tensor_count; i++) {
        iv_tensor *t = &first->tensors[i];
        if (iv_parameter_is_trained(t)) t->changed |= t->info.dtype != t->held, t->info.dtype = t->held;
    }
    return iv_parameters_places(first);
}

size_t iv_parameters_places(iv_model *first) {
    size_t at = 0;
    for (size_t i = 0; i < first->tensor_count; i++) {
        iv_tensor *t = &first->tensors[i];
        size_t padded;
        if (!iv_parameter_is_trained(t)) continue;
        if (t->offset != at) t->offset = at; /* others may read the model */
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

iv_gradient_bucket iv_parameters_tensor_bucket(const iv_tensor *t) {
    size_t n = (t->rows * t->columns + IV_PARAMETER_BLOCK - 1) / IV_PARAMETER_BLOCK * IV_PARAMETER_BLOCK;
    return (iv_gradient_bucket){t->offset, t->offset + n};
}

/* A layer's names have one prefix, so they are neighbours in the byte order of all names. */
iv_gradient_bucket iv_parameters_layer_bucket(const iv_model *first, size_t layer) {
    char prefix[40];
    size_t n = (size_t)snprintf(prefix, sizeof prefix, "model.layers.%zu.", layer);
    iv_gradient_bucket out = {SIZE_MAX, 0};
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_trained(t) || strncmp(t->info.name, prefix, n) != 0) continue;
        iv_gradient_bucket one = iv_parameters_tensor_bucket(t);
        out.begin = iv_size_min(out.begin, one.begin), out.end = iv_size_max(out.end, one.end);
    }
    IV_ASSERT(out.begin < out.end);
    return out;
}

size_t iv_parameters_longest_bucket(const iv_model *first) {
    size_t longest = 0;
    for (size_t i = 0; i < first->tensor_count; i++) { /* the head, look-ups and the final norm are tensors */
        iv_gradient_bucket one = iv_parameters_tensor_bucket(&first->tensors[i]);
        if (iv_parameter_is_trained(&first->tensors[i])) longest = iv_size_max(longest, one.end - one.begin);
    }
    for (size_t i = 0; i < (size_t)first->config.layers; i++) {
        iv_gradient_bucket one = iv_parameters_layer_bucket(first, i);
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

/* Threads copy a range each, whatever its tensors. */
enum { RANGES = 64 };

typedef struct copying {
    const iv_model *first;
    float *values; /* elements [begin, end) */
    size_t begin, end;
    bool writes;
    iv_status status[RANGES];
    iv_error error[RANGES];
} copying;

static iv_status copy_rows(const copying *x, const iv_tensor *t, size_t at, size_t rows, iv_error *err) {
    float *values = x->values + (t->offset + at * t->columns - x->begin);
    return x->writes ? iv_tensor_write_rows(t, at, rows, IV_F32, values, err)
                     : iv_tensor_read_rows(t, at, rows, IV_F32, values, err);
}

/* The tensors' rows that begin in the range. */
static void copy_range(void *context, size_t index, size_t worker) {
    (void)worker;
    copying *x = context;
    size_t n = x->end - x->begin, from = x->begin + n * index / RANGES, to = x->begin + n * (index + 1) / RANGES;
    for (size_t i = 0; i < x->first->tensor_count && x->status[index] == IV_OK; i++) {
        const iv_tensor *t = &x->first->tensors[i];
        if (!iv_parameter_is_trained(t) || t->offset >= to || t->offset + t->rows * t->columns <= from) continue;
        size_t at = (iv_size_max(from, t->offset) - t->offset + t->columns - 1) / t->columns;
        size_t last = iv_size_min(t->rows, (to - t->offset + t->columns - 1) / t->columns);
        if (at < last) x->status[index] = copy_rows(x, t, at, last - at, &x->error[index]);
    }
}

static iv_status copy(const iv_model *first, iv_pool *pool, float *values, size_t begin, size_t end, bool writes,
                      iv_error *err) {
    iv_status status = IV_OK;
    size_t all = 0;
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (iv_parameter_is_trained(t)) all = t->offset + t->rows * t->columns; /* offsets ascend */
    }
    end = iv_size_min(end, all);
    if (begin >= end) return IV_OK;
    copying *x = calloc(1, sizeof *x);
    if (!x) return iv_fail(err, IV_NO_MEMORY, "no memory to copy weights");
    x->first = first, x->values = values, x->begin = begin, x->end = end, x->writes = writes;
    iv_pool_run(pool, RANGES, copy_range, x);
    for (size_t i = RANGES; i-- > 0;)
        if (x->status[i] != IV_OK) {
            status = x->status[i];
            if (err) *err = x->error[i];
        }
    free(x);
    return status;
}

iv_status iv_parameters_read(const iv_model *first, iv_pool *pool, float *values, size_t begin, size_t end,
                             iv_error *err) {
    return copy(first, pool, values, begin, end, false, err);
}

iv_status iv_parameters_write(iv_model *first, iv_pool *pool, const float *values, size_t begin, size_t end,
                              iv_error *err) {
    iv_status status = copy(first, pool, (float *)(uintptr_t)values, begin, end, true, err);
    for (size_t i = 0; i < first->tensor_count; i++) {
        iv_tensor *t = &first->tensors[i];
        const iv_tensor *x = t->same_as ? t->same_as : t;
        t->changed |= iv_parameter_is_trained(x) && x->offset < end && x->offset + x->rows * x->columns > begin;
    }
    return status;
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
