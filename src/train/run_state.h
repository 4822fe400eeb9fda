/* run_state.h: a run that is open, shared by its files. */
#ifndef IV_TRAIN_RUN_STATE_H
#define IV_TRAIN_RUN_STATE_H

#include "baseline/ops.h"
#include "engine/state.h"
#include "train/loss/algorithm.h"
#include "train/data/data.h"
#include "train/trainer/identity.h"
#include "train/metrics/metrics.h"
#include "train/metrics/events.h"
#include "train/metrics/progress.h"
#include "train/data/order.h"
#include "train/run.h"
#include "train/schedule.h"
#include "train/trainer/trainer.h"

#define IV_RUN_ADAPTER "policy" /* the engine's name of an adapter that learns */

typedef struct iv_run {
    const iv_run_options *o;
    iv_comm *processes; /* NULL: one */
    bool first;         /* the process that writes and speaks */
    bool no_optimizer;
    iv_text_model *text;
    iv_train_data *data, *eval_data; /* eval_data: NULL without an evaluation */
    iv_train_order *order;
    iv_engine *engine; /* of rollouts; NULL in sft */
    iv_trainer *trainer;
    iv_baseline *baseline; /* of a control; else NULL */
    iv_schedule schedule;
    iv_algorithm algorithm;
    uint64_t steps, at; /* of the run; done so far */
    iv_train_identity identity;
    iv_train_log *log;
    iv_train_events *events;
    iv_train_progress progress;
    uint32_t *examples; /* [batch_size] of a step */
    uint8_t hash[32];
    iv_run_summary *summary;
    double began;
    /* The sequences of a step. */
    iv_train_sequence *sequences;
    size_t sequence_max;
} iv_run;

iv_status iv_run_open(iv_run *r, const iv_run_options *o, iv_run_summary *summary, iv_error *err);
/* Data and trainer alone, without an optimizer: no run. */
iv_status iv_run_open_model(iv_run *r, const iv_run_options *o, iv_run_summary *summary, iv_error *err);
void iv_run_close(iv_run *r);

/* When all that can be checked was: makes the output directory. */
iv_status iv_run_begin(iv_run *r, iv_error *err);
/* After each step: log, progress, checkpoint where one is due. `state`: a JSON object to continue from, or NULL. */
iv_status iv_run_end_step(iv_run *r, iv_train_metrics *m, const char *state, iv_error *err);

/* Room for n sequences, whose logprobs the run owns: [longest] each. */
iv_status iv_run_reserve(iv_run *r, size_t n, iv_error *err);

/* The sequences of the run that have n examples: those of data by `which`, or from `first` on (NULL). */
void iv_run_fill(iv_run *r, const iv_train_data *data, const uint32_t *which, size_t first, size_t n);
/* The longest sequence that a step may have, in tokens. */
size_t iv_run_longest(const iv_run *r);
/* run_trainer.c: the trainer's options; all that can be said of them before anything is opened. */
iv_status iv_run_check_trainer(const iv_run *r, iv_error *err);
/* Opens the trainer, in rl the engine too. */
iv_status iv_run_open_trainer(iv_run *r, iv_error *err);

iv_status iv_run_sft(iv_run *r, iv_error *err);
/* run_check.c: options of the data, of every run and of rl, before a trainer is opened. */
iv_status iv_run_check_data(const iv_run_options *o, iv_error *err);
iv_status iv_run_check(const iv_run *r, iv_error *err);
iv_status iv_run_check_rl(const iv_run *r, iv_error *err);
/* Does top-p, top-k or min-p narrow what is drawn? */
bool iv_run_filters(const iv_run_options *o);
iv_status iv_run_rl(iv_run *r, iv_error *err);

#endif
