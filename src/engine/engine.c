/* engine.c: opening, sizing and closing; facts for the caller. */
#include "engine/engine.h"
#include "base/size.h"
#include "engine/device.h"
#include "base/cpu.h"
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
    *o = (iv_engine_options){.load_format = "auto",
                             .dtype = "auto",
                             .device = "cpu",
                             .arithmetic = "auto",
                             .isa = "auto",
                             .numerics = "invar",
                             .rank_transport = "auto",
                             .rank_timeout_ms = 6000,
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

static iv_status parse_load_format(const iv_engine_options *o, iv_model_options *m, iv_error *err) {
    const char *how = o->load_format ? o->load_format : "auto";
    m->dummy = strcmp(how, "dummy") == 0, m->dummy_seed = o->dummy_seed;
    if (m->dummy || strcmp(how, "auto") == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "load_format: wanted auto or dummy, found '%s'", how);
}

static iv_status parse_speculative(const iv_engine_options *o, iv_engine *e, iv_error *err) {
    const char *how = o->speculative ? o->speculative : "off";
    bool drafts = strcmp(how, "ngram") == 0;
    if (!drafts && strcmp(how, "off") != 0)
        return iv_fail(err, IV_INVALID, "speculative: wanted off or ngram, found '%s'", how);
    if (o->speculative_tokens < 1 || o->speculative_tokens > IV_DRAFT_MAX)
        return iv_fail(err, IV_INVALID, "speculative_tokens: wanted 1 to %d, found %zu", IV_DRAFT_MAX,
                       o->speculative_tokens);
    e->rows_max = drafts ? 1 + o->speculative_tokens : 1;
    return IV_OK;
}

static iv_status parse_options(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err) {
    if (!o->model || !*o->model) return iv_fail(err, IV_INVALID, "model: wanted a model directory, found nothing");
    IV_TRY(parse_load_format(o, m, err));
    IV_TRY(parse_dtype(o->dtype ? o->dtype : "auto", m, err));
    IV_TRY(iv_isa_parse(o->isa ? o->isa : "auto", &e->isa, err));
    IV_TRY(iv_numerics_parse(o->numerics ? o->numerics : "invar", &e->numerics, err));
    IV_TRY(iv_device_choose(o, e, m, err));
    IV_TRY(parse_speculative(o, e, err));
    if (o->max_num_seqs > IV_SEQS_MAX)
        return iv_fail(err, IV_INVALID, "max_num_seqs: wanted 1 to %d, found %zu", IV_SEQS_MAX, o->max_num_seqs);
    if (o->max_num_batched_tokens > IV_BATCHED_TOKENS_MAX)
        return iv_fail(err, IV_INVALID, "max_num_batched_tokens: wanted 1 to %d, found %zu", IV_BATCHED_TOKENS_MAX,
                       o->max_num_batched_tokens);
    if (!(o->kv_fraction >= 0.0 && o->kv_fraction <= 1.0))
        return iv_fail(err, IV_INVALID, "kv_fraction: wanted 0 to 1, found %g", o->kv_fraction);
    e->prefix_caching = o->prefix_caching;
    e->max_num_seqs = o->max_num_seqs ? o->max_num_seqs : e->gpus[0] ? 256 : 16;
    e->max_num_batched_tokens = o->max_num_batched_tokens ? o->max_num_batched_tokens : e->gpus[0] ? 8192 : 512;
    size_t rows = iv_size_max(e->max_num_seqs * e->rows_max, IV_LOGITS_MIN);
    e->logits_max = iv_size_min(rows, e->max_num_batched_tokens);
    m->progress = o->progress, m->user = o->user;
    return IV_OK;
}

/* How many pages there is room for. A size or a fraction that was asked for is taken whole: what the sequences do not
 * need, the prefix cache uses. *wish: by default, no more than a share of the free memory. */
static size_t kv_room(const iv_engine_options *o, bool gpus, size_t available, size_t weights, size_t page,
                      size_t *wish) {
    *wish = SIZE_MAX;
    if (o->kv_bytes) return *wish = o->kv_bytes / page;
    if (available == 0) return SIZE_MAX;
    available -= iv_size_min(weights, available);
    if (o->kv_fraction > 0) return *wish = (size_t)((double)available * o->kv_fraction) / page;
    /* A GPU's memory is ours; this machine's is also others'. */
    *wish = gpus ? available / 10 * 9 / page : available / 4 / page;
    return gpus ? available / 100 * 95 / page : available / 2 / page;
}

static iv_status no_room(const iv_engine *e, const iv_engine_options *o, size_t page, size_t weights, size_t working,
                         iv_error *err) {
    if (o->kv_bytes)
        return iv_fail(err, IV_LIMIT, "KV cache: one page of 64 tokens takes %zu bytes, there is room for %zu", page,
                       o->kv_bytes);
    if (!e->gpus[0])
        return iv_fail(err, IV_LIMIT, "KV cache: one page of 64 tokens takes %zu bytes, more than weights of %zu leave",
                       page, weights);
    return iv_fail(err, IV_LIMIT,
                   "KV cache: one page of 64 tokens takes %zu bytes, more than weights of %zu leave, and what each GPU "
                   "sets aside: %zu for steps of max_num_batched_tokens %zu and positions up to max_model_len",
                   page, weights, working, e->max_num_batched_tokens);
}

/* How long a sequence may get, and how many pages there are. Decided from headers, before anything is loaded. */
static iv_status size_kv(const iv_engine_options *o, iv_engine *e, iv_model_options *m, size_t *pages, iv_error *err) {
    iv_model plan;
    iv_checkpoint *c;
    IV_TRY(iv_model_plan(o->model, m, &plan, &c, err));
    size_t token = iv_kv_token_bytes(&plan.kv_layout, (size_t)plan.config.layers),
           limit = (size_t)plan.config.max_positions;
    iv_status status = e->gpus[0] ? iv_gpu_model_check(&plan.config, err) : IV_OK;
    if (status == IV_OK) status = iv_ranks_kv_bytes(e->ranks, &plan.config, token, &token, err);
    size_t working = 0, available = e->gpus[0] ? iv_device_memory_available(e, &plan.config, plan.dtype, o, &working)
                                               : iv_ranks_memory_available(e->ranks);
    size_t page = token * IV_ATTENTION_BLOCK, wish, all,
           room = kv_room(o, e->gpus[0], available, plan.weight_bytes, page, &wish);
    iv_checkpoint_close(c);
    iv_arena_free(&plan.arena);
    IV_TRY(status);
    e->kv_token_bytes = token;
    if (o->max_model_len > limit)
        return iv_fail(err, IV_INVALID, "max_model_len: the model has %zu positions, wanted %zu", limit,
                       o->max_model_len);
    if (room == 0) return no_room(e, o, page, plan.weight_bytes, working, err);
    room = iv_size_min(room, SIZE_MAX / page / 2); /* so that sizes below cannot overflow */
    e->max_model_len = o->max_model_len ? o->max_model_len : iv_size_min(limit, room * IV_ATTENTION_BLOCK);
    size_t longest = iv_kv_pages_for(e->max_model_len);
    if (longest > room)
        return iv_fail(err, IV_LIMIT, "KV cache: max_model_len %zu takes %zu bytes, there is room for %zu",
                       e->max_model_len, longest * page, room * page);
    if (!iv_size_mul(longest, e->max_num_seqs, &all)) all = SIZE_MAX;
    if (o->prefix_caching && (o->kv_bytes || o->kv_fraction > 0)) all = SIZE_MAX;
    *pages = iv_size_max(longest, iv_size_min(all, iv_size_min(wish, room)));
    m->positions = e->max_model_len;
    return IV_OK;
}

static iv_status open_buffers(iv_engine *e, iv_error *err) {
    size_t seqs = e->max_num_seqs, rows = e->max_num_batched_tokens, vocab = (size_t)e->model->config.vocab_size,
           logits;
    if (!iv_size_mul(e->logits_max, vocab, &logits)) return iv_fail(err, IV_LIMIT, "logits: too many");
    IV_TRY(iv_queue_open(&e->waiting, IV_WAITING_MAX + seqs, err)); /* the preempted come back, full or not */
    IV_TRY(iv_queue_open(&e->running, seqs, err));
    IV_TRY(iv_queue_open(&e->held, IV_WAITING_MAX + seqs, err));
    IV_TRY(iv_events_open(e, err));
    e->plan_running = calloc(seqs, sizeof *e->plan_running);
    e->plan_waiting = calloc(seqs, sizeof *e->plan_waiting);
    e->plan_items = calloc(seqs, sizeof *e->plan_items);
    e->items = calloc(seqs, sizeof *e->items);
    e->item_events = calloc(rows, sizeof *e->item_events);
    e->spans = calloc(seqs, sizeof *e->spans);
    e->ids = calloc(rows, sizeof *e->ids);
    e->logit_rows = calloc(rows, sizeof *e->logit_rows);
    e->logits = calloc(logits, sizeof *e->logits);
    e->sample_on_backend = calloc(rows, sizeof *e->sample_on_backend);
    e->logits_wanted = calloc(rows, sizeof *e->logits_wanted);
    e->row_sampling = calloc(rows, sizeof *e->row_sampling);
    e->sampled = calloc(rows, sizeof *e->sampled);
    e->top_logprobs = calloc(rows, IV_TOP_LOGPROBS_MAX * sizeof *e->top_logprobs);
    if (e->plan_running && e->plan_waiting && e->plan_items && e->items && e->item_events && e->spans && e->ids &&
        e->logit_rows && e->logits && e->sample_on_backend && e->logits_wanted && e->row_sampling && e->sampled && e->top_logprobs)
        return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "engine: no memory for steps of %zu sequences", seqs);
}

