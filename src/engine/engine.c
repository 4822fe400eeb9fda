/* engine.c: opening, sizing and closing an engine. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/size.h"
#include "engine/adapters.h"
#include "engine/device.h"
#include "engine/events.h"
#include "engine/info.h"
#include "engine/ranks.h"
#include "engine/sized.h"
#include "baseline/ops.h"
#include "model/kv_layouts.h"
#include "model/state_layouts.h"
#include "model/widen.h"

#include <stdlib.h>
#include <string.h>

/* A snapshot in so many blocks of a sequence; by default snapshots take at most one part in STATE_SHARE of the memory
 * behind the weights. */
enum { STATE_EVERY = 16, STATE_SHARE = 16, STATE_SNAPSHOTS_MAX = 1 << 20 };

static iv_engine_options default_options(void) {
    return (iv_engine_options){.load_format = "auto",
                               .dtype = "auto",
                               .device = "cpu",
                               .arithmetic = "auto",
                               .isa = "auto",
                               .numerics = "invar",
                               .rank_transport = "auto",
                               .rank_timeout_ms = 6000,
                               .prefix_caching = true,
                               .speculative = "off",
                               .speculative_tokens = 5,
                               .weights = "auto",
                               .max_lora_rank = 64};
}

void iv_engine_options_init_sized(iv_engine_options *o, size_t size) {
    iv_engine_options defaults = default_options();
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

static iv_status parse_load_format(const iv_engine_options *o, iv_model_options *m, iv_error *err) {
    const char *how = o->load_format ? o->load_format : "auto";
    m->dummy = strcmp(how, "dummy") == 0, m->dummy_seed = o->dummy_seed;
    if (m->dummy || strcmp(how, "auto") == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "load_format: wanted auto or dummy, found '%s'", how);
}

static iv_status parse_weights(const iv_engine_options *o, iv_engine *e, iv_model_options *m, iv_error *err) {
    const char *how = o->weights ? o->weights : "auto";
    bool automatic = strcmp(how, "auto") == 0, packed = strcmp(how, "packed") == 0, gpus = e->gpus[0] != NULL;
    bool baseline = gpus && e->numerics != IV_INVAR; /* cuBLAS and other leaves read plain rows */
    bool can = !baseline && !o->trainable;
    m->packed = can && (packed || (automatic && !gpus)), e->may_pack = can && automatic;
    if (packed && !can)
        return iv_fail(err, IV_UNSUPPORTED, "weights packed: %s holds them expanded; wanted auto or expanded",
                       baseline ? "a baseline's numerics on a GPU" : "an engine that is trainable");
    if (automatic || packed || strcmp(how, "expanded") == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "weights: wanted auto, packed or expanded, found '%s'", how);
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
    IV_TRY(iv_gemm_type_parse(o->dtype, &m->has_dtype, &m->dtype, err));
    IV_TRY(iv_isa_parse(o->isa ? o->isa : "auto", &e->isa, err));
    IV_TRY(iv_numerics_parse(o->numerics ? o->numerics : "invar", &e->numerics, err));
    IV_TRY(iv_device_choose(o, e, m, err));
    IV_TRY(parse_weights(o, e, m, err));
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
    size_t step_ms = o->step_target_ms;
    if (step_ms == IV_STEP_TARGET_STREAMS) step_ms = e->gpus[0] ? 50 : 0;
    e->pace.target = (double)step_ms * 1e-3;
    size_t rows = iv_size_max(e->max_num_seqs * e->rows_max, IV_LOGITS_MIN);
    e->logits_max = iv_size_min(rows, e->max_num_batched_tokens);
    m->progress = o->progress, m->user = o->user;
    return IV_OK;
}

/* How many pages fit. A given size or fraction is used in full, as the prefix cache uses pages that sequences do not
 * need. *wish: the number of pages to take; by default a fraction of the free memory. */
static size_t kv_room(const iv_engine_options *o, bool gpus, size_t available, size_t weights, size_t page,
                      size_t *wish) {
    *wish = SIZE_MAX;
    if (o->kv_bytes) return *wish = o->kv_bytes / page;
    if (available == 0) return SIZE_MAX;
    available -= iv_size_min(weights, available);
    if (o->kv_fraction > 0) return *wish = (size_t)((double)available * o->kv_fraction) / page;
    /* Other programs need this machine's memory too; a GPU's is free to take. */
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
                   "KV cache: one page of 64 tokens takes %zu bytes, more than is left after weights of %zu and, on "
                   "each GPU, %zu for steps of max_num_batched_tokens %zu and positions up to max_model_len",
                   page, weights, working, e->max_num_batched_tokens);
}

