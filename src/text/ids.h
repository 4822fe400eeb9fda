/* ids.h: growing the public iv_ids, which start zeroed. */
#ifndef IV_TEXT_IDS_H
#define IV_TEXT_IDS_H

#include "invar.h"

/* False when memory is out; the array is then unchanged. */
bool iv_ids_reserve(iv_ids *ids, size_t extra);
bool iv_ids_push(iv_ids *ids, int32_t id);
bool iv_ids_append(iv_ids *ids, const int32_t *from, size_t n);

void iv_ids_clear(iv_ids *ids); /* keeps the memory */

#endif
