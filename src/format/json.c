/* json.c: jansson with strict flags, and errors with line and column.
 *
 * jansson 2.14 misses some failed growths of its buffers. Its allocator is therefore replaced once by one that, within
 * a parse, keeps failing after the first failure and records it: a parse without enough memory always ends as
 * IV_NO_MEMORY. */
#include "format/json.h"
#include "base/file.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct { bool parsing, failed; } memory;

static void *allocate(size_t n) {
    if (memory.parsing && memory.failed) return NULL;
    void *p = malloc(n);
    if (!p) memory.failed = true;
    return p;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void install(void) { json_set_alloc_funcs(allocate, free); }

static json_t *load(const char *bytes, size_t n, size_t flags, json_error_t *je) {
    memory.parsing = true, memory.failed = false;
    json_t *root = json_loadb(bytes, n, flags, je);
    memory.parsing = false;
    return root;
}

/* ---- the text of documents known to be valid JSON ------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The index after the string that begins at s[i]. */
static size_t string_end(const char *s, size_t n, size_t i) {
    for (i++; i < n && s[i] != '"'; i++) i += s[i] == '\\';
    return i + 1;
}

static bool beyond_64_bits(const char *s, size_t n) {
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    bool negative = *s == '-';
    s += negative, n -= negative;
    return n > sizeof most - 1 || (n == sizeof most - 1 && memcmp(s, negative ? least : most, n) > 0);
}

/* The index after the number that begins at s[i]. *beyond: an integer beyond 64 bits. */
static size_t number_end(const char *s, size_t n, size_t i, bool *beyond) {
    size_t from = i++;
    while (i < n && is_digit(s[i])) i++;
    bool integer = i == n || (s[i] != '.' && s[i] != 'e' && s[i] != 'E');
    *beyond = integer && beyond_64_bits(s + from, i - from);
    while (i < n && (is_digit(s[i]) || memchr(".eE+-", s[i], 5))) i++;
    return i;
}

/* The text with ".0" appended to each integer beyond 64 bits, so that only these are read as reals. */
static bool widen(const char *s, size_t n, iv_buf *out) {
    size_t done = 0;
    bool ok = true, beyond;
    for (size_t i = 0; ok && i < n;) {
        if (s[i] == '"') {
            i = string_end(s, n, i);
        } else if (s[i] == '-' || is_digit(s[i])) {
            i = number_end(s, n, i, &beyond);
            if (!beyond) continue;
            ok = iv_buf_append(out, s + done, i - done) && iv_buf_puts(out, ".0");
            done = i;
        } else {
            i++;
        }
    }
    return ok && iv_buf_append(out, s + done, n - done);
}

/* The length of the word that Python writes at s[i] for a number that JSON lacks; 0: no such word. */
static size_t word_at(const char *s, size_t n, size_t i) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        size_t length = strlen(words[k]);
        if (n - i >= length && memcmp(s + i, words[k], length) == 0) return length;
    }
    return 0;
}

/* The text with each such word as a string that begins with U+0001. False if it has none, or memory is out. */
static bool quote_words(const char *s, size_t n, iv_buf *out) {
    size_t done = 0, word;
    for (size_t i = 0; i < n;) {
        if (s[i] == '"') {
            i = string_end(s, n, i);
        } else if ((word = word_at(s, n, i)) != 0) {
            if (!iv_buf_append(out, s + done, i - done) || !iv_buf_printf(out, "\"\\u0001%.*s\"", (int)word, s + i))
                return false;
            done = i += word;
        } else {
            i++;
        }
    }
    return done && iv_buf_append(out, s + done, n - done);
}

/* ---- parsing ------------------------------------------------------------------------------------------- */

/* jansson reads either all integers as reals, or none. A first pass reads all of them as reals and reports other errors
 * at their positions; then only the wide integers are made reals in the text. */
static json_t *load_wide(const char *bytes, size_t n, size_t flags, json_error_t *je) {
    iv_buf text = {0};
    json_t *root = load(bytes, n, flags | JSON_DECODE_INT_AS_REAL, je);
    if (!root) return NULL;
    json_decref(root), root = NULL;
    if (widen(bytes, n, &text))
        root = load(text.data, text.len, flags, je);
    else
        memory.failed = true;
    iv_buf_free(&text);
    return root;
}

static iv_status parse(const char *name, const char *bytes, size_t n, size_t flags, json_t **out, iv_error *err) {
    json_error_t je;
    pthread_once(&once, install);
    flags |= JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *root = load(bytes, n, flags, &je);
    if (!root && !memory.failed && json_error_code(&je) == json_error_numeric_overflow)
        root = load_wide(bytes, n, flags, &je);
    if (memory.failed) {
        json_decref(root);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory to parse %zu bytes of JSON", name, n);
    }
    if (!root && iv_utf8_mark(bytes, n))
        return iv_fail(err, IV_FORMAT, "%s: not valid JSON: found a byte order mark (EF BB BF) at its beginning", name);
    if (!root && json_error_code(&je) == json_error_duplicate_key)
        return iv_fail(err, IV_FORMAT, "%s:%d:%d: one object has a key twice: %s", name, je.line, je.column, je.text);
    if (!root) return iv_fail(err, IV_FORMAT, "%s:%d:%d: not valid JSON: %s", name, je.line, je.column, je.text);
    const char *nul = memchr(bytes, 0, n); /* jansson misses one that follows a number */
    if (nul) {
        json_decref(root);
        return iv_fail(err, IV_FORMAT, "%s: not valid JSON: a NUL at byte %zu", name, (size_t)(nul - bytes));
    }
    *out = root;
    return IV_OK;
}

