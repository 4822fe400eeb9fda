/* ex2.h: 2^x with the bits of Hopper's ex2.approx.ftz.f32: a table of 64 parabolas in integers.
 * Law: NUMERICS.md section 5, measured on an H200 (tests/data/ex2). */
#ifndef IV_NUMERICS_EX2_H
#define IV_NUMERICS_EX2_H

#include "numerics/floats.h"

/* 2^(i/64 + r * 2^-23) * 2^38 is about c0 * 2^13 + c1 * r + c2 * r^2 / 2^19. */
typedef struct iv_ex2_part {
    uint32_t c0;
    uint16_t c1, c2;
} iv_ex2_part;

extern const iv_ex2_part iv_ex2_table[64];

/* 2^x. Below -126: +0 (results are never subnormal). 128 and above: infinity. NaN: canonical. */
float iv_ex2(float x);

#endif
