/* adapters.c: loads and frees adapters in the memory of all GPUs, between two steps, and keeps the tables of parts that
 * launches read. */
#include "model/cuda/adapters.h"
#include "base/size.h"
#include "model/cuda/run.h"

#include <stdlib.h>
#include <string.h>

/* ---- an adapter to a GPU -------------------------------------------------------------------------------------------
 */

/* Counts with `data` NULL, then packs. */
typedef struct uploading {
    const gpu_rank *r;
    gpu_adapter *to;
    unsigned char *data; /* of this process */
    size_t at, count;
    iv_error *err;
} uploading;

static iv_status no_memory(const uploading *u) { return iv_fail(u->err, IV_NO_MEMORY, "adapter: no memory"); }

/* A factor; *where: on the GPU. */
static iv_status pack(uploading *u, const iv_matrix *w, const void **where) {
    const gpu_forward *f = &u->r->f;
    size_t width = iv_dtype_bytes(w->type), bytes = iv_gpu_factor_bytes(f->arithmetic, w->type, w->n, w->k, w->leaves);
    if (u->data) {
        unsigned char *rows = malloc(w->n * w->k * width + 1);
        if (!rows) return no_memory(u);
        iv_matrix_unpack(w, rows, w->k, 0, w->n);
        iv_gpu_pack_factor(f->arithmetic, w->type, rows, w->k, w->n, w->k, w->leaves, u->data + u->at);
        free(rows);
        *where = u->to->data + u->at;
    }
    return iv_size_add(u->at, (bytes + 255) / 256 * 256, &u->at) ? IV_OK : no_memory(u);
}

/* Rows of the embedding's A, with zeros behind each. */
static iv_status pack_rows(uploading *u, const iv_adapted *a, const void **where) {
    const iv_model *m = u->r->m;
    size_t width = iv_dtype_bytes(m->gemm_type), padded = iv_padded_k(a->rank), count = (size_t)m->config.vocab_size;
    if (u->data) {
        memset(u->data + u->at, 0, count * padded * width);
        for (size_t i = 0; i < count; i++)
            memcpy(u->data + u->at + i * padded * width, (const char *)a->rows + i * a->rank * width, a->rank * width);
        *where = u->to->data + u->at;
    }
    return iv_size_add(u->at, (count * padded * width + 255) / 256 * 256, &u->at) ? IV_OK : no_memory(u);
}

static void add_part(uploading *u, const gpu_adapter_part *part) {
    if (u->data) u->to->parts[u->count] = *part;
    u->count++;
}

/* One module: its A stands in the first of its parts; of further nodes of its inputs in tables of their own. first: of
 * its t. */
static iv_status add_module(uploading *u, size_t site, const iv_adapted *a, size_t first) {
    gpu_adapter_part part = {.part = {.scale = a->scale, .rank = (int32_t)a->rank, .first = (int32_t)first}};
    const void *nodes[IV_RANK_NODES_MAX] = {0};
    part.site = iv_gpu_shared_site(u->r->m, site, &part.table);
    if (a->rows) IV_TRY(pack_rows(u, a, &nodes[0]));
    for (size_t i = 0; !a->rows && i < IV_RANK_NODES_MAX && a->a[i].data; i++) IV_TRY(pack(u, &a->a[i], &nodes[i]));
    for (size_t i = 0; i < a->out_count; i++) {
        const iv_adapted_out *o = &a->out[i];
        part.piece = (iv_gpu_adapter_piece){(uint32_t)o->first, (uint32_t)o->b.n};
        part.part.a = i == 0 ? nodes[0] : NULL;
        IV_TRY(pack(u, &o->b, &part.part.b));
        add_part(u, &part);
        gpu_adapter_part node = part;
        for (size_t k = 1; i == 0 && k < IV_RANK_NODES_MAX && a->a[k].data; k++) {
            node.table = k, node.part.a = nodes[k];
            add_part(u, &node);
        }
    }
    return IV_OK;
}

static iv_status add_all(uploading *u, iv_adapted *const *at) {
    u->at = u->count = 0;
    for (size_t site = 0; site < iv_site_count(u->r->m); site++) {
        size_t first = 0;
        for (const iv_adapted *a = at[site]; a; a = a->next) {
            if (!a->out_count) continue;
            IV_TRY(add_module(u, site, a, first));
            first += iv_padded_k(a->rank);
        }
    }
    return IV_OK;
}

static void clear(const gpu_rank *r, gpu_adapter *a) {
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    memspace->free(memspace, a->data);
    free(a->parts);
    *a = (gpu_adapter){0};
}

