/* smooth.c: per layer, the largest inputs of the matrices behind its norms over the texts, the largest weights of their
 * columns, and which tensors of the checkpoint these are. */
#include "model/smooth.h"
#include "base/size.h"
#include "model/stored.h"
#include "model/tensor_data.h"
#include "numerics/elementary64.h"

#include <math.h>
#include <stdlib.h>

enum { EXPONENT_MAX = 20, SITES = 2, PIECE_FLOATS = 1 << 20 };

typedef struct running {
    const iv_model *m;
    const iv_smooth_options *o;
    iv_smooth_result *out;
    size_t used; /* of out->values */
    float *piece;
} running;

/* A norm and the one matrix that reads it. */
typedef struct site {
    const iv_tensor *norm;
    const iv_matrix *matrix;
} site;

static size_t sites_of(const iv_model *m, size_t layer, site *out) {
    const iv_layer *l = &m->layers[layer];
    const iv_layer_tensors *n = &m->layer_tensors[layer];
    size_t count = 0;
    bool shared = l->config->norms == IV_NORMS_SHARED;
    if (shared) return 0; /* two blocks read it */
    if (n->attention_norm && l->config->mixer == IV_MIXER_ATTENTION && l->qkv.n)
        out[count++] = (site){n->attention_norm, &l->qkv};
    if (n->mlp_norm && l->config->mlp == IV_MLP_DENSE && l->experts[0].gate_up.n)
        out[count++] = (site){n->mlp_norm, &l->experts[0].gate_up};
    return count;
}

/* Rows of a stored tensor that lie in a matrix; *all: they are all of it, columns as columns. */
static size_t rows_in(const iv_stored *s, const iv_matrix *matrix, bool *all) {
    size_t rows = 0;
    *all = s->columns == matrix->k;
    for (size_t i = 0; i < s->count; i++) {
        const iv_tensor *t = s->pieces[i].tensor;
        const iv_tensor_slice *slice = t->slices;
        bool here = slice && slice->matrix == matrix && !s->pieces[i].at.transposed;
        if (here) rows += t->rows;
        *all = *all && here;
    }
    return rows;
}

static bool is_norm(const iv_stored *s, const iv_tensor *norm) { return s->count == 1 && s->pieces[0].tensor == norm; }

/* Are the norm and all rows of the matrix tensors of their own in the checkpoint? */
static bool stands_alone(const running *r, const site *at) {
    size_t rows = 0;
    bool norm = false;
    for (size_t i = 0; i < iv_checkpoint_count(r->o->from); i++) {
        const iv_stored *s = iv_model_stored(r->m, iv_checkpoint_at(r->o->from, i)->name);
        bool all;
        if (!s) continue;
        size_t here = rows_in(s, at->matrix, &all);
        if (all) rows += here;
        norm |= is_norm(s, at->norm);
    }
    return norm && rows == at->matrix->n;
}

static iv_status largest_weights(running *r, const site *at, float *most, iv_error *err) {
    size_t k = at->matrix->k, step = iv_size_max(1, PIECE_FLOATS / k);
    for (size_t i = 0; i < r->m->tensor_count; i++) {
        const iv_tensor *t = &r->m->tensors[i];
        if (!t->slices || t->slices->matrix != at->matrix) continue;
        for (size_t row = 0, n; row < t->rows; row += n) {
            n = iv_size_min(step, t->rows - row);
            IV_TRY(iv_tensor_read_rows(t, row, n, IV_F32, r->piece, err));
            for (size_t e = 0; e < n * k; e++) most[e % k] = fmaxf(most[e % k], fabsf(r->piece[e]));
        }
    }
    return IV_OK;
}

static float factor_of(double alpha, float input, float weight) {
    if (!(input > 0) || !(weight > 0) || !isfinite(input)) return 1.0f;
    double e = rint((alpha * iv_log64((double)input) - (1 - alpha) * iv_log64((double)weight)) / iv_log64(2.0));
    return ldexpf(1.0f, (int)fmax(-EXPONENT_MAX, fmin(EXPONENT_MAX, e)));
}

