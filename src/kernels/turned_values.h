/* turned_values.h: the values of a page that stores them once, as a part of its keys. */
#ifndef IV_KERNELS_TURNED_VALUES_H
#define IV_KERNELS_TURNED_VALUES_H

#include "kernels/paged_kv.h"

/* out: the panels of l->values, from those of the keys; of a layout whose values are `shared`. */
void iv_turned_values(const iv_kv_layout *l, const unsigned char *keys, unsigned char *out);

#endif