static iv_status upload(const gpu_rank *r, gpu_adapter *to, iv_adapted *const *at, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    uploading u = {.r = r, .to = to, .err = err};
    IV_TRY(add_all(&u, at));
    size_t bytes = u.at + 256; /* an adapter without a part of this rank has memory too */
    to->count = u.count, to->parts = calloc(u.count + 1, sizeof *to->parts);
    to->data = memspace->alloc(memspace, bytes);
    u.data = calloc(1, bytes);
    iv_status status = !to->data             ? iv_gpu_no_memory(&r->f, "an adapter", bytes, err)
                       : u.data && to->parts ? add_all(&u, at)
                                             : no_memory(&u);
    if (status == IV_OK) status = memspace->write(memspace, to->data, bytes, u.data, bytes, bytes, 1, err);
    free(u.data);
    if (status != IV_OK) clear(r, to);
    return status;
}

/* ---- tables --------------------------------------------------------------------------------------------------------
 */

static iv_status room_for(gpu_rank *r, size_t parts, iv_error *err) {
    gpu_adapters *a = r->f.adapters;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    if (parts <= a->part_capacity) return IV_OK;
    size_t count = parts + parts / 2, bytes = count * sizeof *a->parts;
    iv_gpu_adapted_part *wider = memspace->alloc(memspace, bytes);
    if (!wider) return iv_gpu_no_memory(&r->f, "tables of adapters", bytes, err);
    memspace->free(memspace, a->parts);
    a->parts = wider, a->part_capacity = count;
    iv_gpu_forget_adapted_graphs(r);
    return IV_OK;
}

/* Writes the tables of what is loaded now. */
static iv_status write_tables(gpu_rank *r, iv_error *err) {
    gpu_adapters *a = r->f.adapters;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    size_t slots = 0, parts = 0, bytes = a->site_count * sizeof *a->site;
    gpu_site *site = calloc(a->site_count, sizeof *site);
    iv_gpu_adapted_part *table = NULL;
    iv_status status = site ? iv_gpu_make_sites(r->m, a, site, &slots, &parts, err)
                            : iv_fail(err, IV_NO_MEMORY, "adapter: no memory for its tables");
    if (status == IV_OK) status = room_for(r, parts, err);
    if (status == IV_OK && !(table = calloc(parts + 1, sizeof *table)))
        status = iv_fail(err, IV_NO_MEMORY, "adapter: no memory for its tables");
    if (status == IV_OK) {
        size_t length = parts * sizeof *table;
        iv_gpu_fill_parts(a, site, slots, table);
        if (length) status = memspace->write(memspace, a->parts, length, table, length, length, 1, err);
    }
    if (status == IV_OK) {
        if (slots != a->slots || memcmp(site, a->site, bytes) != 0) iv_gpu_forget_adapted_graphs(r);
        memcpy(a->site, site, bytes);
        a->slots = slots;
    }
    free(site), free(table);
    return status;
}

/* ---- all GPUs ------------------------------------------------------------------------------------------------------
 */

static iv_status load(gpu_rank *r, size_t slot, iv_adapted *const *at, iv_error *err) {
    IV_TRY(iv_gpu_use(r->f.gpu, err));
    IV_TRY(upload(r, &r->f.adapters->loaded[slot], at, err));
    return write_tables(r, err);
}

iv_status iv_gpu_model_load_adapter(iv_gpu_model *g, size_t slot, const iv_adapter *a, iv_error *err) {
    IV_ASSERT(slot < g->o.adapters && !g->rank[0].f.adapters->loaded[slot].data);
    iv_status status = IV_OK;
    for (size_t i = 0; status == IV_OK && i < g->ranks; i++) status = load(&g->rank[i], slot, a->at[i], err);
    if (status != IV_OK) iv_gpu_model_free_adapter(g, slot);
    return status;
}

void iv_gpu_model_free_adapter(iv_gpu_model *g, size_t slot) {
    iv_error unused;
    for (size_t i = 0; i < g->ranks; i++) {
        gpu_rank *r = &g->rank[i];
        if (iv_gpu_use(r->f.gpu, &unused) != IV_OK) continue;
        clear(r, &r->f.adapters->loaded[slot]);
        write_tables(r, &unused); /* fails without memory: no step names what is freed */
    }
}

iv_status iv_gpu_open_adapters(gpu_rank *r, iv_error *err) {
    gpu_adapters *a = &r->adapters;
    if (!r->g->o.adapters) return IV_OK;
    r->f.adapters = a, a->capacity = r->g->o.adapters, a->site_count = iv_site_count(r->m), a->slots = 8;
    a->loaded = calloc(a->capacity, sizeof *a->loaded), a->site = calloc(a->site_count, sizeof *a->site);
    return a->loaded && a->site ? IV_OK : iv_fail(err, IV_NO_MEMORY, "adapters: no memory for %zu", a->capacity);
}

void iv_gpu_close_adapters(gpu_rank *r) {
    gpu_adapters *a = r->f.adapters;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    if (!a) return;
    for (size_t i = 0; a->loaded && i < a->capacity; i++) clear(r, &a->loaded[i]);
    memspace->free(memspace, a->parts);
    free(a->loaded), free(a->site);
}
