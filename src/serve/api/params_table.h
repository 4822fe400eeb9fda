/* params_table.h: the table of every field of every body: what reads it, checks it and describes it. */
#ifndef IV_SERVE_API_PARAMS_TABLE_H
#define IV_SERVE_API_PARAMS_TABLE_H

#include "serve/api/params.h"

#define IV_API_LOGPROBS "message.output_text.logprobs"

typedef enum iv_field_kind {
    IV_FIELD_INT,
    IV_FIELD_FLOAT,
    IV_FIELD_TEMPERATURE, /* a float; tiny values become 0 */
    IV_FIELD_BOOL,
    IV_FIELD_NOT_BOOL, /* the inverse of the member */
    IV_FIELD_STRING,
    IV_FIELD_JSON,
    IV_FIELD_SEED,
    IV_FIELD_STOP,
    IV_FIELD_STOP_IDS,
    IV_FIELD_BIAS,
    IV_FIELD_TOP_K,  /* -1 also means off */
    IV_FIELD_ACCEPT, /* accepted without effect on the answer */
    IV_FIELD_ONLY,   /* one of the values in `only`, which are in effect anyway */
    IV_FIELD_ONE_OF, /* one of the values in `only`, stored */
    IV_FIELD_EACH_OF /* a list of values in `only`, stored */
} iv_field_kind;

typedef struct iv_api_field {
    unsigned bodies;
    const char *name;
    iv_field_kind kind;
    size_t at; /* of the member */
    double min, max;
    const char *only; /* JSON values between bars; for IV_FIELD_JSON: the allowed types */
} iv_api_field;

extern const iv_api_field iv_api_fields[];
extern const size_t iv_api_field_count;

/* What a field of this name does, in a few words; NULL: no such name. */
const char *iv_api_field_help(const char *name);
/* The field of a body whose name is nearest to this one, for "did you mean"; NULL: none is near. */
const char *iv_api_field_like(unsigned body, const char *name);

#endif
