/* flags.c: the parser of every command line. Invariant: after CLI_OK a cli_args holds only values within the ranges of
 * their rows, and no flag more often than its row allows. */
#include "flags.h"
#include "text.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values -------------------------------------------------------------------------------------------- */

/* Describes the flag's values, for errors. Returns out. */
static const char *wanted(const cli_flag *flag, char out[160]) {
    switch (flag->kind) {
    case CLI_COUNT:
        snprintf(out, 160, "a whole number from %llu to %llu", (unsigned long long)flag->least,
                 (unsigned long long)flag->greatest);
        break;
    case CLI_REAL:
        if (!flag->above_low)
            snprintf(out, 160, "a number from %g to %g", flag->low, flag->high);
        else
            snprintf(out, 160, "a number above %g and at most %g", flag->low, flag->high);
        break;
    case CLI_MEMORY: snprintf(out, 160, "bytes such as 1048576, 512M or 2G, or a fraction such as 0.5"); break;
    case CLI_BYTES:
        snprintf(out, 160, "from %llu to %llu bytes, such as 1048576 or 32M", (unsigned long long)flag->least,
                 (unsigned long long)flag->greatest);
        break;
    case CLI_BIAS: snprintf(out, 160, "ID=F, a token id and a number from %g to %g", flag->low, flag->high); break;
    case CLI_CHOICE: snprintf(out, 160, "one of: %s", flag->choices); break;
    case CLI_IDS: snprintf(out, 160, "token ids such as 1,2,3"); break;
    case CLI_TEXT:
    case CLI_FILE:
    case CLI_SWITCH: snprintf(out, 160, "%s", flag->metavar ? flag->metavar : "no value"); break;
    }
    return out;
}

/* Digits only: strtoull alone would also take blanks, a sign and wrap negative numbers. */
static bool read_count(const char *text, size_t n, uint64_t *out) {
    uint64_t value = 0;
    if (n == 0) return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        if (__builtin_mul_overflow(value, (uint64_t)10, &value)) return false;
        if (__builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value)) return false;
    }
    *out = value;
    return true;
}

/* Decimal only: no blanks, hexadecimal, infinities or NaN. Rounded to double, then to float, as numbers in JSON
 * requests are. */
static bool read_real(const char *text, float *out) {
    if (text[0] == 0 || strspn(text, "+-.0123456789eE") != strlen(text)) return false;
    char *end;
    double value = strtod(text, &end);
    if (*end != 0 || end == text) return false;
    *out = (float)value;
    return isfinite(*out);
}

static bool in_range(const cli_flag *flag, float value) {
    double v = value;
    return (flag->above_low ? v > flag->low : v >= flag->low) && v <= flag->high;
}

/* Whether the n bytes are one of the known names, which spaces separate. */
static bool is_name(const char *known, const char *name, size_t n) {
    for (const char *at = known; *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, name, n) == 0) return true;
        at += length;
        at += strspn(at, " ");
    }
    return false;
}

int cli_parse_ids(const char *text, int32_t *out, size_t *count, iv_error *err) {
    size_t n = 0;
    for (const char *at = text;;) {
        at += strspn(at, " ");
        size_t length = strspn(at, "0123456789");
        uint64_t id;
        if (!read_count(at, length, &id) || id > INT32_MAX)
            return cli_fail(err, CLI_USAGE, "wanted token ids such as 1,2,3, found '%.40s' at position %zu", at, n + 1);
        if (n == CLI_IDS_MAX) return cli_fail(err, CLI_USAGE, "wanted at most %d token ids", CLI_IDS_MAX);
        if (out) out[n] = (int32_t)id;
        n++;
        at += length;
        at += strspn(at, " ");
        if (*at == 0) break;
        if (*at != ',') return cli_fail(err, CLI_USAGE, "wanted a comma after token id %zu, found '%.40s'", n, at);
        at++;
    }
    *count = n;
    return CLI_OK;
}

static bool read_bias(const cli_flag *flag, const char *text, cli_value *out) {
    size_t digits = strcspn(text, "=");
    return text[digits] == '=' && read_count(text, digits, &out->count) && out->count <= INT32_MAX &&
           read_real(text + digits + 1, &out->real) && in_range(flag, out->real);
}

