/* learned_adapter.h: an adapter of low rank that learns: which modules of a model have an A and a B, where these are in
 * the flat buffers (parameters.h), and their values as an adapter that runs, or as PEFT's files. Law: NUMERICS.md 19.1.
 */
#ifndef IV_MODEL_LEARNED_ADAPTER_H
#define IV_MODEL_LEARNED_ADAPTER_H

#include "model/adapters.h"
#include "model/parameters.h"

/* What a new adapter is: PEFT's LoraConfig. */
typedef struct iv_adapter_wish {
    size_t rank;
    double alpha;        /* 0: the rank */
    const char *targets; /* names between commas, "all-linear", or an expression; NULL: "all-linear" */
    bool root_scale;     /* rslora */
    uint64_t seed;       /* of A */
    const char *from;    /* instead of all these: a PEFT directory; or NULL */
    const char *base;    /* base_model_name_or_path of the files */
} iv_adapter_wish;

typedef struct iv_learned_adapter {
    iv_adapter_config config; /* of the files that are written */
    iv_adapter_parts parts;   /* names and shapes; types and offsets are not used */
    const iv_tensor **a, **b; /* [parts.count]: in `table` */
    uint32_t **order;         /* [parts.count]: rows of B are in the decoder's order; row r of it is order[i][r] of the
                               * file. NULL: they are the same */
    iv_model *table;          /* its tensors alone: those of all A and B, in byte order of PEFT's names, with their
                               * offsets (parameters.h) */
    size_t elements;          /* of a flat buffer */
    uint8_t digest[32];       /* of the first values, as iv_adapter_open makes it */
    uint64_t seed;
    iv_adapter_files *files; /* that it begins with; NULL: none */
    iv_arena arena;
} iv_learned_adapter;

/* Chooses the modules among the model's linear layers, or takes those of a directory. IV_NOT_FOUND: targets that
 * select none. IV_UNSUPPORTED names a module whose adapter cannot be trained. */
iv_status iv_learned_adapter_open(const iv_model *first, const iv_adapter_wish *wish, iv_learned_adapter **out,
                                  iv_error *err);
void iv_learned_adapter_close(iv_learned_adapter *a); /* NULL is fine */

/* Rows of B in a module's file from those in the decoder's order, of `rank` elements. */
void iv_learned_adapter_turn(const iv_learned_adapter *a, size_t module, const float *own, float *file);

/* The first values: [elements], of which the padding stays as it is. */
iv_status iv_learned_adapter_begin(const iv_learned_adapter *a, float *flat, iv_error *err);

/* The present values, rounded to a type: an adapter's files in memory, hashed. IV_LIMIT names an element that is too
 * large for the type. The caller closes *out by iv_adapter_image_close. */
iv_status iv_adapter_image_make(const iv_learned_adapter *a, const float *flat, iv_dtype type, iv_adapter_files *out,
                                iv_error *err);
void iv_adapter_image_close(iv_adapter_files *image); /* zeros are fine */

#endif
