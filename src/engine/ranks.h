/* ranks.h: how the ranks of an engine start, run a step together, and end.
 *
 * Ranks are threads of one process, or processes under mpirun with one rank, and perhaps one GPU, each. Rank 0 has the
 * engine: requests, pages, sampling. The others hold a share of the weights and of the KV memory, wait for rank 0's
 * batch, and run it: page numbers are the same everywhere. */
#ifndef IV_ENGINE_RANKS_H
#define IV_ENGINE_RANKS_H

#include "model/cpu/cpu_model.h"

typedef struct iv_engine iv_engine;
typedef struct iv_ranks iv_ranks;

/* Decides who takes part, before anything is loaded: options.tensor_parallel_size threads, or the processes of mpirun.
 * e->ranks is filled; nobody waits for anybody yet but to see that all run the same version. */
iv_status iv_ranks_open(iv_engine *e, const iv_engine_options *o, iv_error *err);
void iv_ranks_close(iv_ranks *r); /* tells the others to end; NULL is fine */

/* iv_memory_available, or where processes have a GPU each what it has free; but the same on all ranks: the least that a
 * process had when they met. */
size_t iv_ranks_memory_available(const iv_ranks *r);

/* What the model's options must say for the ranks of this process. */
void iv_ranks_model_options(const iv_ranks *r, iv_model_options *m);

/* KV bytes that all ranks together hold for a token of a model whose single rank holds token_bytes. */
iv_status iv_ranks_kv_bytes(const iv_ranks *r, const iv_model_config *c, size_t token_bytes, size_t *bytes,
                            iv_error *err);

/* The model is loaded: of e->pool's threads rank 0 keeps its part. */
iv_status iv_ranks_divide_threads(iv_engine *e, iv_error *err);

/* Everything of rank 0 is open: opens and starts the others. Called in any case, with `status` what came of opening
 * this process's part: processes tell each other, and all end alike. */
iv_status iv_ranks_start(iv_engine *e, iv_status status, iv_error *err);

/* One batch over all ranks, as iv_cpu_model_forward. After an error that is not IV_FORMAT no further step can run. */
iv_status iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

/* Can these ranks change their weights? IV_UNSUPPORTED where they are GPUs or processes. */
iv_status iv_ranks_check_update(const iv_ranks *r, iv_error *err);
/* Between steps: e->model is another one of the same shape, opened for the same ranks; all compute with it from now
 * on. */
void iv_ranks_use_model(iv_engine *e);

size_t iv_ranks_size(const iv_ranks *r);
size_t iv_ranks_processes(const iv_ranks *r); /* that the ranks are; 1: all are in this one */
size_t iv_ranks_rank(const iv_ranks *r);      /* of this process */
size_t iv_ranks_threads(const iv_ranks *r);   /* of this process, all ranks together; after iv_ranks_start */

#endif
