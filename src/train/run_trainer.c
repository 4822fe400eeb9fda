/* run_trainer.c: a run's device, its trainer, and in reinforcement learning the engine of its rollouts. */
#include "base/size.h"
#include "device/gpu.h"
#include "engine/replace.h"
#include "kernels/paged_kv.h"
#include "kv/pages.h"
#include "train/trainer/options.h"
#include "train/run_state.h"
#include "train/rollout/sync.h"

#include <string.h>

enum { EXAMPLE_TOKENS = 4096, ROLLOUT_SEQUENCES = 64, ROLLOUT_TOKENS = 1024 };
enum { GPU_ROLLOUT_SEQUENCES = 512, GPU_ROLLOUT_TOKENS = 8192 };

size_t iv_run_longest(const iv_run *r) {
    size_t longest = r->data ? iv_train_data_counts(r->data).longest : 0;
    if (r->eval_data) longest = iv_size_max(longest, iv_train_data_counts(r->eval_data).longest);
    if (r->o->kind == IV_RUN_RL && !iv_size_add(longest, r->o->max_new_tokens, &longest)) longest = SIZE_MAX / 64;
    return longest;
}

/* Upper bound of a step's tokens, each sequence padded. */
static size_t step_tokens(const iv_run *r) {
    const iv_run_options *o = r->o;
    bool rl = o->kind == IV_RUN_RL;
    iv_train_data_report c = iv_train_data_counts(r->data);
    size_t each = iv_padded_k(iv_run_longest(r)), n = rl ? o->group_size : 1, all;
    if (!iv_size_mul(each, n, &each) || !iv_size_mul(each, r->no_optimizer ? c.examples : o->batch_size, &all))
        all = SIZE_MAX / 64;
    return rl ? all : iv_size_min(all, c.tokens + 16 * c.examples);
}

/* On a GPU the whole step, so that its sums need one flat buffer; the trainer takes less where memory wants it. */
static iv_status size_passes(const iv_run *r, iv_train_options *t, iv_error *err) {
    size_t longest = iv_run_longest(r);
    t->pass_tokens_least = iv_size_max(longest, EXAMPLE_TOKENS);
    t->pass_tokens = t->cuda ? iv_size_max(step_tokens(r), longest) : t->pass_tokens_least;
    t->pass_tokens_least = iv_size_min(t->pass_tokens_least, t->pass_tokens);
    if (r->o->trainer.pass_tokens) t->pass_tokens = t->pass_tokens_least = r->o->trainer.pass_tokens;
    if (longest <= t->pass_tokens) return IV_OK;
    return iv_fail(err, IV_INVALID, "tokens of a pass: wanted %zu at least, the longest sequence, found %zu", longest,
                   t->pass_tokens);
}

/* ---- the engine of rollouts ------------------------------------------------------------------------------------- */

/* An engine takes the first GPUs that its process is shown. */
static iv_status check_engine_gpus(const iv_run *r, const iv_train_options *t, iv_error *err) {
    size_t count;
    if (!t->cuda || !r->processes) return IV_OK;
    IV_TRY(iv_gpu_count(&count, err));
    if (count == t->tp * (t->world / r->processes->size)) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "rollouts on GPUs of several processes: wanted each process to be shown its own %zu GPUs "
                   "(CUDA_VISIBLE_DEVICES), found %zu",
                   t->tp * (t->world / r->processes->size), count);
}

/* Flat buffers that a trainer keeps on its GPU: master weights, two moments, the sums, and those of subtrees of
 * virtual ranks, which a step of several passes has. */
static size_t trainer_rows(const iv_train_options *t) {
    size_t rows = t->offload_optimizer ? 2 : 4, mine = t->virtual_ranks / t->world;
    for (size_t i = 0; (size_t)1 << i < mine; i++) rows++;
    return rows;
}

/* The largest of a module. */
static iv_status adapter_rank(const iv_train_options *t, size_t *rank, iv_error *err) {
    iv_adapter_files *files;
    *rank = t->adapter.rank;
    if (!t->adapter.from) return IV_OK;
    IV_TRY(iv_adapter_open(t->adapter.from, &files, err));
    *rank = files->parts.rank_max;
    iv_adapter_close(files);
    return IV_OK;
}

/* Pages of an engine that is opened before the trainer on the same GPU: all sequences at full length, or what the
 * trainer's flat buffers leave; at least one sequence. */
static iv_status leave_memory(const iv_run *r, const iv_train_options *t, iv_engine_options *e, iv_error *err) {
    iv_model_info info;
    iv_gpu *gpu;
    size_t page, all, kept, weights;
    IV_TRY(iv_inspect(e->model, e->dtype, &info, err));
    IV_TRY(iv_gpu_open(0, false, &gpu, err));
    size_t available = iv_gpu_memory_available(gpu);
    iv_gpu_close(gpu);
    size_t longest = iv_kv_pages_for(iv_run_longest(r));
    if (!iv_size_mul(info.kv_bytes_per_token, IV_ATTENTION_BLOCK, &page) || !iv_size_mul(page, longest, &page) ||
        !iv_size_mul(page, e->max_num_seqs, &all))
        all = SIZE_MAX;
    weights = info.parameters;
    if (t->has_adapter) { /* of one of rank 64 on all layers there are two bytes for each */
        size_t rank;
        IV_TRY(adapter_rank(t, &rank, err));
        weights = (size_t)((double)info.adapter_bytes / 2 / 64 * (double)rank);
    }
    if (!iv_size_mul(weights, trainer_rows(t) * sizeof(float), &kept) || !iv_size_add(kept, info.weight_bytes, &kept))
        kept = SIZE_MAX;
    size_t budget = available / 100 * 95;
    e->kv_bytes = iv_size_max(page, iv_size_min(all, budget - iv_size_min(kept, budget)));
    return IV_OK;
}

