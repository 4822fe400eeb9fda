/* kv_layouts.h: the KV groups of a model (kv/groups.h), and how a page of each lies in memory. */
#ifndef IV_MODEL_KV_LAYOUTS_H
#define IV_MODEL_KV_LAYOUTS_H

#include "model/model.h"

/* Fills m->kv_groups, kv_place and kv_layout from the configuration, the type, and the rank's heads and memory space.
 * All groups' pages have the bytes of the widest. */
iv_status iv_kv_layouts_make(iv_model *m, iv_error *err);

/* Bytes of a page: of one group's layers and 64 positions. */
static inline size_t iv_kv_page_bytes(const iv_model *m) { return m->kv_layout[0].page_bytes * m->kv_groups.planes; }

/* Bytes of a token over all layers, as long as no window frees any. */
static inline size_t iv_kv_token_bytes(const iv_model *m) {
    return iv_kv_page_bytes(m) / IV_ATTENTION_BLOCK * m->kv_groups.count;
}

#endif