/* A number of pages in blocks, which have a page of every KV group. */
static size_t blocks_of(const iv_kv_groups *g, size_t pages) { return (pages + g->count - 1) / g->count; }

/* Bytes of states and of the rows of open blocks, of all ranks together. */
static bool states_bytes(const iv_state_layout *l, size_t slots, size_t *out) {
    size_t tails;
    return iv_size_mul(slots, l->bytes, out) && iv_size_mul(2 * l->tails, l->tail_bytes, &tails) &&
           iv_size_add(*out, tails, out) && iv_size_mul(*out, l->layers, out);
}

/* Slots for states: of sequences that run, and snapshots, for cached prefixes. *bytes:
 * what they all take. available: memory behind the weights, 0: unknown; a number of sequences that is not given is
 * lowered until their states take a quarter of it at most. */
static iv_status size_states(const iv_engine_options *o, iv_engine *e, const iv_model *plan, size_t available,
                             size_t *bytes, iv_error *err) {
    iv_state_layout *l = &e->state_layout;
    size_t snapshots = 0, state = iv_state_bytes(plan);
    *l = plan->state_layout, *bytes = 0;
    if (!l->layers) return IV_OK;
    l->every = STATE_EVERY, l->tails = e->max_num_seqs;
    while (!o->max_num_seqs && available && l->tails > 1 &&
           (!states_bytes(l, iv_states_running(l->tails), bytes) || *bytes > available / 4))
        l->tails--;
    e->max_num_seqs = l->tails;
    if (o->prefix_caching) snapshots = o->state_cache_bytes ? o->state_cache_bytes / state : 4 * l->tails;
    if (o->prefix_caching && !o->state_cache_bytes && available)
        snapshots = iv_size_min(snapshots, available / STATE_SHARE / state);
    e->state_slots = iv_states_running(l->tails) + iv_size_min(snapshots, STATE_SNAPSHOTS_MAX);
    if (!states_bytes(l, e->state_slots, bytes) || (available && *bytes > available / 2))
        return iv_fail(err, IV_LIMIT,
                       "states: max_num_seqs %zu and a state cache of %zu states take %zu bytes, there is room for %zu",
                       e->max_num_seqs, e->state_slots - iv_states_running(l->tails), *bytes, available / 2);
    return IV_OK;
}

/* What max_loras adapters of max_lora_rank take on a CPU; those of GPUs are in their working memory. available: as
 * above. */
static iv_status size_adapters(const iv_engine_options *o, const iv_engine *e, const iv_model *plan, size_t available,
                               size_t *bytes, iv_error *err) {
    size_t one = 0;
    *bytes = 0;
    if (!o->max_loras || o->kv_bytes || e->gpus[0]) return IV_OK;
    bool good = iv_adapters_room(plan, iv_ranks_size(e->ranks), o->max_lora_rank, &one) &&
                iv_size_mul(one, o->max_loras, bytes);
    if (good && (!available || *bytes <= available / 2)) return IV_OK;
    return iv_fail(err, IV_LIMIT,
                   "adapters: max_loras %zu of max_lora_rank %zu take up to %zu bytes each, there is room for %zu "
                   "together",
                   o->max_loras, o->max_lora_rank, one, available / 2);
}

