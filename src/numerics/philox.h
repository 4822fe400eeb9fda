/* philox.h: the counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw; SC 2011). */
#ifndef IV_NUMERICS_PHILOX_H
#define IV_NUMERICS_PHILOX_H

#include <stdint.h>

/* out = philox4x32_10(counter, key). Pure. */
void iv_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