static iv_status open_samplers(iv_engine *e, iv_error *err) {
    size_t threads = iv_pool_threads(e->pool);
    e->samplers = calloc(threads, sizeof *e->samplers);
    if (!e->samplers) return iv_fail(err, IV_NO_MEMORY, "sampler: no memory");
    for (size_t i = 0; i < threads; i++)
        IV_TRY(iv_sampler_open(&e->samplers[i], (size_t)e->model->config.vocab_size, err));
    return IV_OK;
}

static void measure_tokens(iv_engine *e) {
    const iv_tokenizer *t = e->text_model->tokenizer;
    for (size_t id = 0, n = 0; t && id < iv_tokenizer_vocab_size(t); id++)
        if (iv_tokenizer_token(t, (int32_t)id, &n)) e->longest_token_bytes = iv_size_max(e->longest_token_bytes, n);
}

static iv_status open_forward(iv_engine *e, iv_error *err) {
    IV_TRY(iv_cpu_model_open(e->model, e->kernels, e->arithmetic, e->pool, e->max_num_batched_tokens, &e->forward, err));
    e->tile_rows = e->kernels->tile[e->arithmetic][e->model->dtype][e->model->dtype]->rows_max;
    return IV_OK;
}

/* Adds the tokenizer's own end of sequence to those of generation_config.json, as vLLM and SGLang do: many fine-tuned
 * models end their turns with it while both configurations still name the base model's. Ids that the vocabulary does
 * not have end nothing, and no request could name them when a receipt is computed again. */
