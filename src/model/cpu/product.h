/* product.h: the products of a layer on the CPU: the base's, and for rows of a step that name an adapter the adapter's
 * term (NUMERICS.md 19). A product without such rows is the kernel's alone. */
#ifndef IV_MODEL_CPU_PRODUCT_H
#define IV_MODEL_CPU_PRODUCT_H

#include "kernels/linear.h"
#include "model/adapters.h"
#include "model/cpu/tp_gather.h"

/* Which row of the batch a row of a product belongs to: of[i * apart], or i if `of` is NULL. */
typedef struct iv_product_rows {
    const uint32_t *of;
    size_t apart;
} iv_product_rows;

/* Memory for rows with adapters, and the table that batches name them in; once, before the first step. rank: of this
 * model among those of the process. The table stays the caller's, and may change between steps. */
iv_status iv_cpu_use_adapters(iv_cpu_model *s, const iv_adapters *table, size_t rank, iv_error *err);

/* At the start of a step: which slots it names. */
void iv_cpu_note_adapters(iv_cpu_model *s);

/* A product whose inputs every rank has whole; without `accumulate`. */
void iv_cpu_product(iv_cpu_model *s, size_t site, const iv_linear_args *a, iv_product_rows rows);

/* A row-parallel one: out += the whole layer, on every rank. Its rows are the batch's. */
iv_status iv_cpu_row_product(iv_cpu_model *s, size_t site, const iv_row_parallel_args *a, iv_error *err);

/* The nodes of all ranks, of which this one's, n floats each, are in its gather buffer, added in the tree: out[n]. */
iv_status iv_cpu_add_nodes(iv_cpu_model *s, const iv_row_cuts *cuts, size_t n, float *out, iv_error *err);

/* The embedding's term, added to s->x; false: no row has one. */
bool iv_cpu_adapts_embedding(const iv_cpu_model *s);
void iv_cpu_adapt_embedding(iv_cpu_model *s);

#endif
