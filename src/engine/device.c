/* device.c: choosing a device and its arithmetic. */
#include "engine/device.h"
#include "engine/adapters.h"
#include "model/cpu/product.h"
#include "base/size.h"
#include "comm/mpi.h"
#include "engine/ranks.h"
#include "format/model_config.h"

#include <stdlib.h>
#include <string.h>

/* Does each rank have a GPU that computes tc16, and does no option require the CPU? */
static bool prefers_gpu(const iv_engine_options *o, const iv_engine *e, bool given) {
    iv_gpu *gpu;
    iv_error unused;
    size_t count;
    if (given && e->arithmetic == IV_FMA32) return false;
    if (iv_mpi_processes() > 1) return false; /* their machines may differ, so the device must be given */
    if (iv_gpu_count(&count, &unused) != IV_OK || o->tensor_parallel_size > count) return false;
    if (iv_gpu_open(0, true, &gpu, &unused) != IV_OK) return false;
    iv_gpu_close(gpu);
    return true;
}

static iv_status check_transport(const iv_engine_options *o, iv_error *err) {
    const char *how = o->rank_transport ? o->rank_transport : "auto";
    if (strcmp(how, "auto") == 0 || strcmp(how, "nccl") == 0 || strcmp(how, "host") == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "rank_transport: wanted auto, nccl or host, found '%s'", how);
}

/* The processes of a machine take its GPUs in order. If the launcher shows each process one GPU, it takes that. */
static iv_status open_own_gpu(iv_engine *e, iv_model_options *m, iv_error *err) {
    size_t count, local = iv_mpi_local_rank();
    IV_TRY(iv_gpu_count(&count, err));
    if (count == 1 && getenv("CUDA_VISIBLE_DEVICES")) local = 0;
    if (local >= count)
        return iv_fail(err, IV_INVALID,
                       "device cuda: every process of mpirun needs its own GPU: wanted GPU %zu for process %zu of "
                       "this machine, the driver shows %zu",
                       local, local, count);
    IV_TRY(iv_gpu_open(local, e->arithmetic == IV_TC16, &e->gpus[0], err));
    m->memspace[0] = iv_gpu_memspace(e->gpus[0]);
    return IV_OK;
}

static iv_status open_gpus(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err) {
    size_t ranks = o->tensor_parallel_size ? o->tensor_parallel_size : 1, count;
    if (iv_mpi_processes() > 1 && !o->single_process) return open_own_gpu(e, m, err);
    IV_TRY(iv_gpu_count(&count, err));
    if (ranks > IV_RANKS_MAX)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted 1 to %d, found %zu", IV_RANKS_MAX, ranks);
    if (ranks > count)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted %zu GPUs, the driver shows %zu", ranks, count);
    for (size_t r = 0; r < ranks; r++) {
        IV_TRY(iv_gpu_open(r, e->arithmetic == IV_TC16, &e->gpus[r], err));
        m->memspace[r] = iv_gpu_memspace(e->gpus[r]);
    }
    return iv_gpu_peer(e->gpus, ranks, err);
}

/* What int8 products are not there for. */
static iv_status check_int8(const iv_engine_options *o, const iv_engine *e, iv_error *err) {
    const char *name = e->terms == 1 ? "i8" : "i8x2";
    if (e->numerics == IV_VANILLA_BLAS)
        return iv_fail(err, IV_UNSUPPORTED,
                       "arithmetic %s: OpenBLAS has no int8 products: wanted numerics invar, bio or vanilla, found "
                       "vanilla-blas",
                       name);
    if (o->max_loras)
        return iv_fail(err, IV_UNSUPPORTED, "arithmetic %s: has no adapters: wanted max_loras 0, found %zu", name,
                       o->max_loras);
    if (o->trainable)
        return iv_fail(err, IV_UNSUPPORTED,
                       "arithmetic %s: no learner has it: wanted fma32 or tc16 in an engine that is trainable", name);
    return IV_OK;
}

