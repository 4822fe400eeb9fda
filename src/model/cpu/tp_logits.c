/* tp_logits.c: columns of the logits from all ranks. */
#include "model/cpu/tp_logits.h"
#include "base/size.h"
#include "model/cpu/product.h"

#include <string.h>

/* Copies all ranks' columns of some rows into out. */
static void scatter_logits(const iv_tp_plan *tp, size_t vocab, const void *const *blocks, size_t rows, float *out) {
    for (size_t r = 0; r < tp->ranks; r++) {
        const iv_tp_shard *shard = &tp->shard[r];
        const float *from = (const float *)(const void *)((const char *)blocks[r] + IV_TP_HEADER_BYTES);
        for (size_t i = 0; i < rows; i++)
            memcpy(out + i * vocab + shard->vocab_first, from + i * shard->vocab, shard->vocab * sizeof(float));
    }
}

iv_status iv_tp_gather_logits(iv_cpu_model *s, size_t first, size_t rows, float *out, iv_error *err) {
    const iv_model *m = s->model;
    size_t hidden = (size_t)m->config.hidden_size, vocab = (size_t)m->config.vocab_size, step = iv_tp_logit_rows(s);
    for (size_t at = 0; at < rows; at += step) {
        size_t n = iv_size_min(step, rows - at), floats[IV_RANKS_MAX], bytes[IV_RANKS_MAX];
        const void *blocks[IV_RANKS_MAX];
        unsigned char *mine = s->parts[s->part];
        iv_cpu_product(s, iv_site_head(m),
                       &(iv_linear_args){.weight = &m->head,
                                         .type = m->gemm_type,
                                         .x = (char *)s->normed + (first + at) * hidden * iv_dtype_bytes(m->gemm_type),
                                         .x_stride = hidden,
                                         .rows = n,
                                         .out = iv_tp_gather_buffer(s),
                                         .out_stride = m->head.n},
                       (iv_product_rows){s->batch->logit_rows + first + at, 1});
        for (size_t r = 0; r < m->tp.ranks; r++) floats[r] = n * m->tp.shard[r].vocab;
        iv_tp_block_sizes(s, floats, bytes);
        s->part = 1 - s->part;
        IV_TRY(iv_comm_gather(s->comm, mine, bytes, blocks, err));
        if (m->rank == 0) scatter_logits(&m->tp, vocab, blocks, n, out + at * vocab);
    }
    return IV_OK;
}
