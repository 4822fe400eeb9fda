/* pace.h: how many prompt tokens a step may have so that it takes about a target time. While sequences decode, a step's
 * time is the pause between their tokens. The estimate is learned from measured steps; it affects speed only, as a plan
 * never changes a bit. */
#ifndef IV_SCHED_PACE_H
#define IV_SCHED_PACE_H

#include <stddef.h>

/* Zero-initialized: no target, nothing measured. */
typedef struct iv_pace {
    double target; /* seconds; 0: no limit */
    double decode; /* a step without prompt tokens, seconds; 0: none measured */
    double token;  /* a prompt token, seconds; 0: none measured */
} iv_pace;

/* The most prompt tokens of a step in which sequences decode, of `budget` tokens at most. At least IV_PACE_TOKENS_MIN,
 * so that prompts progress if decoding alone takes longer than the target. */
enum { IV_PACE_TOKENS_MIN = 128, IV_PACE_TOKENS_FIRST = 1024 };
size_t iv_pace_tokens(const iv_pace *p, size_t budget);

/* A step with these tokens took `seconds`. */
void iv_pace_measured(iv_pace *p, size_t prompt_tokens, size_t decode_tokens, double seconds);

#endif