/* Decides the longest sequence and the number of pages from headers, before anything is loaded. */
static iv_status size_kv(const iv_engine_options *o, iv_engine *e, iv_model_options *m, size_t *pages, iv_error *err) {
    iv_model plan;
    iv_checkpoint *c;
    IV_TRY(iv_model_plan(o->model, m, &plan, &c, err));
    iv_kv_groups groups = plan.kv_groups;
    size_t token = iv_kv_token_bytes(&plan), limit = (size_t)plan.config.max_positions;
    iv_status status = e->gpus[0] ? iv_gpu_model_check(&plan.config, err) : IV_OK;
    if (status == IV_OK) status = iv_ranks_kv_bytes(e->ranks, &plan.config, token, &token, err);
    size_t working = 0, available = e->gpus[0]
                                        ? iv_device_memory_available(e, &plan.config, plan.gemm_type, o, &working)
                                        : iv_ranks_memory_available(e->ranks);
    size_t widened = e->gpus[0] ? iv_model_widest_codes(&plan) * iv_ranks_size(e->ranks) : 0;
    available = available > widened ? available - widened : 1;
    size_t states = 0, adapters = 0, behind = available > plan.weight_bytes ? available - plan.weight_bytes : 1;
    if (status == IV_OK) status = size_states(o, e, &plan, available ? behind : 0, &states, err);
    if (status == IV_OK)
        status = size_adapters(o, e, &plan, available ? (behind > states ? behind - states : 1) : 0, &adapters, err);
    if (available) available = available > states + adapters ? available - states - adapters : 1;
    size_t block = token * IV_ATTENTION_BLOCK, wish, all,
           room = kv_room(o, e->gpus[0], available, plan.weight_bytes, block, &wish);
    iv_checkpoint_close(c);
    iv_arena_free(&plan.arena);
    IV_TRY(status);
    e->kv_token_bytes = token;
    if (o->max_model_len > limit)
        return iv_fail(err, IV_INVALID, "max_model_len: the model has %zu positions, wanted %zu", limit,
                       o->max_model_len);
    if (room == 0) return no_room(e, o, block, plan.weight_bytes, working, err);
    room = iv_size_min(room, SIZE_MAX / block / 2); /* so that the sizes below cannot overflow */
    e->max_model_len = o->max_model_len ? o->max_model_len : iv_kv_longest(&groups, room * groups.count, limit);
    size_t longest = blocks_of(&groups, iv_kv_peak(&groups, e->max_model_len, 1));
    if (e->max_model_len == 0 || longest > room)
        return iv_fail(err, IV_LIMIT, "KV cache: max_model_len %zu takes %zu bytes, there is room for %zu",
                       iv_size_max(e->max_model_len, 1), iv_size_max(longest, 1) * block, room * block);
    size_t chunk = iv_size_min(e->max_model_len, e->max_num_batched_tokens),
           comfortable = blocks_of(&groups, iv_kv_peak(&groups, e->max_model_len, chunk));
    if (!iv_size_mul(comfortable, e->max_num_seqs, &all)) all = SIZE_MAX;
    if (o->prefix_caching && (o->kv_bytes || o->kv_fraction > 0)) all = SIZE_MAX;
    *pages = iv_size_max(longest, iv_size_min(all, iv_size_min(wish, room))) * groups.count;
    m->positions = e->max_model_len;
    return IV_OK;
}

/* size_kv; where weights are automatic, those that do not fit GPUs expanded are held packed. All ranks agree: each
 * knows the least memory. */
static iv_status size_memory(const iv_engine_options *o, iv_engine *e, iv_model_options *m, size_t *pages,
                             iv_error *err) {
    iv_error ignored;
    size_t seqs = e->max_num_seqs;
    iv_status status = size_kv(o, e, m, pages, err);
    if (status != IV_LIMIT || !e->may_pack || m->packed) return status;
    m->packed = true, e->max_num_seqs = seqs;
    return size_kv(o, e, m, pages, &ignored) == IV_OK ? IV_OK : status;
}

