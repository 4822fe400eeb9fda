/* exports.c: the GPU's ops by name, for the benchmarks' Python (ops.py), and where each field of their structs lies.
 * Invariant: an op that this build lacks is NULL here and nothing fails to load. */
#include "kernels/cuda/ops.h"

#include <string.h>

/* clang-format off */
#define OPS(X) \
    X(linear) X(linear_with) X(linear_configs) X(linear_choose) X(linear_describe) \
    X(attention) X(attention_plan) X(attention_plan_bytes) X(attention_scratch) X(embed) X(rmsnorm) X(rotate) \
    X(swiglu) X(route) X(pack_rows) X(combine) X(sample) X(sample_scratch) X(tree_allreduce) X(barrier)
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
#pragma weak iv_gpu_swiglu
#pragma weak iv_gpu_route
#pragma weak iv_gpu_pack_rows
#pragma weak iv_gpu_combine
#pragma weak iv_gpu_sample
#pragma weak iv_gpu_sample_scratch
#pragma weak iv_gpu_tree_allreduce
#pragma weak iv_gpu_barrier

/* clang-format off */
#define FIELDS(X) \
    X(matrix, type) X(matrix, n) X(matrix, k_padded) X(matrix, leaves) X(matrix, data) X(matrix, expert_bytes) \
    X(groups, experts) X(groups, first) X(groups, count) X(groups, offsets) X(groups, slots) X(groups, weights) \
    X(groups, experts_per_token) X(groups, packed) X(linear_args, arithmetic) X(linear_args, w) X(linear_args, type) \
    X(linear_args, x) X(linear_args, x_stride) X(linear_args, rows) X(linear_args, x_rows) X(linear_args, epilogue) \
    X(linear_args, bias) X(linear_args, out) X(linear_args, out_stride) X(linear_args, groups) \
    X(linear_args, weighted) X(linear_args, spare) X(linear_config, family) X(linear_config, tile_n) \
    X(linear_config, tile_m) \
    X(linear_config, split_k) X(linear_config, stages) X(linear_config, variant) X(kv, type) X(kv, heads) \
    X(kv, head_dim) X(kv, pages) X(kv, page_count) X(span, first_row) X(span, rows) X(span, position) \
    X(span, table) X(attention_shape, arithmetic) X(attention_shape, type) X(attention_shape, heads) \
    X(attention_shape, kv_heads) X(attention_shape, head_dim) X(attention_shape, group) \
    X(attention_shape, group_first) X(attention_shape, window) X(attention_args, shape) X(attention_args, kv) \
    X(attention_args, scale_log2e) X(attention_args, q) X(attention_args, out) X(attention_args, plan) \
    X(attention_args, spans) X(attention_args, tables) X(attention_args, scratch) X(attention_args, decode) \
    X(attention_args, sms) X(attention_args, rows) X(rotate_args, qkv) X(rotate_args, rows) \
    X(rotate_args, heads) X(rotate_args, q_norm) X(rotate_args, k_norm) X(rotate_args, eps) \
    X(rotate_args, cosine) X(rotate_args, sine) X(rotate_args, positions) X(rotate_args, slots) \
    X(rotate_args, kv) X(rotate_args, q) X(rotate_args, bad) X(rotate_args, layer) X(sampling, temperature) \
    X(sampling, top_p) X(sampling, min_p) X(sampling, top_k) X(sampling, seed) X(sampling, position) \
    X(sampling, top_logprobs) X(sampling, sampling_logprob) X(sampling, given) X(sampling, token) X(sampled, token) \
    X(sampled, logprob) X(sampled, max) X(sampled, log_sum) X(sampled, sampling_logprob)
/* clang-format on */

/* clang-format off */
#define STRUCTS(X) \
    X(matrix) X(groups) X(linear_args) X(linear_config) X(kv) X(span) X(attention_shape) X(attention_args) \
    X(rotate_args) X(sampling) X(sampled)
/* clang-format on */

typedef void op(void);

/* The function `name` of ops.h without its iv_gpu_, or NULL. */
__attribute__((visibility("default"))) op *invar_gpu_op(const char *name);
/* Where "struct.field" lies, or the size of "struct"; -1: there is none. */
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
    if (strcmp(name, #s "." #f) == 0) return (long)offsetof(iv_gpu_##s, f);
    FIELDS(X)
#undef X
#define X(s) \
    if (strcmp(name, #s) == 0) return (long)sizeof(iv_gpu_##s);
    STRUCTS(X)
#undef X
    return -1;
}
