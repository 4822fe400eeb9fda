/* options.h: what a trainer is opened with: the options of invar_train.h, which are those of invar train too, and what
 * a run alone chooses. Names, ranges, what excludes what, and the device are decided here. */
#ifndef IV_TRAIN_TRAINER_OPTIONS_H
#define IV_TRAIN_TRAINER_OPTIONS_H

#include "baseline/baseline.h"
#include "invar_train.h"
#include "train/trainer/trainer.h"

typedef struct iv_train_setup {
    const iv_trainer_options *options; /* all members are set. data_parallel 0: the processes / tensor_parallel */
    bool flags;                        /* errors name options as invar train does: "--decay-all" for decay_all */
    const char *numerics;              /* NULL: "invar" */
    const char *shard;                 /* "optimizer" (NULL), "parameters" */
    const char *rank_transport;        /* "auto" (NULL), "nccl", "host" */
    iv_comm *processes;                /* NULL: one */
    size_t gpus; /* device auto: GPUs of compute capability 9.0 that there must be, and one for each rank */
    bool separate, deferred_loss; /* iv_gpu_learner_options */
} iv_train_setup;

/* The defaults of every option. */
iv_trainer_options iv_train_defaults(void);

/* What can be checked before a model is opened. */
iv_status iv_train_options_check(const iv_train_setup *s, iv_error *err);

/* The same, and all of *out but `model`. "auto" is decided: device (a GPU if neither numerics nor arithmetic want a
 * CPU), arithmetic, pass_tokens. IV_UNSUPPORTED: a GPU for what only CPUs train. */
iv_status iv_train_options_parse(const iv_train_setup *s, iv_train_options *out, iv_numerics *numerics, iv_error *err);

/* text is one of names[count]: *out is which. */
iv_status iv_train_one_of(const char *what, const char *text, const char *const *names, int count, int *out,
                          iv_error *err);

#endif
