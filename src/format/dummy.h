/* dummy.h: dummy weights: a pure function of a seed, a tensor's name and an element's index, equal on every machine, so
 * that a benchmark needs only a config.json.
 *
 *     key    = the first 8 bytes of SHA-256("invar dummy 1\n", u64 seed, name), as two u32
 *     word   = of Philox4x32-10 at counter (b, b >> 32, 0, 0): word i / 16 % 4 of block b = i / 64 * 16 + i % 16
 *     value  = (sum of the word's four bytes - 510) * 9 / 2^16, plus 1 for a vector that is not a bias
 *
 * rounded to the tensor's type; integers little-endian. Matrices have a standard deviation of 0.0203 and a nearly
 * normal distribution; norm weights lie within 0.07 of 1. */
#ifndef IV_FORMAT_DUMMY_H
#define IV_FORMAT_DUMMY_H

#include "format/safetensors.h"

/* Bytes [offset, offset + n) of t, which is BF16, F16 or F32. Thread-safe. */
void iv_dummy_fill(uint64_t seed, const iv_tensor_info *t, void *dst, size_t offset, size_t n);

#endif
