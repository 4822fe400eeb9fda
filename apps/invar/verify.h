/* verify.h: the parts of invar verify: requests, axes and configurations, running and comparing them, the report. */
#ifndef INVAR_CLI_VERIFY_H
#define INVAR_CLI_VERIFY_H

#include "flags.h"
#include "invar_model.h"
#include "output.h"

/* ---- verify_prompts.c ---------------------------------------------------------------------------------- */

enum { VERIFY_PROMPTS_MAX = 1024, VERIFY_ANSWER_MAX = 4096 /* tokens */ };

typedef struct verify_prompt {
    int32_t *ids;       /* owned */
    iv_request request; /* ids and max_tokens are set; keeps logits */
    size_t line;        /* in the file, from 1; 0: built in */
} verify_prompt;

typedef struct verify_prompts {
    verify_prompt *items;
    size_t count;
    size_t longest;       /* tokens of the longest prompt and its answer */
    size_t prompt_tokens; /* of all */
    size_t answer_tokens; /* at most, of all */
} verify_prompts;

/* Two dozen prompts for any vocabulary: lengths around the attention blocks (64) and KV splits (256), several with a
 * common prefix, greedy and sampled. Prompts that the model cannot hold are left out; none left is CLI_FAILED. */
int verify_prompts_make(const iv_model_info *model, size_t max_tokens, verify_prompts *out, iv_error *err);

/* JSONL: one object per line with "prompt", "messages" (chat template) or "ids", and optionally max_tokens,
 * temperature, top_p, top_k, min_p, the three penalties, seed, ignore_eos. Defaults: the max_tokens given, greedy,
 * everything else off, the line number as seed. CLI_FAILED names file, line and field. */
int verify_prompts_read(const char *path, const char *model_path, const iv_model_info *model, size_t max_tokens,
                        verify_prompts *out, iv_error *err);

void verify_prompts_free(verify_prompts *prompts);

/* ---- verify_axes.c ------------------------------------------------------------------------------------- */

typedef enum verify_axis {
    VERIFY_BATCH, /* a number: concurrent requests */
    VERIFY_ORDER,
    VERIFY_CHUNK, /* a number: most tokens of a step */
    VERIFY_PREFIX,
    VERIFY_PREEMPT,
    VERIFY_THREADS, /* a number */
    VERIFY_ISA,
    VERIFY_TP, /* a number */
    VERIFY_RESTART,
    VERIFY_SAMPLING,
    VERIFY_LOGPROBS,
    VERIFY_SPECULATIVE,
    VERIFY_DEVICE,
    VERIFY_WEIGHTS,
    VERIFY_ANSWER_AXES,                /* with --train: these, and threads, isa, tp and device */
    VERIFY_WORLD = VERIFY_ANSWER_AXES, /* a number: data-parallel ranks */
    VERIFY_MICRO_BATCH,                /* a number: most sequences of a pass */
    VERIFY_RECOMPUTE,
    VERIFY_RESUME,
    VERIFY_AXES
} verify_axis;

/* Values of the axes that are not numbers, in the order of their names. */
enum { VERIFY_REVERSED = 1, VERIFY_SHUFFLED, VERIFY_SPREAD };
enum { VERIFY_WARM = 1, VERIFY_SHARED };
enum { VERIFY_PREEMPT_RANDOM = 1, VERIFY_PREEMPT_MEMORY };
enum { VERIFY_SCALAR = 1, VERIFY_AVX2, VERIFY_AVX512 };
enum { VERIFY_DECOYS = 1, VERIFY_LEAVING };
enum { VERIFY_DEVICE_CPU = 1, VERIFY_DEVICE_CUDA, VERIFY_DEVICE_EAGER };
enum { VERIFY_EXPANDED = 1, VERIFY_PACKED };
enum { VERIFY_RESUME_SAME = 1, VERIFY_RESUME_WORLDS };

enum {
    VERIFY_VALUES_MAX = 16,    /* of an axis */
    VERIFY_CONFIGS_MAX = 4096, /* of a run */
    VERIFY_CONCURRENCY = 4,    /* concurrent requests where an axis needs several and batch is not set */
    VERIFY_NAME_BYTES = 192
};

typedef struct verify_axes {
    size_t values[VERIFY_AXES][VERIFY_VALUES_MAX]; /* never 0 */
    size_t counts[VERIFY_AXES];                    /* 0: not varied */
} verify_axes;

typedef struct verify_config {
    size_t value[VERIFY_AXES]; /* all 0: the quiet run */
    uint64_t seed;             /* of random choices: order, arrivals, preemptions */
    char name[VERIFY_NAME_BYTES];
} verify_config;

extern const char *const verify_axis_names[VERIFY_AXES];

/* A value's name: "5", "shuffled". Returns out. */
const char *verify_value_name(verify_axis axis, size_t value, char out[24]);

/* From --axes and the --...-sizes flags. CLI_USAGE names the flag. */
int verify_axes_read(const cli_args *args, bool training, verify_axes *out, iv_error *err);

/* Removes a value (unsupported here, or the quiet run's own). */
void verify_axes_drop(verify_axes *axes, verify_axis axis, size_t value);

/* The value for an instruction set's name, 0 if there is none. */
size_t verify_isa_value(const char *name);

typedef struct verify_configs {
    verify_config *items; /* owned */
    size_t count;
} verify_configs;

