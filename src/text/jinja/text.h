/* text.h: values as text: str(), repr(), JSON, and the two formatting languages of Python. */
#ifndef IV_TEXT_JINJA_TEXT_H
#define IV_TEXT_JINJA_TEXT_H

#include "text/jinja/call.h"
#include "text/jinja/run.h"

/* str(v) or repr(v) at the end of buf. */
iv_status ivj_print(ivj_run *r, iv_buf *buf, ivj_value v);
iv_status ivj_repr(ivj_run *r, iv_buf *buf, ivj_value v);
/* str(v) as a value: a string is itself, without its markup. */
iv_status ivj_str(ivj_run *r, ivj_value v, ivj_value *out);
/* The same, but Markup stays Markup. */
iv_status ivj_soft_str(ivj_run *r, ivj_value v, ivj_value *out);

/* repr of a float: the shortest decimal that reads back the same. */
enum { IVJ_FLOAT_BYTES = 40 };
void ivj_float_text(double d, char out[IVJ_FLOAT_BYTES]);

/* HTML escapes of & < > ' " as Markup; Markup is itself. */
iv_status ivj_escape(ivj_run *r, ivj_value v, ivj_value *out);
/* Escapes also what is Markup already. */
iv_status ivj_force_escape(ivj_run *r, ivj_value v, ivj_value *out);

/* The tojson filter: json.dumps with its arguments. */
ivj_callee ivj_filter_tojson;

/* format % args, and format.format(...). Markup formats escape what they are given. */
iv_status ivj_percent(ivj_run *r, ivj_value format, ivj_value args, ivj_value *out);
iv_status ivj_format(ivj_run *r, ivj_value format, const ivj_call *call, ivj_value *out);

/* One number or string formatted: what both languages come down to. */
typedef struct ivj_spec {
    char align; /* '<' '>' '=' '^', or 0: the type's default */
    char sign;  /* '+' ' ' or 0 for '-' */
    char comma; /* ',' '_' or 0: thousands */
    char type;  /* d x X o b f F e E g G c s %, or 0 */
    bool alternate;
    ivj_value fill;       /* one character */
    int width, precision; /* precision -1: none */
} ivj_spec;
enum { IVJ_MAX_WIDTH = 10000, IVJ_MAX_PRECISION = 300 };
iv_status ivj_put_spec(ivj_run *r, iv_buf *buf, const ivj_spec *spec, ivj_value v);

#endif
