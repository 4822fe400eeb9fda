/* cpu.h: everything that depends on the processor or on the kernel's wait primitive: features by name, the
 * floating-point environment of a thread, spinning, sleeping on a word. No other file outside src/kernels/cpu/x86
 * includes an architecture's header. */
#ifndef IV_BASE_CPU_H
#define IV_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#elif !defined(__aarch64__)
#error "base/cpu.h: no floating-point environment for this architecture"
#endif

/* True if this CPU, and the kernel's context switch, have the feature: "avx2", "fma", "f16c", "avx512f", "avx512bw",
 * "avx512dq", "avx512vl", "avx512bf16", "avx512vnni", "avxvnni", "dotprod" (Arm), or "amd" for the vendor. An unknown
 * name is false. */
bool iv_cpu_has(const char *feature);

/* Turns of a loop with iv_cpu_pause before a waiting thread sleeps (INVAR_SPINS of the build). */
#ifndef IV_SPINS
#define IV_SPINS 4000
#endif

/* The mode of a thread's floating-point arithmetic. IV_FP_DEFAULT is the mode of the law (NUMERICS.md, section 2):
 * round to nearest even, keep subnormals, raise no traps. The others are flags. */
enum {
    IV_FP_DEFAULT = 0,
    IV_FP_FLUSH = 1,   /* subnormal operands and results become zeros of their sign */
    IV_FP_TRUNCATE = 2 /* round toward zero */
};

#if defined(__x86_64__)

/* MXCSR without the sticky exception flags: all exceptions masked; FTZ and DAZ; rounding toward zero. A result counts
 * as subnormal after rounding. */
static inline unsigned iv_fp_word(unsigned mode) {
    return 0x1f80u | (mode & IV_FP_FLUSH ? 0x8040u : 0) | (mode & IV_FP_TRUNCATE ? 0x6000u : 0);
}
static inline unsigned iv_fp_env(void) { return _mm_getcsr() & 0xffc0u; }
static inline void iv_fp_env_leave(unsigned saved) { _mm_setcsr(saved); }
static inline unsigned iv_fp_env_enter(unsigned mode) {
    unsigned saved = _mm_getcsr();
    _mm_setcsr(iv_fp_word(mode));
    return saved;
}
static inline void iv_cpu_pause(void) { _mm_pause(); }

#else

/* FPCR: FZ, which flushes operands and results; RMode. A result counts as subnormal before rounding, which differs from
 * x86 and from the law for products, not for sums: a subnormal sum of two floats is exact. */
static inline unsigned iv_fp_word(unsigned mode) {
    return (mode & IV_FP_FLUSH ? 1u << 24 : 0) | (mode & IV_FP_TRUNCATE ? 3u << 22 : 0);
}
static inline unsigned iv_fp_env(void) {
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
    return (unsigned)word;
}
static inline void iv_fp_env_leave(unsigned saved) {
    uint64_t word = saved;
    __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory");
}
static inline unsigned iv_fp_env_enter(unsigned mode) {
    unsigned saved = iv_fp_env();
    iv_fp_env_leave(iv_fp_word(mode));
    return saved;
}
static inline void iv_cpu_pause(void) { __asm__ volatile("yield"); }

#endif

/* Runs `call` in a mode. It must be a call of a function that is not inlined, so that no arithmetic moves across the
 * change. */
#define IV_WITH_FP(mode, call)                      \
    do {                                            \
        unsigned iv_saved_ = iv_fp_env_enter(mode); \
        call;                                       \
        iv_fp_env_leave(iv_saved_);                 \
    } while (0)

/* Sleeps while *word is `seen`; may return early. `word` is 32 bits, private to the process. */
void iv_cpu_wait(void *word, unsigned seen);
/* Wakes up to n threads that sleep on `word`. */
void iv_cpu_wake(void *word, int n);

#endif
