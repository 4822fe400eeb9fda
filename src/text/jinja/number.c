/* number.c: exact or nearly exact double arithmetic from + - * / and integers. */
#include "text/jinja/number.h"

#include <math.h>

#define TWO_52 4503599627370496.0

double ivj_floor(double d) {
    if (!(fabs(d) < TWO_52) || d == 0) return d; /* integers, infinities, NaN and both zeros */
    double t = (double)(int64_t)d;
    return t > d ? t - 1 : t == 0 ? copysign(t, d) : t;
}

double ivj_ceil(double d) { return -ivj_floor(-d); }

double ivj_round_even(double d) {
    double low = ivj_floor(d), rest = d - low;
    if (!(rest > 0)) return d;
    bool odd = fabs(low) < TWO_52 && ((int64_t)low & 1);
    return rest > 0.5 || (rest == 0.5 && odd) ? low + 1 : low;
}

double ivj_remainder(double a, double b) {
    int a_exp, b_exp;
    if (isinf(b) || a == 0) return a;
    /* Mantissas as integers of 53 bits, then long division, one bit a step. */
    uint64_t x = (uint64_t)ldexp(frexp(fabs(a), &a_exp), 53), y = (uint64_t)ldexp(frexp(fabs(b), &b_exp), 53);
    if (a_exp < b_exp) return a;
    for (x %= y; a_exp > b_exp; a_exp--) x = (x << 1) % y;
    return copysign(ldexp((double)x, b_exp - 53), a);
}

/* high + low: a number of twice the precision. */
typedef struct pair {
    double high, low;
} pair;

/* The two halves of a double's mantissa, so that their products are exact. */
static pair split(double d) {
    double t = d * 134217729.0, high = t - (t - d);
    return (pair){high, d - high};
}

static pair multiply(pair a, pair b) {
    double p = a.high * b.high;
    pair x = split(a.high), y = split(b.high);
    double error = ((x.high * y.high - p) + x.high * y.low + x.low * y.high) + x.low * y.low;
    error += a.high * b.low + a.low * b.high;
    double high = p + error;
    return (pair){high, isfinite(high) ? error - (high - p) : 0};
}

double ivj_power(double base, int64_t exponent) {
    uint64_t n = exponent < 0 ? 0 - (uint64_t)exponent : (uint64_t)exponent;
    pair result = {1, 0}, square = {base, 0};
    for (; n; n >>= 1) {
        if (n & 1) result = multiply(result, square);
        if (n > 1) square = multiply(square, square);
    }
    return exponent < 0 ? 1 / result.high : result.high;
}
