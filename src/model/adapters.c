/* adapters.c: from modules by name to parts of products by rank. */
#include "model/adapters.h"
#include "base/size.h"
#include "model/stored.h"
#include "model/tensor_data.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

typedef struct making {
    const iv_model *first;
    const iv_adapter_files *files;
    iv_adapter *to;
    const iv_adapter_part *part; /* at work */
    void *a, *b;                 /* its values in the model's type: [rank][inputs], [outputs][rank] */
    iv_error *err;
} making;

/* Where a tensor of the decoder stands. */
typedef struct place {
    size_t layer, expert;
    iv_site_kind kind;
} place;

/* ---- places ------------------------------------------------------------------------------------------------ */

static bool in_mlp(const iv_mlp_tensors *n, const iv_tensor *t, iv_site_kind up, iv_site_kind down, iv_site_kind *out) {
    *out = t == n->down ? down : up;
    return t == n->down || t == n->up || t == n->gate;
}

static bool in_layer(const iv_model *m, size_t index, const iv_tensor *t, place *out) {
    const iv_layer_tensors *n = &m->layer_tensors[index];
    const iv_tensor *const stacked[] = {n->q, n->k, n->v, n->gate, n->z, n->b, n->a};
    size_t experts = m->config.layer[index].mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1;
    *out = (place){.layer = index, .kind = IV_SITE_QKV};
    for (size_t i = 0; i < sizeof stacked / sizeof *stacked; i++)
        if (t == stacked[i]) return true;
    out->kind = t == n->out ? IV_SITE_OUT : IV_SITE_ROUTER;
    if (t == n->out || t == n->router || t == n->shared_gate) return true;
    if (in_mlp(&n->shared, t, IV_SITE_SHARED_UP, IV_SITE_SHARED_DOWN, &out->kind)) return true;
    for (; out->expert < experts; out->expert++)
        if (in_mlp(&n->experts[out->expert], t, IV_SITE_UP, IV_SITE_DOWN, &out->kind)) return true;
    return false;
}

static bool find_place(const iv_model *m, const iv_tensor *t, place *out) {
    for (size_t i = 0; i < (size_t)m->config.layers; i++)
        if (in_layer(m, i, t, out)) return true;
    return false;
}

static const iv_matrix *matrix_at(const iv_layer *l, const place *p) {
    switch (p->kind) {
    case IV_SITE_QKV: return &l->qkv;
    case IV_SITE_OUT: return l->out;
    case IV_SITE_ROUTER: return &l->router;
    case IV_SITE_SHARED_UP: return &l->shared.gate_up;
    case IV_SITE_SHARED_DOWN: return l->shared.down;
    case IV_SITE_UP: return &l->experts[p->expert].gate_up;
    case IV_SITE_DOWN: return l->experts[p->expert].down;
    }
    return NULL;
}

/* How a row-parallel layer is cut; NULL: its inputs are whole. */
static const iv_row_cut *cut_at(const iv_model *m, const iv_layer *l, const place *p) {
    bool attends = l->config->mixer == IV_MIXER_ATTENTION;
    if (p->kind == IV_SITE_OUT) return &(attends ? iv_tp_out(&m->tp, l->config->wide) : &m->tp.mixer_out)->of[m->rank];
    if (p->kind == IV_SITE_SHARED_DOWN) return &m->tp.shared.of[m->rank];
    if (p->kind == IV_SITE_DOWN && l->config->mlp == IV_MLP_DENSE) return &m->tp.down.of[m->rank];
    return NULL;
}

/* ---- matrices ---------------------------------------------------------------------------------------------- */

static iv_status no_memory(const making *k) {
    return iv_fail(k->err, IV_NO_MEMORY, "%s: no memory for an adapter", k->files->path);
}

/* Rows of `stride` elements of the model's type as a matrix. */
static iv_status pack(making *k, const void *rows, size_t stride, size_t n, size_t width, int leaves, iv_matrix *out) {
    iv_dtype type = k->first->gemm_type;
    if (!iv_matrix_shape(out, type, n, width)) return no_memory(k);
    out->leaves = leaves;
    out->data = iv_arena_alloc(&k->to->arena, iv_matrix_bytes(out), 1);
    if (!out->data) return no_memory(k);
    iv_matrix_pack(out, type, rows, stride, 0, n);
    return IV_OK;
}

