/* calibration.c: steps of whole texts through one layer. */
#include "model/cpu/calibration.h"
#include "base/size.h"
#include "device/memory.h"
#include "model/decoder.h"
#include "numerics/floats.h"
#include "numerics/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_TOKENS = 512, INPUTS = 64, MATRIX_ROWS = 64 };

struct iv_calibration {
    iv_cpu_watch watch; /* first */
    iv_cpu_model *forward;
    const iv_model *model;
    iv_pool *pool;
    const iv_calibration_text *texts;
    size_t count, tokens, step; /* step: tokens of one, at most */
    float *x;                   /* [tokens][hidden] */
    unsigned char *kv;          /* pages of one layer, which layers use in turn */
    size_t kv_bytes;
    uint32_t *pages;
    iv_attention_span *spans; /* [step] */
    int32_t *ids;             /* [step] */
    double *inputs;           /* [INPUTS][widest] */
    size_t inputs_widest;
    iv_calibration_site *sites; /* of the run */
    size_t site_count;
};

/* ---- inputs ------------------------------------------------------------------------------------------------ */

typedef struct adding {
    iv_calibration_site *site;
    const double *x;
    size_t count;
} adding;

static void add_rows(void *context, size_t block, size_t worker) {
    (void)worker;
    const adding *j = context;
    size_t k = j->site->matrix->k, first = block * MATRIX_ROWS;
    iv_gptq_add(j->site->h, k, first, iv_size_min(first + MATRIX_ROWS, k), j->x, j->count);
}

static void see(iv_cpu_watch *watch, const iv_matrix *matrix, const void *x, size_t stride, size_t rows) {
    iv_calibration *c = (iv_calibration *)(void *)watch;
    iv_calibration_site *site = NULL;
    for (size_t i = 0; i < c->site_count; i++)
        if (c->sites[i].matrix == matrix) site = &c->sites[i];
    if (!site) return;
    IV_ASSERT(matrix->k <= c->inputs_widest);
    size_t k = matrix->k;
    for (size_t at = 0, n; at < rows; at += n) {
        n = iv_size_min(INPUTS, rows - at);
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < k; i++)
                c->inputs[r * k + i] = (double)iv_element(c->model->gemm_type, x, (at + r) * stride + i);
        for (size_t i = 0; i < n * k && site->largest; i++)
            site->largest[i % k] = fmaxf(site->largest[i % k], fabsf((float)c->inputs[i]));
        if (!site->h) continue;
        adding j = {site, c->inputs, n};
        iv_pool_run(c->pool, (k + MATRIX_ROWS - 1) / MATRIX_ROWS, add_rows, &j);
    }
    site->rows += rows;
}

/* ---- steps ------------------------------------------------------------------------------------------------- */

/* Lays out texts from `from` on; returns the first that has no room. */
static size_t lay_out(iv_calibration *c, size_t from, iv_batch *b) {
    size_t row = 0, page = 0, to = from;
    for (; to < c->count && row + c->texts[to].count <= c->step; to++) {
        const iv_calibration_text *t = &c->texts[to];
        c->spans[to - from] = (iv_attention_span){row, t->count, 0, c->pages + page};
        for (size_t i = 0; i * IV_ATTENTION_BLOCK < t->count; i++, page++) c->pages[page] = (uint32_t)page;
        memcpy(c->ids + row, t->ids, t->count * sizeof *c->ids);
        row += t->count;
    }
    *b = (iv_batch){.ids = c->ids, .tokens = row, .spans = c->spans, .span_count = to - from, .kv = c->kv};
    return to;
}

/* All texts through one layer, or to their embeddings. */
static iv_status run(iv_calibration *c, bool embed, size_t layer, bool keep, iv_error *err) {
    iv_cpu_model *s = c->forward;
    size_t hidden = (size_t)c->model->config.hidden_size, row = 0;
    iv_batch b;
    for (size_t from = 0; from < c->count;) {
        from = lay_out(c, from, &b);
        size_t bytes = b.tokens * hidden * sizeof *c->x;
        s->batch = &b;
        atomic_store(&s->bad_span, SIZE_MAX);
        if (embed)
            IV_TRY(s->backend.ops->embed(&s->backend, err));
        else {
            memcpy(s->x, c->x + row * hidden, bytes);
            IV_TRY(iv_decoder_recompute(c->model, &s->backend, layer, IV_RECOMPUTE_LAYER, err));
        }
        if (keep) memcpy(c->x + row * hidden, s->x, bytes);
        row += b.tokens;
    }
    return IV_OK;
}

