/* ex2.inc.h: iv_ex2 in the vector vocabulary. Before including it: a vec_*.h of kernels/cpu. */
#include "numerics/ex2.h"

#include <stddef.h>

/* The square whose partial products are truncated, of 17 bits. Two bits a and b of r give 2^(a + b - 18) if a + b >=
 * 18, twice unless a = b; so the products of the upper eight bits h are complete, and the rest of the lower nine is the
 * sum of low >> (9 - b) over the set bits b = 1..7 of h. Halves of a word hold two of these products: low * (2^(b + 7))
 * >> 16. */
static inline vi v_truncated_square(vi r) {
    vi low = vi_and(r, vi_set(511)), high = vi_and(vi_shr(r, 2), vi_set(0x7f80)); /* h << 7 */
    vi sum = vi_mulhi16(high, vi_add(high, high));                                /* h * h >> 1 */
    vi two = vi_add(low, vi_shl16(low)), bits = vi_add(high, vi_shl16(high));
    sum = vi_add(sum, vi_mulhi16(two, vi_and(bits, vi_set(0x02000100))));
    sum = vi_add(sum, vi_mulhi16(two, vi_and(bits, vi_set(0x08000400))));
    sum = vi_add(sum, vi_mulhi16(two, vi_and(bits, vi_set(0x20001000))));
    sum = vi_add(sum, vi_mulhi16(low, vi_and(high, vi_set(0x4000))));
    return vi_add(vi_and(sum, vi_set(0xffff)), vi_shr(sum, 16));
}

_Static_assert(sizeof(iv_ex2_part) == 8, "a pair of words: c0, then c1 below c2");

static inline vf v_ex2(vf x) {
    vi m = vi_truncate(v_mul(x, v_set(0x1p23f))), f = vi_and(m, vi_set(0x7fffff));
    vi rest = vi_shr(vi_add(f, vi_set(0x7fffff)), 23); /* 1 unless f = 0 */
    vi fixed = vi_sub(m, vi_and(rest, vi_shr(v_bits(x), 31)));
    vi part = vi_and(vi_shr(fixed, 17), vi_set(63)), r = vi_and(fixed, vi_set(0x1ffff));
    vi c0, c12;
    vi_pair(iv_ex2_table, part, &c0, &c12);
    vi c1 = vi_and(c12, vi_set(0xffff)), c2 = vi_shr(c12, 16);
    /* The law's sum has 39 bits. c0 / 4 joins after the shift by 15, and r's lowest bit is counted apart, so that half
     * of what is left fits into 32. */
    vi small = vi_add(vi_madd16(c2, v_truncated_square(r)), vi_set(0x77e2));
    small = vi_add(small, vi_and(c1, vi_sub(vi_set(0), vi_and(r, vi_set(1)))));
    small = vi_add(small, vi_shl(vi_and(c0, vi_set(3)), 13));
    vi half = vi_add(vi_mul(c1, vi_shr(r, 1)), vi_shr(small, 1));
    vi v = vi_add(vi_shr(c0, 2), vi_shr(half, 14));
    vf y = v_float(vi_add(vi_add(vi_and(fixed, vi_set(0xff800000u)), vi_set(126u << 23)), v));
    y = v_select(v_less(x, v_set(-126.0f)), v_set(0.0f), y);
    y = v_select(v_less(x, v_set(128.0f)), y, v_float(vi_set(0x7f800000u)));
    return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), y);
}
