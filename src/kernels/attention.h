/* attention.h: paged causal attention for a batch of query tokens, over threads. Law: NUMERICS.md section 7. */
#ifndef IV_KERNELS_ATTENTION_H
#define IV_KERNELS_ATTENTION_H

#include "kernels/compute.h"
#include "kernels/paged_kv.h"

/* Consecutive query tokens of one sequence. */
typedef struct iv_attention_span {
    size_t first_row;      /* in q and out */
    size_t rows;           /* tokens */
    int64_t position;      /* of the first; the others follow */
    const uint32_t *pages; /* [block] -> page number; covers position + rows - 1 */
} iv_attention_span;

typedef struct iv_attention_args {
    const iv_kv_layout *layout;
    const unsigned char *kv; /* this layer's pages, layout->page_bytes apart */
    size_t heads;            /* query heads */
    size_t group;            /* query heads that share a KV head */
    size_t group_first;      /* index of query head 0 in the group of KV head 0; 0 unless heads are sharded */
    int64_t window;          /* as iv_first_visible takes it */
    float scale_log2e;
    float score_inner;  /* 0, or scores become tanh(score * score_inner) first */
    const float *sinks; /* [heads] or NULL */
    const void *q;      /* [tokens][heads * key_dim] in layout->type */
    void *out;          /* [tokens][heads * value_dim], of that type */
    const iv_attention_span *spans;
    size_t span_count;
    float *lse2; /* [tokens][heads] or NULL: log2 of each row's sum of exponentials, for the backward pass */
} iv_attention_args;

/* Scratch for one thread, in bytes; iv_attention needs threads times as much. */
bool iv_attention_scratch(const iv_kv_layout *l, size_t *bytes);

void iv_attention(const iv_compute *c, const iv_attention_args *args);

/* The same with splits of `split_blocks` blocks of 64 keys; and how many tasks the call has for the threads. */
void iv_attention_kv_split(const iv_compute *c, const iv_attention_args *args, size_t split_blocks);
size_t iv_attention_tasks(const iv_compute *c, const iv_attention_args *args);

#endif
