/* tensors.h: a model's tensors by name: shape, types, and which ranks hold which part of each. All families have the
 * same names; the configuration says what a family adds or omits (biases, head norms, experts).
 *
 * The table belongs to the first model of a process, in byte order of the names. Files may have other names and forms:
 * stored.h, which serves loading and export. Dummy weights come from the same walk. */
#ifndef IV_MODEL_TENSORS_H
#define IV_MODEL_TENSORS_H

#include "model/model.h"

/* Rows [begin, end) of a tensor as one rank holds them: as rows of a matrix (of each row `matrix->k` elements from
 * `column` on), or, for a tensor of one dimension, as elements of a vector of floats. Ranks that share a KV head hold
 * the same rows twice. */
typedef struct iv_tensor_slice {
    struct iv_tensor_slice *next;
    iv_model *owner;   /* the rank; its memspace holds the matrix, vectors are always in this process's memory */
    iv_matrix *matrix; /* NULL: a vector */
    float *vector;
    float *plus_one;           /* NULL, or where a vector's values plus 1 are: what norms with an offset multiply by */
    size_t begin, end, column; /* of the tensor */
    size_t first;              /* row or element that `begin` becomes */
} iv_tensor_slice;

struct iv_tensor {
    iv_tensor_info info;      /* type as in the checkpoint; offset and shard are not used */
    size_t rows, columns;     /* of a vector: elements, 1 */
    iv_dtype held;            /* type of the packed values; vectors are held in float32 */
    iv_tensor_slice *slices;  /* NULL: another process holds it, or it is unused */
    const iv_tensor *same_as; /* a head next to tied embeddings: the embedding; its slices are that one's */
    bool constant;            /* of the model, but not trained */
    bool unused;              /* a buffer of old exports, a wrapper's tower: hashed at load, not held */
    size_t offset;            /* among the trained parameters: parameters.h */
    bool has_codes;           /* the file has it in a form in which a CPU may hold it: packed.h */
    bool packed;              /* some slices are packed matrices */
    iv_code_form codes;       /* where has_codes: of the file's rows */
    bool int8;                /* some slices are int8 matrices: their values are not those written */
    const char *stored_as;    /* the file's format where it is a packed one; else NULL */
    bool changed;             /* since the digests were made */
};

/* NULL if there is none. A binary search. */
iv_tensor *iv_model_tensor(iv_model *first, const char *name);

/* Allocates the layers and vectors of first and of the models after it in their arenas, shapes their matrices, counts
 * data_bytes (packed matrices, each aligned), and makes the table from the checkpoint, of which every tensor must be
 * used. config, dtype, tp and rank are set before. Matrix data is not allocated. The table's i-th tensor is the
 * checkpoint's. */
iv_status iv_tensors_make(iv_model *first, const iv_checkpoint *c, iv_error *err);

/* Seeded random weights of every tensor that a model of this configuration has, all of one type. */
iv_status iv_tensors_dummy(const iv_model_config *config, iv_dtype type, uint64_t seed, iv_checkpoint **out,
                           iv_error *err);

/* The same as the quantization_config of `dir` stores them (iv_checkpoint_dummy_of); packed: what packed weights
 * become. */
iv_status iv_tensors_dummy_of(const char *dir, const iv_model_config *config, iv_dtype type, iv_dtype packed,
                              uint64_t seed, iv_checkpoint **out, iv_error *err);

/* Points the matrices of m into m->data, or, what it shares, into the first model's. */
void iv_tensors_bind(iv_model *m, const iv_model *first);

#endif
