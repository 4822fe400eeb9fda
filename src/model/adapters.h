/* adapters.h: adapters of low rank of an open model, ready to run (NUMERICS.md 19), and the table of them that steps
 * name by slot. An adapter is made once for all ranks of a process and is read-only; it holds no pointer to weights of
 * the model, which may be replaced by others of the same configuration. */
#ifndef IV_MODEL_ADAPTERS_H
#define IV_MODEL_ADAPTERS_H

#include "format/adapter.h"
#include "model/stored.h"

/* A product of a layer that an adapter may add to. */
typedef enum iv_site_kind {
    IV_SITE_QKV,
    IV_SITE_OUT,
    IV_SITE_ROUTER,
    IV_SITE_SHARED_UP,
    IV_SITE_SHARED_DOWN,
    IV_SITE_UP, /* of a dense layer, or of an expert */
    IV_SITE_DOWN
} iv_site_kind;

static inline size_t iv_sites_of_layer(const iv_model *m) {
    return IV_SITE_UP + 2 * (size_t)(m->config.experts ? m->config.experts : 1);
}
static inline size_t iv_site(const iv_model *m, const iv_layer *l, iv_site_kind kind, size_t expert) {
    return (size_t)(l - m->layers) * iv_sites_of_layer(m) + kind + 2 * expert;
}
static inline size_t iv_site_head(const iv_model *m) { return (size_t)m->config.layers * iv_sites_of_layer(m); }
static inline size_t iv_site_embedding(const iv_model *m) { return iv_site_head(m) + 1; }
static inline size_t iv_site_count(const iv_model *m) { return iv_site_head(m) + 2; }

/* Outputs [first, first + b.n) of the site's product on this rank. */
typedef struct iv_adapted_out {
    iv_matrix b; /* k = rank, one leaf */
    size_t first;
    size_t row; /* of the module's outputs in the decoder's order, of the first of them */
} iv_adapted_out;

/* One module at a site of one rank. A site of several stacked matrices may have several. */
typedef struct iv_adapted {
    struct iv_adapted *next; /* in byte order of the modules' names */
    size_t module;           /* which of the adapter's */
    size_t rank;
    float scale;
    iv_matrix a[IV_RANK_NODES_MAX];   /* n = rank: whole, or of a row-parallel layer as its cut has the nodes */
    size_t column[IV_RANK_NODES_MAX]; /* of A, where each of these begins */
    const void *rows;                 /* instead, of the embedding: [vocab][rank] in the model's type */
    iv_adapted_out *out;
    size_t out_count; /* 0: this rank has none of the outputs */
} iv_adapted;

typedef struct iv_adapter {
    uint8_t digest[32];
    size_t rank_max, bytes, modules;
    iv_adapted **at[IV_RANKS_MAX]; /* [rank of the process][site] */
    iv_arena arena;
} iv_adapter;

/* rank_limit: of every module. Errors name the module, what the model has there and what was found. Nothing is left
 * after one. */
iv_status iv_adapter_make(const iv_model *first, const iv_adapter_files *files, size_t rank_limit, iv_adapter **out,
                          iv_error *err);
/* Reads a directory and makes it. */
iv_status iv_adapter_load(const iv_model *first, const char *dir, size_t rank_limit, iv_adapter **out, iv_error *err);
void iv_adapter_free(iv_adapter *a); /* NULL is fine */

/* Whether a matrix of the decoder is in a product that an adapter may add to; the head, which is, not counted. */
bool iv_adapter_reaches(const iv_model *first, const iv_tensor *t);

/* The stored matrix that a module is, as the model's files or others of its family have it; in arena. */
iv_status iv_adapter_find_layer(const iv_model *first, const char *file, const iv_adapter_part *part, iv_arena *arena,
                                iv_stored *out, iv_error *err);
/* The row of that matrix, and of B, which becomes row r of a piece. */
size_t iv_adapter_stored_row(const iv_tensor_place *at, size_t r);
bool iv_adapter_is_head(const char *module);

/* The row of a module's B that is row r of its outputs in the decoder's order, which is that of iv_adapted_out.row:
 * order[r], [outputs]. plain: all are r. file: heads the errors. */
iv_status iv_adapter_row_order(const iv_model *first, const char *file, const iv_adapter_part *part, uint32_t *order,
                               bool *plain, iv_error *err);

/* The adapters that steps name: slot 0 is the base alone, slot i is slot[i - 1]. Set between two steps. */
typedef struct iv_adapters {
    const iv_adapter **slot;
    size_t count, rank_max; /* rank_max: that any of them may have; 0: there is no table */
} iv_adapters;

#endif