static iv_status new_module(making *k, size_t rank, size_t site, size_t outs, iv_adapted **out) {
    iv_adapted *a = IV_ARENA_NEW(&k->to->arena, 1, iv_adapted);
    if (!a) return no_memory(k);
    *a = (iv_adapted){
        .module = (size_t)(k->part - k->files->parts.part), .rank = k->part->rank, .scale = k->part->scale};
    a->out = IV_ARENA_NEW(&k->to->arena, outs ? outs : 1, iv_adapted_out);
    if (!a->out) return no_memory(k);
    iv_adapted **last = &k->to->at[rank][site];
    while (*last) last = &(*last)->next;
    *out = *last = a;
    return IV_OK;
}

/* A of a row-parallel layer: the rank's nodes. */
static iv_status cut_inputs(making *k, const iv_row_cut *cut, iv_adapted *to) {
    const iv_adapter_part *p = k->part;
    size_t width = iv_dtype_bytes(k->first->gemm_type);
    for (size_t i = 0; i < cut->nodes; i++) {
        to->column[i] = cut->first + cut->node[i].column;
        IV_TRY(pack(k, (const char *)k->a + to->column[i] * width, p->inputs, p->rank, cut->node[i].k,
                    cut->node[i].leaves, &to->a[i]));
    }
    return IV_OK;
}

/* A of a layer whose outputs ranks divide. */
static iv_status whole_inputs(making *k, const iv_model *m, size_t rank, const place *at, iv_adapted **out) {
    if (*out) return IV_OK;
    IV_TRY(new_module(k, rank, iv_site(m, &m->layers[at->layer], at->kind, at->expert), IV_PLACES_MAX + 2, out));
    return pack(k, k->a, k->part->inputs, k->part->rank, k->part->inputs, matrix_at(&m->layers[at->layer], at)->leaves,
                &(*out)->a[0]);
}

/* Layers whose outputs all ranks divide: each has the module, perhaps without an output. */
static bool is_divided(const iv_layer *l, const place *at) {
    return at->kind == IV_SITE_QKV || at->kind == IV_SITE_SHARED_UP ||
           (at->kind == IV_SITE_UP && l->config->mlp == IV_MLP_DENSE);
}

/* B's rows of one tensor of the decoder, in its order. own: [tensor->rows][rank]; first: rows of the module
 * before them. */
static iv_status put_rows(making *k, const iv_model *m, size_t rank, const place *at, const iv_tensor *t,
                          const void *own, size_t first, iv_adapted **shared) {
    const iv_layer *l = &m->layers[at->layer];
    const iv_row_cut *cut = cut_at(m, l, at);
    size_t site = iv_site(m, l, at->kind, at->expert), row = k->part->rank * iv_dtype_bytes(m->gemm_type);
    const iv_model *owner = at->kind == IV_SITE_ROUTER ? k->first : m; /* every rank has the first one's router */
    if (cut) {
        IV_TRY(new_module(k, rank, site, 1, shared));
        IV_TRY(cut_inputs(k, cut, *shared));
        (*shared)->out_count = 1;
        return pack(k, own, k->part->rank, t->rows, k->part->rank, 1, &(*shared)->out[0].b);
    }
    if (is_divided(l, at)) IV_TRY(whole_inputs(k, m, rank, at, shared));
    for (const iv_tensor_slice *s = t->slices; s; s = s->next) {
        if (s->owner != owner || s->begin == s->end) continue;
        if (s->matrix != matrix_at(&owner->layers[at->layer], at)) /* of a block whose products take no adapter */
            return iv_fail(k->err, IV_UNSUPPORTED, "%s: '%.200s': adapters of the model's %.200s are not supported",
                           k->files->path, k->part->a.name, t->info.name);
        IV_TRY(whole_inputs(k, m, rank, at, shared));
        IV_ASSERT((*shared)->out_count < IV_PLACES_MAX + 2);
        iv_adapted_out *o = &(*shared)->out[(*shared)->out_count++];
        o->first = s->first, o->row = first + s->begin;
        IV_TRY(pack(k, (const char *)own + s->begin * row, k->part->rank, s->end - s->begin, k->part->rank, 1, &o->b));
    }
    return IV_OK;
}

/* ---- modules ----------------------------------------------------------------------------------------------- */

