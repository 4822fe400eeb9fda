/* context.c: opening and closing the ops of a GPU. Its memory and streams are those of the driver's primary context,
 * which the runtime uses, as PyTorch does. */
#include "ops/cuda/state.h"

#include <stdlib.h>

static void close_ops(iv_ops *ops) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    int before = 0;
    cudaGetDevice(&before);
    if (iv_gpu_use(g->gpu, NULL) == IV_OK) cudaStreamSynchronize(g->stream);
    iv_gpu_ops_free_columns(g);
    iv_gpu_ops_free_memory(g);
    cudaSetDevice(before);
    cudaGetLastError();
    iv_gpu_close(g->gpu);
    free(g);
}

static iv_ops_gpu table = {.close = close_ops,
                           .begin = iv_gpu_ops_begin,
                           .end = iv_gpu_ops_end,
                           .set_stream = iv_gpu_ops_set_stream,
                           .synchronize = iv_gpu_ops_synchronize,
                           .write = iv_gpu_ops_write};

static void fill_table(void) {
    iv_gpu_ops_row_table(&table), iv_gpu_ops_prediction_table(&table), iv_gpu_ops_linear_table(&table);
    iv_gpu_ops_sum_table(&table), iv_gpu_ops_attention_table(&table), iv_gpu_ops_rope_table(&table);
    iv_gpu_ops_expert_table(&table), iv_gpu_ops_optimizer_table(&table);
}

static iv_status open_memory(gpu_ops *g, iv_error *err) {
    int code = (int)cudaEventCreateWithFlags(&g->switched, cudaEventDisableTiming);
    for (size_t i = 0; i < GPU_OPS_SLOTS && !code; i++)
        code = (int)cudaEventCreateWithFlags(&g->slots[i].sent, cudaEventDisableTiming);
    IV_TRY(iv_gpu_check(g->gpu, code, "ops: event", err));
    g->bad = g->memspace->alloc(g->memspace, sizeof *g->bad);
    g->nothing = g->memspace->alloc(g->memspace, sizeof *g->nothing);
    g->host_bad = g->memspace->stage(g->memspace, sizeof *g->host_bad);
    if (!g->bad || !g->nothing || !g->host_bad)
        return iv_fail(err, IV_NO_MEMORY, "ops: GPU %d: no memory", iv_gpu_get_info(g->gpu)->ordinal);
    *g->host_bad = UINT64_MAX;
    return g->memspace->write(g->memspace, g->bad, sizeof *g->bad, g->host_bad, sizeof *g->bad, sizeof *g->bad, 1, err);
}

iv_status iv_ops_open_gpu(size_t ordinal, iv_arithmetic arithmetic, const iv_ops_memory *memory, iv_ops **out,
                          iv_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    gpu_ops *g = calloc(1, sizeof *g);
    int before = -1;
    pthread_once(&once, fill_table);
    if (!g) return iv_fail(err, IV_NO_MEMORY, "ops: no memory");
    if (cudaGetDevice(&before) != cudaSuccess) cudaGetLastError();
    iv_status status = iv_gpu_open(ordinal, arithmetic == IV_TC16, &g->gpu, err);
    if (status != IV_OK) {
        free(g);
        return status;
    }
    g->base.gpu = &table, g->memspace = iv_gpu_memspace(g->gpu), g->sms = iv_gpu_get_info(g->gpu)->sms;
    if (memory) g->memory = *memory;
    status = open_memory(g, err);
    if (before >= 0) cudaSetDevice(before);
    if (status != IV_OK)
        close_ops(&g->base);
    else
        *out = &g->base;
    return status;
}
