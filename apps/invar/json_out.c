/* json_out.c: a JSON writer. Invariant: what it writes is valid JSON as long as begin and end are paired. */
#include "json_out.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void write_string(FILE *file, const char *s, size_t n) {
    fputc('"', file);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t length = cli_utf8_length(s + i, n - i);
        if (length == 0)
            fputs("\\ufffd", file);
        else if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", file);
        else if (c < 0x20 || c == 0x7f)
            fprintf(file, "\\u%04x", c);
        else
            fwrite(s + i, 1, length, file);
        i += length ? length : 1;
    }
    fputc('"', file);
}

static void before(cli_json *json, const char *key) {
    if (json->comma) fputs(", ", json->file);
    json->comma = true;
    if (!key) return;
    write_string(json->file, key, strlen(key));
    fputs(": ", json->file);
}

void cli_json_begin(cli_json *json, const char *key, char bracket) {
    before(json, key);
    fputc(bracket, json->file);
    json->comma = false;
}

void cli_json_end(cli_json *json, char bracket) {
    fputc(bracket, json->file);
    json->comma = true;
}

void cli_json_text(cli_json *json, const char *key, const char *text, size_t bytes) {
    before(json, key);
    write_string(json->file, text, bytes);
}

void cli_json_word(cli_json *json, const char *key, const char *text) {
    before(json, key);
    if (text)
        write_string(json->file, text, strlen(text));
    else
        fputs("null", json->file);
}

void cli_json_count(cli_json *json, const char *key, uint64_t value) {
    before(json, key);
    fprintf(json->file, "%" PRIu64, value);
}

void cli_json_int(cli_json *json, const char *key, int64_t value) {
    before(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void cli_json_bool(cli_json *json, const char *key, bool value) {
    before(json, key);
    fputs(value ? "true" : "false", json->file);
}

const char *cli_float_digits(float value, char out[32]) {
    /* From 6: fewer would write 20 as 2e+01. */
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, 32, "%.*g", digits, (double)value);
        if (strtof(out, NULL) == value) break;
    }
    return out;
}

void cli_json_float(cli_json *json, const char *key, float value) {
    char digits[32];
    before(json, key);
    fputs(isfinite(value) ? cli_float_digits(value, digits) : "null", json->file);
}

void cli_json_double(cli_json *json, const char *key, double value) {
    char digits[32] = "null";
    before(json, key);
    for (int n = 6; n <= 17 && isfinite(value); n++) {
        snprintf(digits, sizeof digits, "%.*g", n, value);
        if (strtod(digits, NULL) == value) break;
    }
    fputs(digits, json->file);
}