static void complete_ends(iv_engine *e) {
    iv_generation_config *g = &e->generation;
    int64_t own = e->text_model->eos_id, vocab = e->model->config.vocab_size;
    size_t kept = 0, count = g->has_eos ? g->eos_count : 0;
    bool known = own < 0 || own >= vocab;
    for (size_t i = 0; i < count; i++) {
        known |= g->eos_ids[i] == own;
        if (g->eos_ids[i] < vocab) g->eos_ids[kept++] = g->eos_ids[i];
    }
    if (!known && kept < IV_EOS_IDS_MAX) g->eos_ids[kept++] = own;
    g->eos_count = kept, g->has_eos = kept > 0;
}

static iv_status open_parts(const iv_engine_options *o, iv_engine *e, iv_error *err) {
    size_t pages = 0;
    iv_model_options m = {0};
    IV_TRY(parse_options(o, e, &m, err));
    IV_TRY(iv_ranks_open(e, o, err));
    iv_ranks_model_options(e->ranks, &m);
    IV_TRY(size_kv(o, e, &m, &pages, err));
    IV_TRY(iv_text_model_open(o->model, &e->text_model, err));
    IV_TRY(iv_generation_config_read(o->model, &e->generation, err));
    IV_TRY(iv_pool_open(o->threads, &e->pool, err));
    e->kernels = iv_kernels_select(e->isa);
    if (e->numerics != IV_INVAR && !e->gpus[0]) {
        IV_TRY(iv_baseline_open(e->numerics, e->kernels, iv_pool_threads(e->pool), &e->baseline, err));
        e->kernels = iv_baseline_kernels(e->baseline);
    }
    e->model_options = m;
    IV_TRY(iv_model_open(o->model, &m, e->pool, &e->model, err));
    complete_ends(e);
    if (iv_baseline_widens(e->baseline)) IV_TRY(iv_model_widen(e->model, e->baseline, e->pool, err));
    IV_TRY(iv_ranks_divide_threads(e, err));
    IV_TRY(e->gpus[0] ? iv_device_open_model(e, o, pages, err) : open_forward(e, err));
    IV_TRY(iv_kv_pool_open(&e->kv, &e->model->kv_layout, (size_t)e->model->config.layers, pages, err));
    IV_TRY(open_samplers(e, err));
    measure_tokens(e);
    IV_TRY(open_buffers(e, err));
    IV_TRY(iv_identity_make(e, err));
    return iv_fingerprint_make(e, e->fingerprint, err);
}