static iv_status wrong_shape(const making *k, size_t outputs, size_t inputs) {
    const iv_adapter_part *p = k->part;
    return iv_fail(k->err, IV_FORMAT,
                   "%s: '%.200s': wanted an A of %zu inputs and a B of %zu outputs, as the model has %.200s, found %zu "
                   "and %zu",
                   k->files->path, p->a.name, inputs, outputs, p->module, p->inputs, p->outputs);
}

/* The linear layer that a module is, as the model's files or others of its family store it. */
static iv_status find_layer(making *k, iv_arena *arena, iv_stored *out) {
    const iv_adapter_part *p = k->part;
    char name[IV_TENSOR_NAME_BYTES_MAX + 8];
    const int64_t shape[2] = {(int64_t)p->outputs, (int64_t)p->inputs};
    if (strlen(p->module) > IV_TENSOR_NAME_BYTES_MAX) return no_memory(k);
    memcpy(name, p->module, strlen(p->module)), strcpy(name + strlen(p->module), ".weight");
    const iv_stored *s = iv_model_stored(k->first, name);
    if (s && s->count && s->info.ndim == 2) {
        *out = *s;
        return s->rows == p->outputs && s->columns == p->inputs ? IV_OK : wrong_shape(k, s->rows, s->columns);
    }
    IV_TRY(iv_stored_recognize(k->first, name, 2, shape, arena, out, k->err));
    if (out->count) return IV_OK;
    return iv_fail(k->err, IV_FORMAT,
                   "%s: '%.200s': wanted a linear layer of the model, found no %.200s of %zu outputs and %zu inputs",
                   k->files->path, p->a.name, p->module, p->outputs, p->inputs);
}

/* The row of a stored matrix that becomes row r of a piece. */
size_t iv_adapter_stored_row(const iv_tensor_place *at, size_t r) {
    const iv_row_order *o = &at->order;
    return iv_place_row(at, o->head ? r / o->head * o->head + iv_row_order_source(o, r % o->head) : r);
}

/* first: rows of the pieces before it. */
static iv_status add_piece(making *k, const iv_stored_piece *piece, size_t first, iv_adapted *shared[IV_RANKS_MAX]) {
    const iv_tensor *t = piece->tensor;
    size_t row = k->part->rank * iv_dtype_bytes(k->first->gemm_type), bytes, rank = 0;
    place at;
    if (!find_place(k->first, t, &at) || piece->at.transposed)
        return iv_fail(k->err, IV_UNSUPPORTED, "%s: '%.200s': wanted a linear layer, found the model's %.200s",
                       k->files->path, k->part->a.name, t->info.name);
    char *own = iv_size_mul(t->rows, row, &bytes) ? malloc(bytes) : NULL;
    if (!own) return no_memory(k);
    for (size_t r = 0; r < t->rows; r++)
        memcpy(own + r * row, (const char *)k->b + iv_adapter_stored_row(&piece->at, r) * row, row);
    iv_status status = IV_OK;
    for (const iv_model *m = k->first; status == IV_OK && m; m = m->next, rank++)
        status = put_rows(k, m, rank, &at, t, own, first, &shared[rank]);
    free(own);
    return status;
}

static iv_status add_linear(making *k) {
    iv_arena arena = {0};
    iv_stored s;
    iv_adapted *shared[IV_RANKS_MAX] = {0};
    iv_status status = find_layer(k, &arena, &s);
    for (size_t i = 0, first = 0; status == IV_OK && i < s.count; first += s.pieces[i++].tensor->rows)
        status = add_piece(k, &s.pieces[i], first, shared);
    iv_arena_free(&arena);
    return status;
}

/* A tied head has no tensor of its own; in any case its rows are the vocabulary's. */
static iv_status add_head(making *k) {
    const iv_adapter_part *p = k->part;
    const iv_model_config *c = &k->first->config;
    size_t width = iv_dtype_bytes(k->first->gemm_type), rank = 0;
    if (p->outputs != (size_t)c->vocab_size || p->inputs != (size_t)c->hidden_size)
        return wrong_shape(k, (size_t)c->vocab_size, (size_t)c->hidden_size);
    for (const iv_model *m = k->first; m; m = m->next, rank++) {
        const iv_tp_shard *shard = &m->tp.shard[m->rank];
        iv_adapted *to;
        if (shard->vocab == 0) continue;
        IV_TRY(new_module(k, rank, iv_site_head(m), 1, &to));
        IV_TRY(pack(k, k->a, p->inputs, p->rank, p->inputs, m->head.leaves, &to->a[0]));
        to->out_count = 1, to->out[0].row = shard->vocab_first;
        IV_TRY(pack(k, (const char *)k->b + shard->vocab_first * p->rank * width, p->rank, shard->vocab, p->rank, 1,
                    &to->out[0].b));
    }
    return IV_OK;
}

