/* calibration.h: texts that pass a model layer by layer on the CPU, and the matrices of the inputs of its products
 * (numerics/gptq.h), for tools that change a layer's weights by what goes in. One rank.
 *
 * The rows of all texts are in memory before the layer at work. A layer may run several times before they advance. */
#ifndef IV_MODEL_CPU_CALIBRATION_H
#define IV_MODEL_CPU_CALIBRATION_H

#include "model/cpu/cpu_model.h"

/* Tokens of a text, at least one; ids are in the vocabulary. */
typedef struct iv_calibration_text {
    const int32_t *ids;
    size_t count;
} iv_calibration_text;

/* The inputs of one matrix of the model's layer. */
typedef struct iv_calibration_site {
    const iv_matrix *matrix;
    double *h;      /* [k][k], to which they are added; or NULL */
    float *largest; /* [k]: the largest size of each, and of what it was; or NULL */
    uint64_t rows;  /* how many there were */
} iv_calibration_site;

typedef struct iv_calibration iv_calibration;

/* Reads the embeddings of all texts; m has at least as many positions as the longest. Texts and model stay the
 * caller's.
 * */
iv_status iv_calibration_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                              const iv_calibration_text *texts, size_t count, iv_calibration **out, iv_error *err);
void iv_calibration_close(iv_calibration *c); /* NULL is fine */

/* Runs the layer over all texts and adds the inputs of these matrices. Neither threads nor the division of texts into
 * steps changes a bit. */
iv_status iv_calibration_see(iv_calibration *c, size_t layer, iv_calibration_site *sites, size_t count, iv_error *err);

/* Runs the layer over all texts: their rows become those before the next one. */
iv_status iv_calibration_advance(iv_calibration *c, size_t layer, iv_error *err);

#endif