/* The factors' tensors. */
static void assign(running *r, const site *at, const float *factors) {
    for (size_t i = 0; i < iv_checkpoint_count(r->o->from); i++) {
        const iv_stored *s = iv_model_stored(r->m, iv_checkpoint_at(r->o->from, i)->name);
        bool all;
        if (!s) continue;
        size_t rows = rows_in(s, at->matrix, &all);
        if (all && rows) r->out->of[i].columns = factors;
        if (is_norm(s, at->norm)) r->out->of[i].norm = factors, r->out->of[i].offset = r->m->config.unit_offset_norms;
    }
}

static iv_status smooth_site(running *r, const site *at, const float *inputs, iv_error *err) {
    size_t k = at->matrix->k;
    float *factors = r->out->values + r->used;
    r->used += k;
    for (size_t i = 0; i < k; i++) factors[i] = 0;
    IV_TRY(largest_weights(r, at, factors, err));
    for (size_t i = 0; i < k; i++) factors[i] = factor_of(r->o->alpha, inputs[i], factors[i]);
    assign(r, at, factors);
    r->out->norms++;
    return IV_OK;
}

static iv_status smooth_layer(running *r, iv_calibration *c, size_t layer, float *inputs, iv_error *err) {
    size_t hidden = (size_t)r->m->config.hidden_size, count = 0, all;
    site at[SITES];
    iv_calibration_site seen[SITES];
    all = sites_of(r->m, layer, at);
    for (size_t i = 0; i < all; i++)
        if (stands_alone(r, &at[i])) at[count++] = at[i];
    for (size_t i = 0; i < count; i++) {
        seen[i] = (iv_calibration_site){.matrix = at[i].matrix, .largest = inputs + i * hidden};
        for (size_t e = 0; e < hidden; e++) seen[i].largest[e] = 0;
    }
    if (count) IV_TRY(iv_calibration_see(c, layer, seen, count, err));
    for (size_t i = 0; i < count; i++) IV_TRY(smooth_site(r, &at[i], seen[i].largest, err));
    return iv_calibration_advance(c, layer, err);
}

iv_status iv_smooth_run(const iv_model *m, const iv_smooth_options *o, iv_smooth_result *out, iv_error *err) {
    running r = {.m = m, .o = o, .out = out};
    size_t hidden = (size_t)m->config.hidden_size, layers = (size_t)m->config.layers;
    iv_calibration *c = NULL;
    float *inputs = calloc(SITES * hidden, sizeof *inputs);
    *out = (iv_smooth_result){.of = calloc(iv_checkpoint_count(o->from) + 1, sizeof *out->of),
                              .values = calloc(SITES * hidden * layers, sizeof *out->values)};
    r.piece = malloc((PIECE_FLOATS + hidden) * sizeof *r.piece);
    iv_status status = inputs && out->of && out->values && r.piece
                           ? iv_calibration_open(m, o->kernels, o->arithmetic, o->pool, o->texts, o->count, &c, err)
                           : iv_fail(err, IV_NO_MEMORY, "smooth: no memory for %zu layers", layers);
    for (size_t i = 0; i < o->count; i++) out->tokens += o->texts[i].count;
    for (size_t layer = 0; status == IV_OK && layer < layers; layer++) status = smooth_layer(&r, c, layer, inputs, err);
    if (status == IV_OK && out->norms == 0)
        status =
            iv_fail(err, IV_UNSUPPORTED,
                    "smooth: no norm of the model is read by linear layers alone that stand in tensors of their own");
    iv_calibration_close(c);
    free(inputs), free(r.piece);
    return status;
}

void iv_smooth_result_free(iv_smooth_result *r) {
    free(r->of), free(r->values);
    *r = (iv_smooth_result){0};
}