/* 1048576, 512M, 2GiB, or 0.5: a fraction of free memory. */
static bool read_bytes(const char *text, cli_value *out) {
    static const char units[] = "KMGT";
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits;
    if (!read_count(text, digits, &out->count) || out->count == 0) return false;
    const char *at = *unit ? strchr(units, *unit & ~0x20) : NULL;
    if (*unit && !at) return false;
    int shift = at ? 10 * (int)(at - units + 1) : 0;
    if (at && unit[1] && strcmp(unit + 1, "iB") != 0 && strcmp(unit + 1, "B") != 0) return false;
    if (out->count > UINT64_MAX >> shift) return false;
    out->count <<= shift;
    return true;
}

static bool read_memory(const char *text, cli_value *out) {
    if (text[strspn(text, "0123456789")] != '.') return read_bytes(text, out);
    return read_real(text, &out->real) && out->real > 0.0f && out->real < 1.0f;
}

int cli_parse_value(const cli_flag *flag, const char *text, cli_value *out, iv_error *err) {
    *out = (cli_value){.flag = flag, .text = text};
    bool good = true;
    size_t at;
    switch (flag->kind) {
    case CLI_SWITCH:
    case CLI_FILE: break;
    case CLI_TEXT:
        if (!iv_utf8_valid((const uint8_t *)text, strlen(text), &at))
            return cli_fail(err, CLI_USAGE, "--%s: wanted UTF-8, found byte 0x%02x at offset %zu", flag->name,
                            (unsigned)(unsigned char)text[at], at);
        break;
    case CLI_COUNT:
        good = read_count(text, strlen(text), &out->count) && out->count >= flag->least && out->count <= flag->greatest;
        break;
    case CLI_REAL: good = read_real(text, &out->real) && in_range(flag, out->real); break;
    case CLI_MEMORY: good = read_memory(text, out); break;
    case CLI_BYTES: good = read_bytes(text, out) && out->count >= flag->least && out->count <= flag->greatest; break;
    case CLI_CHOICE: good = is_name(flag->choices, text, strlen(text)); break;
    case CLI_BIAS: good = read_bias(flag, text, out); break;
    case CLI_IDS: {
        iv_error why;
        if (cli_parse_ids(text, NULL, &at, &why) != CLI_OK)
            return cli_fail(err, CLI_USAGE, "--%s: %.300s", flag->name, why.message);
        break;
    }
    }
    if (good) return CLI_OK;
    char want[160], found[CLI_SHOWN_BYTES];
    return cli_fail(err, CLI_USAGE, "--%s: wanted %s, found '%s'", flag->name, wanted(flag, want),
                    cli_shown(text, found));
}

/* ---- words --------------------------------------------------------------------------------------------- */

static const cli_flag *known_flag(const cli_syntax *syntax, const char *name, size_t n) {
    for (const cli_section *const *s = syntax->sections; *s; s++)
        for (const cli_flag *f = (*s)->flags; f->name; f++)
            if (is_name(f->name, name, n) || (f->alias && is_name(f->alias, name, n))) return f;
    return NULL;
}

static const cli_flag *known_letter(const cli_syntax *syntax, char letter) {
    for (const cli_section *const *s = syntax->sections; *s; s++)
        for (const cli_flag *f = (*s)->flags; f->name; f++)
            if (f->letter && f->letter == letter) return f;
    return NULL;
}

int cli_unknown_flag(const cli_syntax *syntax, const char *word, iv_error *err) {
    char name[CLI_SHOWN_BYTES], shown[CLI_SHOWN_BYTES];
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = 0;
    cli_shown(word, shown);
    const cli_flag *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (const cli_section *const *s = syntax->sections; *s; s++)
        for (const cli_flag *f = (*s)->flags; f->name; f++) {
            size_t distance = cli_word_distance(name, f->name);
            if (distance < best_distance) best = f, best_distance = distance;
        }
    if (best && cli_is_near(best_distance, name))
        return cli_fail(err, CLI_USAGE, "unknown flag '%s': did you mean --%s?", shown, best->name);
    return cli_fail(err, CLI_USAGE, "unknown flag '%s'", shown);
}

int cli_add_value(cli_args *args, const cli_value *value, iv_error *err) {
    size_t before = 0, most = value->flag->most ? value->flag->most : 1;
    for (size_t i = 0; i < args->value_count; i++) before += args->values[i].flag == value->flag;
    if (before >= most && most == 1) return cli_fail(err, CLI_USAGE, "--%s: given twice", value->flag->name);
    if (before >= most) return cli_fail(err, CLI_USAGE, "--%s: given more than %zu times", value->flag->name, most);
    if (args->value_count == CLI_VALUES_MAX)
        return cli_fail(err, CLI_USAGE, "wanted at most %d flags, found more", CLI_VALUES_MAX);
    args->values[args->value_count++] = *value;
    return CLI_OK;
}

