/* elementary64.c: series in double with one order of operations. Errors: iv_exp64 and iv_log64 within a few ulp,
 * sines within 2^-30 absolute up to 2^20 turns. */
#include "numerics/elementary64.h"
#include "numerics/strict.h"

#include <math.h>
#include <string.h>

#define LN2_HIGH 0x1.62e42feep-1 /* 33 bits: products with small integers are exact */
#define LN2_LOW 0x1.a39ef35793c76p-33

double iv_log64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) m *= 0.5, e++;
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 25; k >= 1; k -= 2) sum = sum * z + 1.0 / k; /* atanh series, |s| < 0.172 */
    return e * LN2_HIGH + (2.0 * s * sum + e * LN2_LOW);
}

double iv_exp64(double x) {
    if (!(x <= 700.0)) return x > 700.0 ? (double)INFINITY : x;
    if (x < -700.0) return 0.0;
    double scaled = x / (LN2_HIGH + LN2_LOW);
    int n = (int)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double r = (x - n * LN2_HIGH) - n * LN2_LOW, sum = 1.0;
    for (int k = 16; k >= 1; k--) sum = 1.0 + r * sum / k;
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &u, sizeof scale);
    return sum * scale;
}

void iv_sincos64(double x, double *sine, double *cosine) {
    /* pi/2 in three parts of 33, 33 and 53 bits (Cody and Waite): n times the first two is exact below 2^20. */
    const double p1 = 0x1.921fb544p+0, p2 = 0x1.0b4611a6p-34, p3 = 0x1.3198a2e037073p-69;
    int64_t n = (int64_t)(x * 0x1.45f306dc9c883p-1 + 0.5);
    double k = (double)n, r = ((x - k * p1) - k * p2) - k * p3, z = r * r;
    double s = 0.0, c = 0.0;
    for (int i = 20; i >= 2; i -= 2) {
        s = (1.0 + s) * (-z / (double)(i * (i + 1)));
        c = (1.0 + c) * (-z / (double)(i * (i - 1)));
    }
    s = r + r * s, c = 1.0 + c;
    switch (n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

double iv_power64(double b, uint64_t n) {
    double r = 1.0;
    for (; n > 0; n >>= 1) {
        if (n & 1) r = r * b;
        b = b * b;
    }
    return r;
}
