/* gptq.c: sites of a layer, their matrices over threads, the rows of their tensors over threads. */
#include "model/gptq.h"
#include "base/size.h"
#include "model/stored.h"
#include "numerics/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY ((size_t)4 << 30)
enum { PANEL = 64 };

/* A tensor of the checkpoint that is rounded. */
typedef struct target {
    size_t at; /* in the checkpoint */
    const iv_tensor_info *info;
    iv_stored *stored;
    const iv_matrix *matrix; /* of the model, whose inputs it has */
    size_t layer, group;
} target;

typedef struct running {
    iv_model *m;
    const iv_gptq_options *o;
    iv_gptq_result *out;
    target *targets; /* by layer, then by matrix */
    size_t count, done, total;
    iv_calibration *calibration;
    float **values;  /* [targets]: W of those of the layer at work */
    double *ordered; /* [widest inputs] squared; in activation order */
    uint32_t *order; /* likewise, [widest inputs] */
} running;

/* ---- which ------------------------------------------------------------------------------------------------- */

static bool is_of_mlp(const iv_mlp *w, const iv_matrix *matrix) {
    return matrix == &w->gate_up || matrix == &w->down[0];
}

static bool is_of_layer(const iv_model *m, const iv_layer *l, const iv_matrix *matrix) {
    size_t experts = l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1;
    if (matrix == &l->qkv || matrix == &l->out[0] || is_of_mlp(&l->shared, matrix)) return true;
    for (size_t e = 0; e < experts; e++)
        if (is_of_mlp(&l->experts[e], matrix)) return true;
    return false;
}

/* The one matrix of the model that all of a stored tensor is in; NULL: there is none, or columns are turned to rows. */
static const iv_matrix *matrix_of(const iv_stored *s) {
    const iv_matrix *found = NULL;
    for (size_t i = 0; i < s->count; i++) {
        const iv_tensor_slice *slice = s->pieces[i].tensor->slices;
        if (!slice || !slice->matrix || s->pieces[i].at.transposed || (found && slice->matrix != found)) return NULL;
        found = slice->matrix;
    }
    return found && found->k == s->columns ? found : NULL;
}

static iv_status add_target(running *g, size_t at, iv_error *err) {
    const iv_tensor_info *t = iv_checkpoint_at(g->o->from, at);
    target *to = &g->targets[g->count];
    *to = (target){.at = at, .info = t, .stored = iv_model_stored(g->m, t->name)};
    IV_TRY(iv_quantize_group(g->o->scheme, t, g->o->group, &to->group, err));
    if (to->stored && !to->stored->count) return IV_OK; /* of a part that is not read: rounded to nearest */
    if (to->stored) to->matrix = matrix_of(to->stored);
    while (to->matrix && to->layer < (size_t)g->m->config.layers &&
           !is_of_layer(g->m, &g->m->layers[to->layer], to->matrix))
        to->layer++;
    if (!to->matrix || to->layer == (size_t)g->m->config.layers)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: GPTQ needs the inputs of each layer, and this one has none of its own in the engine (its "
                       "products are made with others'); method nearest rounds it",
                       t->name);
    g->count++, g->total += t->elements;
    return IV_OK;
}

static int by_layer(const void *a, const void *b) {
    const target *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->matrix != y->matrix) return x->matrix < y->matrix ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static iv_status find_targets(running *g, iv_error *err) {
    size_t count = iv_checkpoint_count(g->o->from), bytes, widest = 0, elements;
    g->targets = calloc(count + 1, sizeof *g->targets), g->values = calloc(count + 1, sizeof *g->values);
    g->out->layers = calloc(count + 1, sizeof *g->out->layers), g->out->count = count;
    if (!g->targets || !g->values || !g->out->layers)
        return iv_fail(err, IV_NO_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        const iv_tensor_info *t = iv_checkpoint_at(g->o->from, i);
        const char *packed = iv_checkpoint_format(g->o->from, i, &bytes);
        if (packed)
            return iv_fail(err, IV_INVALID, "%s: is stored as %s: invar export expands a model first", t->name, packed);
        if (iv_quantize_is_layer(t)) IV_TRY(add_target(g, i, err));
    }
    qsort(g->targets, g->count, sizeof *g->targets, by_layer);
    for (size_t i = 0; i < g->count; i++) widest = iv_size_max(widest, g->targets[i].matrix->k);
    if (!g->o->act_order) return IV_OK;
    g->ordered = iv_size_mul(widest, widest, &elements) ? calloc(elements + 1, sizeof *g->ordered) : NULL;
    g->order = calloc(widest + 1, sizeof *g->order);
    return g->ordered && g->order ? IV_OK : iv_fail(err, IV_NO_MEMORY, "gptq: no memory for %zu inputs", widest);
}

