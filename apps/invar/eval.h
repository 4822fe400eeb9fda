/* eval.h: the parts of an evaluation: problems, configurations, the result of each pair, scores and metrics. */
#ifndef INVAR_CLI_EVAL_H
#define INVAR_CLI_EVAL_H

#include "flags.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    CLI_PROBLEMS_MAX = 100000,
    CLI_CONFIGS_MAX = 256,
    CLI_AXES_MAX = 16,
    CLI_LABEL_BYTES = 160,
    CLI_EVAL_TOP = 5 /* top tokens whose probabilities are compared */
};

/* ---- eval_input.c: problems ---------------------------------------------------------------------------- */

typedef struct cli_problem {
    char *id;       /* as given, or the line's number */
    char *question; /* the whole prompt's text, or the user's message */
    char *answer;   /* the result of cli_score_reference; NULL: not scored */
    int32_t *ids;   /* the prompt, once it is rendered and tokenized */
    size_t id_count;
} cli_problem;

typedef struct cli_dataset {
    cli_problem *items;
    size_t count;
    size_t scored; /* problems with an answer: the base of accuracy */
    uint64_t hash; /* of ids, questions and answers */
} cli_dataset;

/* Reads at most `limit` problems. Errors name the line: invalid JSON, no question, an answer of another type, a
 * duplicate id; or a file without problems. */
int cli_dataset_read(const char *path, size_t limit, cli_dataset *out, iv_error *err);
void cli_dataset_free(cli_dataset *dataset);

/* FNV-1a, to compare settings; not secure against malice. */
uint64_t cli_hash(uint64_t hash, const void *bytes, size_t n);
#define CLI_HASH_START 0xcbf29ce484222325u

/* ---- eval_input.c: configurations ---------------------------------------------------------------------- */

typedef struct cli_config {
    char label[CLI_LABEL_BYTES];  /* "bs=8 tp=1" */
    char method[CLI_LABEL_BYTES]; /* the part that may change bits: "numerics=bio"; "" if none */
    iv_engine_options options;    /* names point into the axes' text */
} cli_config;

typedef struct cli_configs {
    cli_config *items;
    size_t count;
    char *text; /* owned copy that names point into */
} cli_configs;

/* The product of axes "key=value,value key=...", the last axis fastest, over base. NULL or "": base alone. CLI_USAGE:
 * an unknown or duplicate key, a value out of range, more than CLI_CONFIGS_MAX. */
int cli_configs_parse(const char *axes, const iv_engine_options *base, cli_configs *out, iv_error *err);
void cli_configs_free(cli_configs *configs);

/* ---- eval_records.c: results.jsonl --------------------------------------------------------------------- */

/* The result of one problem in one configuration. */
typedef struct cli_record {
    int32_t *ids; /* generated tokens */
    size_t count;
    iv_logprob *top; /* [count][top_count], most likely first */
    size_t top_count;
    int correct; /* 1, 0, or -1: not scored */
    char digest[96];
    bool done;
} cli_record;

typedef struct cli_records {
    cli_record *items; /* [configs][problems] */
    size_t configs, problems;
} cli_records;

int cli_records_open(size_t configs, size_t problems, cli_records *out, iv_error *err);
void cli_records_free(cli_records *records);
cli_record *cli_record_at(const cli_records *records, size_t config, size_t problem);

/* The file of results. Lines are ordered: the settings, then the first configuration's problems, and so on. */
typedef struct cli_results {
    FILE *file; /* NULL: results are not kept */
    char *path;
    char hash[17];          /* of the settings, in every line */
    size_t config, problem; /* the next to add */
} cli_results;

/* Opens DIR/results.jsonl (creating DIR), reads its lines into records and prepares to append. CLI_FAILED: the file has
 * other settings (the first field that differs is named) or a foreign line. A truncated last line is dropped; so is an
 * incomplete configuration of a baseline, whose bits would depend on where it resumes. dir NULL: keeps nothing.
 * settings: a JSON object on one line. */
int cli_results_open(const char *dir, const char *settings, const cli_configs *configs, const cli_dataset *dataset,
                     cli_records *records, cli_results *out, iv_error *err);

typedef struct cli_result {
    const cli_record *record;
    const char *text, *found, *finish, *receipt;
    size_t text_bytes;
} cli_result;

/* Appends the next result and advances. */
int cli_results_add(cli_results *results, const cli_configs *configs, const cli_dataset *dataset,
                    const cli_result *result, iv_error *err);
int cli_results_close(cli_results *results, iv_error *err); /* zeroed ones are fine */

/* ---- eval_report.c: metrics ---------------------------------------------------------------------------- */

/* The configurations of one method, compared with each other over all problems. */
typedef struct cli_method {
    const char *name;
    size_t configs;
    double unique_mean;                       /* different outputs of a problem, averaged over problems */
    double bits_mean;                         /* the same for digests: tokens and bits of log-probabilities */
    size_t unique_max, steady;                /* steady: problems with one output */
    double divergence_mean, divergence_max;   /* over problems, of the mean over positions */
    double accuracy_mean, accuracy_deviation; /* over configurations; sample standard deviation */
} cli_method;

typedef struct cli_metrics {
    cli_method *methods;
    size_t method_count;
    size_t *unique;        /* [method][problem] */
    double *divergence;    /* [method][problem] */
    double *accuracy;      /* [config], 0 to 1 */
    size_t *config_method; /* [config] */
} cli_metrics;

/* Of complete records. */
int cli_metrics_make(const cli_configs *configs, const cli_dataset *dataset, const cli_records *records,
                     cli_metrics *out, iv_error *err);
void cli_metrics_free(cli_metrics *metrics);

/* Numbers of distinct token sequences and of distinct digests in records[0..n). */
size_t cli_unique_outputs(const cli_record *const *records, size_t n);
size_t cli_unique_digests(const cli_record *const *records, size_t n);

/* For each position up to and including the first where tokens differ: the largest difference between two records'
 * probabilities of a token in the top list of either; then the mean over positions. A token missing from a record
 * counts with the probability of its last listed token, an upper bound. */
double cli_output_divergence(const cli_record *const *records, size_t n);

/* ---- eval_report.c: the report ------------------------------------------------------------------------- */

typedef struct cli_study {
    const char *title, *model, *dataset_path, *settings;
    const cli_dataset *dataset;
    const cli_configs *configs;
    const cli_records *records;
    const cli_metrics *metrics;
} cli_study;

void cli_study_markdown(const cli_study *study, FILE *out);
void cli_study_json(const cli_study *study, FILE *out);
void cli_study_svg(const cli_study *study, FILE *out);

/* ---- eval_score.c -------------------------------------------------------------------------------------- */

enum { CLI_SCORE_BYTES = 256 };

/* The final answer of a text: the contents of its last \boxed{...}; else the rest of the line after its last "####";
 * else its last number; else "". If the text has </think>, the part after it is searched first, and the whole text only
 * if nothing is found. Truncated to the buffer. Returns out. */
const char *cli_score_extract(const char *text, char out[CLI_SCORE_BYTES]);

/* The same for a dataset's answer: boxed or ####, else the whole text without surrounding blanks. */
const char *cli_score_reference(const char *text, char out[CLI_SCORE_BYTES]);

/* Whether two final answers are equal: as exact rational numbers if both are numbers (1,234 and 1234.0; 1/2, 0.5 and
 * \frac{1}{2}; $18 and 18 dollars; 50% and 50), else as texts without blanks, dollar signs and a final full stop. */
bool cli_score_equal(const char *found, const char *wanted);

#endif
