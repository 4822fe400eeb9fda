/* public.h: what a trainer keeps for the calls of invar_train.h, shared by public*.c. */
#ifndef IV_TRAIN_PUBLIC_PUBLIC_H
#define IV_TRAIN_PUBLIC_PUBLIC_H

#include "engine/token_ids.h"
#include "invar_train.h"
#include "train/trainer/identity.h"
#include "train/trainer/state.h"

/* Belongs to the trainer that iv_trainer_open made. */
typedef struct iv_train_public {
    iv_token_ids drawable; /* of a policy; read by the first batch of one */
    bool has_drawable;
    char *model; /* directory */
    iv_train_identity identity;
    char *targets, *from; /* lora_targets, lora: or NULL */
    iv_engine *base;      /* whose weights the trainer reads, or NULL */
    bool broken;          /* the weights may be a mixture: only a restore helps */
    double denominator;   /* of the gradients that wait */
    iv_trainer_metrics metrics;
    /* The batch: logprobs that the caller does not want are written to memory. */
    iv_train_sequence *sequences; /* [sequence_max] */
    size_t sequence_max;
    float *memory; /* [memory_max] */
    size_t memory_max;
} iv_train_public;

/* IV_BUSY after a restore that failed midway; IV_INVALID: no trainer. */
iv_status iv_train_public_check(const iv_trainer *t, iv_error *err);
/* The hash of the present weights, into the metrics. */
iv_status iv_train_public_hash(iv_trainer *t, iv_error *err);

#endif