/* ---- a matrix of inputs ------------------------------------------------------------------------------------ */

typedef struct taking {
    double *h;
    size_t k, begin, end;
} taking;

static void take_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const taking *j = context;
    iv_gptq_take(j->h, j->k, j->begin, j->end, row);
}

/* Damps and factors it; *out: the factor, in the order of columns. */
static iv_status factor(running *g, const target *t, double *h, const double **out, iv_error *err) {
    size_t k = t->matrix->k;
    iv_gptq_damp(h, k, g->o->damping);
    if (g->o->act_order) {
        if (!iv_gptq_order(h, k, g->order)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", t->info->name);
        iv_gptq_reorder(h, k, g->order, g->ordered);
        h = g->ordered;
    }
    *out = h;
    for (size_t end = k, begin; end > 0; end = begin) {
        begin = end > PANEL ? end - PANEL : 0;
        if (!iv_gptq_factor(h, k, begin, end))
            return iv_fail(err, IV_INVALID, "%s: damping: %g is too small for these calibration texts", t->info->name,
                           g->o->damping);
        taking j = {h, k, begin, end};
        iv_pool_run(g->o->pool, begin, take_row, &j);
    }
    return IV_OK;
}

/* ---- a tensor ---------------------------------------------------------------------------------------------- */

typedef struct rounding {
    const iv_gptq_layer *l;
    iv_quantized_layer *to;
    size_t rows;
    const float *w;
    float *values;
    double *scratch; /* a thread's each */
    uint8_t *codes;  /* likewise, [IV_GPTQ_ROWS][columns] */
} rounding;

static void round_block(void *context, size_t block, size_t worker) {
    const rounding *j = context;
    size_t columns = j->l->columns, first = block * IV_GPTQ_ROWS, rows = iv_size_min(IV_GPTQ_ROWS, j->rows - first);
    size_t packed = iv_quantize_packed(j->l->format, columns);
    uint8_t *codes = j->codes + worker * IV_GPTQ_ROWS * columns;
    iv_gptq_rows(j->l, rows, j->w + first * columns, codes, j->to->scales + first * (columns / j->l->group),
                 j->values + first * columns, j->scratch + worker * iv_gptq_scratch(columns));
    for (size_t r = 0; r < rows; r++)
        iv_quantize_pack(j->l->format, codes + r * columns, columns, j->to->codes + (first + r) * packed);
}

static float largest_size(const float *x, size_t n) {
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

static iv_status round_tensor(running *g, const target *t, const double *of, iv_error *err) {
    size_t rows = (size_t)t->info->shape[0], columns = (size_t)t->info->shape[1], n = t->info->elements;
    size_t threads = iv_pool_threads(g->o->pool);
    iv_weight_format format = g->o->scheme->format;
    iv_quantized_layer *to = &g->out->layers[t->at];
    float *w = malloc(n * sizeof *w + 1), *values = malloc(n * sizeof *values + 1);
    double *scratch = malloc(threads * iv_gptq_scratch(columns) * sizeof *scratch);
    uint8_t *codes = malloc(threads * IV_GPTQ_ROWS * columns);
    to->codes = malloc(rows * iv_quantize_packed(format, columns) + 1);
    to->scales = malloc(rows * (columns / t->group) * sizeof *to->scales + 1);
    iv_status status = w && values && scratch && codes && to->codes && to->scales
                           ? iv_quantize_read(g->o->from, t->info, 0, rows, w, err)
                           : iv_fail(err, IV_NO_MEMORY, "%s: no memory to quantize it", t->info->name);
    if (status == IV_OK) {
        const iv_gptq_layer l = {.factor = of,
                                 .order = g->o->act_order ? g->order : NULL,
                                 .columns = columns,
                                 .group = t->group,
                                 .format = format,
                                 .type = t->info->dtype,
                                 .global = iv_quantize_global(format, largest_size(w, n))};
        rounding j = {&l, to, rows, w, values, scratch, codes};
        iv_pool_run(g->o->pool, (rows + IV_GPTQ_ROWS - 1) / IV_GPTQ_ROWS, round_block, &j);
    }
    free(w), free(scratch), free(codes);
    if (status == IV_OK)
        g->values[t - g->targets] = values;
    else
        free(values);
    g->done += n;
    if (status == IV_OK && g->o->progress) g->o->progress(g->o->user, g->done, g->total);
    return status;
}

/* ---- a layer ----------------------------------------------------------------------------------------------- */

/* The sites of targets [first, end), as many as the memory holds, of which targets up to *last have their inputs. */
static iv_status open_sites(const running *g, size_t first, size_t end, iv_calibration_site *sites, size_t *count,
                            size_t *last, iv_error *err) {
    size_t capacity = g->o->memory ? g->o->memory : MEMORY, used = 0, i = first;
    *count = 0, *last = first;
    for (size_t bytes; i < end; i++) {
        const iv_matrix *matrix = g->targets[i].matrix;
        if (*count && sites[*count - 1].matrix == matrix) continue;
        if (!iv_size_mul(matrix->k, matrix->k, &bytes) || !iv_size_mul(bytes, sizeof(double), &bytes))
            return iv_fail(err, IV_LIMIT, "%s: %zu inputs are too many", g->targets[i].info->name, matrix->k);
        if (*count && (bytes > capacity || used > capacity - bytes)) break;
        used += bytes;
        sites[*count] = (iv_calibration_site){.matrix = matrix, .h = calloc(bytes, 1)};
        if (!sites[(*count)++].h)
            return iv_fail(err, IV_NO_MEMORY, "%s: no memory for the matrix of its inputs", g->targets[i].info->name);
    }
    *last = i;
    return IV_OK;
}

static iv_status round_sites(running *g, size_t first, size_t last, const iv_calibration_site *sites, iv_error *err) {
    size_t s = 0;
    const double *of = NULL;
    for (size_t i = first; i < last; i++) {
        const target *t = &g->targets[i];
        if (i > first && t->matrix != sites[s].matrix) s++, of = NULL;
        if (!of) IV_TRY(factor(g, t, sites[s].h, &of, err));
        g->out->unseen += sites[s].rows == 0;
        IV_TRY(round_tensor(g, t, of, err));
    }
    return IV_OK;
}

static iv_status write_back(running *g, size_t at, iv_error *err) {
    const target *t = &g->targets[at];
    IV_TRY(iv_stored_write_rows(t->stored, 0, (size_t)t->info->shape[0], IV_F32, g->values[at], err));
    free(g->values[at]), g->values[at] = NULL;
    return IV_OK;
}

/* Targets [begin, end) of one layer: runs the texts through it for as many sites at once as the memory holds. The first
 * run's inputs are those of all: the model takes the rounded weights only when all of them are known. */
static iv_status round_layer(running *g, size_t layer, size_t begin, size_t end, iv_error *err) {
    iv_calibration_site *sites = calloc(end - begin + 1, sizeof *sites);
    iv_status status = sites ? IV_OK : iv_fail(err, IV_NO_MEMORY, "gptq: no memory for layer %zu", layer);
    for (size_t first = begin, last = begin, count = 0; status == IV_OK && first < end; first = last) {
        status = open_sites(g, first, end, sites, &count, &last, err);
        if (status == IV_OK) status = iv_calibration_see(g->calibration, layer, sites, count, err);
        if (status == IV_OK) status = round_sites(g, first, last, sites, err);
        for (size_t i = 0; i < count; i++) free(sites[i].h), sites[i].h = NULL;
    }
    for (size_t i = begin; status == IV_OK && i < end; i++) status = write_back(g, i, err);
    free(sites);
    return status;
}

static iv_status round_all(running *g, iv_error *err) {
    const iv_gptq_options *o = g->o;
    IV_TRY(find_targets(g, err));
    IV_TRY(iv_calibration_open(g->m, o->kernels, o->arithmetic, o->pool, o->texts, o->count, &g->calibration, err));
    for (size_t i = 0; i < o->count; i++) g->out->tokens += o->texts[i].count;
    size_t layers = (size_t)g->m->config.layers;
    for (size_t layer = 0, at = 0, end; layer < layers && at < g->count; layer++, at = end) {
        for (end = at; end < g->count && g->targets[end].layer == layer;) end++;
        if (end > at) IV_TRY(round_layer(g, layer, at, end, err));
        if (end < g->count) IV_TRY(iv_calibration_advance(g->calibration, layer, err));
    }
    return IV_OK;
}

iv_status iv_gptq_run(iv_model *m, const iv_gptq_options *o, iv_gptq_result *out, iv_error *err) {
    running g = {.m = m, .o = o, .out = out};
    *out = (iv_gptq_result){0};
    iv_status status = round_all(&g, err);
    iv_calibration_close(g.calibration);
    for (size_t i = 0; g.values && i < g.count; i++) free(g.values[i]);
    free(g.values), free(g.targets), free(g.ordered), free(g.order);
    return status;
}

void iv_gptq_result_free(iv_gptq_result *r) {
    for (size_t i = 0; r->layers && i < r->count; i++) free(r->layers[i].codes), free(r->layers[i].scales);
    free(r->layers);
    *r = (iv_gptq_result){0};
}