static iv_status open_buffers(iv_engine *e, iv_error *err) {
    size_t seqs = e->max_num_seqs, rows = e->max_num_batched_tokens, vocab = (size_t)e->model->config.vocab_size,
           logits;
    if (!iv_size_mul(e->logits_max, vocab, &logits)) return iv_fail(err, IV_LIMIT, "logits: too many");
    IV_TRY(iv_queue_open(&e->waiting, IV_WAITING_MAX + seqs, err)); /* preempted ones return even to a full queue */
    IV_TRY(iv_queue_open(&e->running, seqs, err));
    IV_TRY(iv_queue_open(&e->held, IV_WAITING_MAX + seqs, err));
    IV_TRY(iv_events_open(e, err));
    e->plan_running = calloc(seqs, sizeof *e->plan_running);
    e->plan_waiting = calloc(seqs, sizeof *e->plan_waiting);
    e->plan_items = calloc(seqs, sizeof *e->plan_items);
    e->items = calloc(seqs, sizeof *e->items);
    e->item_events = calloc(rows, sizeof *e->item_events);
    e->spans = calloc(seqs * e->kv.groups.count, sizeof *e->spans);
    e->states = calloc(seqs, sizeof *e->states);
    e->ids = calloc(rows, sizeof *e->ids);
    e->logit_rows = calloc(rows, sizeof *e->logit_rows);
    e->logits = calloc(logits, sizeof *e->logits);
    e->sample_on_backend = calloc(rows, sizeof *e->sample_on_backend);
    e->logits_wanted = calloc(rows, sizeof *e->logits_wanted);
    e->row_sampling = calloc(rows, sizeof *e->row_sampling);
    e->sampled = calloc(rows, sizeof *e->sampled);
    e->top_logprobs = calloc(rows, IV_TOP_LOGPROBS_MAX * sizeof *e->top_logprobs);
    if (e->plan_running && e->plan_waiting && e->plan_items && e->items && e->item_events && e->spans && e->states &&
        e->ids && e->logit_rows && e->logits && e->sample_on_backend && e->logits_wanted && e->row_sampling &&
        e->sampled && e->top_logprobs)
        return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "engine: no memory for steps of %zu sequences", seqs);
}

/* Blocks of all sequences together: with a window in every group, most have no page. */
static iv_status open_kv(iv_engine *e, size_t pages, iv_error *err) {
    const iv_model *m = e->model;
    size_t blocks = iv_kv_pages_for(e->max_model_len);
    if (!iv_kv_groups_slide(&m->kv_groups) || !iv_size_mul(blocks, e->max_num_seqs, &blocks)) blocks = 0;
    e->state_layout.bytes = m->state_layout.bytes,
    e->state_layout.tail_bytes = m->state_layout.tail_bytes; /* a rank's */
    return iv_kv_pool_open_groups(&e->kv, m->kv_layout, &m->kv_groups, pages, blocks, &e->state_layout, e->state_slots,
                                  err);
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

/* Adds a token of the vocabulary to the `kept` first ids; returns their count. */
static size_t add_eos(iv_engine *e, size_t kept, const char *token) {
    int64_t *ids = e->generation.eos_ids;
    int32_t id;
    const iv_tokenizer *t = e->text_model->tokenizer;
    bool wanted = t && iv_tokenizer_find(t, token, strlen(token), &id) && id < e->model->config.vocab_size;
    for (size_t i = 0; wanted && i < kept; i++) wanted = ids[i] != id;
    if (wanted && kept < IV_EOS_IDS_MAX) ids[kept++] = id;
    return kept;
}

/* Adds the tokenizer's end-of-sequence token to those of generation_config.json, as vLLM and SGLang do: many fine-tuned
 * models end their turns with it although both configurations name the base model's token. Drops ids outside the
 * vocabulary: they cannot occur, and a request made from a receipt could not name them. In Harmony's form the end of
 * the answer and of a call end it, as vLLM has it. */
static void complete_eos_ids(iv_engine *e) {
    static const char *const harmony[] = {"<|return|>", "<|call|>"};
    bool channels = iv_reasoning_form_of(e->text_model) == IV_REASONING_FORM_HARMONY;
    iv_generation_config *g = &e->generation;
    int64_t eos = e->text_model->eos_id, vocab = e->model->config.vocab_size;
    size_t kept = 0, count = g->has_eos ? g->eos_count : 0;
    bool known = eos < 0 || eos >= vocab;
    for (size_t i = 0; i < count; i++) {
        known |= g->eos_ids[i] == eos;
        if (g->eos_ids[i] < vocab) g->eos_ids[kept++] = g->eos_ids[i];
    }
    if (!known && kept < IV_EOS_IDS_MAX) g->eos_ids[kept++] = eos;
    for (size_t i = 0; i < sizeof harmony / sizeof *harmony && channels; i++) kept = add_eos(e, kept, harmony[i]);
    g->eos_count = kept, g->has_eos = kept > 0;
}

/* Experts are whole on a rank whatever is asked, so only what cannot be is refused. */
static iv_status check_experts(const iv_engine_options *o, size_t ranks, iv_error *err) {
    iv_model_config c;
    if (!o->expert_parallel_size) return IV_OK;
    IV_TRY(iv_model_config_read(o->model, &c, err));
    if (!iv_config_has_mlp(&c, IV_MLP_EXPERTS))
        return iv_fail(err, IV_UNSUPPORTED,
                       "enable_expert_parallel: model_type %s: wanted a mixture of experts, found dense layers alone",
                       c.model_type);
    if (o->expert_parallel_size == IV_EXPERT_PARALLEL || o->expert_parallel_size == ranks) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "expert_parallel_size: all ranks divide the experts: wanted %zu (tensor_parallel_size), found %zu",
                   ranks, o->expert_parallel_size);
}

