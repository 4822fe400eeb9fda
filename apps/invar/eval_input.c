/* eval_input.c: what an evaluation runs: problems from JSONL, and configurations from axes such as "bs=8,16 tp=1,2".
 * Invariants: ids are distinct, questions are not empty; an axis has the range of its flag. */
#include "eval.h"
#include "commands.h"
#include "input.h"
#include "base/json_out.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- problems ------------------------------------------------------------------------------------------ */

uint64_t cli_hash(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* A string, or a number as the shortest text that reads back. NULL: neither, or no memory. */
static char *as_text(const json_t *value) {
    char digits[40];
    if (json_is_string(value)) return strdup(json_string_value(value));
    if (json_is_integer(value)) {
        snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return strdup(digits);
    }
    if (!json_is_real(value)) return NULL;
    for (int n = 1; n <= 17; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, json_real_value(value));
        if (strtod(digits, NULL) == json_real_value(value)) break;
    }
    return strdup(digits);
}

static bool has_nul(const json_t *value) {
    return json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value);
}

/* The first of the names that is present, and which; NULL: none. */
static const json_t *first_of(const json_t *object, const char *const *names, const char **name) {
    for (; *names; names++) {
        const json_t *value = json_object_get(object, *names);
        if (value && !json_is_null(value)) return *name = *names, value;
    }
    return NULL;
}

static int read_problem(const char *path, size_t line, const json_t *object, cli_problem *out, iv_error *err) {
    static const char *const questions[] = {"question", "problem", "prompt", NULL}, *const ids[] = {"id", NULL},
                             *const answers[] = {"answer", NULL};
    const char *name = "";
    char reference[CLI_SCORE_BYTES], number[24];
    if (!json_is_object(object)) return cli_fail(err, CLI_FAILED, "%s:%zu: wanted a JSON object", path, line);
    const json_t *question = first_of(object, questions, &name), *id = first_of(object, ids, &name),
                 *answer = first_of(object, answers, &name);
    question = first_of(object, questions, &name);
    if (!question)
        return cli_fail(err, CLI_FAILED, "%s:%zu: wanted a question, problem or prompt, found none", path, line);
    if (!json_is_string(question) || !*json_string_value(question) || has_nul(question))
        return cli_fail(err, CLI_FAILED, "%s:%zu: %s: wanted a text that is not empty", path, line, name);
    if (id && !json_is_integer(id) && (!json_is_string(id) || !*json_string_value(id) || has_nul(id)))
        return cli_fail(err, CLI_FAILED, "%s:%zu: id: wanted a text or an integer", path, line);
    if (answer && !json_is_number(answer) && (!json_is_string(answer) || has_nul(answer)))
        return cli_fail(err, CLI_FAILED, "%s:%zu: answer: wanted a text or a number", path, line);
    snprintf(number, sizeof number, "%zu", line);
    out->question = as_text(question);
    out->id = id ? as_text(id) : strdup(number);
    bool ok = out->question && out->id;
    if (ok && answer) {
        char *text = as_text(answer);
        out->answer = text ? strdup(cli_score_reference(text, reference)) : NULL;
        free(text);
        ok = out->answer != NULL;
        if (ok && !*out->answer)
            return cli_fail(err, CLI_FAILED, "%s:%zu: answer: wanted a text that is not empty", path, line);
    }
    return ok ? CLI_OK : cli_fail(err, CLI_FAILED, "%s: out of memory", path);
}

static int add_line(cli_dataset *d, const char *path, size_t number, const char *line, size_t n, iv_error *err) {
    json_error_t why;
    if (d->count == CLI_PROBLEMS_MAX)
        return cli_fail(err, CLI_FAILED, "%s:%zu: wanted at most %d problems", path, number, CLI_PROBLEMS_MAX);
    if ((d->count & (d->count + 1)) == 0) { /* grow at 0, 1, 3, 7, ... */
        cli_problem *more = realloc(d->items, 2 * (d->count + 1) * sizeof *more);
        if (!more) return cli_fail(err, CLI_FAILED, "%s: out of memory", path);
        d->items = more;
    }
    json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!object) return cli_fail(err, CLI_FAILED, "%s:%zu:%d: not valid JSON: %s", path, number, why.column, why.text);
    d->items[d->count] = (cli_problem){0};
    int code = read_problem(path, number, object, &d->items[d->count++], err);
    json_decref(object);
    return code;
}

static int by_id(const void *a, const void *b) {
    const cli_problem *const *x = a, *const *y = b;
    int order = strcmp((*x)->id, (*y)->id);
    return order ? order : (*x > *y) - (*x < *y);
}

