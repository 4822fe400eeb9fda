/* clock.h: the monotonic clock, in seconds. */
#ifndef IV_BASE_CLOCK_H
#define IV_BASE_CLOCK_H

#include <time.h>

static inline double iv_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
