/* latent.c: latent attention (law, section 18) as launches on one GPU; plans and scratch of either kind of attention.
 */
#include "kernels/cuda/latent.h"
#include "model/cuda/pass.h"

static const iv_tp_shard *shard_of(const iv_model *m) { return &m->tp.shard[m->rank]; }

/* Matrices of heads follow one another in the model's memory, a head's keys and values by turns. */
static size_t apart(const iv_matrix *of_heads, size_t heads) {
    return heads > 1 ? (size_t)(of_heads[1].data - of_heads[0].data) : 0;
}

static iv_gpu_head_products_args products_of(const gpu_pass *p, const iv_matrix *w, size_t heads) {
    return (iv_gpu_head_products_args){.arithmetic = p->f->arithmetic,
                                       .type = p->m->gemm_type,
                                       .w_type = w->type,
                                       .heads = heads,
                                       .rows = p->rows,
                                       .n = w->n,
                                       .k = w->k,
                                       .w = w->data,
                                       .w_apart = apart(w, heads)};
}

/* Keys, and q from its low rank, if it has one. */
static iv_status rows(const gpu_pass *p, size_t layer, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    const iv_layer *l = &p->m->layers[layer];
    const layer_vectors *v = &f->layers[layer];
    size_t rank = (size_t)c->kv_rank, turns = (size_t)c->rope_dim;
    iv_gpu_latent_rows_args a = {.type = p->m->gemm_type,
                                 .rows = p->rows,
                                 .low = (size_t)c->q_rank,
                                 .rank = rank,
                                 .turns = turns,
                                 .x = f->wide,
                                 .x_stride = l->qkv.n,
                                 .latent_at = l->qkv.n - rank - turns,
                                 .q_norm = v->latent_q_norm,
                                 .kv_norm = v->latent_kv_norm,
                                 .eps = (float)c->latent_eps,
                                 .cosine = v->cosine,
                                 .sine = v->sine,
                                 .positions = p->in.positions,
                                 .slots = p->in.slots + p->m->kv_place[layer].group * p->in.slots_apart,
                                 .pages = iv_gpu_kv_of(p, layer).pages,
                                 .low_out = f->latent.low,
                                 .low_stride = iv_padded_k((size_t)c->q_rank),
                                 .bad = f->bad,
                                 .layer = (uint32_t)layer};
    IV_TRY(iv_gpu_launched(f, iv_gpu_latent_rows(&a, f->stream), "latent", err));
    if (!c->q_rank) return IV_OK;
    iv_gpu_linear_args q = iv_gpu_layer_args(p, &l->latent.q, f->latent.low, a.low_stride);
    q.out = f->wide, q.out_stride = l->latent.q.n;
    return iv_gpu_launched(f, f->linear(f, &q), "queries", err);
}

iv_status iv_gpu_latent_inputs(const gpu_pass *p, size_t layer, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    const iv_layer *l = &p->m->layers[layer];
    const layer_vectors *v = &f->layers[layer];
    size_t heads = shard_of(p->m)->heads, rank = (size_t)c->kv_rank, turns = (size_t)c->rope_dim;
    IV_TRY(rows(p, layer, err));
    iv_gpu_latent_queries_args a = {.type = p->m->gemm_type,
                                    .rows = p->rows,
                                    .heads = heads,
                                    .keeps = (size_t)c->head_dim - turns,
                                    .turns = turns,
                                    .rank = rank,
                                    .x = f->wide,
                                    .x_stride = c->q_rank ? l->latent.q.n : l->qkv.n,
                                    .cosine = v->cosine,
                                    .sine = v->sine,
                                    .query = v->query,
                                    .positions = p->in.positions,
                                    .still = f->latent.still,
                                    .still_head = iv_padded_k((size_t)c->head_dim - turns),
                                    .q = f->now->q};
    IV_TRY(iv_gpu_launched(f, iv_gpu_latent_queries(&a, f->stream), "rotation", err));
    iv_gpu_head_products_args z = products_of(p, l->latent.keys, heads);
    z.x = f->latent.still, z.x_head = a.still_head, z.x_stride = heads * a.still_head;
    z.out = f->now->q, z.out_head = rank + turns, z.out_stride = heads * (rank + turns);
    return iv_gpu_launched(f, iv_gpu_head_products(&z, f->stream), "queries to the latent", err);
}

iv_status iv_gpu_latent_attend(const gpu_pass *p, size_t layer, iv_gpu_attention_args *a, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    size_t heads = shard_of(p->m)->heads, rank = (size_t)c->kv_rank;
    a->out = f->latent.rows;
    IV_TRY(iv_gpu_launched(f, iv_gpu_latent_attention(a, (size_t)c->rope_dim, f->stream), "attention", err));
    iv_gpu_head_products_args v = products_of(p, p->m->layers[layer].latent.values, heads);
    v.x = f->latent.rows, v.x_head = rank, v.x_stride = heads * rank;
    v.out = f->now->attended, v.out_head = v.n, v.out_stride = heads * v.n;
    return iv_gpu_launched(f, iv_gpu_head_products(&v, f->stream), "values of heads", err);
}