/* A further value of a flag of several words: NAME=DIR, or an object. */
static bool is_further(const char *word) { return *word != '-' && (*word == '{' || strchr(word, '=')); }

/* One flag and its value; *used is the number of words consumed. */
static int take_flag(cli_args *args, int left, char *const *words, int *used, iv_error *err) {
    const char *word = words[0], *text = NULL;
    const cli_flag *flag;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        flag = known_flag(args->syntax, word + 2, n);
        if (word[2 + n] == '=') text = word + 2 + n + 1;
    } else
        flag = word[2] == 0 ? known_letter(args->syntax, word[1]) : NULL;
    if (!flag) return cli_unknown_flag(args->syntax, word, err);
    *used = 1;
    cli_value value = {.flag = flag};
    if (flag->kind == CLI_SWITCH) {
        char found[CLI_SHOWN_BYTES];
        if (text)
            return cli_fail(err, CLI_USAGE, "--%s: wanted no value, found '%s'", flag->name, cli_shown(text, found));
    } else {
        if (!text) {
            char want[160];
            if (left < 2)
                return cli_fail(err, CLI_USAGE, "--%s: wanted %s, found nothing", flag->name, wanted(flag, want));
            text = words[1];
            *used = 2;
        }
        int code = cli_parse_value(flag, text, &value, err);
        if (code != CLI_OK) return code;
    }
    int code = cli_add_value(args, &value, err);
    for (; code == CLI_OK && flag->words && *used < left && is_further(words[*used]); ++*used) {
        code = cli_parse_value(flag, words[*used], &value, err);
        if (code == CLI_OK) code = cli_add_value(args, &value, err);
    }
    return code;
}

static int take_operand(cli_args *args, const char *word, iv_error *err) {
    size_t most = args->syntax->second ? 2 : args->syntax->operand ? 1 : 0;
    char found[CLI_SHOWN_BYTES];
    if (args->operand_count >= most)
        return cli_fail(err, CLI_USAGE, "wanted %s%s%s%s, found '%s' as well", most ? "one " : "no words but flags",
                        most ? args->syntax->operand : "", most > 1 ? " and one " : "",
                        most > 1 ? args->syntax->second : "", cli_shown(word, found));
    args->operands[args->operand_count++] = word;
    return CLI_OK;
}

int cli_parse(const cli_syntax *syntax, int count, char *const *words, cli_args *args, iv_error *err) {
    args->syntax = syntax;
    args->value_count = args->operand_count = 0;
    args->help = false;
    bool flags = true;
    for (int i = 0, used = 1; i < count; i += used) {
        const char *word = words[i];
        int code;
        used = 1;
        if (flags && strcmp(word, "--") == 0) {
            flags = false;
            continue;
        }
        if (flags && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            args->help = true;
            return CLI_OK;
        }
        if (flags && word[0] == '-' && word[1])
            code = take_flag(args, count - i, words + i, &used, err);
        else
            code = take_operand(args, word, err);
        if (code != CLI_OK) return code;
    }
    bool from_file = syntax->has_config && cli_has(args, "config");
    if (syntax->operand && !syntax->operand_optional && !from_file && args->operand_count == 0)
        return cli_fail(err, CLI_USAGE, "wanted %s, found nothing", syntax->operand);
    return CLI_OK;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

const cli_flag *cli_flag_find(const cli_syntax *syntax, const char *name) {
    return known_flag(syntax, name, strlen(name));
}

const cli_value *cli_nth(const cli_args *args, const char *name, size_t n) {
    assert(cli_flag_find(args->syntax, name));
    for (size_t i = 0; i < args->value_count; i++)
        if (strcmp(args->values[i].flag->name, name) == 0 && n-- == 0) return &args->values[i];
    return NULL;
}

const cli_value *cli_find(const cli_args *args, const char *name) { return cli_nth(args, name, 0); }

bool cli_has(const cli_args *args, const char *name) { return cli_find(args, name) != NULL; }

const char *cli_text(const cli_args *args, const char *name, const char *otherwise) {
    const cli_value *value = cli_find(args, name);
    return value ? value->text : otherwise;
}

uint64_t cli_count(const cli_args *args, const char *name, uint64_t otherwise) {
    const cli_value *value = cli_find(args, name);
    return value ? value->count : otherwise;
}