/* Each value of each axis alone. CLI_FAILED: out of memory. */
int verify_configs_single(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends `count` random configurations of at least two axes, if two are varied. The slow scalar instruction set is
 * excluded. */
int verify_configs_random(const verify_axes *axes, size_t count, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends the rest of the product. CLI_USAGE if there are more than VERIFY_CONFIGS_MAX in all. */
int verify_configs_product(const verify_axes *axes, uint64_t seed, verify_configs *out, iv_error *err);
/* Appends one; its seed is `seed` plus its number. */
int verify_configs_add(verify_configs *configs, const size_t value[VERIFY_AXES], uint64_t seed, iv_error *err);
void verify_configs_free(verify_configs *configs);

/* The concurrency of the compared requests. */
size_t verify_config_width(const verify_config *config);

/* ---- verify_run.c -------------------------------------------------------------------------------------- */

enum { VERIFY_DIGEST_BYTES = 72, VERIFY_REASON_BYTES = 256, VERIFY_TOP = 5 };

/* Memory for rows of the quiet run that are kept whole; later rows are kept as 64-bit hashes. */
#define VERIFY_KEPT_BYTES ((size_t)512 << 20)

/* One request of the quiet run. */
typedef struct verify_answer {
    int32_t *tokens;
    float *logprobs, *rows; /* rows: the first `kept`, [kept][vocabulary] */
    uint64_t *hashes;       /* of every row */
    size_t count;
    iv_finish finish;
    char digest[VERIFY_DIGEST_BYTES];
} verify_answer;

/* The kind of a request's first difference, in order of checking. */
typedef enum verify_kind { VERIFY_SAME, VERIFY_LOGITS, VERIFY_LOGPROB, VERIFY_TOKEN, VERIFY_END } verify_kind;

/* One request of one configuration, compared with the quiet run. */
typedef struct verify_cell {
    bool ran;
    verify_kind kind;
    size_t position;   /* of the first difference, in the answer */
    size_t token_from; /* position of the first token that differs; SIZE_MAX: none */
    int32_t token;     /* LOGITS: the token of the logit (-1: only the hash is known); else the token found */
    float want, found; /* LOGITS, LOGPROB */
    size_t rows;       /* compared: up to the first token that differs */
    double most;       /* largest probability divergence of any row and token */
    double top_sum;    /* of the rows' divergences over the top VERIFY_TOP */
    char digest[VERIFY_DIGEST_BYTES];
} verify_cell;

typedef struct verify_result {
    bool skipped;                     /* the engine refused the configuration; see reason */
    char reason[VERIFY_REASON_BYTES]; /* or the error of an answer */
    verify_cell *cells;               /* one per prompt */
    char digest[VERIFY_DIGEST_BYTES]; /* over the digests of all requests that ran, in order */
    size_t ran, differing, rows;
    size_t first; /* differing request; SIZE_MAX: none */
    double most, top, seconds;
    size_t steps, together, cached, preemptions, drafted, accepted; /* engine statistics */
} verify_result;

typedef struct verify_job {
    const char *model_name;    /* as given by the user */
    iv_engine_options options; /* common to all configurations */
    const cli_args *args;      /* whose adapters every engine loads */
    const iv_model_info *model;
    const verify_prompts *prompts;
    size_t scalar_tokens; /* most to compute with the scalar instruction set; 0: all */
    verify_answer *quiet; /* one per prompt */
    size_t kept;          /* rows of each answer that are kept whole */
    char fingerprint[160], isa[16], dtype[16];
    cli_progress *progress;
    size_t done, total; /* configurations */
} verify_job;

/* The quiet run: fills quiet, kept, fingerprint, isa, dtype. Any failed request fails the run. */
int verify_run_quiet(verify_job *job, verify_result *out, iv_error *err);

/* Neither a difference nor a configuration that the engine refuses for its instruction set, ranks or speculation is a
 * failure. 128 + n after signal n (cli_interrupt). The caller frees out in any case. */
int verify_run(verify_job *job, const verify_config *config, verify_result *out, iv_error *err);

void verify_result_free(verify_result *result);
void verify_job_free(verify_job *job); /* the quiet answers */

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* Records token number `at` of the quiet run, and its end. CLI_FAILED names what is missing. */
int verify_record_token(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err);
int verify_record_end(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err);

/* Compares token number `at` of an answer. False once tokens differ: later positions have another prefix. */
bool verify_compare_token(const verify_job *job, const verify_answer *answer, size_t at, const iv_event *event,
                          verify_cell *cell);
/* Compares the end of an answer of `count` tokens. */
void verify_compare_end(const verify_answer *answer, size_t count, const iv_event *event, verify_cell *cell);

/* "position 3, token 17: wanted ..., found ..., 2 ulps apart". Returns out. */
const char *verify_difference(const verify_cell *cell, char out[256]);

/* ---- verify_report.c ----------------------------------------------------------------------------------- */

typedef struct verify_report {
    const char *model; /* as given by the user */
    const verify_job *job;
    const verify_config *configs;
    const verify_result *results; /* [count]; configuration 0 is the quiet run */
    size_t count;
    size_t *unique; /* distinct outputs of each prompt over all configurations */
    size_t unique_most;
    size_t compared;  /* configurations other than the quiet run */
    size_t differing; /* of these */
    size_t rows;      /* of these */
    size_t worst;     /* first configuration that differs; SIZE_MAX: none */
    double most, top; /* over all configurations */
} verify_report;

/* Fills the derived fields. The caller frees with verify_report_close. */
int verify_report_open(verify_report *report, iv_error *err);
void verify_report_close(verify_report *report);

/* One row of the table, printed when its configuration is finished, and the head and foot of the table. prompts: the
 * number of requests of a full configuration. */
void verify_table_head(FILE *out, const verify_job *job, const char *model, const cli_style *style);
void verify_table_row(FILE *out, const verify_config *config, const verify_result *result, size_t prompts,
                      const cli_style *style);
void verify_table_foot(FILE *out, const verify_report *report, const cli_style *style);

void verify_report_json(FILE *out, const verify_report *report);

/* One row per configuration, one column per request. */
void verify_report_plot(FILE *out, const verify_report *report);

#endif
