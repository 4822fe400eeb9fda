/* gpu_model.h: a decoder on GPUs, with the bits of the CPU (tc16, fma32).
 *
 * Ranks are GPUs of this process, with a thread each (rank 0 uses the caller's), or processes with a GPU each. Each GPU
 * holds its shard of the weights (iv_model, opened with a memory space per rank) and of the pages, under the same page
 * numbers. A step of few tokens is a captured graph, replayed; nothing waits for the host inside a step. */
#ifndef IV_MODEL_GPU_MODEL_H
#define IV_MODEL_GPU_MODEL_H

#include "baseline/baseline.h"
#include "device/gpu.h"
#include "comm/comm.h"
#include "model/adapters.h"
#include "model/batch.h"
#include "model/model.h"

typedef struct iv_gpu_model iv_gpu_model;

typedef struct iv_gpu_model_options {
    iv_arithmetic arithmetic;
    iv_numerics numerics;
    int terms;                    /* of int8 products, as the model has them (model.h) */
    size_t tokens_max, spans_max; /* of one step */
    size_t logits_max;            /* rows of a slice of logits */
    size_t positions_max;         /* longest sequence */
    size_t pages;
    size_t state_slots, state_tails; /* of layers with a state (kv/states.h) */
    bool graphs;                     /* capture and replay; off: individual launches. Never changes a bit */
    size_t timeout_ms;             /* of a wait for another GPU inside a step; ten times as long for NCCL to connect */
    const uint64_t *ids;           /* a bit per id, 0: it is never drawn; NULL: all are drawn. Copied */
    size_t adapters_loaded;        /* at once: room is reserved for A and B of their layers without experts */
    size_t adapters, adapter_rank; /* slots that rows of a step may name, and the largest rank; 0: none (adapters.h) */
    size_t processes;              /* 1: all ranks are in this process; else every rank is a process with one GPU */
} iv_gpu_model_options;

/* Before anything is loaded: IV_UNSUPPORTED names what only CPUs support of a configuration. */
iv_status iv_gpu_model_check(const iv_model_config *c, iv_error *err);

/* An upper bound of the bytes that one GPU needs in addition to weights and pages, for a model held in `type`. For
 * sizing before anything is loaded. */
size_t iv_gpu_model_working_bytes(const iv_model_config *c, iv_dtype type, const iv_gpu_model_options *o, size_t ranks);

/* gpus[r] holds the r-th model of `first`. IV_NO_MEMORY names the GPU and the bytes wanted. */
iv_status iv_gpu_model_open(iv_model *first, iv_gpu *const *gpus, const iv_gpu_model_options *o, iv_gpu_model **out,
                            iv_error *err);
void iv_gpu_model_close(iv_gpu_model *g); /* NULL is fine */

/* Several processes: collective, once, before the first step. transport: "nccl", "host" (through the host's memory and
 * `comm`, which must live as long as the model; no graphs), or "auto": nccl if every rank finds it. Both move bytes
 * only and never change a bit. Returns the same status on all ranks; IV_IO: a rank is lost. Takes at most thirty times
 * o->timeout_ms after all ranks have loaded their libraries. */
iv_status iv_gpu_model_connect(iv_gpu_model *g, iv_comm *comm, const char *transport, iv_error *err);

/* "nccl" or "host" for processes, "peer" for several GPUs of this process, "" for one. */
const char *iv_gpu_model_transport(const iv_gpu_model *g);

/* Between steps: copies the weights of `first`, a model of the same shape whose ranks are in iv_memspace_host, over
 * those in use. The two models swap memory: afterwards `first` is in use, and the caller closes the old one, which now
 * owns the staging memory. After an error the old one is still in use; IV_LIMIT: the shapes differ; any other error: a
 * GPU is lost and no step can run. */
iv_status iv_gpu_model_replace(iv_gpu_model *g, iv_model *first, iv_pool *pool, iv_error *err);

/* After iv_tensor_write of tensors of the model in use, between two steps: brings norms, biases, the shared embedding
 * and the routers to every GPU. Other matrices have been written where they lie. An error: a GPU is lost, as above. */
iv_status iv_gpu_model_refresh(iv_gpu_model *g, iv_error *err);

/* Between two steps: an adapter of the model for rows of slot `slot` + 1, which must be free, on every GPU; `a` is not
 * kept. IV_NO_MEMORY names the GPU; after an error the slot is free. */
iv_status iv_gpu_model_load_adapter(iv_gpu_model *g, size_t slot, const iv_adapter *a, iv_error *err);
void iv_gpu_model_free_adapter(iv_gpu_model *g, size_t slot); /* one that is free is fine */

/* The keys and values of a rank's pages. Between steps others may write there; before the next step
 * iv_gpu_model_clear_kv makes the pages zero again. *bytes: of them. */
void *iv_gpu_model_kv(const iv_gpu_model *g, size_t rank, size_t *bytes);
iv_status iv_gpu_model_clear_kv(iv_gpu_model *g, iv_error *err);

/* As iv_cpu_model_forward; b->kv and b->take are not used. Rows of b->sample_on_backend are sampled or scored on the
 * GPU, a slice at a time; only rows of the first slice can have their logits copied. An error other than IV_NOT_FINITE
 * means that a GPU is lost and no further step can run. */
iv_status iv_gpu_model_forward(iv_gpu_model *g, const iv_batch *b, iv_error *err);

#endif
