/* attention_shim.c: attention as plain functions of a shared library, for attention_peers.py. */
#include "kernels/cuda/ops.h"

#define API __attribute__((visibility("default")))

static iv_gpu_attention_shape shape_of(int heads, int kv_heads, int head_dim) {
    return (iv_gpu_attention_shape){.arithmetic = IV_TC16,
                                    .type = IV_BF16,
                                    .heads = (size_t)heads,
                                    .kv_heads = (size_t)kv_heads,
                                    .head_dim = (size_t)head_dim,
                                    .group = (size_t)(heads / kv_heads)};
}

API size_t shim_scratch(int heads, int kv_heads, int head_dim) {
    iv_gpu_attention_shape s = shape_of(heads, kv_heads, head_dim);
    return iv_gpu_attention_scratch(&s);
}
API size_t shim_plan_bytes(int heads, int kv_heads, int head_dim, size_t rows, size_t spans) {
    iv_gpu_attention_shape s = shape_of(heads, kv_heads, head_dim);
    return iv_gpu_attention_plan_bytes(&s, rows, spans);
}
API size_t shim_plan(int heads, int kv_heads, int head_dim, const iv_gpu_span *spans, size_t count, int sms, void *plan,
                     size_t bytes) {
    iv_gpu_attention_shape s = shape_of(heads, kv_heads, head_dim);
    return iv_gpu_attention_plan(&s, spans, count, sms, plan, bytes);
}
API int shim_run(int heads, int kv_heads, int head_dim, float scale_log2e, const void *q, void *pages,
                 size_t page_count, void *out, const void *plan, const void *spans, const void *tables, void *scratch,
                 int decode, int sms, size_t rows, void *stream) {
    iv_gpu_attention_shape s = shape_of(heads, kv_heads, head_dim);
    iv_gpu_attention_args a = {.shape = s,
                               .kv = {IV_BF16, s.kv_heads, s.head_dim, pages, page_count},
                               .scale_log2e = scale_log2e,
                               .q = q,
                               .out = out,
                               .plan = plan,
                               .spans = spans,
                               .tables = tables,
                               .scratch = scratch,
                               .decode = decode != 0,
                               .sms = sms,
                               .rows = rows};
    return iv_gpu_attention(&a, stream);
}