iv_status iv_calibration_see(iv_calibration *c, size_t layer, iv_calibration_site *sites, size_t count, iv_error *err) {
    c->sites = sites, c->site_count = count;
    for (size_t i = 0; i < count; i++) sites[i].rows = 0;
    iv_status status = run(c, false, layer, false, err);
    c->sites = NULL, c->site_count = 0;
    return status;
}

iv_status iv_calibration_advance(iv_calibration *c, size_t layer, iv_error *err) {
    return run(c, false, layer, true, err);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static size_t widest_inputs(const iv_model *m) {
    size_t most = (size_t)m->config.hidden_size;
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        size_t experts = l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1;
        most = iv_size_max(most, iv_size_max(l->out[0].k, l->shared.down[0].k));
        for (size_t e = 0; e < experts; e++) most = iv_size_max(most, l->experts[e].down[0].k);
    }
    return most;
}

static iv_status allocate(iv_calibration *c, iv_error *err) {
    const iv_model *m = c->model;
    size_t pages = c->step / IV_ATTENTION_BLOCK + c->step + 1, floats, page = 0;
    for (size_t g = 0; g < m->kv_groups.count; g++) page = iv_size_max(page, m->kv_layout[g].page_bytes);
    if (!iv_size_mul(c->tokens, (size_t)m->config.hidden_size, &floats) ||
        !iv_size_mul(pages, iv_size_max(page, 64), &c->kv_bytes))
        return iv_fail(err, IV_LIMIT, "calibration: %zu tokens are too many", c->tokens);
    c->inputs_widest = widest_inputs(m);
    c->x = malloc(iv_size_max(1, floats) * sizeof *c->x);
    c->kv = iv_memory_alloc(c->kv_bytes);
    c->pages = calloc(pages, sizeof *c->pages), c->spans = calloc(c->step, sizeof *c->spans);
    c->ids = calloc(c->step, sizeof *c->ids), c->inputs = calloc(INPUTS * c->inputs_widest, sizeof *c->inputs);
    if (c->x && c->kv && c->pages && c->spans && c->ids && c->inputs) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "calibration: no memory for %zu tokens", c->tokens);
}

iv_status iv_calibration_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                              const iv_calibration_text *texts, size_t count, iv_calibration **out, iv_error *err) {
    IV_ASSERT(m->tp.ranks == 1 && !m->packed);
    iv_calibration *c = calloc(1, sizeof *c);
    if (!c) return iv_fail(err, IV_NO_MEMORY, "calibration: no memory");
    *c =
        (iv_calibration){.watch = {see}, .model = m, .pool = pool, .texts = texts, .count = count, .step = STEP_TOKENS};
    for (size_t i = 0; i < count; i++) {
        IV_ASSERT(texts[i].count > 0 && texts[i].count <= m->rope_positions);
        c->tokens += texts[i].count, c->step = iv_size_max(c->step, texts[i].count);
    }
    iv_status status = iv_cpu_model_open(m, kernels, arithmetic, pool, c->step, &c->forward, err);
    if (status == IV_OK) status = allocate(c, err);
    if (status == IV_OK) {
        c->forward->watch = &c->watch;
        status = run(c, true, 0, true, err);
    }
    if (status == IV_OK)
        *out = c;
    else
        iv_calibration_close(c);
    return status;
}

void iv_calibration_close(iv_calibration *c) {
    if (!c) return;
    iv_cpu_model_close(c->forward);
    iv_memory_free(c->kv, c->kv_bytes);
    free(c->x), free(c->pages), free(c->spans), free(c->ids), free(c->inputs), free(c);
}
