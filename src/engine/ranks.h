/* ranks.h: the ranks of an engine: how they start, run a step together, and end.
 *
 * Ranks are threads of one process, or processes under mpirun. Each has at most one GPU. Rank 0 has the engine:
 * requests, pages, sampling. The others hold their shard of the weights and of the KV memory, wait for rank 0's batch,
 * and run it. Page indices are the same on all ranks. */
#ifndef IV_ENGINE_RANKS_H
#define IV_ENGINE_RANKS_H

#include "engine/state.h"

/* Sets e->ranks before anything is loaded: options.tensor_parallel_size threads, or the processes of mpirun. Processes
 * gather their free memory here; ranks run together from iv_ranks_start on. */
iv_status iv_ranks_open(iv_engine *e, const iv_engine_options *o, iv_error *err);
void iv_ranks_close(iv_ranks *r); /* the other ranks end too; NULL is fine */

/* Available memory of this process, or of its GPU under mpirun. The same on all ranks: the least of any process at
 * iv_ranks_open. */
size_t iv_ranks_memory_available(const iv_ranks *r);

/* Sets the model's options for the ranks of this process. */
void iv_ranks_model_options(const iv_ranks *r, iv_model_options *m);

/* KV bytes of a token over all ranks, where one rank alone would hold token_bytes. */
iv_status iv_ranks_kv_bytes(const iv_ranks *r, const iv_model_config *c, size_t token_bytes, size_t *bytes,
                            iv_error *err);

/* The model is loaded: e->pool keeps rank 0's part of the threads. */
iv_status iv_ranks_divide_threads(iv_engine *e, iv_error *err);

/* Opens and starts the other ranks. status: the result of opening this process's part. Called also after an error, so
 * that processes gather their results and all return the same. */
iv_status iv_ranks_start(iv_engine *e, iv_status status, iv_error *err);

/* Runs one batch on all ranks, as iv_cpu_model_forward. After an error that is not IV_NOT_FINITE no further step can
 * run. */
iv_status iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

/* Whether the backend draws a token from its row of logits itself (iv_batch.sample_on_backend) under this sampling.
 * restricted: some tokens are not allowed. If it does for the first of a sequence's rows, it does for all. */
bool iv_ranks_samples(const iv_engine *e, const iv_sampling *p, bool restricted);
/* Whether the backend computes the log-probabilities of given tokens itself. */
bool iv_ranks_scores(const iv_engine *e);
/* Rows of logits that one batch can return whole. */
size_t iv_ranks_logit_rows(const iv_engine *e);

/* IV_UNSUPPORTED if these ranks cannot change their weights, as they are processes; or the error that lost a rank. */
iv_status iv_ranks_check_update(const iv_ranks *r, iv_error *err);
/* Between steps: all ranks compute with e->model from now on, which has the shape and the ranks of the one before. GPUs
 * copy its weights; an error means that one is lost. */
iv_status iv_ranks_use_model(iv_engine *e, iv_pool *pool, iv_error *err);

size_t iv_ranks_size(const iv_ranks *r);
size_t iv_ranks_processes(const iv_ranks *r); /* processes that have the ranks; 1: this one has all */
size_t iv_ranks_rank(const iv_ranks *r);      /* of this process */
size_t iv_ranks_threads(const iv_ranks *r);   /* of all ranks of this process; after iv_ranks_start */
/* "peer", "nccl" or "host": between GPUs; "" for one rank or on a CPU. */
const char *iv_ranks_gpu_transport(const iv_engine *e);

/* The other processes of mpirun read an adapter into a slot, and must find the digest; or free it. Nothing is done
 * where there are none. After an error of reading all slots are as before. */
iv_status iv_ranks_load_adapter(iv_engine *e, size_t slot, const char *dir, const uint8_t digest[32], iv_error *err);
iv_status iv_ranks_free_adapter(iv_engine *e, size_t slot, iv_error *err);

#endif
