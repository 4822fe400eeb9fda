/* ids.h: a growable array of token ids. */
#ifndef IV_TEXT_IDS_H
#define IV_TEXT_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct iv_ids {
    int32_t *data; /* owned; NULL while empty and never grown */
    size_t len, cap;
} iv_ids;

/* False when memory is out; the array is then unchanged. */
bool iv_ids_push(iv_ids *ids, int32_t id);
bool iv_ids_append(iv_ids *ids, const int32_t *from, size_t n);

void iv_ids_clear(iv_ids *ids); /* keeps the memory */
void iv_ids_free(iv_ids *ids);

#endif