static iv_status open_parts(const iv_engine_options *o, iv_engine *e, iv_error *err) {
    size_t pages = 0;
    iv_model_options m = {0};
    IV_TRY(parse_options(o, e, &m, err));
    m.widen = o->trainable;
    IV_TRY(iv_ranks_open(e, o, err));
    iv_ranks_model_options(e->ranks, &m);
    IV_TRY(check_experts(o, iv_ranks_size(e->ranks), err));
    IV_TRY(size_memory(o, e, &m, &pages, err));
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
    complete_eos_ids(e);
    if (!o->sample_all_ids)
        IV_TRY(iv_token_ids_open(e->text_model->tokenizer, &e->model->config, &e->generation, &e->drawable, err));
    if (iv_baseline_widens(e->baseline)) IV_TRY(iv_model_widen(e->model, e->baseline, e->pool, err));
    IV_TRY(iv_ranks_divide_threads(e, err));
    IV_TRY(iv_adapters_open(e, o, err));
    IV_TRY(iv_device_open_model(e, o, pages, err));
    IV_TRY(open_kv(e, pages, err));
    IV_TRY(open_samplers(e, err));
    measure_tokens(e);
    IV_TRY(open_buffers(e, err));
    IV_TRY(iv_identity_make(e, err));
    return iv_fingerprint_make(e, e->fingerprint, err);
}

iv_status iv_engine_open(const iv_engine_options *given, iv_engine **out, iv_error *err) {
    double start = iv_now();
    iv_engine_options o = default_options();
    IV_TRY(iv_sized_read("options", given, offsetof(iv_engine_options, load_format), &o, sizeof o, err));
    iv_engine *e = calloc(1, sizeof *e);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "engine: no memory");
    e->next_id = 1;
    iv_constraints_open(&e->constraints);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_ranks_start(e, open_parts(&o, e, err), err);
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
    for (size_t i = 0; i < e->running.count; i++) iv_sequence_free(e->running.at[i], &e->kv);
    for (size_t i = 0; i < e->waiting.count; i++) iv_sequence_free(e->waiting.at[i], &e->kv);
    for (size_t i = 0; i < e->held.count; i++) iv_sequence_free(e->held.at[i], &e->kv);
    iv_adapters_close(e);
    iv_queue_close(&e->running), iv_queue_close(&e->waiting), iv_queue_close(&e->held);
    iv_constraints_close(&e->constraints);
    free(e->plan_running), free(e->plan_waiting), free(e->plan_items);
    free(e->items), free(e->item_events), free(e->spans), free(e->states);
    free(e->ids), free(e->logit_rows), free(e->logits), free(e->routed);
    free(e->sample_on_backend), free(e->logits_wanted), free(e->row_sampling), free(e->sampled), free(e->top_logprobs);
    for (size_t i = 0; e->samplers && i < iv_pool_threads(e->pool); i++) iv_sampler_close(&e->samplers[i]);
    free(e->samplers);
    iv_kv_pool_close(&e->kv);
    iv_cpu_model_close(e->forward);
    iv_gpu_model_close(e->gpu_model);
    iv_model_close(e->model);
    iv_device_close(e);
    iv_baseline_close(e->baseline);
    iv_pool_close(e->pool);
    iv_text_model_close(e->text_model);
    iv_token_ids_close(&e->drawable);
    free(e->updated_from);
    free(e);
}

void iv_engine_reset_prefix_cache(iv_engine *e) { iv_kv_evict_idle(&e->kv); }
