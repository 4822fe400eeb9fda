/* adapters.h: adapters of an engine's model in a GPU's memory (adapters.c), and the products of a pass with their terms
 * (products.c). A product without rows of adapters is the base's launch alone. */
#ifndef IV_MODEL_CUDA_ADAPTERS_H
#define IV_MODEL_CUDA_ADAPTERS_H

#include "model/adapters.h"
#include "model/cuda/pass.h"

/* A product that adapters add to: what any of them has there. Experts of a layer share that of the first. */
typedef struct gpu_site {
    iv_gpu_adapter_piece piece[IV_GPU_PIECES_MAX]; /* ascending */
    size_t pieces, tables;    /* tables [slots][pieces]: of each expert of the rank, or of each node of its inputs */
    size_t rank_max, t_width; /* of one part, padded; of the t of a row */
    size_t at;                /* of its tables among the parts */
} gpu_site;

/* One part of an adapter, and where it belongs. */
typedef struct gpu_adapter_part {
    size_t site, table;
    iv_gpu_adapter_piece piece;
    iv_gpu_adapted_part part;
} gpu_adapter_part;

typedef struct gpu_adapter {
    unsigned char *data; /* on the GPU; NULL: the slot is free */
    gpu_adapter_part *parts;
    size_t count;
} gpu_adapter;

/* Of one GPU. Launches hold pointers and sizes of this struct: graphs of steps with adapters are dropped where any of
 * them changes. */
typedef struct gpu_adapters {
    gpu_adapter *loaded; /* [capacity], slot i + 1 is loaded[i] */
    size_t capacity, slots, site_count;
    gpu_site *site;
    iv_gpu_adapted_part *parts; /* on the GPU */
    size_t part_capacity;
    /* Buffers of a step, carved with the others. */
    void *t;
    float *sums, *nodes; /* of several ranks: [rows][rank], [2][nodes_max][rows][rank] */
    size_t rank_max;     /* of any adapter, padded */
} gpu_adapters;

/* ---- adapter_sites.c */
/* Where a site's parts are kept: experts of a layer share a site, with a table each. */
size_t iv_gpu_shared_site(const iv_model *m, size_t site, size_t *table);
/* All sites of what is loaded, and the number of their parts. site: [site_count], zeros. */
iv_status iv_gpu_make_sites(const iv_model *m, const gpu_adapters *a, gpu_site *site, size_t *slots, size_t *parts,
                            iv_error *err);
void iv_gpu_fill_parts(const gpu_adapters *a, gpu_site *site, size_t slots, iv_gpu_adapted_part *out);

/* ---- products.c */
/* The product's, if the step has rows of adapters and any adapter has it; else NULL. */
const gpu_site *iv_gpu_site(const gpu_pass *p, size_t site);

/* A linear layer whose inputs the rank has whole, with STORE; paired: its matrix is. Groups: experts' down is weighted
 * by ones. */
iv_status iv_gpu_product(const gpu_pass *p, size_t site, bool paired, const iv_gpu_linear_args *a, const char *what,
                         iv_error *err);
/* iv_gpu_gate_up with the terms of `s`. */
iv_status iv_gpu_adapted_gate_up(const gpu_pass *p, const gpu_site *s, const iv_activation *activation,
                                 iv_gpu_linear_args *a, const iv_matrix *w, size_t rows_out, void *act, size_t stride,
                                 iv_gpu_row_scales scales, const iv_gpu_expert_bias_args *bias, iv_error *err);
/* iv_gpu_row_parallel with the terms of `s`. */
iv_status iv_gpu_adapted_row_parallel(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, iv_error *err);
/* As iv_gpu_node_at, of the sums of A x. */
float *iv_gpu_adapter_node_at(const gpu_forward *f, bool second, size_t node, size_t n);
/* t of a row-parallel layer, of which cuts, x, x_stride, x_first and second are read. */
iv_status iv_gpu_adapted_t(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, iv_error *err);
/* The embedding's rows with their terms. */
iv_status iv_gpu_adapted_embed(const gpu_pass *p, const gpu_site *s, iv_error *err);

#endif
