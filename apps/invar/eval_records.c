/* eval_records.c: results.jsonl, written line by line and read back. Invariant: lines are ordered by configuration and
 * problem, so their number determines the next one to compute. */
#include "eval.h"
#include "base/json_out.h"
#include "output.h"
#include "text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 64 << 20 };

/* ---- records ------------------------------------------------------------------------------------------- */

int cli_records_open(size_t configs, size_t problems, cli_records *out, iv_error *err) {
    *out = (cli_records){.configs = configs, .problems = problems};
    out->items = calloc(configs * problems, sizeof *out->items); /* both have named maxima */
    return out->items ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

static void clear(cli_record *r) {
    free(r->ids), free(r->top);
    *r = (cli_record){0};
}

void cli_records_free(cli_records *records) {
    for (size_t i = 0; records->items && i < records->configs * records->problems; i++) clear(&records->items[i]);
    free(records->items);
    *records = (cli_records){0};
}

cli_record *cli_record_at(const cli_records *records, size_t config, size_t problem) {
    return &records->items[config * records->problems + problem];
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void write_top(iv_json_out *json, const cli_record *r) {
    size_t n = r->count * r->top_count;
    iv_out_kv_uint(json, "top", r->top_count);
    iv_out_kv_open(json, "top_ids", '[');
    for (size_t i = 0; i < n; i++) iv_out_kv_int(json, NULL, r->top[i].id);
    iv_out_close(json, ']');
    iv_out_key(json, "top_bits");
    fputc('"', json->file);
    for (size_t i = 0; i < n; i++) fprintf(json->file, "%08x", (unsigned)bits_of(r->top[i].logprob));
    fputc('"', json->file);
    json->comma = true;
}

static void write_line(FILE *out, const cli_results *results, const cli_configs *configs, const cli_dataset *dataset,
                       const cli_result *result) {
    iv_json_out json = {.spaced = true, .file = out};
    const cli_record *r = result->record;
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "settings", results->hash);
    iv_out_kv_text(&json, "config", configs->items[results->config].label);
    iv_out_kv_text(&json, "id", dataset->items[results->problem].id);
    iv_out_kv_text(&json, "wanted", dataset->items[results->problem].answer);
    iv_out_kv_text(&json, "found", result->found);
    if (r->correct >= 0)
        iv_out_kv_bool(&json, "correct", r->correct == 1);
    else
        iv_out_kv_text(&json, "correct", NULL);
    iv_out_kv_text(&json, "finish", result->finish);
    iv_out_kv_string(&json, "text", result->text, result->text_bytes);
    write_top(&json, r);
    iv_out_key(&json, "receipt"), iv_out_raw(&json, result->receipt, strlen(result->receipt));
    iv_out_close(&json, '}');
    fputc('\n', out);
}

int cli_results_add(cli_results *results, const cli_configs *configs, const cli_dataset *dataset,
                    const cli_result *result, iv_error *err) {
    if (results->file) {
        write_line(results->file, results, configs, dataset, result);
        if (ferror(results->file) || fflush(results->file) != 0)
            return cli_fail(err, CLI_FAILED, "%s: write failed: %s", results->path, strerror(errno));
    }
    if (++results->problem == dataset->count) results->problem = 0, results->config++;
    return CLI_OK;
}

int cli_results_close(cli_results *results, iv_error *err) {
    int code = CLI_OK;
    if (results->file && fclose(results->file) != 0)
        code = cli_fail(err, CLI_FAILED, "%s: write failed: %s", results->path, strerror(errno));
    free(results->path);
    *results = (cli_results){0};
    return code;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The reader's position, for errors and for the order. */
typedef struct reading {
    cli_results *results;
    const cli_configs *configs;
    const cli_dataset *dataset;
    cli_records *records;
    size_t line;
    char *fingerprint; /* of the configuration being read; owned */
} reading;

static int bad(const reading *r, iv_error *err, const char *what) {
    return cli_fail(err, CLI_FAILED, "%s:%zu: %s", r->results->path, r->line, what);
}

/* The token ids and log-probabilities of the top tokens. */
static int read_top(const reading *r, const json_t *object, cli_record *record, iv_error *err) {
    const json_t *count = json_object_get(object, "top"), *ids = json_object_get(object, "top_ids");
    const char *bits = json_string_value(json_object_get(object, "top_bits"));
    json_int_t top = json_integer_value(count);
    if (!json_is_integer(count) || top < 1 || top > CLI_EVAL_TOP) return bad(r, err, "top: wanted 1 to 5");
    size_t n = record->count * (size_t)top;
    if (json_array_size(ids) != n || !bits || strlen(bits) != 8 * n)
        return bad(r, err, "top_ids, top_bits: wanted as many as the answer has tokens");
    record->top_count = (size_t)top;
    record->top = calloc(n + 1, sizeof *record->top);
    if (!record->top) return cli_fail(err, CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        char digits[9] = {0}, *end;
        memcpy(digits, bits + 8 * i, 8);
        uint32_t raw = (uint32_t)strtoul(digits, &end, 16);
        memcpy(&record->top[i].logprob, &raw, sizeof raw);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX || *end ||
            !(record->top[i].logprob <= 0))
            return bad(r, err, "top_ids, top_bits: wanted token ids and log-probabilities");
        record->top[i].id = (int32_t)json_integer_value(id);
    }
    return CLI_OK;
}

static int read_receipt(reading *r, const json_t *object, cli_record *record, iv_error *err) {
    char name[64], *text = json_dumps(json_object_get(object, "receipt"), JSON_COMPACT | JSON_REAL_PRECISION(17));
    iv_receipt *receipt = NULL;
    iv_receipt_info info;
    if (!text) return bad(r, err, "wanted a receipt, found none");
    snprintf(name, sizeof name, "results.jsonl:%zu", r->line);
    iv_status status = iv_receipt_read(name, text, strlen(text), &receipt, err);
    free(text);
    if (status != IV_OK) return CLI_FAILED;
    iv_receipt_get_info(receipt, &info);
    record->count = info.id_count;
    record->ids = calloc(info.id_count + 1, sizeof *record->ids);
    int code = record->ids ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
    if (code == CLI_OK && info.id_count) memcpy(record->ids, info.ids, info.id_count * sizeof *record->ids);
    snprintf(record->digest, sizeof record->digest, "%s", info.digest);
    if (r->results->problem == 0) free(r->fingerprint), r->fingerprint = strdup(info.maker.fingerprint);
    if (code == CLI_OK && (!r->fingerprint || strcmp(r->fingerprint, info.maker.fingerprint) != 0))
        code = bad(r, err, "the receipt's fingerprint is not that of the lines before");
    iv_receipt_close(receipt);
    return code;
}

static int read_result(reading *r, const json_t *object, iv_error *err) {
    cli_results *results = r->results;
    if (results->config == r->configs->count) return bad(r, err, "wanted no further result");
    const char *config = json_string_value(json_object_get(object, "config")),
               *id = json_string_value(json_object_get(object, "id")),
               *hash = json_string_value(json_object_get(object, "settings"));
    if (!hash || strcmp(hash, results->hash) != 0) return bad(r, err, "settings: not those of the first line");
    if (!config || !id || strcmp(config, r->configs->items[results->config].label) != 0 ||
        strcmp(id, r->dataset->items[results->problem].id) != 0)
        return cli_fail(err, CLI_FAILED, "%s:%zu: wanted the result of problem '%.60s' with %s", results->path, r->line,
                        r->dataset->items[results->problem].id, r->configs->items[results->config].label);
    cli_record *record = cli_record_at(r->records, results->config, results->problem);
    const json_t *correct = json_object_get(object, "correct");
    int code = read_receipt(r, object, record, err);
    if (code == CLI_OK) code = read_top(r, object, record, err);
    if (code != CLI_OK) return code;
    record->correct = json_is_boolean(correct) ? json_is_true(correct) : -1;
    record->done = true;
    if (++results->problem == r->dataset->count) results->problem = 0, results->config++;
    return CLI_OK;
}

/* Names the first setting that differs. */
static int refuse_settings(const reading *r, const json_t *there, const char *settings, iv_error *err) {
    json_t *here = json_loads(settings, JSON_DECODE_ANY, NULL);
    const char *key;
    json_t *value;
    int code = bad(r, err, "other settings");
    json_object_foreach(here, key, value) {
        json_t *other = json_object_get(there, key);
        if (json_equal(value, other)) continue;
        char *a = other ? json_dumps(other, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *b = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        code = cli_fail(err, CLI_FAILED,
                        "%s: made with other settings: %s is %.200s there and %.200s here (choose another --out)",
                        r->results->path, key, a ? a : "absent", b ? b : "?");
        free(a), free(b);
        break;
    }
    json_decref(here);
    return code;
}

static int read_line(reading *r, const char *line, size_t n, const char *settings, iv_error *err) {
    json_error_t why;
    json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES, &why);
    if (!object) return cli_fail(err, CLI_FAILED, "%s:%zu: not valid JSON: %s", r->results->path, r->line, why.text);
    int code;
    if (r->line > 1)
        code = read_result(r, object, err);
    else {
        json_t *here = json_loads(settings, 0, NULL), *there = json_object_get(object, "eval");
        code = json_equal(here, there) ? CLI_OK : refuse_settings(r, there, settings, err);
        json_decref(here);
    }
    json_decref(object);
    return code;
}

/* Drops an incomplete configuration of a baseline: its bits depend on the composition of batches. */
static void drop_started(reading *r, long *keep, long config_start) {
    cli_results *results = r->results;
    if (results->problem == 0 || results->config == r->configs->count) return;
    const char *numerics = r->configs->items[results->config].options.numerics;
    if (!numerics || strcmp(numerics, "invar") == 0) return;
    for (; results->problem; results->problem--)
        clear(cli_record_at(r->records, results->config, results->problem - 1));
    *keep = config_start;
}

static const char settings_begin[] = "{\"eval\": ";

/* A truncated last line is dropped; if it is the first line, it must begin as one of ours. */
static int check_cut(const reading *r, const char *line, size_t n, iv_error *err) {
    size_t most = sizeof settings_begin - 1;
    if (r->line > 0 || memcmp(line, settings_begin, n < most ? n : most) == 0) return CLI_OK;
    return cli_fail(err, CLI_FAILED, "%s: wanted results of invar eval, found another file (choose another --out)",
                    r->results->path);
}

/* Reads all complete lines, then truncates the file after the last good one. */
static int read_file(reading *r, const char *settings, iv_error *err) {
    FILE *file = r->results->file;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    long keep = 0, config_start = 0;
    int code = CLI_OK;
    while (code == CLI_OK && (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        size_t before = r->results->config;
        r->line++;
        code = n > LINE_BYTES_MAX ? bad(r, err, "the line is too long") : read_line(r, line, (size_t)n, settings, err);
        keep = ftell(file);
        if (r->line == 1 || r->results->config != before) config_start = keep;
    }
    if (code == CLI_OK && n > 0) code = check_cut(r, line, (size_t)n, err);
    free(line);
    free(r->fingerprint);
    if (code != CLI_OK) return code;
    drop_started(r, &keep, config_start);
    if (keep < 0 || ftruncate(fileno(file), keep) != 0 || fseek(file, keep, SEEK_SET) != 0)
        return cli_fail(err, CLI_FAILED, "%s: cannot be resumed: %s", r->results->path, strerror(errno));
    return CLI_OK;
}

int cli_results_open(const char *dir, const char *settings, const cli_configs *configs, const cli_dataset *dataset,
                     cli_records *records, cli_results *out, iv_error *err) {
    *out = (cli_results){0};
    snprintf(out->hash, sizeof out->hash, "%016llx",
             (unsigned long long)cli_hash(CLI_HASH_START, settings, strlen(settings)));
    if (!dir) return CLI_OK;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return cli_fail(err, CLI_FAILED, "%s: cannot create the directory: %s", dir, strerror(errno));
    if (asprintf(&out->path, "%s/results.jsonl", dir) < 0) {
        out->path = NULL;
        return cli_fail(err, CLI_FAILED, "out of memory");
    }
    out->file = fopen(out->path, "a+e");
    if (!out->file) return cli_fail(err, CLI_FAILED, "%s: cannot open: %s", out->path, strerror(errno));
    if (flock(fileno(out->file), LOCK_EX | LOCK_NB) != 0)
        return cli_fail(err, CLI_FAILED, "%s: in use by another process", out->path);
    rewind(out->file);
    reading r = {.results = out, .configs = configs, .dataset = dataset, .records = records};
    int code = read_file(&r, settings, err);
    if (code == CLI_OK && r.line == 0) {
        fprintf(out->file, "%s%s}\n", settings_begin, settings);
        if (fflush(out->file) != 0)
            code = cli_fail(err, CLI_FAILED, "%s: write failed: %s", out->path, strerror(errno));
    }
    return code;
}
