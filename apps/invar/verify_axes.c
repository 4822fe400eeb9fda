/* verify_axes.c: axes from flags, configurations from axes. Invariant: all configurations of a run are distinct, except
 * random ones of few axes. */
#include "verify.h"
#include "stats.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 4 };

/* Axes with named values have all of them; the others take numbers from a flag. */
static const struct {
    const char *name, *words[WORDS_MAX];
    const char *flag;
    size_t least, most, values[WORDS_MAX];
    size_t quiet; /* a number's value in the quiet run; words have 0 */
} axis_table[VERIFY_AXES] = {
    [VERIFY_BATCH] = {"batch", {NULL}, "batch-sizes", 1, 1024, {2, 5, 16}, 1},
    [VERIFY_ORDER] = {"order", {"reversed", "shuffled", "spread"}, NULL, 0, 0, {1, 2, 3}, 0},
    [VERIFY_CHUNK] = {"chunk", {NULL}, "chunk-sizes", 1, 65536, {16, 61, 256}, 0},
    [VERIFY_PREFIX] = {"prefix", {"warm", "shared"}, NULL, 0, 0, {1, 2}, 0},
    [VERIFY_PREEMPT] = {"preempt", {"random", "memory"}, NULL, 0, 0, {1, 2}, 0},
    [VERIFY_THREADS] = {"threads", {NULL}, "thread-counts", 1, 256, {2, 3}, 1},
    [VERIFY_ISA] = {"isa", {"scalar", "avx2", "avx512"}, NULL, 0, 0, {1, 2, 3}, 0},
    [VERIFY_TP] = {"tp", {NULL}, "tp-sizes", 1, 8, {2, 4, 8}, 1},
    [VERIFY_RESTART] = {"restart", {"midway"}, NULL, 0, 0, {1}, 0},
    [VERIFY_SAMPLING] = {"sampling", {"decoys", "leaving"}, NULL, 0, 0, {1, 2}, 0},
    [VERIFY_LOGPROBS] = {"logprobs", {"0", "5", "20"}, NULL, 0, 0, {1, 2, 3}, 0},
    [VERIFY_SPECULATIVE] = {"speculative", {"ngram"}, NULL, 0, 0, {1}, 0},
    [VERIFY_DEVICE] = {"device", {"cpu", "cuda", "eager"}, NULL, 0, 0, {1, 2, 3}, 0},
    [VERIFY_WEIGHTS] = {"weights", {"expanded", "packed"}, NULL, 0, 0, {1, 2}, 0},
    [VERIFY_WORLD] = {"world", {NULL}, "worlds", 1, 64, {2, 4, 8}, 1},
    [VERIFY_MICRO_BATCH] = {"micro-batch", {NULL}, "micro-batches", 1, 1024, {1, 2, 4, 8}, 0},
    [VERIFY_RECOMPUTE] = {"recompute", {"attention", "layer"}, NULL, 0, 0, {1, 2}, 0},
    [VERIFY_RESUME] = {"resume", {"same", "worlds"}, NULL, 0, 0, {1, 2}, 0},
};

const char *const verify_axis_names[VERIFY_AXES] = {
    "batch",    "order",    "chunk",       "prefix", "preempt", "threads", "isa",         "tp",        "restart",
    "sampling", "logprobs", "speculative", "device", "weights", "world",   "micro-batch", "recompute", "resume"};

/* Axes of answers are the first ones; some are also axes of training. */
static bool applies(size_t axis, bool training) {
    if (!training) return axis < VERIFY_ANSWER_AXES;
    return axis >= VERIFY_ANSWER_AXES || axis == VERIFY_THREADS || axis == VERIFY_ISA || axis == VERIFY_TP ||
           axis == VERIFY_DEVICE;
}

const char *verify_value_name(verify_axis axis, size_t value, char out[24]) {
    const char *word = value && !axis_table[axis].flag ? axis_table[axis].words[value - 1] : NULL;
    if (word)
        snprintf(out, 24, "%s", word);
    else
        snprintf(out, 24, "%zu", value);
    return out;
}

size_t verify_isa_value(const char *name) {
    for (size_t i = 0; i < WORDS_MAX && axis_table[VERIFY_ISA].words[i]; i++)
        if (strcmp(axis_table[VERIFY_ISA].words[i], name) == 0) return i + 1;
    return 0;
}

