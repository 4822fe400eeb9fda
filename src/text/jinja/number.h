/* number.h: the little arithmetic of doubles that templates need, without libm: the same bits everywhere. */
#ifndef IV_TEXT_JINJA_NUMBER_H
#define IV_TEXT_JINJA_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

double ivj_floor(double d);
double ivj_ceil(double d);
double ivj_round_even(double d); /* to an integer, ties to the even one */
/* a - b * trunc(a / b), exact; a finite, b not zero and not NaN. */
double ivj_remainder(double a, double b);
/* base to an integer power, by squaring in twice the precision of a double. Infinite on overflow. */
double ivj_power(double base, int64_t exponent);

#endif
