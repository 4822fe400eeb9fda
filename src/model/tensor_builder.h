/* tensor_builder.h: what a walk over a decoder's tensors adds to a model: vectors, and matrices stacked from tensors
 * and cut for ranks. Without a checkpoint the walk only collects names and shapes.
 *
 * Shapes are rows x columns as files have them. Errors: IV_NO_MEMORY, IV_LIMIT (a matrix whose size does not fit), each
 * with the tensor's name. The model's arena owns all that is made. */
#ifndef IV_MODEL_TENSOR_BUILDER_H
#define IV_MODEL_TENSOR_BUILDER_H

#include "model/tensors.h"

enum {
    IV_TENSOR_PREFIX_BYTES = 96,
    IV_TENSOR_NAME_BYTES = 256,
    IV_STACK_MAX = 6,
    IV_CUTS_MAX = IV_RANKS_MAX * IV_RANK_NODES_MAX
};

/* The tensors that a checkpoint would have to hold, in the order of the walk. */
typedef struct iv_tensor_collection {
    iv_dtype type;
    iv_tensor_info *tensors;
    size_t count, capacity;
    iv_tensor current; /* the latest one found */
} iv_tensor_collection;

/* The walk over the names of a decoder. */
typedef struct iv_tensor_builder {
    iv_model *first;               /* of this process */
    iv_model *shard[IV_RANKS_MAX]; /* [0] is first */
    size_t shards;
    const iv_checkpoint *c; /* NULL: names and shapes are collected, nothing is made */
    iv_tensor_collection *wanted;
    iv_error *err;
} iv_tensor_builder;

/* A tensor of a stack: tensors whose rows follow one another in one matrix. */
typedef struct iv_stack_tensor {
    const char *name; /* "self_attn.q_proj" */
    size_t rows;
    iv_tensor **tensor, **bias; /* set to those found; bias may be NULL */
} iv_stack_tensor;

/* One rank's matrix of a stack of tensors: rows [begin, end) of each, columns [column, column + k). */
typedef struct iv_tensor_cut {
    iv_model *owner;
    iv_matrix *matrix;
    float **bias;
    struct {
        size_t begin, end;
    } of[IV_STACK_MAX];
    size_t column, k;
    int leaves;  /* 0: as k has them */
    bool paired; /* gate and up: interleaved on a GPU */
    bool plain;  /* never packed on a GPU: rows are looked up, or copied to other GPUs */
    bool wide;   /* never packed at all */
    bool floats; /* never int8, as those that are plain or wide */
    bool ranks;  /* they divide K: an int8 matrix of no column has the scales all the same */
} iv_tensor_cut;

/* Some values a head: of each rank those of its query heads, or of its KV heads. */
typedef struct iv_head_vector {
    const char *name;
    bool kv;
    size_t each; /* values of a head */
    size_t to;   /* offset of the vector in iv_layer */
    iv_tensor **tensor;
} iv_head_vector;

/* A vector of which each rank has the values of its heads. parts: as many as `begin` and `end` have, of one rank. */
typedef struct iv_head_parts {
    size_t count, begin[3], end[3];
    float **out;
} iv_head_parts;

/* A vector that every rank has whole; the first stores it. *out: what the arithmetic reads. */
iv_status iv_builder_vector(iv_tensor_builder *b, const char *prefix, const char *suffix, size_t n, float **out,
                            iv_tensor **tensor);

/* A norm's weights: with 1 added where the model's norms want it. */
iv_status iv_builder_norm(iv_tensor_builder *b, const char *prefix, const char *suffix, size_t n, float **out,
                          iv_tensor **tensor);

/* The weights of a norm that has none; NULL: no memory. */
float *iv_builder_ones_of(iv_tensor_builder *b, size_t n);

/* Of a layer's, at an offset of iv_layer. */
iv_status iv_builder_ones(iv_tensor_builder *b, size_t index, size_t dim, size_t to);

iv_status iv_builder_head_values(iv_tensor_builder *b, const char *at, size_t index, const iv_head_vector *v);

/* A vector of n values; ranks: of each shard. */
iv_status iv_builder_parts(iv_tensor_builder *b, const char *at, const char *suffix, size_t n,
                           const iv_head_parts *ranks, iv_tensor **tensor);

/* Matrices stacked from tensors[0..count) of k columns, one for each cut, and their biases where the cuts want them. */
iv_status iv_builder_stacked(iv_tensor_builder *b, const char *prefix, const iv_stack_tensor *tensors, size_t count,
                             size_t k, iv_tensor_cut *cuts, size_t cut_count);

/* A matrix that every rank has whole. */
iv_status iv_builder_whole(iv_tensor_builder *b, const char *prefix, const char *name, size_t n, size_t k,
                           iv_matrix *out, iv_tensor **tensor);

/* Adds the matrices of one rank's shard of a row-parallel layer to cuts[count..]; n rows. Returns the new count. */
size_t iv_cut_nodes(iv_tensor_cut *cuts, size_t count, iv_model *owner, iv_matrix *nodes, const iv_row_cut *row,
                    size_t n);

/* The norms of a layer's blocks, by what it has; at: its prefix. */
iv_status iv_builder_layer_norms(iv_tensor_builder *b, const char *at, size_t index);

#endif
