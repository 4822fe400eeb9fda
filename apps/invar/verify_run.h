/* verify_run.h: running a configuration and comparing it with the quiet run, row by row, while it runs. */
#ifndef INVAR_CLI_VERIFY_RUN_H
#define INVAR_CLI_VERIFY_RUN_H

#include "output.h"
#include "verify_axes.h"
#include "verify_prompts.h"

enum { VERIFY_DIGEST_BYTES = 72, VERIFY_REASON_BYTES = 256, VERIFY_TOP = 5 };

/* Whole rows of the quiet run that are kept in memory; of those beyond, a 64-bit hash. */
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

/* What a request's first difference is of, in the order in which they are looked at. */
typedef enum verify_kind { VERIFY_SAME, VERIFY_LOGITS, VERIFY_LOGPROB, VERIFY_TOKEN, VERIFY_END } verify_kind;

/* One request of one configuration, against the quiet run. */
typedef struct verify_cell {
    bool ran;
    verify_kind kind;
    size_t position;   /* of the first difference, in the answer */
    size_t token_from; /* position of the first token that differs; SIZE_MAX: none */
    int32_t token;     /* LOGITS: whose logit (-1: known by hash only); else the token found */
    float want, found; /* LOGITS, LOGPROB */
    size_t rows;       /* compared: up to the first token that differs */
    double most;       /* largest probability divergence of any row and token */
    double top_sum;    /* of the rows' divergences over the likeliest VERIFY_TOP */
    char digest[VERIFY_DIGEST_BYTES];
} verify_cell;

typedef struct verify_result {
    bool skipped;                     /* the engine refused the configuration: reason says why */
    char reason[VERIFY_REASON_BYTES]; /* or what an answer's error was */
    verify_cell *cells;               /* one a prompt */
    char digest[VERIFY_DIGEST_BYTES]; /* over the digests of all requests that ran, in order */
    size_t ran, differing, rows;
    size_t first; /* differing request; SIZE_MAX: none */
    double most, top, seconds;
    size_t steps, together, cached, preemptions, drafted, accepted; /* what the engine did in the meantime */
} verify_result;

typedef struct verify_job {
    const char *model_name;    /* as the user wrote it */
    iv_engine_options options; /* what all configurations share */
    const iv_model_info *model;
    const verify_prompts *prompts;
    size_t scalar_tokens; /* most that the scalar instructions compute; 0: all */
    verify_answer *quiet; /* one a prompt */
    size_t kept;          /* rows of each answer that are kept whole */
    char fingerprint[160], isa[16], dtype[16];
    cli_progress *progress;
    size_t done, total; /* configurations */
} verify_job;

/* The quiet run: fills quiet, kept, fingerprint, isa, dtype. Any failure of a request is one here. */
int verify_run_quiet(verify_job *job, verify_result *out, iv_error *err);

/* A difference is no failure, nor is a configuration that the engine refuses for its instruction set, ranks or
 * speculation. 128 + n when signal n came (cli_interrupt). The caller frees out in any case. */
int verify_run(verify_job *job, const verify_config *config, verify_result *out, iv_error *err);

void verify_result_free(verify_result *result);
void verify_job_free(verify_job *job); /* the quiet answers */

#endif
