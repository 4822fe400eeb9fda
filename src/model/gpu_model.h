/* gpu_model.h: a decoder on GPUs, with the bits of the CPU (tc16, fma32).
 *
 * Ranks are GPUs of this process, a thread each, rank 0's the caller's; or processes with a GPU each. Each GPU holds
 * its share of the weights (iv_model, opened with a place for each rank) and of the pages, under the same page numbers.
 * A step of few tokens is a captured graph, replayed; nothing waits for the host inside a step. */
#ifndef IV_MODEL_GPU_MODEL_H
#define IV_MODEL_GPU_MODEL_H

#include "device/gpu.h"
#include "comm/comm.h"
#include "model/batch.h"
#include "model/model.h"

typedef struct iv_gpu_model iv_gpu_model;

typedef struct iv_gpu_model_options {
    iv_arithmetic arithmetic;
    iv_numerics numerics;
    size_t tokens_max, spans_max; /* of one step */
    size_t logits_max;            /* rows of logits of a slice */
    size_t positions_max;         /* longest sequence */
    size_t pages;
    bool graphs;       /* capture and replay; off: launch one by one. Never changes a bit */
    size_t timeout_ms; /* how long a GPU waits for another inside a step; NCCL ten times as long while ranks connect */
    size_t processes;  /* 1: all ranks are here; else every rank is a process, and this one has one GPU */
} iv_gpu_model_options;

/* IV_UNSUPPORTED names what GPUs do not take of a configuration that CPUs do; before anything is loaded. */
iv_status iv_gpu_model_check(const iv_model_config *c, iv_error *err);

/* Bytes that one GPU needs beside weights and pages, at most, for a model held in `type`; for sizing before anything is
 * loaded. */
size_t iv_gpu_model_working_bytes(const iv_model_config *c, iv_dtype type, const iv_gpu_model_options *o, size_t ranks);

/* gpus[r] is the place of the r-th model of `first`. IV_NO_MEMORY names the GPU and the bytes wanted. */
iv_status iv_gpu_model_open(iv_model *first, iv_gpu *const *gpus, const iv_gpu_model_options *o, iv_gpu_model **out,
                            iv_error *err);
void iv_gpu_model_close(iv_gpu_model *g); /* NULL is fine */

/* Several processes: all of them call it once, before the first step. transport: "nccl", "host" (bytes go through the
 * host's memory and `comm`, which also lives as long as the model; no graphs), or "auto": nccl where every rank finds
 * it. Either moves bytes alone, and never changes a bit. Ends alike on all ranks; IV_IO: one is lost. Once all have
 * found their libraries, it takes thirty times o->timeout_ms at most. */
iv_status iv_gpu_model_connect(iv_gpu_model *g, iv_comm *comm, const char *transport, iv_error *err);

/* "nccl" or "host" for processes, "peer" for several GPUs of this process, "" for one. */
const char *iv_gpu_model_transport(const iv_gpu_model *g);

/* Puts the weights of `first`, a model of the same shape whose ranks lie in iv_memspace_host, over those in use,
 * between steps. The two models change places: afterwards `first` is in use, and the old one, whose memory is now that
 * of the new one's waiting, is the caller's to close. After an error the old one is still the one in use; IV_LIMIT says
 * that the new one is not of its shape, any other error that a GPU is lost and no step can run. */
iv_status iv_gpu_model_replace(iv_gpu_model *g, iv_model *first, iv_pool *pool, iv_error *err);

/* As iv_cpu_model_forward; b->kv is not used. Rows of b->sample_here are sampled or scored on the GPU, slice after slice, and
 * nothing is taken between: only rows of the first slice can have their logits given. An error that is not
 * IV_FORMAT means that a GPU is lost and no further step can run. */
iv_status iv_gpu_model_forward(iv_gpu_model *g, const iv_batch *b, iv_error *err);

#endif
