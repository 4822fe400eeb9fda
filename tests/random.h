/* random.h: seeded test data in families that find rounding mistakes. The seed is printed by every user. */
#ifndef IV_TESTS_RANDOM_H
#define IV_TESTS_RANDOM_H

#include "base/dtype.h"
#include "numerics/floats.h"
#include "support.h"

#include <math.h>
#include <time.h>

typedef struct rng {
    uint64_t s;
} rng;

static inline uint64_t rng_next(rng *r) { /* splitmix64 (Steele, Lea, Flood 2014) */
    uint64_t z = r->s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline size_t rng_below(rng *r, size_t n) { return (size_t)(rng_next(r) % n); }

/* INVAR_TEST_SHORT=1: a tenth of the shapes, the smaller ones, for tools that slow a GPU down a hundredfold. */
static inline bool short_run(void) { return getenv("INVAR_TEST_SHORT") != NULL; }

/* INVAR_TEST_SEED repeats a run; otherwise the clock. Printed either way, and that the run is a short one. */
static inline rng rng_start(const char *test) {
    const char *text = getenv("INVAR_TEST_SEED");
    rng r = {text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid()};
    printf("%s: INVAR_TEST_SEED=%llu%s\n", test, (unsigned long long)r.s,
           short_run() ? ", INVAR_TEST_SHORT: a tenth of the shapes" : "");
    return r;
}

/* How many random shapes a test tries: ./run test, and ./run test --long. */
static inline size_t trials(size_t usual, size_t longest) {
    size_t few = usual < 30 ? 3 : usual / 10;
    if (short_run()) return few < usual ? few : usual;
    return getenv("INVAR_TEST_LONG") ? longest : usual;
}

typedef enum family { NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE, SPECIAL, FAMILIES } family;

static inline float random_float(rng *r, family f) {
    uint64_t u = rng_next(r);
    float x = ldexpf((float)((double)(u >> 11) * 0x1p-52 - 1.0), (int)(rng_next(r) % 3));
    switch (f) {
    case WIDE: return ldexpf(x, (int)(rng_next(r) % 200) - 100);
    case SUBNORMAL: return ldexpf(x, -(int)(rng_next(r) % 80) - 60);
    case CANCEL: return (u & 1 ? 1.0f : -1.0f) * (1.0f + (float)(rng_next(r) % 4) * 0x1p-7f);
    case SPARSE: return u % 4 ? (u & 8 ? 0.0f : -0.0f) : x;
    case SPECIAL: {
        static const uint32_t bits[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u,
                                        0x7f7fffffu, 0x00800000u, 0x00000001u, 0x807fffffu, 0x3f800000u, 0xbf800000u};
        return u % 16 ? x : iv_float(bits[rng_next(r) % (sizeof bits / sizeof *bits)]);
    }
    default: return x;
    }
}

static inline void put_type(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

static inline void *random_values(rng *r, family f, iv_dtype type, size_t n) {
    void *p = malloc(n ? n * iv_dtype_bytes(type) : 1);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) put_type(type, p, i, random_float(r, f));
    return p;
}

/* Fails with the first differing element in hex. NaN of any payload equals NaN if any_nan. */
static inline void assert_same_bits(const char *what, const void *want, const void *got, size_t n, size_t element,
                                    bool any_nan) {
    for (size_t i = 0; i < n; i++) {
        uint32_t a = 0, b = 0;
        memcpy(&a, (const char *)want + i * element, element);
        memcpy(&b, (const char *)got + i * element, element);
        if (any_nan && element == 4 && isnan(iv_float(a)) && isnan(iv_float(b))) continue;
        if (a != b)
            fail_msg("%s: element %zu: wanted %0*x, got %0*x", what, i, (int)element * 2, a, (int)element * 2, b);
    }
}

#endif