iv_status iv_json_parse(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err) {
    return parse(name, bytes, n, JSON_REJECT_DUPLICATES, out, err);
}

iv_status iv_json_parse_python(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err) {
    iv_buf text = {0};
    iv_error ignored;
    iv_status status = iv_json_parse(name, bytes, n, out, err);
    if (status == IV_FORMAT && quote_words(bytes, n, &text) &&
        iv_json_parse(name, text.data, text.len, out, &ignored) == IV_OK)
        status = IV_OK;
    iv_buf_free(&text);
    return status;
}

/* The word if the value is one of these; otherwise NULL. */
static const char *python_number(const json_t *value) {
    const char *text = json_string_value(value);
    return text && *text == 1 && word_at(text + 1, strlen(text + 1), 0) ? text + 1 : NULL;
}

iv_status iv_json_parse_repeating(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err) {
    return parse(name, bytes, n, 0, out, err);
}

/* ---- members ------------------------------------------------------------------------------------------- */

static size_t skip_space(const char *s, size_t n, size_t i) {
    while (i < n && memchr(" \t\r\n", s[i], 4)) i++;
    return i;
}

/* The index after the value that begins at s[i]. */
static size_t value_end(const char *s, size_t n, size_t i) {
    size_t depth = 0;
    do {
        if (s[i] == '"') {
            i = string_end(s, n, i);
        } else if (s[i] == '{' || s[i] == '[') {
            depth++, i++;
        } else if (s[i] == '}' || s[i] == ']') {
            depth--, i++;
        } else {
            while (++i < n && !memchr("{}[]\", \t\r\n", s[i], 11)) {}
        }
    } while (depth && i < n);
    return i;
}

/* Whether the quoted string of n bytes, unescaped, is the key. */
static bool spells(const char *string, size_t n, const char *key) {
    json_error_t unused;
    json_t *name = load(string, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &unused);
    bool same =
        name && json_string_length(name) == strlen(key) && memcmp(json_string_value(name), key, strlen(key)) == 0;
    json_decref(name);
    return same;
}

bool iv_json_member_text(const char *object, size_t n, const char *key, const char **text, size_t *bytes) {
    bool found = false;
    size_t i = skip_space(object, n, 0) + 1; /* after the { */
    while ((i = skip_space(object, n, i)) < n && object[i] != '}') {
        size_t name = i, end = string_end(object, n, i);
        size_t value = skip_space(object, n, skip_space(object, n, end) + 1); /* after the : */
        i = value_end(object, n, value);
        if (spells(object + name, end - name, key)) {
            found = true;
            *text = object + value, *bytes = i - value;
        }
        i = skip_space(object, n, i);
        if (i < n && object[i] == ',') i++;
    }
    return found;
}

bool iv_json_element_text(const char *list, size_t n, size_t *at, const char **text, size_t *bytes) {
    size_t i = skip_space(list, n, *at ? *at : skip_space(list, n, 0) + 1); /* after the [ */
    if (i < n && list[i] == ',') i = skip_space(list, n, i + 1);
    if (i >= n || list[i] == ']') return false;
    *at = value_end(list, n, i);
    *text = list + i, *bytes = *at - i;
    return true;
}

bool iv_json_unsigned(const char *text, size_t n, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_digit(text[i]) || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return false;
    *out = value;
    return n > 0;
}

iv_status iv_json_read(const char *path, size_t max_bytes, json_t **out, iv_error *err) {
    iv_buf bytes = {0};
    iv_status status = iv_file_read(path, max_bytes, &bytes, err);
    if (status == IV_OK) status = iv_json_parse_python(path, bytes.data, bytes.len, out, err);
    iv_buf_free(&bytes);
    return status;
}

const char *iv_json_type_name(const json_t *value) {
    if (!value) return "nothing";
    if (python_number(value)) return python_number(value);
    static const char *const names[] = {"object", "array", "string", "integer", "real", "true", "false", "null"};
    return names[json_typeof(value)];
}

const char *iv_json_shown(const json_t *value, char out[IV_JSON_SHOWN_BYTES]) {
    const char *word = python_number(value);
    char *text = word    ? strdup(word)
                 : value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))
                         : NULL;
    snprintf(out, IV_JSON_SHOWN_BYTES, "%s", text ? text : iv_json_type_name(value));
    if (text && strlen(text) >= IV_JSON_SHOWN_BYTES) {
        size_t at = IV_JSON_SHOWN_BYTES - 4;
        while (at && ((unsigned char)text[at] & 0xc0) == 0x80) at--; /* not inside a character */
        memcpy(out + at, "...", 4);
    }
    free(text);
    return out;
}