iv_status iv_engine_open(const iv_engine_options *o, iv_engine **out, iv_error *err) {
    double start = iv_now();
    iv_engine *e = calloc(1, sizeof *e);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "engine: no memory");
    e->next_id = 1;
    iv_constraints_open(&e->constraints);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_ranks_start(e, open_parts(o, e, err), err);
    iv_fp_env_leave(mode);
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
    iv_ranks_close(e->ranks);
    iv_jobs_close(e->jobs);
    iv_events_close(e);
    for (size_t i = 0; i < e->running.count; i++) iv_sequence_free(e, e->running.at[i]);
    for (size_t i = 0; i < e->waiting.count; i++) iv_sequence_free(e, e->waiting.at[i]);
    for (size_t i = 0; i < e->held.count; i++) iv_sequence_free(e, e->held.at[i]);
    iv_queue_close(&e->running), iv_queue_close(&e->waiting), iv_queue_close(&e->held);
    iv_constraints_close(&e->constraints);
    free(e->plan_running), free(e->plan_waiting), free(e->plan_items);
    free(e->items), free(e->item_events), free(e->spans);
    free(e->ids), free(e->logit_rows), free(e->logits);
    free(e->sample_on_backend), free(e->logits_wanted), free(e->row_sampling), free(e->sampled), free(e->top_logprobs);
    for (size_t i = 0; e->samplers && i < iv_pool_threads(e->pool); i++) iv_sampler_close(&e->samplers[i]);
    free(e->samplers);
    iv_kv_pool_close(&e->kv);
    iv_cpu_model_close(e->forward);
    iv_gpu_model_close(e->gpu_model);
    iv_model_close(e->model);
    for (size_t i = 0; i < IV_RANKS_MAX; i++) iv_gpu_close(e->gpus[i]);
    iv_baseline_close(e->baseline);
    iv_pool_close(e->pool);
    iv_text_model_close(e->text_model);
    free(e->updated_from);
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
                             .device = e->gpus[0] ? "cuda" : "cpu",
                             .gpu = e->gpus[0] ? iv_gpu_get_info(e->gpus[0])->name : "",
                             .rank_transport = e->gpu_model ? iv_gpu_model_transport(e->gpu_model) : "",
                             .numerics = iv_numerics_name(e->numerics),
                             .tensor_parallel_size = iv_ranks_size(e->ranks),
                             .rank = iv_ranks_rank(e->ranks),
                             .threads = iv_ranks_threads(e->ranks),
                             .vocab_size = (size_t)m->config.vocab_size,
                             .max_model_len = e->max_model_len,
                             .max_num_seqs = e->max_num_seqs,
                             .max_num_batched_tokens = e->max_num_batched_tokens,
                             .kv_tokens = e->kv.pages * IV_ATTENTION_BLOCK,
                             .weight_bytes = m->weight_bytes,
                             .kv_bytes_per_token = e->kv_token_bytes,
                             .index_unread = m->index_unread,
                             .generation_unapplied = e->generation.unapplied,
                             .load_seconds = e->load_seconds};
}

const iv_text_model *iv_engine_text_model(const iv_engine *e) { return e->text_model; }

void iv_engine_get_stats(const iv_engine *e, iv_engine_stats *stats) {
    *stats = e->stats;
    const iv_queue *lines[] = {&e->running, &e->waiting, &e->held};
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++)
        for (size_t i = 0; i < lines[l]->count; i++) { /* those of the ended are in already */
            const iv_sequence *s = lines[l]->at[i];
            stats->drafted_tokens += s->drafted_tokens, stats->accepted_tokens += s->accepted_tokens;
        }
    stats->running = e->running.count, stats->waiting = e->waiting.count + e->held.count;
    stats->held = 0;
    for (size_t i = 0; i < e->held.count; i++) stats->held += e->held.at[i]->held;
    stats->kv_pages = e->kv.pages, stats->kv_pages_free = e->kv.free_count, stats->kv_pages_cached = e->kv.index.idle;
}

void iv_engine_reset_prefix_cache(iv_engine *e) { iv_kv_forget(&e->kv); }
