/* model.c: between the flat buffer on a GPU and a model's packed weights.
 *
 * Matrices on the same GPU are written by a kernel: their packed rows, grouped by type and width, are listed once for
 * models of one form (a packing), in the order of the flat buffer, and those of a group in a chunk of it are
 * one launch. Everything else goes through this process's memory: small tensors together, others (larger ones,
 * matrices in another memory space, and all reading) in chunks, tensor by tensor, over threads. */
#include "base/digest.h"
#include "base/size.h"
#include "kernels/cuda/learn.h"
#include "model/tensor_data.h"
#include "numerics/floats.h"
#include "train/cuda/gpu.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20, SMALL = 1 << 14 }; /* elements */

/* ---- through this process's memory ------------------------------------------------------------------------------- */

typedef struct copying {
    iv_flat_gpu *g;
    iv_model *first;
    float *values; /* from element `begin` on */
    size_t begin, end;
    bool writes, skips_packed, skips_small;
    atomic_flag failed;
    iv_status status;
    iv_error *err;
} copying;

static bool overlaps(const iv_tensor *t, size_t begin, size_t end) {
    return iv_parameter_is_trained(t) && t->offset < end && t->offset + t->rows * t->columns > begin;
}

/* A GPU that was opened twice has two memory spaces. */
static bool is_group(const iv_flat_gpu *g, const iv_memspace *memspace) {
    const iv_gpu *gpu = iv_gpu_of(memspace);
    for (size_t i = 0; gpu && i < g->group_count; i++)
        if (iv_gpu_get_info(gpu)->ordinal == g->group[i]) return true;
    return false;
}

static bool is_here(const iv_flat_gpu *g, const iv_tensor_slice *s) {
    const iv_gpu *gpu = iv_gpu_of(s->owner->memspace);
    return gpu && iv_gpu_get_info(gpu)->ordinal == iv_gpu_get_info(g->gpu)->ordinal;
}

/* Whether the group's kernels can write all that this process holds of it. */
static bool is_packed(const iv_flat_gpu *g, const iv_tensor *t) {
    for (const iv_tensor_slice *s = t->slices; s; s = s->next)
        if (!s->matrix || !is_group(g, s->owner->memspace)) return false;
    return true;
}

/* The tensor's row where element `at` is, which begins there; its rows if it is behind them. */
static size_t row_at(const iv_tensor *t, size_t at) {
    if (at <= t->offset) return 0;
    return at - t->offset >= t->rows * t->columns ? t->rows : (at - t->offset + t->columns - 1) / t->columns;
}

static iv_status copy_rows(const copying *x, const iv_tensor *t, float *chunk, size_t step, iv_error *err) {
    iv_flat *r = &x->g->base;
    size_t last = row_at(t, x->end);
    for (size_t at = row_at(t, x->begin), n; at < last; at += n) {
        n = iv_size_min(step, last - at);
        float *there = x->values + (t->offset + at * t->columns - x->begin);
        if (x->writes) {
            IV_TRY(r->ops->read(r, there, n * t->columns, chunk, err));
            IV_TRY(iv_tensor_write_rows(t, at, n, IV_F32, chunk, err));
        } else {
            IV_TRY(iv_tensor_read_rows(t, at, n, IV_F32, chunk, err));
            IV_TRY(r->ops->write(r, there, n * t->columns, chunk, err));
        }
    }
    return IV_OK;
}

/* Small, and as a whole in the part. */
static bool is_small(const copying *x, const iv_tensor *t) {
    size_t n = t->rows * t->columns;
    return n <= SMALL && t->offset >= x->begin && t->offset + n <= x->end;
}

static bool is_copied(const copying *x, const iv_tensor *t) {
    return overlaps(t, x->begin, x->end) && !(x->skips_packed && is_packed(x->g, t)) &&
           !(x->skips_small && is_small(x, t));
}

static void copy_tensor(void *context, size_t index, size_t worker) {
    (void)worker;
    copying *x = context;
    const iv_tensor *t = &x->first->tensors[index];
    if (!is_copied(x, t)) return;
    size_t step = iv_size_min(iv_size_max(1, CHUNK / t->columns), t->rows);
    iv_error err;
    float *chunk = malloc(step * t->columns * sizeof *chunk);
    iv_status s = chunk ? copy_rows(x, t, chunk, step, &err)
                        : iv_fail(&err, IV_NO_MEMORY, "%s: no memory to copy it", t->info.name);
    free(chunk);
    if (s == IV_OK || atomic_flag_test_and_set(&x->failed)) return;
    x->status = s;
    if (x->err) *x->err = err;
}