static int check_ids(const cli_dataset *d, const char *path, iv_error *err) {
    const cli_problem **sorted = calloc(d->count, sizeof *sorted);
    if (!sorted) return cli_fail(err, CLI_FAILED, "%s: out of memory", path);
    for (size_t i = 0; i < d->count; i++) sorted[i] = &d->items[i];
    qsort(sorted, d->count, sizeof *sorted, by_id);
    int code = CLI_OK;
    for (size_t i = 1; i < d->count && code == CLI_OK; i++) {
        char shown[CLI_SHOWN_BYTES];
        if (strcmp(sorted[i - 1]->id, sorted[i]->id) == 0)
            code = cli_fail(err, CLI_FAILED, "%s: problem %zu: id '%s' is that of problem %zu", path,
                            (size_t)(sorted[i] - d->items) + 1, cli_shown(sorted[i]->id, shown),
                            (size_t)(sorted[i - 1] - d->items) + 1);
    }
    free(sorted);
    return code;
}

static void finish(cli_dataset *d) {
    d->hash = CLI_HASH_START;
    for (size_t i = 0; i < d->count; i++) {
        const cli_problem *p = &d->items[i];
        const char *answer = p->answer ? p->answer : "";
        d->scored += p->answer != NULL;
        d->hash = cli_hash(d->hash, p->id, strlen(p->id) + 1);
        d->hash = cli_hash(d->hash, p->question, strlen(p->question) + 1);
        d->hash = cli_hash(d->hash, answer, strlen(answer) + 1);
    }
}

int cli_dataset_read(const char *path, size_t limit, cli_dataset *out, iv_error *err) {
    cli_bytes file;
    *out = (cli_dataset){0};
    int code = cli_read_file(path, true, &file, err);
    if (code != CLI_OK) return code;
    cli_lines l = {.text = file};
    while (code == CLI_OK && out->count < limit && cli_next_line(&l))
        code = add_line(out, path, l.number, l.line, l.line_bytes, err);
    free(file.data);
    if (code == CLI_OK && out->count == 0) code = cli_fail(err, CLI_FAILED, "%s: wanted a problem, found none", path);
    if (code == CLI_OK) code = check_ids(out, path, err);
    if (code == CLI_OK)
        finish(out);
    else
        cli_dataset_free(out);
    return code;
}

void cli_dataset_free(cli_dataset *dataset) {
    for (size_t i = 0; i < dataset->count; i++) {
        cli_problem *p = &dataset->items[i];
        free(p->id), free(p->question), free(p->answer), free(p->ids);
    }
    free(dataset->items);
    *dataset = (cli_dataset){0};
}

/* ---- configurations ------------------------------------------------------------------------------------ */

typedef struct axis_kind {
    const char *key, *flag; /* the flag with the same values; NULL: on or off */
    bool changes_bits;      /* configurations with different values are different methods */
} axis_kind;

enum { BS, TP, THREADS, ISA, CHUNK, PREFIX, SPECULATIVE, DTYPE, ARITHMETIC, NUMERICS };
static const axis_kind kinds[] = {[BS] = {"bs", "max-num-seqs", false},
                                  [TP] = {"tp", "tensor-parallel-size", false},
                                  [THREADS] = {"threads", "threads", false},
                                  [ISA] = {"isa", "isa", false},
                                  [CHUNK] = {"chunk", "max-num-batched-tokens", false},
                                  [PREFIX] = {"prefix", NULL, false},
                                  [SPECULATIVE] = {"speculative", "speculative", false},
                                  [DTYPE] = {"dtype", "dtype", true},
                                  [ARITHMETIC] = {"arithmetic", "arithmetic", true},
                                  [NUMERICS] = {"numerics", "numerics", true}};
enum { KINDS = sizeof kinds / sizeof *kinds, VALUES_MAX = 64 };

typedef struct axis {
    const axis_kind *kind;
    const char *values[VALUES_MAX];
    size_t count;
} axis;

static int check_value(const axis_kind *kind, const char *text, iv_error *err) {
    if (!kind->flag) {
        if (strcmp(text, "on") == 0 || strcmp(text, "off") == 0) return CLI_OK;
        char shown[CLI_SHOWN_BYTES];
        return cli_fail(err, CLI_USAGE, "--configs: %s: wanted on or off, found '%s'", kind->key,
                        cli_shown(text, shown));
    }
    cli_value value;
    iv_error why;
    if (cli_parse_value(cli_flag_find(&cli_eval_syntax, kind->flag), text, &value, &why) == CLI_OK) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "--configs: %s: %.800s", kind->key, why.message);
}

