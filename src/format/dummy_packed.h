/* dummy_packed.h: dummy weights as a quantized checkpoint stores them: codes, scales and zero points, each a pure
 * function of a seed, its tensor's name and an element's index, like dummy.h, equal on every machine and rank.
 *
 * t is dummy.h's value of the stored element before its factor: (sum of the word's four bytes - 510) / 510, in (-1, 1).
 * Codes are the nearest of t times their largest number; scales make that number 0.07, times 1 + t' / 4 for the scale's
 * own t' where they are numbers, so that weights are distributed as those of dummy.h. */
#ifndef IV_FORMAT_DUMMY_PACKED_H
#define IV_FORMAT_DUMMY_PACKED_H

#include "format/quantization.h"

typedef enum iv_dummy_kind {
    IV_DUMMY_PLAIN, /* dummy.h */
    IV_DUMMY_E4M3,
    IV_DUMMY_INT8,
    IV_DUMMY_BYTE,   /* code + 128 */
    IV_DUMMY_NIBBLE, /* two codes + 8, the lower one first */
    IV_DUMMY_E2M1,   /* two in a byte */
    IV_DUMMY_SCALE,  /* numbers around `value` */
    IV_DUMMY_E8M0,   /* 2^-7 or 2^-6 */
    IV_DUMMY_E4M3_SCALE,
    IV_DUMMY_ZEROS,  /* bytes of zero points: `value` */
    IV_DUMMY_NUMBER, /* one float32, `value` */
    IV_DUMMY_GROUPS, /* int32: the index divided by `value` */
} iv_dummy_kind;

typedef struct iv_dummy_part {
    iv_tensor_info info; /* as the files would have it; elements and bytes are not set */
    iv_dummy_kind kind;
    float value;
} iv_dummy_part;

enum { IV_DUMMY_PARTS_MAX = 5 }; /* of one tensor */

/* What a checkpoint of this quantization stores for a plain tensor: itself, or its parts, whose names are in the arena.
 * Linear layers of attention and MLPs that quantization_config does not leave out are packed, and gpt-oss's experts. */
iv_status iv_dummy_parts(const iv_quantization *q, const iv_tensor_info *t, iv_arena *arena,
                         iv_dummy_part out[IV_DUMMY_PARTS_MAX], size_t *count, iv_error *err);

/* Bytes [offset, offset + n) of a part, of which elements and bytes are set. Thread-safe. */
void iv_dummy_part_fill(uint64_t seed, const iv_dummy_part *p, void *dst, size_t offset, size_t n);

#endif
