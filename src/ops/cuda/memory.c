/* memory.c: what a call on a GPU gets: scratch in the order of the stream, arrays from the CPU, constants; and what its
 * work found. */
#include "base/size.h"
#include "ops/cuda/state.h"

#include <sched.h>
#include <string.h>

iv_status iv_gpu_ops_launched(const gpu_ops *g, int code, iv_error *err) {
    return code ? iv_gpu_check(g->gpu, code, g->base.what, err) : IV_OK;
}

iv_status iv_gpu_ops_check_addresses(const gpu_ops *g, const void *const *at, size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++)
        if ((uintptr_t)at[i] % 16)
            return iv_fail(err, IV_INVALID, "%s: wanted arrays of a GPU at multiples of 16 bytes, found %p",
                           g->base.what, at[i]);
    return IV_OK;
}

/* ---- waiting -------------------------------------------------------------------------------------------------------
 */

static iv_status wait_for(const gpu_ops *g, cudaEvent_t event, iv_error *err) {
    cudaError_t code;
    while ((code = cudaEventQuery(event)) == cudaErrorNotReady) sched_yield();
    return iv_gpu_ops_launched(g, (int)code, err);
}

/* Reports what finished work has found, once. */
static iv_status report(gpu_ops *g, iv_error *err) {
    uint64_t row = *(volatile uint64_t *)g->host_bad;
    if (row == UINT64_MAX) return IV_OK;
    cudaStreamSynchronize(g->stream);
    int code = cudaMemsetAsync(g->bad, 0xff, sizeof *g->bad, g->stream);
    if (!code) code = cudaStreamSynchronize(g->stream);
    *g->host_bad = UINT64_MAX;
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    return iv_fail(err, IV_NOT_FINITE, "attention: a key or value of row %llu is not finite (found after its call)",
                   (unsigned long long)row);
}

iv_status iv_gpu_ops_begin(iv_ops *ops, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    if (cudaGetDevice(&g->device_before) != cudaSuccess) g->device_before = iv_gpu_get_info(g->gpu)->ordinal;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(report(g, err));
    g->used = true;
    return IV_OK;
}

iv_status iv_gpu_ops_synchronize(iv_ops *ops, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    ops->what = "ops";
    iv_status status = iv_gpu_ops_begin(ops, err);
    if (status == IV_OK) status = iv_gpu_ops_launched(g, (int)cudaStreamSynchronize(g->stream), err);
    if (status == IV_OK) status = report(g, err);
    iv_gpu_ops_end(ops);
    return status;
}

/* Scratch, constants and results of the old stream are the new one's. */
iv_status iv_gpu_ops_set_stream(iv_ops *ops, void *stream, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    int before = iv_gpu_get_info(g->gpu)->ordinal, code = 0;
    if (g->stream == (cudaStream_t)stream) return IV_OK;
    ops->what = "ops: stream";
    cudaGetDevice(&before);
    iv_status status = iv_gpu_use(g->gpu, err);
    if (status == IV_OK && g->used) {
        code = cudaEventRecord(g->switched, g->stream);
        if (!code) code = cudaStreamWaitEvent((cudaStream_t)stream, g->switched, 0);
        status = iv_gpu_ops_launched(g, code, err);
    }
    if (status == IV_OK) g->stream = (cudaStream_t)stream;
    cudaSetDevice(before);
    return status;
}

/* ---- scratch -------------------------------------------------------------------------------------------------------
 */

enum { ALIGN = 256 };

/* From the context's own memory, if it fits. */
static void *from_own(gpu_ops *g, size_t bytes) {
    g->own_wanted += bytes;
    if (bytes > g->own_bytes - g->own_at) return NULL;
    void *at = g->own + g->own_at;
    g->own_at += bytes;
    return at;
}

void *iv_gpu_ops_try_scratch(gpu_ops *g, size_t bytes) {
    if (g->scratch_count == GPU_OPS_SCRATCH_MAX || !iv_size_round_up(iv_size_max(bytes, 1), ALIGN, &bytes)) return NULL;
    void *p = g->memory.allocate ? NULL : from_own(g, bytes);
    if (p) return p;
    if (g->memory.allocate) {
        p = g->memory.allocate(g->memory.context, bytes, g->stream);
    } else if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (p) g->scratch[g->scratch_count++] = p;
    return p;
}

iv_status iv_gpu_ops_scratch(gpu_ops *g, size_t count, size_t width, void *out, iv_error *err) {
    size_t bytes;
    if (!iv_size_mul(count, width, &bytes))
        return iv_fail(err, IV_LIMIT, "%s: %zu elements of scratch are too large", g->base.what, count);
    void *p = iv_gpu_ops_try_scratch(g, bytes);
    if (!p)
        return iv_fail(err, IV_NO_MEMORY, "%s: GPU %d: no memory for %zu bytes of scratch", g->base.what,
                       iv_gpu_get_info(g->gpu)->ordinal, bytes);
    memcpy(out, &p, sizeof p);
    return IV_OK;
}

