/* exports.c: the GPU's ops by name, for the benchmarks' Python (ops.py), and the layout of their structs. An op that
 * this build lacks is NULL; the library still loads. */
#include "kernels/cuda/ops.h"

#include <string.h>

/* clang-format off */
#define OPS(X) \
    X(linear) X(linear_with) X(linear_configs) X(linear_choose) X(linear_describe) \
    X(attention) X(attention_plan) X(attention_plan_bytes) X(attention_scratch) X(embed) X(rmsnorm) X(rotate) \
    X(activate) X(route) X(pack_rows) X(combine) X(sample) X(sample_scratch) X(tree_allreduce) X(barrier)
/* clang-format on */

#pragma weak iv_gpu_linear
#pragma weak iv_gpu_linear_with
#pragma weak iv_gpu_linear_configs
#pragma weak iv_gpu_linear_choose
#pragma weak iv_gpu_linear_describe
#pragma weak iv_gpu_attention
#pragma weak iv_gpu_attention_plan
#pragma weak iv_gpu_attention_plan_bytes
#pragma weak iv_gpu_attention_scratch
#pragma weak iv_gpu_embed
#pragma weak iv_gpu_rmsnorm
#pragma weak iv_gpu_rotate
#pragma weak iv_gpu_activate
#pragma weak iv_gpu_route
#pragma weak iv_gpu_pack_rows
#pragma weak iv_gpu_combine
#pragma weak iv_gpu_sample
#pragma weak iv_gpu_sample_scratch
#pragma weak iv_gpu_tree_allreduce
#pragma weak iv_gpu_barrier

/* clang-format off */
#define FIELDS(X) \
    X(gpu_matrix, type) X(gpu_matrix, n) X(gpu_matrix, k_padded) X(gpu_matrix, leaves) X(gpu_matrix, data) \
    X(gpu_matrix, expert_bytes) X(gpu_groups, experts) X(gpu_groups, first) X(gpu_groups, count) \
    X(gpu_groups, offsets) X(gpu_groups, slots) X(gpu_groups, weights) X(gpu_groups, experts_per_token) \
    X(gpu_groups, packed) X(gpu_linear_args, arithmetic) X(gpu_linear_args, w) X(gpu_linear_args, type) \
    X(gpu_linear_args, x) X(gpu_linear_args, x_stride) X(gpu_linear_args, rows) X(gpu_linear_args, x_rows) \
    X(gpu_linear_args, epilogue) X(gpu_linear_args, bias) X(gpu_linear_args, out) X(gpu_linear_args, out_stride) \
    X(gpu_linear_args, groups) X(gpu_linear_args, weighted) X(gpu_linear_args, spare) X(gpu_linear_args, fused) \
    X(gpu_fused, addend) X(gpu_fused, gate) X(gpu_fused, up) X(gpu_fused, logits) X(gpu_fused, first) \
    X(gpu_fused, temperature) X(gpu_linear_config, family) X(gpu_linear_config, tile_n) X(gpu_linear_config, tile_m) X(gpu_linear_config, split_k) \
    X(gpu_linear_config, stages) X(gpu_linear_config, variant) X(gpu_linear_config, halves) X(gpu_kv, type) X(gpu_kv, heads) X(gpu_kv, head_dim) \
    X(gpu_kv, pages) X(gpu_kv, page_count) X(gpu_span, first_row) X(gpu_span, rows) X(gpu_span, position) \
    X(gpu_span, table) X(gpu_attention_shape, arithmetic) X(gpu_attention_shape, type) X(gpu_attention_shape, heads) \
    X(gpu_attention_shape, kv_heads) X(gpu_attention_shape, head_dim) X(gpu_attention_shape, group) \
    X(gpu_attention_shape, group_first) X(gpu_attention_shape, window) X(gpu_attention_args, shape) \
    X(gpu_attention_args, kv) X(gpu_attention_args, scale_log2e) X(gpu_attention_args, q) X(gpu_attention_args, out) \
    X(gpu_attention_args, lse2) X(gpu_attention_args, plan) X(gpu_attention_args, spans) X(gpu_attention_args, tables) \
    X(gpu_attention_args, scratch) X(gpu_attention_args, decode) X(gpu_attention_args, sms) \
    X(gpu_attention_args, rows) X(gpu_rotate_args, qkv) X(gpu_rotate_args, rows) X(gpu_rotate_args, heads) \
    X(gpu_rotate_args, q_norm) X(gpu_rotate_args, k_norm) X(gpu_rotate_args, eps) X(gpu_rotate_args, cosine) \
    X(gpu_rotate_args, sine) X(gpu_rotate_args, positions) X(gpu_rotate_args, slots) X(gpu_rotate_args, kv) \
    X(gpu_rotate_args, q) X(gpu_rotate_args, q_raw) X(gpu_rotate_args, k_raw) X(gpu_rotate_args, bad) X(gpu_rotate_args, layer) X(row_sampling, temperature) \
    X(row_sampling, top_p) X(row_sampling, min_p) X(row_sampling, top_k) X(row_sampling, seed) \
    X(row_sampling, position) X(row_sampling, top_logprobs) X(row_sampling, sampling_logprob) X(row_sampling, given) \
    X(row_sampling, token) X(row_result, token) X(row_result, logprob) X(row_result, max) X(row_result, log_sum) \
    X(row_result, sampling_logprob)
/* clang-format on */

/* clang-format off */
#define STRUCTS(X) \
    X(gpu_matrix) X(gpu_groups) X(gpu_fused) X(gpu_linear_args) X(gpu_linear_config) X(gpu_kv) X(gpu_span) X(gpu_attention_shape) \
    X(gpu_attention_args) X(gpu_rotate_args) X(row_sampling) X(row_result)
/* clang-format on */

typedef void op(void);

/* The function iv_gpu_NAME of ops.h, or NULL. */
__attribute__((visibility("default"))) op *invar_gpu_op(const char *name);
/* The offset of "struct.field", or the size of "struct" (without iv_); -1: unknown. */
__attribute__((visibility("default"))) long invar_gpu_layout(const char *name);

op *invar_gpu_op(const char *name) {
#define X(f) \
    if (strcmp(name, #f) == 0) return (op *)iv_gpu_##f;
    OPS(X)
#undef X
    return NULL;
}

long invar_gpu_layout(const char *name) {
#define X(s, f) \
    if (strcmp(name, #s "." #f) == 0) return (long)offsetof(iv_##s, f);
    FIELDS(X)
#undef X
#define X(s) \
    if (strcmp(name, #s) == 0) return (long)sizeof(iv_##s);
    STRUCTS(X)
#undef X
    return -1;
}