iv_status iv_device_choose(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err) {
    const char *device = o->device ? o->device : "cpu";
    bool automatic = strcmp(device, "auto") == 0, cuda = strcmp(device, "cuda") == 0;
    if (!automatic && !cuda && strcmp(device, "cpu") != 0)
        return iv_fail(err, IV_INVALID, "device: wanted auto, cpu or cuda, found '%s'", device);
    iv_engine_arithmetic a = {.floats = e->arithmetic};
    IV_TRY(iv_engine_arithmetic_parse(o->arithmetic, &a, err));
    e->arithmetic = a.floats, e->terms = m->terms = a.terms;
    if (e->terms) IV_TRY(check_int8(o, e, err));
    IV_TRY(check_transport(o, err));
    iv_dtype type = IV_BF16; /* unused on a CPU */
    if (automatic || cuda) IV_TRY(iv_model_dtype(o->model, m, &type, err));
    bool floats = type == IV_F32;
    if (automatic && !floats) cuda = prefers_gpu(o, e, a.given);
    if (!a.given) e->arithmetic = iv_arithmetic_auto(cuda, type);
    if (e->numerics == IV_VANILLA_BLAS && e->arithmetic != (cuda ? IV_TC16 : IV_FMA32))
        return iv_fail(err, IV_UNSUPPORTED, "numerics vanilla-blas: wanted arithmetic %s on device %s, found %s",
                       cuda ? "tc16" : "fma32", cuda ? "cuda" : "cpu", cuda ? "fma32" : "tc16");
    if (cuda) IV_TRY(iv_arithmetic_check(e->arithmetic, type, err));
    m->plain_rows = e->numerics == IV_VANILLA_BLAS; /* a library's epilogue has no SwiGLU */
    return cuda ? open_gpus(o, e, m, err) : IV_OK;
}

static iv_gpu_model_options options_of(const iv_engine *e, const iv_engine_options *o) {
    return (iv_gpu_model_options){.arithmetic = e->arithmetic,
                                  .numerics = e->numerics,
                                  .terms = e->terms,
                                  .tokens_max = e->max_num_batched_tokens,
                                  .spans_max = e->max_num_seqs,
                                  .logits_max = e->logits_max,
                                  .positions_max = e->max_model_len,
                                  .graphs = !o->enforce_eager,
                                  .timeout_ms = o->rank_timeout_ms,
                                  .ids = e->drawable.bits,
                                  .adapters_loaded = o->max_loras,
                                  .adapters = iv_adapters_slots(o->max_loras),
                                  .adapter_rank = o->max_loras ? o->max_lora_rank : 0,
                                  .processes = iv_ranks_processes(e->ranks)};
}

/* Ranks need equal memory, so the GPU with the least decides. */
size_t iv_device_memory_available(const iv_engine *e, const iv_model_config *c, iv_dtype type,
                                  const iv_engine_options *o, size_t *working) {
    size_t least = SIZE_MAX, ranks = 0;
    for (; ranks < IV_RANKS_MAX && e->gpus[ranks]; ranks++)
        least = iv_size_min(least, iv_gpu_memory_available(e->gpus[ranks]));
    if (iv_ranks_processes(e->ranks) > 1) /* including those of other processes */
        least = iv_ranks_memory_available(e->ranks), ranks = iv_ranks_size(e->ranks);
    iv_gpu_model_options options = options_of(e, o);
    options.positions_max = o->max_model_len ? o->max_model_len : (size_t)c->max_positions;
    *working = iv_gpu_model_working_bytes(c, type, &options, ranks);
    size_t shared = ranks > 1 ? (size_t)c->vocab_size * (size_t)c->hidden_size * iv_dtype_bytes(type) : 0;
    if (!iv_size_add(*working, shared, working)) *working = SIZE_MAX; /* each rank holds the whole embedding */
    least = least > *working ? least - *working : 1;
    return least > SIZE_MAX / ranks ? SIZE_MAX : least * ranks;
}

static iv_status open_forward(iv_engine *e, iv_error *err) {
    IV_TRY(
        iv_cpu_model_open(e->model, e->kernels, e->arithmetic, e->pool, e->max_num_batched_tokens, &e->forward, err));
    if (e->max_loras) IV_TRY(iv_cpu_use_adapters(e->forward, &e->adapters, 0, err));
    e->tile_rows =
        iv_tile_for(&e->kernels->tiles, e->arithmetic, e->model->gemm_type, iv_weight_plain(e->model->gemm_type))
            ->rows_max;
    return IV_OK;
}

iv_status iv_device_open_model(iv_engine *e, const iv_engine_options *o, size_t pages, iv_error *err) {
    if (!e->gpus[0]) return open_forward(e, err);
    iv_gpu_model_options options = options_of(e, o);
    options.pages = pages, options.state_slots = e->state_slots, options.state_tails = e->state_layout.tails;
    e->tile_rows = 8;
    return iv_gpu_model_open(e->model, e->gpus, &options, &e->gpu_model, err);
}

void iv_device_stage_weights(const iv_engine *e, iv_model_options *m) {
    for (size_t r = 0; e->gpus[0] && r < IV_RANKS_MAX; r++) m->memspace[r] = iv_memspace_host();
}

void iv_device_close(iv_engine *e) {
    for (size_t i = 0; i < IV_RANKS_MAX; i++) iv_gpu_close(e->gpus[i]);
}