/* After a call that had more than the own memory, this becomes large enough for the next one. */
static void grow_own(gpu_ops *g) {
    size_t bytes = g->own_wanted + g->own_wanted / 4;
    g->own_wanted = g->own_at = 0;
    if (bytes <= g->own_bytes) return;
    cudaFree(g->own); /* waits */
    g->own_bytes = 0, g->own = NULL;
    void *p = NULL;
    if (cudaMalloc(&p, bytes) == cudaSuccess) g->own = p, g->own_bytes = bytes;
}

void iv_gpu_ops_end(iv_ops *ops) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    if (g->memory.allocate) {
        for (size_t i = 0; i < g->scratch_count; i++) g->memory.release(g->memory.context, g->scratch[i], g->stream);
    } else if (g->scratch_count) {
        for (size_t i = 0; i < g->scratch_count; i++) cudaFree(g->scratch[i]); /* waits */
        grow_own(g);
    }
    g->scratch_count = g->own_at = g->own_wanted = 0;
    cudaSetDevice(g->device_before);
    cudaGetLastError();
}

/* ---- arrays from the CPU -------------------------------------------------------------------------------------------
 */

iv_status iv_gpu_ops_inputs(gpu_ops *g, size_t bytes, gpu_inputs *in, iv_error *err) {
    gpu_slot *s = &g->slots[g->slot];
    in->bytes = bytes;
    IV_TRY(iv_gpu_ops_scratch(g, bytes, 1, &in->device, err));
    IV_TRY(wait_for(g, s->sent, err));
    if (bytes > s->bytes) {
        g->memspace->unstage(g->memspace, s->memory);
        s->bytes = 0, s->memory = g->memspace->stage(g->memspace, bytes + bytes / 2);
        if (!s->memory) return iv_fail(err, IV_NO_MEMORY, "%s: no pinned memory for %zu bytes", g->base.what, bytes);
        s->bytes = bytes + bytes / 2;
    }
    in->host = s->memory;
    return IV_OK;
}

iv_status iv_gpu_ops_send(gpu_ops *g, const gpu_inputs *in, iv_error *err) {
    gpu_slot *s = &g->slots[g->slot];
    int code = in->bytes ? (int)cudaMemcpyAsync(in->device, in->host, in->bytes, cudaMemcpyHostToDevice, g->stream) : 0;
    if (!code) code = (int)cudaEventRecord(s->sent, g->stream);
    g->slot = (g->slot + 1) % GPU_OPS_SLOTS;
    return iv_gpu_ops_launched(g, code, err);
}

iv_status iv_gpu_ops_copy_in(gpu_ops *g, const void *from, size_t count, size_t width, void *out, iv_error *err) {
    gpu_inputs in;
    IV_TRY(iv_gpu_ops_inputs(g, count * width, &in, err));
    if (count) memcpy(in.host, from, count * width);
    memcpy(out, &in.device, sizeof in.device);
    return iv_gpu_ops_send(g, &in, err);
}

iv_status iv_gpu_ops_write(iv_ops *ops, const float *from, size_t n, float *to, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    int code = n ? (int)cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, g->stream) : 0;
    if (!code) code = (int)cudaStreamSynchronize(g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* ---- constants -----------------------------------------------------------------------------------------------------
 */

iv_status iv_gpu_ops_settle(gpu_ops *g, iv_error *err) {
    return iv_gpu_ops_launched(g, (int)cudaMemsetAsync(g->nothing, 0, sizeof *g->nothing, g->stream), err);
}

/* Larger ones take the place of others that the stream may still read: it waits for them. */
iv_status iv_gpu_ops_zeros(gpu_ops *g, size_t n, const float **out, iv_error *err) {
    if (n > g->zeros_count) {
        IV_TRY(iv_gpu_ops_launched(g, (int)cudaStreamSynchronize(g->stream), err));
        g->memspace->free(g->memspace, g->zeros);
        g->zeros_count = 0, g->zeros = g->memspace->alloc(g->memspace, n * sizeof *g->zeros);
        if (!g->zeros) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu zeros", g->base.what, n);
        g->zeros_count = n;
    }
    *out = g->zeros;
    return IV_OK;
}

void iv_gpu_ops_free_memory(gpu_ops *g) {
    for (size_t i = 0; i < GPU_OPS_SLOTS; i++) {
        g->memspace->unstage(g->memspace, g->slots[i].memory);
        if (g->slots[i].sent) cudaEventDestroy(g->slots[i].sent);
    }
    if (g->switched) cudaEventDestroy(g->switched);
    g->memspace->unstage(g->memspace, g->host_bad);
    g->memspace->free(g->memspace, g->zeros), g->memspace->free(g->memspace, g->nothing);
    g->memspace->free(g->memspace, g->partials), g->memspace->free(g->memspace, g->bad);
    cudaFree(g->own);
}
