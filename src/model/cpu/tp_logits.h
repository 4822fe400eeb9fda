/* tp_logits.h: the head of several CPU ranks. */
#ifndef IV_MODEL_CPU_TP_LOGITS_H
#define IV_MODEL_CPU_TP_LOGITS_H

#include "model/cpu/tp_gather.h"

/* The head over `rows` rows of s->normed, starting at `first`: out[rows][vocab_size] on rank 0. */
iv_status iv_tp_gather_logits(iv_cpu_model *s, size_t first, size_t rows, float *out, iv_error *err);

#endif