/* ---- from flags ---------------------------------------------------------------------------------------- */

static int unknown_axis(const char *word, size_t n, bool training, iv_error *err) {
    char found[CLI_SHOWN_BYTES], list[160] = "";
    snprintf(found, sizeof found, "%.*s", (int)(n < 40 ? n : 40), word);
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        size_t used = strlen(list);
        if (applies(a, training))
            snprintf(list + used, sizeof list - used, "%s%s", used ? "," : "", verify_axis_names[a]);
    }
    return cli_fail(err, CLI_USAGE, "--axes: wanted some of %s, found '%s'", list, found);
}

static int read_axes(const char *list, bool training, bool chosen[VERIFY_AXES], iv_error *err) {
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ","), a = 0;
        while (a < VERIFY_AXES && (strlen(verify_axis_names[a]) != n || memcmp(verify_axis_names[a], at, n) != 0)) a++;
        if (n == 2 && memcmp(at, "ep", 2) == 0) a = VERIFY_TP; /* the same ranks divide heads and experts */
        if (a == VERIFY_AXES || !applies(a, training)) return unknown_axis(at, n, training, err);
        chosen[a] = true;
        at += n;
        if (*at == 0) return CLI_OK;
    }
}

/* Numbers of a sizes flag, without duplicates and without the quiet run's own. */
static int read_sizes(const cli_args *args, size_t axis, verify_axes *out, iv_error *err) {
    const char *flag = axis_table[axis].flag, *text = cli_text(args, flag, NULL);
    size_t count, quiet = axis_table[axis].quiet;
    int32_t sizes[VERIFY_VALUES_MAX];
    char found[CLI_SHOWN_BYTES];
    if (!text) return CLI_OK;
    if (cli_parse_ids(text, NULL, &count, err) != CLI_OK)
        return cli_fail(err, CLI_USAGE, "--%s: wanted numbers such as 2,4,8, found '%s'", flag, cli_shown(text, found));
    if (count > VERIFY_VALUES_MAX)
        return cli_fail(err, CLI_USAGE, "--%s: wanted at most %d numbers, found %zu", flag, VERIFY_VALUES_MAX, count);
    if (cli_parse_ids(text, sizes, &count, err) != CLI_OK) return CLI_USAGE;
    out->counts[axis] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t value = (size_t)sizes[i];
        if (value < axis_table[axis].least || value > axis_table[axis].most)
            return cli_fail(err, CLI_USAGE, "--%s: wanted numbers from %zu to %zu, found %zu", flag,
                            axis_table[axis].least, axis_table[axis].most, value);
        verify_axes_drop(out, (verify_axis)axis, value);
        if (value != quiet) out->values[axis][out->counts[axis]++] = value;
    }
    return CLI_OK;
}

int verify_axes_read(const cli_args *args, bool training, verify_axes *out, iv_error *err) {
    bool chosen[VERIFY_AXES] = {false};
    const char *list = cli_text(args, "axes", NULL);
    *out = (verify_axes){0};
    int code = list ? read_axes(list, training, chosen, err) : CLI_OK;
    for (size_t a = 0; code == CLI_OK && a < VERIFY_AXES; a++) {
        const char *flag = axis_table[a].flag;
        if (!applies(a, training)) continue;
        if (list && !chosen[a]) {
            if (flag && cli_has(args, flag))
                return cli_fail(err, CLI_USAGE, "--%s needs %s among --axes", flag, axis_table[a].name);
            continue;
        }
        for (size_t i = 0; i < WORDS_MAX && axis_table[a].values[i]; i++)
            out->values[a][out->counts[a]++] = axis_table[a].values[i];
        if (training) verify_axes_drop(out, VERIFY_DEVICE, VERIFY_DEVICE_EAGER);
        if (flag) code = read_sizes(args, a, out, err);
    }
    return code;
}

void verify_axes_drop(verify_axes *axes, verify_axis axis, size_t value) {
    size_t kept = 0;
    for (size_t i = 0; i < axes->counts[axis]; i++)
        if (axes->values[axis][i] != value) axes->values[axis][kept++] = axes->values[axis][i];
    axes->counts[axis] = kept;
}

/* ---- configurations ------------------------------------------------------------------------------------ */

