/* flat_ops.h: a device's memory for the flat buffers of a trainer (model/parameters.h: master weights, moments, sums of
 * gradients) and what a step computes on them, as a table of functions. Law: NUMERICS.md 15.2, 15.10; no device changes
 * a bit.
 *
 * A flat buffer is float32, its address is the device's: only a host's may be read by this process. n, and the place of
 * a slice in it, are multiples of IV_PARAMETER_BLOCK unless a comment says otherwise. Every call returns when its work
 * is done, so that a learner or an engine on the same device sees it. One call at a time, except clear, read and write.
 * Several GPUs have a table each, and a thread each may call; `from` of sum and copy may then be memory of other GPUs,
 * which is reached over NVLink (iv_gpu_peer). An error other than that of bad input means that the device is lost. */
#ifndef IV_TRAIN_FLAT_FLAT_OPS_H
#define IV_TRAIN_FLAT_FLAT_OPS_H

#include "comm/comm.h"
#include "device/gpu.h"
#include "model/parameters.h"
#include "train/flat/optimizer.h"

typedef struct iv_flat iv_flat;

/* What write_model writes: matrices in this memory; vectors, and matrices that no table of the group writes. */
enum { IV_FLAT_OWN = 1, IV_FLAT_REST = 2 };

typedef struct iv_flat_ops {
    float *(*alloc)(iv_flat *r, size_t n); /* +0, aligned to 256 bytes where the device wants it; NULL: no memory */
    void (*free)(iv_flat *r, float *flat); /* NULL is fine */
    /* The same in this process's memory, which the device reaches: a flat buffer for every call, of moments that a GPU
     * has no memory for. */
    float *(*alloc_host)(iv_flat *r, size_t n);
    void (*free_host)(iv_flat *r, float *flat);
    iv_status (*clear)(iv_flat *r, float *flat, size_t n, iv_error *err); /* to +0 */
    /* Any n and place. `to` of read and `from` of write are this process's memory. */
    iv_status (*read)(iv_flat *r, const float *from, size_t n, float *to, iv_error *err);
    iv_status (*write)(iv_flat *r, float *to, size_t n, const float *from, iv_error *err);

    /* to[i] = the sum of from[k][i] of `count` flat buffers in the binary tree: at each level a = a + b for the
     * neighbours a, b. `to` may be one of them. count: a power of two, on a GPU at most 8. */
    iv_status (*sum)(iv_flat *r, float *to, const float *const *from, size_t count, size_t n, iv_error *err);
    iv_status (*copy)(iv_flat *r, float *to, const float *from, size_t n, iv_error *err); /* any n and place */
    /* sums[b], in this process's memory: the sum of squares of block b. */
    iv_status (*block_sums)(iv_flat *r, const float *gradient, size_t n, double *sums, iv_error *err);
    /* decays[b], in this process's memory: whether the tensor of block b decays. hashes: `digests` of w and n is likely
     * to come next. A GPU then computes them from now on, next to the calls in between, of which one that writes w
     * makes them void. */
    iv_status (*adamw)(iv_flat *r, const iv_adamw_step *step, const bool *decays, const float *gradient, float *w,
                       float *m, float *v, size_t n, bool hashes, iv_error *err);
    /* digests[iv_weight_groups(n)], in this process's memory: of a slice that starts at a group. */
    iv_status (*digests)(iv_flat *r, const float *w, size_t n, uint8_t (*digests)[32], iv_error *err);
    /* *at = the lowest index of an element that is not finite, or SIZE_MAX. */
    iv_status (*find_not_finite)(iv_flat *r, const float *x, size_t n, size_t *at, iv_error *err);

    /* iv_parameters_read and iv_parameters_write with `flat` here: `first` may be in any memory space, its layout is
     * made (iv_parameters_layout). A model that runs on a GPU (iv_gpu_model, iv_learner) has copies of vectors: its
     * owner refreshes them. parts: IV_FLAT_OWN, IV_FLAT_REST or both.
     * A whole flat buffer is written, or chunks in any order: `flat` has elements [begin, end), which cut no tensor's
     * row. The first chunk of a model begins at 0, and may be empty. */
    iv_status (*read_model)(iv_flat *r, const iv_model *first, float *flat, iv_error *err);
    iv_status (*write_model)(iv_flat *r, iv_model *first, const float *flat, size_t begin, size_t end, int parts,
                             iv_error *err);

    /* Of a linked table, collectively: sends mine[p], n[p] elements, to process p, and receives to[p], theirs[p]
     * elements, from it. Any n and place; the entries of this process are not read. IV_IO: a process is lost. */
    iv_status (*exchange)(iv_flat *r, const float *const *mine, const size_t *n, float *const *to, const size_t *theirs,
                          iv_error *err);

    void (*close)(iv_flat *r);
} iv_flat_ops;

/* The head of a device's own struct. */
struct iv_flat {
    const iv_flat_ops *ops;
    bool here;   /* flat buffers are this process's memory: pointers into them may be followed */
    bool linked; /* to the tables of other processes, by iv_flat_link_gpu */
};

/* Memory of this process, on the pool's threads. */
iv_status iv_flat_open_host(const iv_kernels *k, iv_pool *pool, iv_flat **out, iv_error *err);

/* Memory of a GPU, which must live as long (train/cuda/gpu.c; gpu_no_cuda.c: IV_UNSUPPORTED). pool: for work on the
 * host. IV_NO_MEMORY names the GPU. */
iv_status iv_flat_open_gpu(iv_gpu *gpu, iv_pool *pool, iv_flat **out, iv_error *err);

/* Tables of several GPUs, which write models together: a matrix is written by the table of its GPU. */
void iv_flat_join_gpus(iv_flat *const *flats, size_t count);

/* Links the tables of processes with one GPU each, by NCCL; collective. how: "nccl", or "auto" (NULL): only if every
 * process finds the library (train/cuda/link.c). */
iv_status iv_flat_link_gpu(iv_flat *r, iv_comm *processes, const char *how, iv_error *err);

static inline void iv_flat_close(iv_flat *r) { /* after all its flat buffers were freed; NULL is fine */
    if (r) r->ops->close(r);
}

#endif