/* Every rank looks up every row. */
static iv_status add_embedding(making *k) {
    const iv_adapter_part *p = k->part;
    const iv_model_config *c = &k->first->config;
    size_t width = iv_dtype_bytes(k->first->gemm_type), rank = 0;
    if (p->inputs != (size_t)c->vocab_size || p->outputs != (size_t)c->hidden_size)
        return wrong_shape(k, (size_t)c->hidden_size, (size_t)c->vocab_size);
    char *rows = iv_arena_alloc(&k->to->arena, p->inputs, p->rank * width);
    if (!rows) return no_memory(k);
    for (size_t id = 0; id < p->inputs; id++)
        for (size_t i = 0; i < p->rank; i++)
            memcpy(rows + (id * p->rank + i) * width, (const char *)k->a + (i * p->inputs + id) * width, width);
    for (const iv_model *m = k->first; m; m = m->next, rank++) {
        iv_adapted *to;
        IV_TRY(new_module(k, rank, iv_site_embedding(m), 1, &to));
        to->rows = rows, to->out_count = 1;
        IV_TRY(pack(k, k->b, p->rank, p->outputs, p->rank, 1, &to->out[0].b));
    }
    return IV_OK;
}

static bool ends_with(const char *name, const char *tail) {
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && strcmp(name + n - t, tail) == 0 && (n == t || name[n - t - 1] == '.');
}

bool iv_adapter_is_head(const char *module) { return ends_with(module, "lm_head"); }

iv_status iv_adapter_find_layer(const iv_model *first, const char *file, const iv_adapter_part *part, iv_arena *arena,
                                iv_stored *out, iv_error *err) {
    const iv_adapter_files named = {.path = (char *)(uintptr_t)file};
    making k = {.first = first, .files = &named, .part = part, .err = err};
    return find_layer(&k, arena, out);
}

bool iv_adapter_reaches(const iv_model *first, const iv_tensor *t) {
    place ignored;
    return find_place(first, t, &ignored);
}