size_t verify_config_width(const verify_config *c) {
    if (c->value[VERIFY_BATCH]) return c->value[VERIFY_BATCH];
    if (c->value[VERIFY_PREEMPT] == VERIFY_PREEMPT_MEMORY) return 2 * VERIFY_CONCURRENCY;
    return c->value[VERIFY_ORDER] || c->value[VERIFY_PREEMPT] || c->value[VERIFY_SAMPLING] ? VERIFY_CONCURRENCY : 1;
}

static void name_config(verify_config *c) {
    size_t used = 0;
    c->name[0] = 0;
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        char value[24];
        if (c->value[a] && used < sizeof c->name)
            used += (size_t)snprintf(c->name + used, sizeof c->name - used, "%s%s %s", used ? ", " : "",
                                     axis_table[a].name, verify_value_name((verify_axis)a, c->value[a], value));
    }
}

int verify_configs_add(verify_configs *out, const size_t value[VERIFY_AXES], uint64_t seed, iv_error *err) {
    if (out->count == VERIFY_CONFIGS_MAX)
        return cli_fail(err, CLI_USAGE, "wanted at most %d configurations, found more: name fewer --axes or values",
                        VERIFY_CONFIGS_MAX);
    if (out->count % 64 == 0) {
        verify_config *more = realloc(out->items, (out->count + 64) * sizeof *more);
        if (!more) return cli_fail(err, CLI_FAILED, "out of memory");
        out->items = more;
    }
    verify_config *c = &out->items[out->count];
    *c = (verify_config){.seed = seed + out->count};
    memcpy(c->value, value, sizeof c->value);
    name_config(c);
    out->count++;
    return CLI_OK;
}

int verify_configs_single(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err) {
    int code = CLI_OK;
    for (size_t a = 0; a < VERIFY_AXES; a++)
        for (size_t i = 0; code == CLI_OK && i < axes->counts[a]; i++) {
            size_t value[VERIFY_AXES] = {0};
            value[a] = axes->values[a][i];
            code = verify_configs_add(out, value, seed, err);
        }
    return code;
}

int verify_configs_random(const verify_axes *axes, size_t count, uint64_t seed, verify_configs *out, iv_error *err) {
    verify_axes fast = *axes;
    verify_axes_drop(&fast, VERIFY_ISA, VERIFY_SCALAR);
    uint64_t state = seed;
    size_t varied = 0;
    int code = CLI_OK;
    for (size_t a = 0; a < VERIFY_AXES; a++) varied += fast.counts[a] > 0;
    for (size_t made = 0; code == CLI_OK && varied >= 2 && made < count;) {
        size_t value[VERIFY_AXES] = {0}, set = 0;
        for (size_t a = 0; a < VERIFY_AXES; a++) {
            if ((a >= VERIFY_ANSWER_AXES || a == VERIFY_WEIGHTS) && !fast.counts[a]) continue;
            size_t pick = cli_random(&state) % (fast.counts[a] + 1);
            if (pick) value[a] = fast.values[a][pick - 1], set++;
        }
        if (set < 2) continue;
        code = verify_configs_add(out, value, seed, err);
        made++;
    }
    return code;
}

int verify_configs_product(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err) {
    size_t total = 1, digit[VERIFY_AXES] = {0};
    for (size_t a = 0; a < VERIFY_AXES; a++) {
        if (__builtin_mul_overflow(total, axes->counts[a] + 1, &total)) total = SIZE_MAX;
        if (total > VERIFY_CONFIGS_MAX)
            return cli_fail(err, CLI_USAGE,
                            "--product: wanted at most %d configurations, found more: name fewer --axes or values",
                            VERIFY_CONFIGS_MAX);
    }
    int code = CLI_OK;
    for (size_t n = 0; code == CLI_OK && n < total; n++) {
        size_t value[VERIFY_AXES], set = 0, left = n;
        for (size_t a = 0; a < VERIFY_AXES; a++) {
            digit[a] = left % (axes->counts[a] + 1);
            left /= axes->counts[a] + 1;
            value[a] = digit[a] ? axes->values[a][digit[a] - 1] : 0;
            set += digit[a] > 0;
        }
        if (set >= 2) code = verify_configs_add(out, value, seed, err); /* fewer: the quiet run and single values */
    }
    return code;
}

void verify_configs_free(verify_configs *configs) {
    free(configs->items);
    *configs = (verify_configs){0};
}
