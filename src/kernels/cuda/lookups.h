/* lookups.h: the tokens of a step by their ids, as the gradient of an embedding's rows needs them (learn.h). */
#ifndef IV_KERNELS_CUDA_LOOKUPS_H
#define IV_KERNELS_CUDA_LOOKUPS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The arrays of iv_gpu_lookups_args for up to `rows` rows, in memory of the host or of a GPU. */
typedef struct iv_lookup_list {
    int32_t *order, *ids, *first;
    uint8_t *rank; /* of each row: the caller fills it */
} iv_lookup_list;

/* The arrays at `base`, and the bytes that they take; with base NULL the bytes alone. */
iv_lookup_list iv_lookup_list_at(void *base, size_t rows, size_t *bytes);

/* Fills order, ids and first from the rows' ids, those below zero left out. *different: the number of ids. */
iv_status iv_lookup_list_sort(const iv_lookup_list *list, const int32_t *ids, size_t rows, size_t *different,
                              iv_error *err);

#endif
