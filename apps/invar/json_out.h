/* json_out.h: writing JSON. jansson cannot say an unsigned 64-bit seed or the shortest form of a float. */
#ifndef INVAR_CLI_JSON_OUT_H
#define INVAR_CLI_JSON_OUT_H

#include "invar.h"
#include <stdio.h>

typedef struct cli_json {
    FILE *file;
    bool comma; /* something came before in this object or array */
} cli_json;

/* key is NULL inside arrays and at the top. Text must be UTF-8; what is not becomes U+FFFD. */
void cli_json_begin(cli_json *json, const char *key, char bracket); /* '{' or '[' */
void cli_json_end(cli_json *json, char bracket);                    /* '}' or ']' */
void cli_json_text(cli_json *json, const char *key, const char *text, size_t bytes);
void cli_json_word(cli_json *json, const char *key, const char *text); /* NUL-terminated; NULL: null */
void cli_json_count(cli_json *json, const char *key, uint64_t value);
void cli_json_int(cli_json *json, const char *key, int64_t value);
void cli_json_bool(cli_json *json, const char *key, bool value);
/* The fewest digits that read back as the same float or double; null when not finite. */
void cli_json_float(cli_json *json, const char *key, float value);
void cli_json_double(cli_json *json, const char *key, double value);

/* The fewest digits that read back as the same float. Returns out. */
const char *cli_float_digits(float value, char out[32]);

#endif