/* Splits one word "key=a,b" in place. */
static int parse_axis(char *word, axis *out, iv_error *err) {
    char shown[CLI_SHOWN_BYTES], *equals = strchr(word, '='), *rest = NULL;
    *out = (axis){0};
    if (equals) *equals = 0;
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].key, word) == 0) out->kind = &kinds[i];
    if (!out->kind || !equals)
        return cli_fail(err, CLI_USAGE,
                        "--configs: wanted KEY=VALUE,VALUE with bs, tp, threads, chunk, numerics, arithmetic, isa, "
                        "dtype, prefix or speculative, found '%s'",
                        cli_shown(word, shown));
    for (char *value = strtok_r(equals + 1, ",", &rest); value; value = strtok_r(NULL, ",", &rest)) {
        if (out->count == VALUES_MAX)
            return cli_fail(err, CLI_USAGE, "--configs: %s: wanted at most %d values", word, VALUES_MAX);
        int code = check_value(out->kind, value, err);
        if (code != CLI_OK) return code;
        for (size_t i = 0; i < out->count; i++)
            if (strcmp(out->values[i], value) == 0)
                return cli_fail(err, CLI_USAGE, "--configs: %s: %s is given twice", word, value);
        out->values[out->count++] = value;
    }
    return out->count ? CLI_OK : cli_fail(err, CLI_USAGE, "--configs: %s: wanted a value, found none", word);
}

static void apply(const axis_kind *kind, const char *text, iv_engine_options *o) {
    size_t number = (size_t)strtoull(text, NULL, 10);
    switch (kind - kinds) {
    case BS: o->max_num_seqs = number; break;
    case TP: o->tensor_parallel_size = number; break;
    case THREADS: o->threads = number; break;
    case ISA: o->isa = text; break;
    case CHUNK: o->max_num_batched_tokens = number; break;
    case PREFIX: o->prefix_caching = strcmp(text, "on") == 0; break;
    case SPECULATIVE: o->speculative = text; break;
    case DTYPE: o->dtype = text; break;
    case ARITHMETIC: o->arithmetic = text; break;
    case NUMERICS: o->numerics = text; break;
    }
}

static void add_word(char label[CLI_LABEL_BYTES], const char *key, const char *value) {
    size_t n = strlen(label);
    snprintf(label + n, CLI_LABEL_BYTES - n, "%s%s=%s", n ? " " : "", key, value);
}

/* The index-th configuration of the product. */
static void make_config(const axis *axes, size_t count, size_t index, const iv_engine_options *base, cli_config *out) {
    size_t at[CLI_AXES_MAX];
    *out = (cli_config){.options = *base};
    for (size_t i = count; i-- > 0; index /= axes[i].count) at[i] = index % axes[i].count;
    for (size_t i = 0; i < count; i++) {
        const char *value = axes[i].values[at[i]];
        apply(axes[i].kind, value, &out->options);
        add_word(out->label, axes[i].kind->key, value);
        if (axes[i].kind->changes_bits) add_word(out->method, axes[i].kind->key, value);
    }
    if (!count) snprintf(out->label, sizeof out->label, "as given");
}

static int parse_axes(char *text, axis *axes, size_t *count, size_t *product, iv_error *err) {
    char *rest = NULL;
    *count = 0;
    *product = 1;
    for (char *word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        if (*count == CLI_AXES_MAX) return cli_fail(err, CLI_USAGE, "--configs: wanted at most %d axes", CLI_AXES_MAX);
        axis *a = &axes[*count];
        int code = parse_axis(word, a, err);
        if (code != CLI_OK) return code;
        for (size_t i = 0; i < *count; i++)
            if (axes[i].kind == a->kind) return cli_fail(err, CLI_USAGE, "--configs: %s is given twice", a->kind->key);
        ++*count;
        *product *= a->count; /* at most 64 times 256 before the check */
        if (*product > CLI_CONFIGS_MAX)
            return cli_fail(err, CLI_USAGE, "--configs: wanted at most %d configurations, found more", CLI_CONFIGS_MAX);
    }
    return CLI_OK;
}

int cli_configs_parse(const char *text, const iv_engine_options *base, cli_configs *out, iv_error *err) {
    axis axes[CLI_AXES_MAX];
    size_t count, product;
    *out = (cli_configs){.text = strdup(text ? text : "")};
    if (!out->text) return cli_fail(err, CLI_FAILED, "out of memory");
    int code = parse_axes(out->text, axes, &count, &product, err);
    if (code == CLI_OK) out->items = calloc(product, sizeof *out->items);
    if (code == CLI_OK && !out->items) code = cli_fail(err, CLI_FAILED, "out of memory");
    if (code != CLI_OK) {
        cli_configs_free(out);
        return code;
    }
    out->count = product;
    for (size_t i = 0; i < product; i++) make_config(axes, count, i, base, &out->items[i]);
    return CLI_OK;
}

void cli_configs_free(cli_configs *configs) {
    free(configs->items), free(configs->text);
    *configs = (cli_configs){0};
}