static iv_status copy_tensors(copying *x) {
    atomic_flag_clear(&x->failed);
    iv_pool_run(x->g->pool, x->first->tensor_count, copy_tensor, x);
    return x->status;
}

/* All small tensors come to this process together: a copy that is waited for takes as long as many that are not. */
static iv_status write_small(copying *x, iv_error *err) {
    iv_flat_gpu *g = x->g;
    size_t all = 0, at = 0;
    int code = 0;
    for (size_t i = 0; i < x->first->tensor_count; i++) {
        const iv_tensor *t = &x->first->tensors[i];
        if (is_copied(x, t) && is_small(x, t)) all += t->rows * t->columns;
    }
    if (all > g->staged_max) {
        g->memspace->unstage(g->memspace, g->staged);
        g->staged = g->memspace->stage(g->memspace, all * sizeof *g->staged), g->staged_max = g->staged ? all : 0;
        if (!g->staged) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for vectors");
    }
    for (size_t i = 0; i < x->first->tensor_count && !code; i++) {
        const iv_tensor *t = &x->first->tensors[i];
        size_t n = t->rows * t->columns;
        if (!is_copied(x, t) || !is_small(x, t)) continue;
        code = (int)cudaMemcpyAsync(g->staged + at, x->values + (t->offset - x->begin), n * sizeof *g->staged,
                                    cudaMemcpyDeviceToHost, g->stream);
        at += n;
    }
    IV_TRY(iv_flat_gpu_finish(g, code, "copies of vectors", err));
    at = 0;
    for (size_t i = 0; i < x->first->tensor_count; i++) {
        const iv_tensor *t = &x->first->tensors[i];
        if (!is_copied(x, t) || !is_small(x, t)) continue;
        IV_TRY(iv_tensor_write_rows(t, 0, t->rows, IV_F32, g->staged + at, err));
        at += t->rows * t->columns;
    }
    x->skips_small = true;
    return IV_OK;
}

iv_status iv_flat_gpu_read_model(iv_flat *r, const iv_model *first, float *values, iv_error *err) {
    copying x = {.g = (iv_flat_gpu *)r,
                 .first = (iv_model *)(uintptr_t)first,
                 .values = values,
                 .end = SIZE_MAX,
                 .status = IV_OK,
                 .err = err};
    return copy_tensors(&x);
}

/* ---- packings ---------------------------------------------------------------------------------------------------- */

/* Packed rows of one rank, type and width. */
typedef struct packed_width {
    size_t rank; /* of this process's models, from the first */
    iv_dtype type;
    size_t k, k_padded, count;
    iv_gpu_packed_row *rows; /* on the GPU, `from` ascends; `to` counts from the rank's data */
    int64_t *from;           /* here */
} packed_width;

struct iv_flat_packing {
    uint8_t form[32]; /* of the models that it is for: a digest of everything that the lists are made from */
    float limit;      /* smaller values stay finite in every type that they are rounded to */
    packed_width *width;
    size_t widths;
};

void iv_flat_packing_free(iv_flat_gpu *g, iv_flat_packing *p) {
    if (!p) return;
    for (size_t i = 0; i < p->widths; i++) g->memspace->free(g->memspace, p->width[i].rows), free(p->width[i].from);
    free(p->width);
    free(p);
}

static size_t rank_of(const iv_model *first, const iv_model *owner) {
    size_t rank = 0;
    for (; first != owner; first = first->next) rank++;
    return rank;
}

/* A model may be closed and another one opened at its address, so that only the form tells them apart. */
static iv_status form_of(const iv_flat_gpu *g, const iv_model *first, uint8_t out[32], iv_error *err) {
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for the rows of matrices");
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_trained(t)) continue;
        size_t tensor[] = {i, t->offset, t->rows, t->columns, t->held, is_packed(g, t)};
        iv_digest_add(d, tensor, sizeof tensor);
        for (const iv_tensor_slice *s = t->slices; s && is_packed(g, t); s = s->next) {
            if (!is_here(g, s)) continue;
            const iv_matrix *m = s->matrix;
            size_t slice[] = {rank_of(first, s->owner),
                              s->begin,
                              s->end,
                              s->column,
                              s->first,
                              m->n,
                              m->k,
                              m->k_padded,
                              m->panel_bytes,
                              m->type,
                              m->paired,
                              (size_t)(m->data - s->owner->data)};
            iv_digest_add(d, slice, sizeof slice);
        }
    }
    iv_digest_finish(d, out);
    return IV_OK;
}

