/* engine.c: opening, sizing and closing; facts for the caller. */
#include "engine/engine.h"
#include "base/size.h"
#include "device/memory.h"
#include "engine/float_mode.h"
#include "kernels/blas.h"
#include "model/widen.h"
#include "numerics/version.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double iv_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *iv_version(void) { return INVAR_VERSION; }

void iv_engine_options_init(iv_engine_options *o) {
    *o = (iv_engine_options){.dtype = "auto",
                             .arithmetic = "fma32",
                             .isa = "auto",
                             .numerics = "invar",
                             .tensor_parallel_size = 1,
                             .rank_timeout_ms = 8000,
                             .max_num_seqs = 16,
                             .max_num_batched_tokens = 512,
                             .prefix_caching = true,
                             .speculative = "off",
                             .speculative_tokens = 5};
}

static iv_status parse_dtype(const char *text, iv_model_options *m, iv_error *err) {
    m->has_dtype = strcmp(text, "auto") != 0;
    if (!m->has_dtype) return IV_OK;
    for (int t = IV_BF16; t <= IV_F32; t++)
        if (strcmp(text, iv_dtype_name((iv_dtype)t)) == 0) {
            m->dtype = (iv_dtype)t;
            return IV_OK;
        }
    return iv_fail(err, IV_INVALID, "dtype: wanted auto, bfloat16, float16 or float32, found '%s'", text);
}

static iv_status parse_options(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err) {
    if (!o->model || !*o->model) return iv_fail(err, IV_INVALID, "model: wanted a model directory, found nothing");
    IV_TRY(parse_dtype(o->dtype ? o->dtype : "auto", m, err));
    const char *arithmetic = o->arithmetic ? o->arithmetic : "fma32";
    if (strcmp(arithmetic, "tc16") == 0)
        e->arithmetic = IV_TC16;
    else if (strcmp(arithmetic, "fma32") == 0)
        e->arithmetic = IV_FMA32;
    else
        return iv_fail(err, IV_INVALID, "arithmetic: wanted fma32 or tc16, found '%s'", arithmetic);
    IV_TRY(iv_isa_parse(o->isa ? o->isa : "auto", &e->isa, err));
    IV_TRY(iv_numerics_parse(o->numerics ? o->numerics : "invar", &e->numerics, err));
    if (e->numerics == IV_VANILLA_BLAS && e->arithmetic != IV_FMA32)
        return iv_fail(err, IV_UNSUPPORTED, "numerics vanilla-blas: wanted arithmetic fma32, found %s", arithmetic);
    if (o->tensor_parallel_size != 1)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted 1, found %zu", o->tensor_parallel_size);
    if (o->speculative && strcmp(o->speculative, "off") != 0)
        return iv_fail(err, IV_INVALID, "speculative: wanted off, found '%s'", o->speculative);
    if (o->max_num_seqs < 1 || o->max_num_seqs > IV_SEQS_MAX)
        return iv_fail(err, IV_INVALID, "max_num_seqs: wanted 1 to %d, found %zu", IV_SEQS_MAX, o->max_num_seqs);
    if (o->max_num_batched_tokens < 1 || o->max_num_batched_tokens > IV_BATCHED_TOKENS_MAX)
        return iv_fail(err, IV_INVALID, "max_num_batched_tokens: wanted 1 to %d, found %zu", IV_BATCHED_TOKENS_MAX,
                       o->max_num_batched_tokens);
    e->max_num_seqs = o->max_num_seqs, e->max_num_batched_tokens = o->max_num_batched_tokens;
    m->progress = o->progress, m->user = o->user;
    return IV_OK;
}

/* How long a sequence may get, and how many pages that takes. Decided from headers, before anything is loaded. */
static iv_status size_kv(const iv_engine_options *o, iv_engine *e, iv_model_options *m, size_t *pages, iv_error *err) {
    iv_model plan;
    iv_checkpoint *c;
    IV_TRY(iv_model_plan(o->model, m, &plan, &c, err));
    size_t token = iv_kv_token_bytes(&plan.kv_layout, (size_t)plan.config.layers),
           limit = (size_t)plan.config.max_positions;
    size_t page = token * IV_ATTENTION_BLOCK, available = iv_memory_available(), room = SIZE_MAX;
    iv_checkpoint_close(c);
    iv_arena_free(&plan.arena);
    if (o->max_model_len > limit)
        return iv_fail(err, IV_INVALID, "max_model_len: the model has %zu positions, wanted %zu", limit,
                       o->max_model_len);
    if (o->kv_bytes)
        room = o->kv_bytes / page;
    else if (available)
        room = available / 2 / page;
    if (room == 0)
        return iv_fail(err, IV_LIMIT, "KV cache: one page of 64 tokens takes %zu bytes, more than there is room for",
                       page);
    e->max_model_len = o->max_model_len ? o->max_model_len : iv_size_min(limit, room * IV_ATTENTION_BLOCK);
    size_t longest = e->max_model_len / IV_ATTENTION_BLOCK + (e->max_model_len % IV_ATTENTION_BLOCK != 0);
    if (longest > room)
        return iv_fail(err, IV_LIMIT, "KV cache: max_model_len %zu takes %zu bytes, there is room for %zu",
                       e->max_model_len, longest * page, room * page);
    *pages = o->kv_bytes ? iv_size_min(room, longest * e->max_num_seqs) : longest;
    m->positions = e->max_model_len;
    return IV_OK;
}

