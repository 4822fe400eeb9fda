/* turned_values.c: panels of keys are [element][32 keys], panels of values [key][32 elements]; in bfloat16 pairs of the
 * first index are together, so four numbers, two of each, move as one word. */
#include "kernels/turned_values.h"
#include "base/size.h"
#include "numerics/attention.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS, KEY_PANELS = IV_ATTENTION_BLOCK / C };

/* Two elements of two keys: the middle ones change places. */
static inline uint64_t swapped(uint64_t x) {
    return (x & 0xffff00000000ffffu) | (x & 0xffff0000u) << 16 | (x >> 16 & 0xffff0000u);
}

/* Pairs of elements of a panel of keys, by pairs of keys. */
static void turn_bf16(const uint64_t *keys, size_t pairs, uint64_t *out) {
    for (size_t i = 0; i < C / 2; i += 4)
        for (size_t e = 0; e < pairs; e++)
            for (size_t n = 0; n < 4; n++) out[(i + n) * (C / 2) + e] = swapped(keys[e * (C / 2) + i + n]);
}

static void turn_16(const uint16_t *keys, size_t elements, uint16_t *out) {
    for (size_t i = 0; i < C; i++)
        for (size_t e = 0; e < elements; e++) out[i * C + e] = keys[e * C + i];
}

static void turn_32(const float *keys, size_t elements, float *out) {
    for (size_t i = 0; i < C; i++)
        for (size_t e = 0; e < elements; e++) out[i * C + e] = keys[e * C + i];
}

void iv_turn_scalar(iv_dtype type, const void *keys, size_t elements, void *out) {
    if (type == IV_BF16)
        turn_bf16(keys, elements / 2, out);
    else if (type == IV_F16)
        turn_16(keys, elements, out);
    else
        turn_32(keys, elements, out);
}

void iv_turned_values(const iv_kernels *k, const iv_kv_layout *l, const unsigned char *keys, unsigned char *out) {
    size_t part = C * C * iv_dtype_bytes(l->type); /* 32 elements of 32 keys */
    for (size_t p = 0; p < l->values.panels; p++) {
        size_t elements = iv_size_min(C, l->keys.k_padded - p * C);
        unsigned char *panel = out + p * KEY_PANELS * part;
        if (elements < C) memset(panel, 0, KEY_PANELS * part);
        for (size_t i = 0; i < KEY_PANELS; i++)
            k->turn(l->type, keys + i * l->keys.panel_bytes + p * part, elements, panel + i * part);
    }
}