/* The width of a slice among those of p, added if it is new; NULL: no memory. */
static packed_width *width_of(iv_flat_packing *p, const iv_model *first, const iv_tensor_slice *s) {
    packed_width want = {
        .rank = rank_of(first, s->owner), .type = s->matrix->type, .k = s->matrix->k, .k_padded = s->matrix->k_padded};
    for (size_t i = 0; i < p->widths; i++) {
        packed_width *w = &p->width[i];
        if (w->rank == want.rank && w->type == want.type && w->k == want.k && w->k_padded == want.k_padded) return w;
    }
    packed_width *more = realloc(p->width, (p->widths + 1) * sizeof *more);
    if (!more) return NULL;
    p->width = more, p->width[p->widths] = want;
    return &p->width[p->widths++];
}

/* The smallest magnitude that becomes an infinity. */
static float limit_of(iv_dtype type) {
    return type == IV_F32 ? INFINITY : iv_float(type == IV_BF16 ? 0x7f7f8000u : 0x477ff000u);
}

/* Counts the rows of each width; with `list`, whose arrays are those of the widths, writes them. False: no memory. */
static bool walk(const iv_flat_gpu *g, iv_model *first, iv_flat_packing *p, iv_gpu_packed_row **list) {
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_trained(t) || !is_packed(g, t)) continue;
        for (const iv_tensor_slice *s = t->slices; s; s = s->next) {
            if (!is_here(g, s)) continue;
            packed_width *w = width_of(p, first, s);
            if (!w) return false;
            size_t base = (size_t)(s->matrix->data - s->owner->data), from = t->offset + s->column;
            for (size_t n = s->begin; list && n < s->end; n++)
                list[w - p->width][w->count++] = (iv_gpu_packed_row){
                    (int64_t)(from + n * t->columns),
                    (int64_t)(base + iv_matrix_row_index(s->matrix, s->first + n - s->begin) * s->matrix->panel_bytes)};
            if (!list) w->count += s->end - s->begin;
        }
    }
    return true;
}

static int by_from(const void *a, const void *b) {
    int64_t x = ((const iv_gpu_packed_row *)a)->from, y = ((const iv_gpu_packed_row *)b)->from;
    return (x > y) - (x < y);
}

/* In the order of the flat buffer, and to the GPU. */
static iv_status upload_width(iv_flat_gpu *g, packed_width *w, iv_gpu_packed_row *list, iv_error *err) {
    size_t bytes = w->count * sizeof *list;
    void *there;
    qsort(list, w->count, sizeof *list, by_from);
    w->from = malloc(w->count * sizeof *w->from + 1);
    if (!w->from) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for the rows of matrices");
    for (size_t i = 0; i < w->count; i++) w->from[i] = list[i].from;
    IV_TRY(iv_flat_gpu_alloc(g, bytes, "the rows of matrices", &there, err));
    w->rows = there;
    return g->memspace->write(g->memspace, there, bytes, list, bytes, bytes, 1, err);
}

/* The lists of all widths, made here and copied to the GPU. */
static iv_status upload(iv_flat_gpu *g, iv_model *first, iv_flat_packing *p, iv_error *err) {
    iv_status status = IV_OK;
    iv_gpu_packed_row **list = calloc(p->widths + 1, sizeof *list);
    bool memory = list != NULL;
    for (size_t i = 0; memory && i < p->widths; i++) {
        memory = (list[i] = malloc(p->width[i].count * sizeof **list)) != NULL;
        p->width[i].count = 0;
    }
    if (!memory || !walk(g, first, p, list))
        status = iv_fail(err, IV_NO_MEMORY, "trainer: no memory for the rows of matrices");
    for (size_t i = 0; status == IV_OK && i < p->widths; i++) status = upload_width(g, &p->width[i], list[i], err);
    for (size_t i = 0; list && i < p->widths; i++) free(list[i]);
    free(list);
    return status;
}

static iv_status make_packing(iv_flat_gpu *g, iv_model *first, iv_flat_packing **out, iv_error *err) {
    iv_flat_packing *p = malloc(sizeof *p);
    if (!p) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for the rows of matrices");
    *p = (iv_flat_packing){.limit = INFINITY};
    for (size_t i = 0; i < first->tensor_count; i++) {
        const iv_tensor *t = &first->tensors[i];
        if (!iv_parameter_is_trained(t)) continue;
        if (limit_of(t->held) < p->limit) p->limit = limit_of(t->held);
    }
    iv_status status = walk(g, first, p, NULL)
                           ? upload(g, first, p, err)
                           : iv_fail(err, IV_NO_MEMORY, "trainer: no memory for the rows of matrices");
    if (status == IV_OK)
        *out = p;
    else
        iv_flat_packing_free(g, p);
    return status;
}

