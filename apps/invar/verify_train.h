/* verify_train.h: the parts of invar verify --train: training runs whose weights are compared after each step. */
#ifndef INVAR_CLI_VERIFY_TRAIN_H
#define INVAR_CLI_VERIFY_TRAIN_H

#include "verify.h"

/* ---- verify_train.c ------------------------------------------------------------------------------------ */

/* CLI_USAGE names a flag that does not go with --train, or that needs it. */
int verify_check_mode(const cli_args *args, iv_error *err);
int verify_train(const cli_args *args, iv_error *err);

/* ---- verify_train_run.c -------------------------------------------------------------------------------- */

typedef char verify_hash[65]; /* of all weights after a step, in hexadecimal */

enum { VERIFY_PARTS_MAX = 3 /* of an interrupted run */, VERIFY_FOLDER_BYTES = 4000 };

/* A training run of one configuration. */
typedef struct verify_trained {
    bool skipped; /* refused for its instruction set, ranks, world or device; see reason */
    char reason[VERIFY_REASON_BYTES];
    verify_hash *hashes;                                      /* [compared], owned */
    size_t compared;                                          /* steps */
    size_t differing;                                         /* of these */
    size_t first;                                             /* differing step, from 1; 0: none */
    size_t parts;                                             /* 1: not interrupted */
    size_t worlds[VERIFY_PARTS_MAX], until[VERIFY_PARTS_MAX]; /* data-parallel ranks of each part, its last step */
    double loss, seconds;
} verify_trained;

typedef struct verify_train_job {
    const char *model_name;                             /* as given by the user */
    const char *path, *data_name;                       /* data_name: as given by the user, NULL: random sequences */
    const char *device, *dtype, *arithmetic, *numerics; /* as asked for; after the quiet run what it had */
    const char *isa;                                    /* of the quiet run */
    size_t steps, scalar_steps, batch_size;
    size_t lora_rank; /* 0: all weights learn */
    const char *lora_targets;
    uint64_t seed;
    char folder[VERIFY_FOLDER_BYTES], data[VERIFY_FOLDER_BYTES + 16]; /* temporary; the file of sequences */
    const verify_trained *quiet;
    cli_progress *progress;
    size_t done, total; /* configurations */
} verify_train_job;

/* Makes the temporary folder and, without --data, the file of random sequences of 2 to 60 tokens with masks. */
int verify_train_open(verify_train_job *job, const char *data, const iv_model_info *model, iv_error *err);
void verify_train_close(verify_train_job *job); /* removes the folder */

/* Trains in one configuration and compares with job->quiet, if it is set. 128 + n after signal n (cli_interrupt). The
 * caller frees out in any case. */
int verify_train_run(verify_train_job *job, const verify_config *config, verify_trained *out, iv_error *err);
void verify_trained_free(verify_trained *t);

/* ---- verify_train_report.c ----------------------------------------------------------------------------- */

typedef struct verify_train_report {
    const verify_train_job *job;
    const verify_config *configs;
    const verify_trained *results; /* [count]; configuration 0 is the quiet run */
    size_t count;
    size_t compared, differing; /* configurations other than the quiet run */
    size_t steps;               /* of these, compared */
    size_t unique;              /* hashes of one step, at most */
    size_t worst;               /* first configuration that differs; SIZE_MAX: none */
} verify_train_report;

/* Fills the derived fields. */
int verify_train_report_fill(verify_train_report *report, iv_error *err);

void verify_train_head(FILE *out, const verify_train_job *job, const cli_style *style);
void verify_train_row(FILE *out, const verify_train_job *job, const verify_config *config, const verify_trained *t,
                      const cli_style *style);
void verify_train_foot(FILE *out, const verify_train_report *report, const cli_style *style);
void verify_train_json(FILE *out, const verify_train_report *report);
/* One row per configuration, one column per step. */
void verify_train_plot(FILE *out, const verify_train_report *report);

#endif
