/* size.h: checked arithmetic on sizes. Each returns false, and writes nothing useful, on overflow. */
#ifndef IV_BASE_SIZE_H
#define IV_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool iv_size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool iv_size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* n rounded up to a multiple of a power of two. */
static inline bool iv_size_round_up(size_t n, size_t multiple, size_t *out) {
    size_t t;
    if (!iv_size_add(n, multiple - 1, &t)) return false;
    *out = t & ~(multiple - 1);
    return true;
}

static inline size_t iv_size_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t iv_size_max(size_t a, size_t b) { return a > b ? a : b; }

#endif
