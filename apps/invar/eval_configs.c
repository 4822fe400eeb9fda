/* eval_configs.c: "bs=8,16 tp=1,2" -> engine options. Values are checked by the lines of the flag table that they stand
 * for, so axes and flags have the same ranges. */
#include "eval.h"
#include "syntax.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

typedef struct axis_kind {
    const char *key, *flag; /* the flag whose values it takes; NULL: on or off */
    bool changes_bits;      /* parts configurations into methods */
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

/* Cuts one word "key=a,b" in place. */
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
                return cli_fail(err, CLI_USAGE, "--configs: %s: %s comes twice", word, value);
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

/* The index-th of the product. */
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
            if (axes[i].kind == a->kind) return cli_fail(err, CLI_USAGE, "--configs: %s comes twice", a->kind->key);
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
