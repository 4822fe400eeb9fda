/* dummy.h: values for weights that nobody trained: a pure function of a seed, a tensor's name and an element's index,
 * whatever the machine, so that a benchmark needs a config.json and no files.
 *
 *     key    = the first 8 bytes of SHA-256("invar dummy 1\n", u64 seed, name), as two u32
 *     word   = of Philox4x32-10 at counter (b, b >> 32, 0, 0): word i / 16 % 4 of block b = i / 64 * 16 + i % 16
 *     value  = (sum of the word's four bytes - 510) * 9 / 2^16, plus 1 for a vector that is no bias
 *
 * rounded to the tensor's type; integers little-endian. Matrices thus have a deviation of 0.0203 and nearly the normal
 * distribution, norms lie within 0.07 of 1. */
#ifndef IV_FORMAT_DUMMY_H
#define IV_FORMAT_DUMMY_H

#include "format/safetensors.h"

/* Bytes [offset, offset + n) of t, which is BF16, F16 or F32. Thread-safe. */
void iv_dummy_fill(uint64_t seed, const iv_tensor_info *t, void *dst, size_t offset, size_t n);

#endif