iv_status iv_adapter_row_order(const iv_model *first, const char *file, const iv_adapter_part *part, uint32_t *order,
                               bool *plain, iv_error *err) {
    iv_arena arena = {0};
    iv_stored s = {0};
    size_t n = 0;
    *plain = true;
    for (size_t r = 0; r < part->outputs; r++) order[r] = (uint32_t)r;
    if (part->embedding || iv_adapter_is_head(part->module)) return IV_OK;
    iv_status status = iv_adapter_find_layer(first, file, part, &arena, &s, err);
    for (size_t p = 0; status == IV_OK && p < s.count; p++)
        for (size_t r = 0; r < s.pieces[p].tensor->rows; r++, n++) {
            IV_ASSERT(n < part->outputs);
            order[n] = (uint32_t)iv_adapter_stored_row(&s.pieces[p].at, r);
            *plain = *plain && order[n] == n;
        }
    IV_ASSERT(status != IV_OK || n == part->outputs);
    iv_arena_free(&arena);
    return status;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

/* All of a tensor, rounded to the model's type; *out is the caller's to free. */
static iv_status read_values(const making *k, const iv_tensor_info *t, void **out) {
    iv_dtype type = k->first->gemm_type;
    size_t width = iv_dtype_bytes(type), bytes;
    void *stored = malloc(t->bytes);
    *out = iv_size_mul(t->elements, width, &bytes) ? malloc(bytes) : NULL;
    iv_status status = stored && *out ? iv_adapter_read(k->files, t, stored, 0, t->bytes, k->err) : no_memory(k);
    for (size_t i = 0; status == IV_OK && i < t->elements; i++) {
        float x = iv_element(t->dtype, stored, i);
        if (type == IV_F32)
            ((float *)*out)[i] = x;
        else
            ((uint16_t *)*out)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        if ((iv_bits(iv_element(type, *out, i)) & 0x7f800000u) == 0x7f800000u)
            status = iv_fail(k->err, IV_FORMAT, "%s: '%.200s': element %zu is too large for %s", k->files->path,
                             t->name, i, iv_dtype_name(type));
    }
    free(stored);
    return status;
}

static iv_status add_part(making *k, size_t rank_limit) {
    const iv_adapter_part *p = k->part;
    if (p->rank > rank_limit)
        return iv_fail(k->err, IV_LIMIT, "%s: '%.200s': wanted a rank of at most %zu (max_lora_rank), found %zu",
                       k->files->path, p->a.name, rank_limit, p->rank);
    iv_status status = read_values(k, &p->a, &k->a);
    if (status == IV_OK) status = read_values(k, &p->b, &k->b);
    if (status == IV_OK)
        status = p->embedding ? add_embedding(k) : iv_adapter_is_head(p->module) ? add_head(k) : add_linear(k);
    free(k->a), free(k->b);
    k->a = k->b = NULL;
    return status;
}

/* PEFT saves the embedding and the head next to their adapters: they must be the model's. */
static iv_status check_base(const making *k, const iv_tensor_info *t) {
    const iv_stored *s = iv_model_stored(k->first, t->name);
    if (!s && ends_with(t->name, "lm_head.weight") && k->first->config.tie_embeddings)
        s = iv_model_stored(k->first, "model.embed_tokens.weight");
    if (!s || s->info.ndim != t->ndim || s->info.elements != t->elements || !s->count)
        return iv_fail(k->err, IV_FORMAT,
                       "%s: '%.200s': wanted tensors of adapters, or the model's own weights, found others",
                       k->files->path, t->name);
    size_t row = s->columns * sizeof(float), step = iv_size_max(1, (1 << 20) / row);
    float *ours = malloc(step * row), *theirs = malloc(step * row);
    void *raw = malloc(step * row);
    iv_status status = ours && theirs && raw ? IV_OK : no_memory(k);
    for (size_t at = 0, n; status == IV_OK && at < s->rows; at += n) {
        n = iv_size_min(step, s->rows - at);
        size_t width = iv_dtype_bytes(t->dtype), count = n * s->columns;
        status = iv_stored_read_rows(s, at, n, IV_F32, ours, k->err);
        if (status == IV_OK) status = iv_adapter_read(k->files, t, raw, at * s->columns * width, count * width, k->err);
        for (size_t i = 0; status == IV_OK && i < count; i++)
            if (ours[i] != iv_element(t->dtype, raw, i))
                status =
                    iv_fail(k->err, IV_UNSUPPORTED,
                            "%s: '%.200s': wanted the model's own weights (save_embedding_layers=False leaves them "
                            "out), found others at element %zu",
                            k->files->path, t->name, at * s->columns + i);
    }
    free(ours), free(theirs), free(raw);
    return status;
}

iv_status iv_adapter_make(const iv_model *first, const iv_adapter_files *files, size_t rank_limit, iv_adapter **out,
                          iv_error *err) {
    iv_adapter *to = calloc(1, sizeof *to);
    making k = {.first = first, .files = files, .to = to, .err = err};
    size_t rank = 0;
    if (!to) return no_memory(&k);
    iv_status status = IV_OK;
    for (const iv_model *m = first; status == IV_OK && m; m = m->next, rank++) {
        to->at[rank] = IV_ARENA_NEW(&to->arena, iv_site_count(m), iv_adapted *);
        if (!to->at[rank]) status = no_memory(&k);
    }
    for (size_t i = 0; status == IV_OK && i < files->parts.base_count; i++)
        status = check_base(&k, &files->parts.base[i]);
    for (size_t i = 0; status == IV_OK && i < files->parts.count; i++) {
        k.part = &files->parts.part[i];
        status = add_part(&k, rank_limit);
    }
    if (status != IV_OK) {
        iv_adapter_free(to);
        return status;
    }
    memcpy(to->digest, files->digest, sizeof to->digest);
    to->rank_max = files->parts.rank_max, to->modules = files->parts.count, to->bytes = to->arena.used_bytes;
    *out = to;
    return IV_OK;
}

iv_status iv_adapter_load(const iv_model *first, const char *dir, size_t rank_limit, iv_adapter **out, iv_error *err) {
    iv_adapter_files *files;
    IV_TRY(iv_adapter_open(dir, &files, err));
    iv_status status = iv_adapter_make(first, files, rank_limit, out, err);
    iv_adapter_close(files);
    return status;
}

void iv_adapter_free(iv_adapter *a) {
    if (!a) return;
    iv_arena_free(&a->arena);
    free(a);
}