static iv_status open_buffers(iv_engine *e, iv_error *err) {
    size_t seqs = e->max_num_seqs, vocab = (size_t)e->model->config.vocab_size, logits;
    if (!iv_size_mul(seqs, vocab, &logits)) return iv_fail(err, IV_LIMIT, "logits: too many");
    e->running = calloc(seqs, sizeof *e->running);
    e->plan_sequences = calloc(seqs, sizeof *e->plan_sequences);
    e->items = calloc(seqs, sizeof *e->items);
    e->spans = calloc(seqs, sizeof *e->spans);
    e->ids = calloc(e->max_num_batched_tokens, sizeof *e->ids);
    e->logit_rows = calloc(seqs, sizeof *e->logit_rows);
    e->logits = calloc(logits, sizeof *e->logits);
    if (e->running && e->plan_sequences && e->items && e->spans && e->ids && e->logit_rows && e->logits) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "engine: no memory for steps of %zu sequences", seqs);
}

static iv_status open_parts(const iv_engine_options *o, iv_engine *e, iv_error *err) {
    size_t pages = 0;
    iv_model_options m = {0};
    IV_TRY(parse_options(o, e, &m, err));
    IV_TRY(size_kv(o, e, &m, &pages, err));
    IV_TRY(iv_textual_open(o->model, &e->textual, err));
    IV_TRY(iv_generation_config_read(o->model, &e->generation, err));
    IV_TRY(iv_pool_open(o->threads, &e->pool, err));
    if (e->numerics == IV_VANILLA_BLAS) IV_TRY(iv_blas_open(iv_pool_threads(e->pool), &e->blas, err));
    IV_TRY(iv_model_open(o->model, &m, e->pool, &e->model, err));
    if (e->blas) IV_TRY(iv_model_widen(e->model, e->pool, err));
    IV_TRY(iv_forward_open(e->model, iv_kernels_select(e->isa), e->arithmetic, e->pool, e->max_num_batched_tokens,
                           &e->forward, err));
    e->forward->compute.numerics = e->numerics, e->forward->compute.blas = e->blas;
    IV_TRY(iv_kv_pool_open(&e->kv, &e->model->kv_layout, (size_t)e->model->config.layers, pages, err));
    IV_TRY(iv_sampler_open(&e->sampler, (size_t)e->model->config.vocab_size, err));
    IV_TRY(open_buffers(e, err));
    IV_TRY(iv_identity_make(e, err));
    return iv_fingerprint_make(e, e->fingerprint, err);
}

iv_status iv_engine_open(const iv_engine_options *o, iv_engine **out, iv_error *err) {
    double start = iv_now();
    iv_engine *e = calloc(1, sizeof *e);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "engine: no memory");
    e->waiting_tail = &e->waiting, e->events_tail = &e->events, e->next_id = 1;
    unsigned mode = iv_float_mode_enter();
    iv_status status = open_parts(o, e, err);
    iv_float_mode_leave(mode);
    if (status != IV_OK) {
        iv_engine_close(e);
        return status;
    }
    e->load_seconds = iv_now() - start;
    *out = e;
    return IV_OK;
}

void iv_engine_close(iv_engine *e) {
    if (!e) return;
    for (size_t i = 0; i < e->running_count; i++) iv_sequence_free(e, e->running[i]);
    for (iv_sequence *s = e->waiting, *next; s; s = next) {
        next = s->next;
        iv_sequence_free(e, s);
    }
    iv_events_free(e);
    free(e->running), free(e->plan_sequences), free(e->items), free(e->spans);
    free(e->ids), free(e->logit_rows), free(e->logits);
    iv_sampler_close(&e->sampler);
    iv_kv_pool_close(&e->kv);
    iv_forward_close(e->forward);
    iv_model_close(e->model);
    iv_blas_close(e->blas);
    iv_pool_close(e->pool);
    iv_textual_close(e->textual);
    free(e);
}

void iv_engine_get_info(const iv_engine *e, iv_engine_info *info) {
    const iv_model *m = e->model;
    *info = (iv_engine_info){.fingerprint = e->fingerprint,
                             .numerics_version = IV_NUMERICS_VERSION,
                             .weights_digest = e->identity.weights,
                             .configuration_digest = e->identity.configuration,
                             .tokenizer_digest = e->identity.tokenizer,
                             .template_digest = e->identity.chat_template,
                             .model_type = m->config.model_type,
                             .dtype = iv_dtype_name(m->dtype),
                             .arithmetic = e->arithmetic == IV_TC16 ? "tc16" : "fma32",
                             .isa = iv_isa_name(e->isa),
                             .numerics = iv_numerics_name(e->numerics),
                             .tensor_parallel_size = 1,
                             .threads = iv_pool_threads(e->pool),
                             .vocab_size = (size_t)m->config.vocab_size,
                             .max_model_len = e->max_model_len,
                             .kv_tokens = e->kv.pages * IV_ATTENTION_BLOCK,
                             .weight_bytes = m->weight_bytes,
                             .kv_bytes_per_token = iv_kv_token_bytes(&m->kv_layout, (size_t)m->config.layers),
                             .load_seconds = e->load_seconds};
}

const iv_textual *iv_engine_textual(const iv_engine *e) { return e->textual; }

void iv_engine_get_stats(const iv_engine *e, iv_engine_stats *stats) {
    *stats = e->stats;
    stats->running = e->running_count, stats->waiting = e->waiting_count;
    stats->kv_pages = e->kv.pages, stats->kv_pages_free = e->kv.free_count;
}

void iv_engine_reset_prefix_cache(iv_engine *e) { (void)e; }

iv_status iv_engine_serve_rank(iv_engine *e, iv_error *err) {
    (void)e;
    return iv_fail(err, IV_INVALID, "serve_rank: this process is rank 0");
}
