/* info.c: the identity of an engine, and the facts and counters that invar.h reports of it. */
#include "engine/info.h"
#include "engine/ranks.h"
#include "format/config_fields.h"
#include "numerics/version.h"

#include <stdio.h>
#include <string.h>

iv_status iv_fingerprint_make(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], iv_error *err) {
    uint8_t part[32] = {0}, all[32];
    char hex[65], head[128];
    const char *maker = e->numerics == IV_INVAR ? "iv" : iv_numerics_name(e->numerics);
    const char *arithmetic = iv_engine_arithmetic_name(e->arithmetic, e->terms),
               *dtype = iv_dtype_name(e->model->gemm_type);
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "fingerprint: no memory");
    int n = snprintf(head, sizeof head, "invar fingerprint 1\nnumerics %d\n%s %s\n", IV_NUMERICS_VERSION, arithmetic,
                     dtype);
    iv_digest_add(d, head, (size_t)n);
    if (e->numerics != IV_INVAR) iv_digest_add(d, maker, strlen(maker)); /* no baseline shares a hash with the law */
    iv_config_describe(&e->model->config, d);
    iv_digest_add(d, e->model->weights_digest, sizeof part);
    if (e->text_model->tokenizer) iv_tokenizer_digest(e->text_model->tokenizer, part);
    iv_digest_add(d, part, sizeof part);
    memset(part, 0, sizeof part);
    if (e->text_model->chat) iv_chat_template_digest(e->text_model->chat, part);
    iv_digest_add(d, part, sizeof part);
    iv_digest_add(d, e->drawable.digest, strlen(e->drawable.digest)); /* nothing where all ids may be drawn */
    iv_digest_finish(d, all);
    iv_digest_hex(all, hex);
    snprintf(out, IV_FINGERPRINT_BYTES, "%s%d-%s-%s-%.16s", maker, IV_NUMERICS_VERSION, arithmetic, dtype, hex);
    return IV_OK;
}

iv_status iv_identity_make(iv_engine *e, iv_error *err) {
    uint8_t part[32];
    iv_identity_parts *parts = &e->identity;
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "fingerprint: no memory");
    iv_config_describe(&e->model->config, d);
    iv_digest_finish(d, part);
    iv_digest_hex(part, parts->configuration);
    iv_digest_hex(e->model->weights_digest, parts->weights);
    if (e->text_model->tokenizer) {
        iv_tokenizer_digest(e->text_model->tokenizer, part);
        iv_digest_hex(part, parts->tokenizer);
    }
    if (e->text_model->chat) {
        iv_chat_template_digest(e->text_model->chat, part);
        iv_digest_hex(part, parts->chat_template);
    }
    return IV_OK;
}

/* ---- the calls of invar.h ------------------------------------------------------------------------------ */

const char *iv_version(void) { return INVAR_VERSION; }

void iv_engine_get_info(const iv_engine *e, iv_engine_info *info) {
    const iv_model *m = e->model;
    *info = (iv_engine_info){.fingerprint = e->fingerprint,
                             .numerics_version = IV_NUMERICS_VERSION,
                             .weights_digest = e->identity.weights,
                             .configuration_digest = e->identity.configuration,
                             .tokenizer_digest = e->identity.tokenizer,
                             .template_digest = e->identity.chat_template,
                             .model_type = m->config.model_type,
                             .dtype = iv_dtype_name(m->gemm_type),
                             .arithmetic = iv_engine_arithmetic_name(e->arithmetic, e->terms),
                             .isa = iv_isa_name(e->isa),
                             .device = e->gpus[0] ? "cuda" : "cpu",
                             .gpu = e->gpus[0] ? iv_gpu_get_info(e->gpus[0])->name : "",
                             .rank_transport = iv_ranks_gpu_transport(e),
                             .numerics = iv_numerics_name(e->numerics),
                             .tensor_parallel_size = iv_ranks_size(e->ranks),
                             .rank = iv_ranks_rank(e->ranks),
                             .threads = iv_ranks_threads(e->ranks),
                             .vocab_size = (size_t)m->config.vocab_size,
                             .max_model_len = e->max_model_len,
                             .max_num_seqs = e->max_num_seqs,
                             .max_num_batched_tokens = e->max_num_batched_tokens,
                             .kv_tokens = e->kv.pages / e->kv.groups.count * IV_ATTENTION_BLOCK,
                             .weight_bytes = m->weight_bytes,
                             .kv_bytes_per_token = e->kv_token_bytes,
                             .index_unread = m->index_unread,
                             .generation_unapplied = e->generation.unapplied,
                             .sampled_ids_digest = e->drawable.digest,
                             .load_seconds = e->load_seconds};
}

bool iv_engine_draws(const iv_engine *e, int32_t id) {
    return id >= 0 && id < e->model->config.vocab_size && iv_token_ids_has(&e->drawable, id);
}

const iv_text_model *iv_engine_text_model(const iv_engine *e) { return e->text_model; }

void iv_engine_get_stats(const iv_engine *e, iv_engine_stats *stats) {
    *stats = e->stats;
    const iv_queue *queues[] = {&e->running, &e->waiting, &e->held};
    for (size_t q = 0; q < sizeof queues / sizeof *queues; q++)
        for (size_t i = 0; i < queues[q]->count; i++) { /* ended sequences are counted already */
            const iv_sequence *s = queues[q]->at[i];
            stats->drafted_tokens += s->drafted_tokens, stats->accepted_tokens += s->accepted_tokens;
        }
    stats->running = e->running.count, stats->waiting = e->waiting.count + e->held.count;
    stats->held = 0;
    for (size_t i = 0; i < e->held.count; i++) stats->held += e->held.at[i]->held;
    stats->kv_pages = e->kv.pages, stats->kv_pages_free = e->kv.free_count,
    stats->kv_pages_cached = e->kv.index.idle[IV_PREFIX_PAGE].count;
}
