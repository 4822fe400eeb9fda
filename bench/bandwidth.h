/* bandwidth.h: one read pass over memory, per instruction set. */
#ifndef IV_BENCH_BANDWIDTH_H
#define IV_BENCH_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

/* Reads n bytes (a multiple of 512) from a 64-byte aligned address once, in order, with the widest loads of
 * the named instruction set; returns the exclusive or of all 64-bit words, so that no load is optimized away. */
typedef uint64_t iv_bench_read(const uint8_t *bytes, size_t n);

iv_bench_read iv_bench_read_avx2, iv_bench_read_avx512;

#endif
