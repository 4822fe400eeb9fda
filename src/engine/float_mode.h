/* float_mode.h: the floating-point mode of the caller's thread. The pool's tasks set their own; what the
 * engine does between them (sampling, log-probabilities, the last norm) must not depend on a mode that a
 * caller, or a library with fast-math start-up code, has left behind. */
#ifndef IV_ENGINE_FLOAT_MODE_H
#define IV_ENGINE_FLOAT_MODE_H

#include <xmmintrin.h>

enum { IV_FLOAT_MODE = 0x1f80 }; /* MXCSR: round to nearest, subnormals kept, no traps */

/* Returns what to give to iv_float_mode_leave. */
static inline unsigned iv_float_mode_enter(void) {
    unsigned saved = _mm_getcsr();
    _mm_setcsr(IV_FLOAT_MODE);
    return saved;
}

static inline void iv_float_mode_leave(unsigned saved) { _mm_setcsr(saved); }

#endif