static iv_status open_engine(iv_run *r, const iv_train_options *t, const char *dtype, bool before_trainer,
                             iv_error *err) {
    const iv_run_options *o = r->o;
    IV_TRY(check_engine_gpus(r, t, err));
    iv_engine_options e;
    iv_engine_options_init(&e);
    e.model = o->trainer.model, e.load_format = o->trainer.load_format, e.dummy_seed = o->trainer.dummy_seed;
    e.isa = o->trainer.isa;
    e.device = t->cuda ? "cuda" : "cpu", e.threads = o->trainer.threads, e.numerics = o->rollout_numerics;
    e.dtype = dtype, e.arithmetic = iv_arithmetic_name(t->arithmetic);
    e.tensor_parallel_size = o->rollout_tp, e.speculative = o->speculative, e.trainable = true;
    e.sample_all_ids = o->sample_all_ids;
    if (t->has_adapter) {
        e.trainable = false, e.max_loras = 1;
        IV_TRY(adapter_rank(t, &e.max_lora_rank, err));
    }
    e.single_process = true; /* those of mpirun are the trainer's */
    uint64_t completions = o->batch_size * o->group_size;
    e.max_num_seqs = iv_size_max(1, iv_size_min(completions, t->cuda ? GPU_ROLLOUT_SEQUENCES : ROLLOUT_SEQUENCES));
    e.max_num_batched_tokens = t->cuda ? GPU_ROLLOUT_TOKENS : ROLLOUT_TOKENS;
    if (o->rollout_seqs) e.max_num_seqs = o->rollout_seqs;
    if (o->rollout_batched_tokens) e.max_num_batched_tokens = o->rollout_batched_tokens;
    e.max_model_len = iv_run_longest(r);
    if (before_trainer && t->cuda) IV_TRY(leave_memory(r, t, &e, err));
    return iv_engine_open(&e, &r->engine, err);
}

/* Rollouts of the law on one rank, for a trainer of one rank: one set of packed weights serves both. */
static bool shares_model(const iv_run *r, const iv_train_options *t, iv_numerics numerics) {
    const iv_run_options *o = r->o;
    bool one = o->kind == IV_RUN_RL && o->rollout_tp == 1 && t->tp == 1 && numerics == IV_INVAR &&
               strcmp(o->rollout_numerics, "invar") == 0;
    return one && (t->has_adapter || /* whose weights do not change */
                   (o->rollout_mantissa_bits == IV_F32_MANTISSA_BITS && o->rollout_sync_every == 1));
}

/* ---- the trainer ------------------------------------------------------------------------------------------------ */

/* `options` is this run's copy. */
static iv_train_setup setup_of(const iv_run *r, iv_trainer_options *options) {
    const iv_run_options *o = r->o;
    *options = o->trainer;
    if (!r->processes && options->data_parallel == 0) options->data_parallel = 1;
    options->no_optimizer = r->no_optimizer;
    return (iv_train_setup){.options = options,
                            .flags = true,
                            .numerics = o->numerics,
                            .shard = o->shard,
                            .rank_transport = o->rank_transport,
                            .processes = r->processes,
                            .gpus = o->kind == IV_RUN_RL ? o->rollout_tp : 1,
                            .separate = o->separate,
                            .deferred_loss = o->kind == IV_RUN_RL};
}

iv_status iv_run_check_trainer(const iv_run *r, iv_error *err) {
    iv_trainer_options options;
    iv_train_setup setup = setup_of(r, &options);
    return iv_train_options_check(&setup, err);
}

static iv_status parse_options(iv_run *r, iv_train_options *t, iv_numerics *numerics, iv_error *err) {
    iv_trainer_options options;
    iv_train_setup setup = setup_of(r, &options);
    IV_TRY(iv_train_options_parse(&setup, t, numerics, err));
    IV_TRY(size_passes(r, t, err));
    t->longest = iv_run_longest(r);
    if (*numerics == IV_INVAR) return IV_OK;
    IV_TRY(iv_baseline_open(*numerics, t->kernels, 1, &r->baseline, err));
    t->kernels = iv_baseline_kernels(r->baseline);
    return IV_OK;
}

iv_status iv_run_open_trainer(iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    iv_numerics numerics;
    iv_train_options t;
    IV_TRY(parse_options(r, &t, &numerics, err));
    r->summary->device = t.cuda ? "cuda" : "cpu";
    r->summary->isa = iv_isa_name(t.kernels->isa);
    r->summary->arithmetic = iv_arithmetic_name(t.arithmetic);
    bool shared = shares_model(r, &t, numerics);
    if (shared) {
        IV_TRY(open_engine(r, &t, o->trainer.dtype, true, err));
        t.model = r->engine->model, t.gpu = r->engine->gpus[0];
        if (!t.has_adapter || o->rollout_sync_every == 1) /* after each step the pages are cleared */
            t.borrowed = iv_replace_lend(r->engine, &t.borrowed_bytes);
    }
    IV_TRY(iv_train_open(&t, &r->trainer, err));
    r->summary->lent_bytes = iv_train_borrowed_bytes(r->trainer);
    if (shared || o->kind != IV_RUN_RL) return IV_OK;
    return open_engine(r, &t, iv_dtype_name(iv_train_model(r->trainer)->gemm_type), false, err);
}