/* ---- typed reads of an object's members ---- */

iv_status iv_json_object_of(const char *file, const char *path, json_t *value, iv_json_object *out, iv_error *err) {
    if (!json_is_object(value)) {
        size_t n = strlen(path);
        if (n == 0) return iv_fail(err, IV_FORMAT, "%s: wanted an object, found %s", file, iv_json_type_name(value));
        return iv_fail(err, IV_FORMAT, "%s: %.*s: wanted an object, found %s", file, (int)(n - 1), path,
                       iv_json_type_name(value));
    }
    *out = (iv_json_object){.file = file, .path = path, .json = value};
    return IV_OK;
}

/* NULL for an absent key and for null. */
static const json_t *member(const iv_json_object *o, const char *key) {
    const json_t *value = json_object_get(o->json, key);
    return json_is_null(value) ? NULL : value;
}

bool iv_json_object_has(const iv_json_object *o, const char *key) { return member(o, key) != NULL; }

bool iv_json_object_lacks(const iv_json_object *o, const char *key) { return !json_object_get(o->json, key); }

/* The found value, short enough for a message: a number itself, otherwise the type. */
static const char *describe(const json_t *value, char buf[48]) {
    if (json_is_integer(value))
        snprintf(buf, 48, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(buf, 48, "%.15g", json_real_value(value));
    else if (python_number(value))
        snprintf(buf, 48, "%s, which JSON does not have", python_number(value));
    else
        snprintf(buf, 48, "%s", iv_json_type_name(value));
    return buf;
}

static iv_status fail_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, const json_t *value,
                          iv_error *err) {
    char found[48];
    return iv_fail(err, IV_FORMAT, "%s: %s%.100s: wanted an integer from %" PRId64 " to %" PRId64 ", found %s", o->file,
                   o->path, key, min, max, describe(value, found));
}

/* False unless value is an integer in [min, max]. */
static bool to_int(const json_t *value, int64_t min, int64_t max, int64_t *out) {
    if (json_is_integer(value)) {
        json_int_t v = json_integer_value(value);
        if (v < min || v > max) return false;
        *out = v;
        return true;
    }
    if (!json_is_real(value)) return false;
    double v = json_real_value(value);
    /* Above 2^53 a real does not identify one integer. */
    if (!(v >= -9007199254740992.0 && v <= 9007199254740992.0) || v != (double)(int64_t)v) return false;
    if ((int64_t)v < min || (int64_t)v > max) return false;
    *out = (int64_t)v;
    return true;
}

iv_status iv_json_object_missing(const iv_json_object *o, const char *key, const char *wanted, iv_error *err) {
    return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted %s, found nothing", o->file, o->path, key, wanted);
}

iv_status iv_json_object_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                             bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    *found = value != NULL;
    if (!value || to_int(value, min, max, out)) return IV_OK;
    return fail_int(o, key, min, max, value, err);
}

iv_status iv_json_object_real(const iv_json_object *o, const char *key, double min, double max, double *out,
                              bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= min && v <= max))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted a number from %g to %g, found %s", o->file, o->path, key, min,
                       max, describe(value, text));
    *out = v;
    return IV_OK;
}

iv_status iv_json_object_bool(const iv_json_object *o, const char *key, bool *out, bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_boolean(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted true or false, found %s", o->file, o->path, key,
                       describe(value, text));
    *out = json_is_true(value);
    return IV_OK;
}

iv_status iv_json_object_string(const iv_json_object *o, const char *key, const char **out, bool *found,
                                iv_error *err) {
    const json_t *value = member(o, key);
    char text[48];
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_string(value) || python_number(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted a string, found %s", o->file, o->path, key,
                       describe(value, text));
    if (strlen(json_string_value(value)) != json_string_length(value))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: the string holds a NUL", o->file, o->path, key);
    *out = json_string_value(value);
    return IV_OK;
}

iv_status iv_json_object_ints(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                              size_t capacity, size_t *count, bool *found, iv_error *err) {
    const json_t *value = member(o, key);
    *found = value != NULL;
    if (!value) return IV_OK;
    if (!json_is_array(value)) {
        IV_ASSERT(capacity > 0);
        if (!to_int(value, min, max, &out[0])) return fail_int(o, key, min, max, value, err);
        *count = 1;
        return IV_OK;
    }
    size_t n = json_array_size(value);
    if (n > capacity)
        return iv_fail(err, IV_LIMIT, "%s: %s%s: %zu entries, at most %zu are read", o->file, o->path, key, n,
                       capacity);
    for (size_t i = 0; i < n; i++) {
        char where[120];
        snprintf(where, sizeof where, "%.80s[%zu]", key, i);
        const json_t *item = json_array_get(value, i);
        if (!to_int(item, min, max, &out[i])) return fail_int(o, where, min, max, item, err);
    }
    *count = n;
    return IV_OK;
}
