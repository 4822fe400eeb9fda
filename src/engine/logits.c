/* logits.c: the logits of every position of one sequence, outside the request queue. */
#include "base/cpu.h"
#include "base/size.h"
#include "engine/adapters.h"
#include "engine/ranks.h"
#include "engine/replace.h"
#include "engine/step.h"
#include "format/safetensors_write.h"

#include <stdlib.h>

static iv_status check_ids(const iv_engine *e, const int32_t *ids, size_t count, iv_error *err) {
    IV_TRY(iv_replace_check_whole(e, err));
    if (iv_engine_has_requests(e)) return iv_fail(err, IV_BUSY, "logits: requests are running");
    if (count == 0 || count > e->max_model_len)
        return iv_fail(err, IV_INVALID, "logits: wanted 1 to %zu tokens, found %zu", e->max_model_len, count);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= e->model->config.vocab_size)
            return iv_fail(err, IV_INVALID, "logits: token %zu: wanted an id below %lld, found %d", i,
                           (long long)e->model->config.vocab_size, (int)ids[i]);
    return IV_OK;
}

static iv_status run_whole(iv_engine *e, const iv_loaded_adapter *a, const int32_t *ids, size_t count, float *out,
                           iv_error *err) {
    iv_kv_table table;
    size_t chunk = iv_ranks_logit_rows(e), vocab = (size_t)e->model->config.vocab_size;
    uint32_t *rows = calloc(chunk, sizeof *rows);
    if (!rows) return iv_fail(err, IV_NO_MEMORY, "logits: no memory");
    for (size_t i = 0; i < chunk; i++) rows[i] = (uint32_t)i;
    for (size_t i = 0; a && i < chunk; i++) e->row_adapters[i] = a->slot;
    iv_status status = iv_kv_table_open(&table, &e->kv, count, err);
    for (size_t at = 0, n; status == IV_OK && at < count; at += n) {
        size_t fit = iv_kv_available(&e->kv) / e->kv.groups.count * IV_ATTENTION_BLOCK; /* behind whole blocks */
        n = iv_size_min(iv_size_min(chunk, count - at), fit + table.count * IV_ATTENTION_BLOCK - at);
        status = iv_kv_table_grow(&table, &e->kv, at + n, err);
        if (status != IV_OK) break;
        for (size_t g = 0; g < e->kv.groups.count; g++)
            e->spans[g * e->max_num_seqs] =
                (iv_attention_span){.rows = n, .position = (int64_t)at, .pages = iv_kv_table_group(&table, g)};
        iv_state_begin(&table.state, &e->kv.states, &e->kv.index, at + n);
        e->states[0] = iv_step_state_span(&table.state, at + n);
        iv_batch b = {.ids = ids + at,
                      .tokens = n,
                      .spans = e->spans,
                      .span_count = 1,
                      .group_spans = e->max_num_seqs,
                      .kv = e->kv.data,
                      .kv_layer_bytes = iv_kv_plane_bytes(&e->kv),
                      .states = e->kv.states.slots ? e->states : NULL,
                      .slots = e->kv.states.data,
                      .slots_layer_bytes = iv_states_layer_bytes(&e->kv.states),
                      .tails_at = iv_states_tails_at(&e->kv.states),
                      .adapters = a ? e->row_adapters : NULL,
                      .logit_rows = rows,
                      .logit_count = n,
                      .logits = out + at * vocab};
        status = iv_step_forward(e, &b, err);
        if (status == IV_OK) iv_state_settle(&table.state, &e->kv.states, &e->kv.index, at + n, 0);
        iv_kv_table_trim(&table, &e->kv, at + n);
    }
    if (table.pages) iv_kv_table_close(&table, &e->kv);
    free(rows);
    return status;
}

iv_status iv_engine_logits_with(iv_engine *e, const char *adapter, const int32_t *ids, size_t count, float *out,
                                iv_error *err) {
    iv_loaded_adapter *a;
    IV_TRY(check_ids(e, ids, count, err));
    IV_TRY(iv_adapters_find(e, adapter, &a, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = run_whole(e, a, ids, count, out, err);
    iv_fp_env_leave(mode);
    return status;
}

iv_status iv_engine_logits(iv_engine *e, const int32_t *ids, size_t count, float *out, iv_error *err) {
    return iv_engine_logits_with(e, NULL, ids, count, out, err);
}

iv_status iv_engine_write_logits_with(iv_engine *e, const char *adapter, const int32_t *ids, size_t count,
                                      const char *path, iv_error *err) {
    IV_TRY(check_ids(e, ids, count, err));
    size_t vocab = (size_t)e->model->config.vocab_size, n;
    float *logits = iv_size_mul(vocab, count, &n) ? calloc(n, sizeof *logits) : NULL;
    if (!logits) return iv_fail(err, IV_NO_MEMORY, "logits: no memory for %zu x %zu floats", count, vocab);
    iv_status status = iv_engine_logits_with(e, adapter, ids, count, logits, err);
    const iv_tensor_data tensors[] = {
        {.name = "input_ids", .dtype = IV_I32, .ndim = 1, .shape = {(int64_t)count}, .data = ids},
        {.name = "logits", .dtype = IV_F32, .ndim = 2, .shape = {(int64_t)count, (int64_t)vocab}, .data = logits}};
    if (status == IV_OK) status = iv_safetensors_write(path, tensors, 2, err);
    free(logits);
    return status;
}

iv_status iv_engine_write_logits(iv_engine *e, const int32_t *ids, size_t count, const char *path, iv_error *err) {
    return iv_engine_write_logits_with(e, NULL, ids, count, path, err);
}
