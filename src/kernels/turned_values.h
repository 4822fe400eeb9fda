/* turned_values.h: the values of a page that stores them once, as a part of its keys. */
#ifndef IV_KERNELS_TURNED_VALUES_H
#define IV_KERNELS_TURNED_VALUES_H

#include "kernels/kernels.h"
#include "kernels/paged_kv.h"

/* out: the panels of l->values, from those of the keys; of a layout whose values are `shared`. */
void iv_turned_values(const iv_kernels *k, const iv_kv_layout *l, const unsigned char *keys, unsigned char *out);

/* The scalar form of the op `turn`. */
void iv_turn_scalar(iv_dtype type, const void *keys, size_t elements, void *out);

#endif
