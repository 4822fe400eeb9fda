/* adapter_merge.c */
#include "model/adapter_merge.h"
#include "base/size.h"
#include "model/stored.h"
#include "model/tensor_data.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_FLOATS = 1 << 18 };

typedef struct merging {
    iv_model *first;
    const iv_adapter_files *files;
    const iv_adapter_part *part;
    float *a, *b; /* [rank][inputs], [outputs][rank] */
    iv_error *err;
} merging;

static iv_status no_memory(const merging *m) {
    return iv_fail(m->err, IV_NO_MEMORY, "%s: no memory to merge it", m->files->path);
}

static iv_status read_values(const merging *m, const iv_tensor_info *t, float **out) {
    void *raw = malloc(t->bytes);
    *out = calloc(t->elements, sizeof **out);
    iv_status status = raw && *out ? iv_adapter_read(m->files, t, raw, 0, t->bytes, m->err) : no_memory(m);
    for (size_t i = 0; status == IV_OK && i < t->elements; i++) (*out)[i] = iv_element(t->dtype, raw, i);
    free(raw);
    return status;
}

/* w[inputs] += scale * (row of B) A. */
static void add_term(const merging *m, const float *b, size_t inputs, float *w) {
    for (size_t k = 0; k < inputs; k++) {
        double sum = 0;
        for (size_t j = 0; j < m->part->rank; j++) sum += (double)b[j] * (double)m->a[j * inputs + k];
        w[k] = (float)((double)w[k] + (double)m->part->scale * sum);
    }
}

/* An embedding's row of a token: w[width] += scale * B (column of A). */
static void add_token(const merging *m, size_t token, float *w) {
    for (size_t k = 0; k < m->part->outputs; k++) {
        double sum = 0;
        for (size_t j = 0; j < m->part->rank; j++)
            sum += (double)m->b[k * m->part->rank + j] * (double)m->a[j * m->part->inputs + token];
        w[k] = (float)((double)w[k] + (double)m->part->scale * sum);
    }
}

/* at NULL: of the embedding, or of the head. */
static iv_status merge_tensor(const merging *m, iv_tensor *t, const iv_tensor_place *at) {
    size_t step = iv_size_max(1, PIECE_FLOATS / t->columns);
    float *rows = malloc(iv_size_min(step, t->rows) * t->columns * sizeof *rows);
    iv_status status = rows ? IV_OK : no_memory(m);
    for (size_t first = 0, n; status == IV_OK && first < t->rows; first += n) {
        n = iv_size_min(step, t->rows - first);
        status = iv_tensor_read_rows(t, first, n, IV_F32, rows, m->err);
        for (size_t i = 0; status == IV_OK && i < n; i++) {
            size_t row = at ? iv_adapter_stored_row(at, first + i) : first + i;
            if (m->part->embedding)
                add_token(m, row, rows + i * t->columns);
            else
                add_term(m, m->b + row * m->part->rank, t->columns, rows + i * t->columns);
        }
        if (status == IV_OK) status = iv_tensor_write_rows(t, first, n, IV_F32, rows, m->err);
    }
    t->changed = true;
    free(rows);
    return status;
}

static iv_status tied(const merging *m) {
    return iv_fail(m->err, IV_UNSUPPORTED,
                   "%s: '%.200s': the model's head is tied to its embedding: wanted an adapter of neither to merge, "
                   "found one of %.200s",
                   m->files->path, m->part->a.name, m->part->module);
}

static iv_status merge_layer(const merging *m) {
    iv_arena arena = {0};
    iv_stored s = {0};
    iv_status status = iv_adapter_find_layer(m->first, m->files->path, m->part, &arena, &s, m->err);
    for (size_t i = 0; status == IV_OK && i < s.count; i++) {
        if (s.pieces[i].tensor->same_as)
            status = tied(m);
        else if (s.pieces[i].at.transposed)
            status = iv_fail(m->err, IV_UNSUPPORTED, "%s: %.200s: a transposed layer is not merged", m->files->path,
                             m->part->module);
        else
            status = merge_tensor(m, s.pieces[i].tensor, &s.pieces[i].at);
    }
    iv_arena_free(&arena);
    return status;
}

static iv_status merge_part(merging *m) {
    const iv_model_config *c = &m->first->config;
    iv_status status = read_values(m, &m->part->a, &m->a);
    if (status == IV_OK) status = read_values(m, &m->part->b, &m->b);
    bool head = iv_adapter_is_head(m->part->module);
    if (status == IV_OK && (head || m->part->embedding) && c->tie_embeddings)
        status = tied(m);
    else if (status == IV_OK && (head || m->part->embedding))
        status = merge_tensor(m, head ? m->first->head_tensor : m->first->embedding_tensor, NULL);
    else if (status == IV_OK)
        status = merge_layer(m);
    free(m->a), free(m->b);
    m->a = m->b = NULL;
    return status;
}

iv_status iv_adapter_merge(iv_model *first, const iv_adapter_files *files, iv_error *err) {
    merging m = {.first = first, .files = files, .err = err};
    iv_adapter *checked; /* shapes, names, the model's weights next to it */
    IV_TRY(iv_adapter_make(first, files, IV_ADAPTER_RANK_MAX, &checked, err));
    iv_adapter_free(checked);
    for (size_t i = 0; i < files->parts.count; i++) {
        m.part = &files->parts.part[i];
        IV_TRY(merge_part(&m));
    }
    return IV_OK;
}
