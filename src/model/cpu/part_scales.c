/* part_scales.c: q, k and v of attention, or C, B, x, z and dt of a scan. */
#include "model/cpu/part_scales.h"

enum { PARTS = IV_SCAN_PARTS };

typedef struct job {
    const iv_kernels *k;
    float *rows;
    size_t stride, n[PARTS];
    float scale[PARTS];
} job;

static void scale_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    float *x = j->rows + row * j->stride;
    for (size_t i = 0; i < PARTS; x += j->n[i++])
        if (j->scale[i] != 1.0f) j->k->scale(x, j->n[i], j->scale[i]);
}

static void attention_parts(const iv_model *m, const iv_layer *l, job *j) {
    const iv_model_config *c = &m->config;
    const iv_tp_shard *s = iv_tp_shard_of(&m->tp, m->rank, l->config->wide);
    size_t dim = (size_t)(l->config->wide ? c->wide_head_dim : c->head_dim);
    j->n[0] = s->heads * dim, j->n[1] = j->n[2] = s->kv_heads * dim;
    j->scale[0] = j->scale[2] = (float)c->attention_in_scale;
    j->scale[1] = (float)(c->attention_in_scale * c->key_scale);
}

void iv_cpu_scan_scales(const iv_model *m, float scale[PARTS]) {
    static const iv_scan_part order[PARTS] = {IV_SCAN_PART_C, IV_SCAN_PART_B, IV_SCAN_PART_X, IV_SCAN_PART_Z,
                                              IV_SCAN_PART_DT};
    for (size_t i = 0; i < PARTS; i++) scale[i] = (float)m->config.scan_in_scale[order[i]];
}

static void scan_parts(const iv_model *m, job *j) {
    const iv_delta_layout *d = &m->delta_layout;
    size_t values = d->value_heads * d->value_dim;
    const size_t n[PARTS] = {d->keys, d->keys, values, values, d->value_heads};
    for (size_t i = 0; i < PARTS; i++) j->n[i] = n[i];
    iv_cpu_scan_scales(m, j->scale);
}

void iv_cpu_scale_parts(const iv_compute *c, const iv_model *m, const iv_layer *l, float *rows, size_t stride,
                        size_t count) {
    job j = {.k = c->kernels, .rows = rows, .stride = stride, .scale = {1, 1, 1, 1, 1}};
    bool scales = false;
    if (l->config->mixer == IV_MIXER_ATTENTION) attention_parts(m, l, &j);
    if (l->config->mixer == IV_MIXER_SCAN) scan_parts(m, &j);
    for (size_t i = 0; i < PARTS; i++) scales |= j.scale[i] != 1.0f;
    if (scales) iv_pool_run(c->pool, count, scale_row, &j);
}
