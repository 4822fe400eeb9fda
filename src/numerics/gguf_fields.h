/* gguf_fields.h: numbers inside GGUF's blocks. */
#ifndef IV_NUMERICS_GGUF_FIELDS_H
#define IV_NUMERICS_GGUF_FIELDS_H

#include "numerics/floats.h"

#include <stdint.h>

static inline uint16_t iv_gguf_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline float iv_gguf_half(const uint8_t *p) { return iv_f16_to_f32(iv_gguf_u16(p)); }

/* Of 32 elements the first 16 are the low nibbles. */
static inline int iv_gguf_nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
static inline int iv_gguf_fifth(const uint8_t *qh, int i) { return (qh[i / 8] >> (i % 8) & 1) << 4; }

/* Scale and minimum k of eight, six bits each in twelve bytes. */
static inline void iv_gguf_six_bits(const uint8_t *s, int k, int *scale, int *min) {
    if (k < 4)
        *scale = s[k] & 63, *min = s[4 + k] & 63;
    else
        *scale = (s[4 + k] & 15) | (s[k - 4] >> 2 & 48), *min = s[4 + k] >> 4 | (s[k] >> 2 & 48);
}

/* The scale of MXFP4's 32 elements, halved: their integers are doubled. */
static inline float iv_gguf_half_e8m0(uint8_t e) {
    return iv_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