/* The oldest of the packings makes room for a new one. */
static iv_status choose_packing(iv_flat_gpu *g, iv_model *first, iv_error *err) {
    uint8_t form[32];
    IV_TRY(form_of(g, first, form, err));
    for (size_t i = 0; i < IV_FLAT_PACKINGS; i++) {
        g->current = g->packing[i];
        if (g->current && memcmp(g->current->form, form, sizeof form) == 0) return IV_OK;
    }
    iv_flat_packing *p = NULL, **at = &g->packing[g->packings % IV_FLAT_PACKINGS];
    g->current = NULL;
    IV_TRY(make_packing(g, first, &p, err));
    memcpy(p->form, form, sizeof form);
    iv_flat_packing_free(g, *at);
    g->current = *at = p, g->packings++;
    return IV_OK;
}

/* ---- writing
 * --------------------------------------------------------------------------------------------------------- */

/* Whether some element is a NaN, or too large for a type that tensors are held in. */
static iv_status any_beyond(iv_flat_gpu *g, const float *values, size_t n, bool *out, iv_error *err) {
    uint64_t found;
    void *scratch;
    IV_TRY(iv_flat_gpu_scratch(g, sizeof found, &scratch, err));
    int code = iv_gpu_find_beyond(values, n, g->current->limit, scratch, g->stream);
    IV_TRY(iv_flat_gpu_finish(g, code, "search for a weight that is too large", err));
    IV_TRY(g->memspace->read(g->memspace, &found, sizeof found, scratch, sizeof found, sizeof found, 1, err));
    *out = found != UINT64_MAX;
    return IV_OK;
}

/* The first of the width's rows that does not begin before element `at`. */
static size_t first_from(const packed_width *w, size_t at) {
    size_t low = 0, high = w->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((size_t)w->from[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static iv_status write_packed(iv_flat_gpu *g, iv_model *first, const float *values, size_t begin, size_t end,
                              iv_error *err) {
    const iv_flat_packing *p = g->current;
    const float *zero = (const float *)((uintptr_t)values - begin * sizeof *values); /* where element 0 would be */
    int code = 0;
    for (size_t i = 0; !code && i < p->widths; i++) {
        const packed_width *w = &p->width[i];
        size_t from = first_from(w, begin), n = first_from(w, end) - from;
        iv_model *owner = first;
        for (size_t rank = 0; rank < w->rank; rank++) owner = owner->next;
        code = iv_gpu_write_rows(w->type, zero, w->rows + from, n, w->k, w->k_padded, owner->data, g->stream);
    }
    return iv_flat_gpu_finish(g, code, "writing matrices", err);
}

static void mark_changed(iv_model *first, size_t begin, size_t end) {
    for (size_t i = 0; i < first->tensor_count; i++) {
        iv_tensor *t = &first->tensors[i];
        if (overlaps(t->same_as ? t->same_as : t, begin, end)) t->changed = true;
    }
}

/* Weights are checked first: if one is too large for some type, tensors are written as a host writes them, whose
 * checks are by tensor and name the element. */
iv_status iv_flat_gpu_write_model(iv_flat *r, iv_model *first, const float *values, size_t begin, size_t end, int parts,
                                  iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    bool beyond = false;
    IV_TRY(iv_gpu_use(g->gpu, err));
    if (begin == 0) IV_TRY(choose_packing(g, first, err));
    if (begin >= end) return IV_OK;
    IV_ASSERT(g->current);
    IV_TRY(any_beyond(g, values, end - begin, &beyond, err));
    if (!beyond && parts & IV_FLAT_OWN) IV_TRY(write_packed(g, first, values, begin, end, err));
    if (!(parts & IV_FLAT_REST)) return IV_OK;
    mark_changed(first, begin, end);
    copying x = {.g = g,
                 .first = first,
                 .values = (float *)(uintptr_t)values,
                 .begin = begin,
                 .end = end,
                 .writes = true,
                 .skips_packed = !beyond,
                 .status = IV_OK,
                 .err = err};
    IV_TRY(write_small(&x, err));
    return copy_tensors(&x);
}
