/* run.c: opening a run, its identity, its files, and the end of a step. */
#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "comm/mpi.h"
#include "engine/text_model.h"
#include "format/json.h"
#include "train/checkpoint/files.h"
#include "train/metrics/curves.h"
#include "train/trainer/options.h"
#include "train/reward/reward.h"
#include "train/run_state.h"
#include "train/trainer/store.h"
#include "train/rollout/sync.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STEP_TIMEOUT_MS = 60 * 60 * 1000 }; /* of a wait for other processes, which may have more to do */

void iv_run_defaults(iv_run_options *o, iv_run_kind kind) {
    bool rl = kind == IV_RUN_RL;
    *o = (iv_run_options){.kind = kind,
                          .trainer = iv_train_defaults(),
                          .numerics = "invar",
                          .epochs = 1,
                          .batch_size = rl ? 16 : 32,
                          .learning_rate = rl ? 1e-6 : 2e-5,
                          .max_grad_norm = 1.0,
                          .schedule = rl ? "constant" : "linear",
                          .warmup = "0",
                          .decay_steps = "0",
                          .longer = "error",
                          .algorithm = "grpo",
                          .reward = "exact",
                          .correction = "none",
                          .group_size = 8,
                          .max_new_tokens = 256,
                          .inner_steps = 1,
                          .temperature = 1.0,
                          .top_p = 1.0,
                          .eps_low = -1,
                          .eps_high = -1,
                          .correction_cap = -1,
                          .overlong_buffer = -1,
                          .rollout_numerics = "invar",
                          .rollout_mantissa_bits = IV_F32_MANTISSA_BITS,
                          .rollout_sync_every = 1,
                          .shard = "optimizer",
                          .keep = 3,
                          .rollout_tp = 1,
                          .speculative = "off",
                          .reward_timeout = -1,
                          .rank_transport = "auto",
                          .on_mismatch = "stop"};
    o->trainer.data_parallel = 0;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static iv_status open_data(iv_run *r, iv_error *err) {
    static const char *const longer[] = {"error", "truncate", "drop"};
    const iv_run_options *o = r->o;
    int what = 0;
    iv_model plan = {0};
    iv_checkpoint *c;
    IV_TRY(iv_run_check_trainer(r, err));
    IV_TRY(iv_train_one_of("longer examples", o->longer, longer, 3, &what, err));
    IV_TRY(iv_run_check_data(o, err));
    iv_model_options m = {.dummy = strcmp(o->trainer.load_format, "dummy") == 0, .dummy_seed = o->trainer.dummy_seed};
    IV_TRY(iv_model_plan(o->trainer.model, &m, &plan, &c, err));
    size_t vocab = (size_t)plan.config.vocab_size, positions = (size_t)plan.config.max_positions;
    iv_checkpoint_close(c);
    iv_arena_free(&plan.arena);
    IV_TRY(iv_text_model_open(o->trainer.model, &r->text, err));
    iv_train_data_options d = {.path = o->data,
                               .kind = o->kind == IV_RUN_RL ? IV_TRAIN_RL : IV_TRAIN_SFT,
                               .vocab_size = vocab,
                               .positions = positions,
                               .completion = o->kind == IV_RUN_RL ? o->max_new_tokens : 0,
                               .max_length = o->max_length,
                               .any_members = o->kind == IV_RUN_RL && o->reward && iv_reward_is_command(o->reward),
                               .longer = (iv_train_longer)what};
    IV_TRY(iv_train_data_open(&d, r->text, &r->data, err));
    d.path = o->eval_data;
    if (o->eval_data) IV_TRY(iv_train_data_open(&d, r->text, &r->eval_data, err));
    return iv_train_order_open(
        &(iv_train_order_options){iv_train_data_count(r->data), o->batch_size, o->seed, o->no_shuffle, o->drop_last},
        &r->order, err);
}

static iv_status make_schedule(iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    r->steps = o->steps ? o->steps : iv_train_order_steps(r->order, (uint32_t)o->epochs);
    r->schedule = (iv_schedule){.learning_rate = o->learning_rate, .steps = r->steps, .min_ratio = o->min_lr_ratio};
    IV_TRY(iv_schedule_parse(o->schedule, &r->schedule.kind, err));
    IV_TRY(iv_schedule_steps_parse("warmup", o->warmup, r->steps, &r->schedule.warmup, err));
    IV_TRY(iv_schedule_steps_parse("decay steps", o->decay_steps, r->steps, &r->schedule.decay, err));
    return iv_schedule_check(&r->schedule, err);
}

static iv_status make_algorithm(iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    iv_algorithm_kind kind = IV_SFT;
    if (o->kind == IV_RUN_RL) IV_TRY(iv_algorithm_parse(o->algorithm, &kind, err));
    iv_algorithm *a = &r->algorithm;
    *a = iv_algorithm_defaults(kind, (double)o->max_new_tokens);
    if (o->kind != IV_RUN_RL) return IV_OK;
    if (o->eps_low >= 0) a->eps_low = o->eps_low;
    if (o->eps_high >= 0) a->eps_high = o->eps_high;
    if (o->correction_cap >= 0) a->correction_cap = o->correction_cap;
    if (o->overlong_buffer >= 0) a->overlong_buffer = o->overlong_buffer, a->overlong_max = (double)o->max_new_tokens;
    a->kl_beta = o->kl_beta;
    if (o->dynamic_sampling) a->dynamic_sampling = true;
    if (o->kl) IV_TRY(iv_kl_parse(o->kl, &a->kl, err));
    IV_TRY(iv_correction_parse(o->correction, &a->correction, err));
    return iv_algorithm_check(a, err);
}

/* ---- identity ---------------------------------------------------------------------------------------------------- */

/* All that decides the weights, with what the trainer knows. steps: of the run, 0: left out. */
static json_t *hyperparameters_of(const iv_run *r, uint64_t steps) {
    const iv_run_options *o = r->o;
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    json_t *j = iv_train_hyperparameters(r->trainer, o->kind == IV_RUN_RL ? "rl" : "sft");
    json_t *more = json_pack(
        "{ss sI ss sf sf sf ss sI sI sb sb}", "numerics", o->numerics, "batch_size", (json_int_t)o->batch_size, "seed",
        seed, "learning_rate", o->learning_rate, "max_grad_norm", o->max_grad_norm, "min_lr_ratio", o->min_lr_ratio,
        "schedule", iv_schedule_name(r->schedule.kind), "warmup_steps", (json_int_t)r->schedule.warmup, "decay_steps",
        (json_int_t)r->schedule.decay, "shuffle", (int)!o->no_shuffle, "drop_last", (int)o->drop_last);
    json_object_update(j, more);
    json_decref(more);
    if (j && steps) json_object_set_new(j, "steps", json_integer((json_int_t)steps));
    if (o->kind != IV_RUN_RL || !j) return j;
    const iv_algorithm *a = &r->algorithm;
    json_t *rl = json_pack(
        "{ss ss sI sI sI sf sf sf sI sf ss sf sf ss sf sf sb}", "algorithm", iv_algorithm_name(a->kind), "reward",
        o->reward, "group_size", (json_int_t)o->group_size, "max_new_tokens", (json_int_t)o->max_new_tokens,
        "inner_steps", (json_int_t)o->inner_steps, "temperature", o->temperature, "top_p", o->top_p, "min_p", o->min_p,
        "top_k", (json_int_t)o->top_k, "kl_beta", a->kl_beta, "kl", o->kl ? o->kl : "k3", "eps_low", a->eps_low,
        "eps_high", a->eps_high, "correction", o->correction, "correction_cap", a->correction_cap, "overlong_buffer",
        a->overlong_buffer, "dynamic_sampling", (int)a->dynamic_sampling);
    json_object_update(j, rl);
    json_decref(rl);
    if (r->engine->drawable.bits) json_object_set_new(j, "sampled_ids", json_string(r->engine->drawable.digest));
    if (strcmp(o->rollout_numerics, "invar") != 0)
        json_object_set_new(j, "rollout_numerics", json_string(o->rollout_numerics));
    if (o->rollout_mantissa_bits != IV_F32_MANTISSA_BITS)
        json_object_set_new(j, "rollout_mantissa_bits", json_integer((json_int_t)o->rollout_mantissa_bits));
    if (o->rollout_sync_every != 1)
        json_object_set_new(j, "rollout_sync_every", json_integer((json_int_t)o->rollout_sync_every));
    return j;
}

static iv_status make_identity(iv_run *r, uint64_t steps, iv_error *err) {
    uint8_t data[32];
    char hex[65];
    iv_train_data_digest(r->data, data);
    iv_digest_hex(data, hex);
    IV_TRY(iv_train_identify(r->trainer, hyperparameters_of(r, steps), hex, &r->identity, err));
    snprintf(r->summary->identity, sizeof r->summary->identity, "%s", r->identity.fingerprint);
    return IV_OK;
}

static iv_training_run run_of(const iv_run *r) { return iv_train_run_of(r->trainer, &r->identity, r->o->output); }

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void note(iv_run *r, const char *text) {
    if (!r->first || !r->o->progress || r->o->quiet || !*text) return;
    iv_train_progress_break(&r->progress);
    fputs(text, r->o->progress);
}

static void note_data(iv_run *r, const char *what, const iv_train_data *data) {
    iv_train_data_report c = iv_train_data_counts(data);
    char line[300];
    int n = snprintf(line, sizeof line, "%s: %zu example%s of at most %zu tokens, %zu tokens", what, c.examples,
                     c.examples == 1 ? "" : "s", c.longest, c.tokens);
    if (r->o->kind != IV_RUN_RL) n += snprintf(line + n, sizeof line - (size_t)n, ", %zu of them learned", c.masked);
    if (c.truncated) n += snprintf(line + n, sizeof line - (size_t)n, "; %zu cut", c.truncated);
    if (c.examples < r->o->batch_size && data == r->data)
        n += snprintf(line + n, sizeof line - (size_t)n, "; fewer than a batch of %llu: a step repeats them",
                      (unsigned long long)r->o->batch_size);
    if (c.dropped) n += snprintf(line + n, sizeof line - (size_t)n, "; %zu dropped", c.dropped);
    snprintf(line + n, sizeof line - (size_t)n, "\n");
    note(r, line);
}

/* A whole number among the hyperparameters of the newest checkpoint that can be read; 0: there is none. */
static uint64_t saved_number(const iv_run *r, const char *name) {
    uint64_t *steps = NULL, found = 0;
    size_t count = 0;
    iv_buf path = {0};
    iv_error ignored;
    iv_training_checkpoint *c = NULL;
    iv_status status = iv_training_list(r->o->output, &steps, &count, &ignored);
    for (size_t i = 0; status == IV_OK && i < count && !c; i++)
        if (iv_training_path(r->o->output, steps[i], &path, &ignored) == IV_OK)
            (void)iv_training_open(path.data, false, &c, &ignored);
    const char *text = c ? iv_training_get(c)->run.hyperparameters : "{}";
    json_t *j;
    if (iv_json_parse("hyperparameters", text, strlen(text), &j, &ignored) == IV_OK) {
        json_int_t value = json_integer_value(json_object_get(j, name));
        if (value > 0) found = (uint64_t)value;
        json_decref(j);
    }
    iv_training_close(c);
    free(steps);
    iv_buf_free(&path);
    return found;
}

/* A run that can be made longer has no steps in its identity. Checkpoints of earlier versions have them: the run then
 * goes on under the identity that it had. */
static iv_status find_checkpoint(iv_run *r, iv_training_checkpoint **c, iv_buf *notes, iv_error *err) {
    iv_training_run run = run_of(r);
    iv_status status = iv_training_resume(&run, r->processes, c, notes, err);
    if (status != IV_INVALID) return status;
    uint64_t steps = saved_number(r, "steps"), warmup = saved_number(r, "warmup_steps");
    if (steps && !iv_schedule_needs_steps(&r->schedule)) {
        iv_buf_clear(notes);
        IV_TRY(make_identity(r, steps, err));
        run = run_of(r);
        status = iv_training_resume(&run, r->processes, c, notes, err);
    }
    if (status != IV_INVALID) return status;
    iv_error why = *err;
    if (iv_schedule_needs_steps(&r->schedule) && steps && steps != r->steps)
        return iv_fail(err, status,
                       "%s. The rates of schedule %s depend on the number of steps: wanted --steps %llu as before (a "
                       "run with constant or constant_with_warmup can be made longer), or a new run from the "
                       "checkpoint's model in another directory",
                       why.message, iv_schedule_name(r->schedule.kind), (unsigned long long)steps);
    if (strchr(r->o->warmup, '.') && warmup != r->schedule.warmup)
        return iv_fail(err, status, "%s. A ratio of other steps is another warm-up: wanted --warmup %llu", why.message,
                       (unsigned long long)warmup);
    return status;
}

/* Of the optimizer: a step of rl has several, or none. */
static iv_status saved_updates(const iv_run *r, const iv_training_checkpoint *c, uint64_t *updates, iv_error *err) {
    const iv_training_progress p = iv_training_get(c)->progress;
    json_t *j;
    *updates = p.step * r->o->inner_steps;
    if (!p.state) return IV_OK;
    IV_TRY(iv_json_parse("checkpoint state", p.state, strlen(p.state), &j, err));
    json_t *u = json_object_get(j, "updates");
    if (json_is_integer(u)) *updates = (uint64_t)json_integer_value(u);
    json_decref(j);
    return IV_OK;
}

static iv_status resume(iv_run *r, iv_error *err) {
    iv_training_checkpoint *c = NULL;
    iv_buf notes = {0};
    iv_status status = find_checkpoint(r, &c, &notes, err);
    if (notes.len) note(r, notes.data);
    iv_buf_free(&notes);
    if (status != IV_OK || !c) return status;
    uint64_t updates;
    status = saved_updates(r, c, &updates, err);
    r->at = iv_training_get(c)->progress.step;
    if (status == IV_OK) status = iv_training_load(c, r->trainer, updates, r->hash, err);
    if (status == IV_OK) {
        char line[4200];
        snprintf(line, sizeof line, "resumed from %s\n", iv_training_get(c)->path);
        note(r, line);
        snprintf(r->summary->checkpoint, sizeof r->summary->checkpoint, "%s", iv_training_get(c)->path);
    }
    iv_training_close(c);
    return status;
}

static iv_status join_path(char out[4096], const char *dir, const char *name, iv_error *err) {
    if ((size_t)snprintf(out, 4096, "%s/%s", dir, name) < 4096) return IV_OK;
    return iv_fail(err, IV_INVALID, "%.200s: the path is too long", dir);
}

/* The directory and those above it. */
static iv_status make_directories(const char *dir, iv_error *err) {
    char path[4096];
    IV_TRY(join_path(path, dir, "", err));
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return iv_fail(err, IV_IO, "%s: cannot make the directory: %s", path, strerror(errno));
        *at = '/';
    }
    return IV_OK;
}

/* The log and the events, for the next step. */
static iv_status open_files(iv_run *r, uint64_t next, iv_error *err) {
    char path[4096];
    struct timespec now;
    if (r->log || !r->first || !r->o->output) return IV_OK;
    IV_TRY(join_path(path, r->o->output, "metrics.jsonl", err));
    IV_TRY(iv_train_log_open(path, next, &r->log, err));
    clock_gettime(CLOCK_REALTIME, &now);
    return iv_train_events_open(r->o->output, next, (double)now.tv_sec, &r->events, err);
}

iv_status iv_run_begin(iv_run *r, iv_error *err) {
    if (r->first && r->o->output) {
        IV_TRY(make_directories(r->o->output, err));
        if (access(r->o->output, W_OK | X_OK) != 0)
            return iv_fail(err, IV_IO, "%s: cannot write into the directory: %s", r->o->output, strerror(errno));
        /* A new run has no files before its first step is done, so that a corrected command can follow a failed one. */
        char log[4096];
        IV_TRY(join_path(log, r->o->output, "metrics.jsonl", err));
        if (r->o->resume && access(log, F_OK) == 0) IV_TRY(open_files(r, r->at + 1, err));
    }
    r->began = iv_now();
    iv_train_progress_begin(&r->progress, r->first ? r->o->progress : NULL, r->steps, r->began);
    return IV_OK;
}

/* A run without `resume` must not end up among another's files. All processes look, so that none waits for one that
 * failed; the first writes only after a collective call. */
static iv_status check_output(const iv_run *r, iv_error *err) {
    char path[4096];
    if (!r->o->output && (r->o->resume || r->o->save_every))
        return iv_fail(err, IV_INVALID, "output: wanted a directory for checkpoints, found none");
    if (r->o->resume || !r->o->output) return IV_OK;
    IV_TRY(join_path(path, r->o->output, "metrics.jsonl", err));
    struct stat s;
    if (stat(path, &s) != 0 || s.st_size == 0) return IV_OK; /* empty: killed before the end of its first step */
    return iv_fail(err, IV_INVALID, "%s: has a run already: wanted --resume, or another directory", r->o->output);
}

static iv_status open_all(iv_run *r, iv_error *err) {
    if (iv_mpi_processes() > 1) {
        IV_TRY(iv_comm_mpi_open(&r->processes, err));
        iv_comm_mpi_timeout(r->processes, STEP_TIMEOUT_MS);
        IV_TRY(iv_comm_mpi_watch(r->processes, err));
    }
    r->first = !r->processes || r->processes->rank == 0;
    IV_TRY(check_output(r, err));
    IV_TRY(open_data(r, err));
    note_data(r, "data", r->data);
    if (r->eval_data) note_data(r, "held-out data", r->eval_data);
    IV_TRY(make_schedule(r, err));
    IV_TRY(make_algorithm(r, err));
    IV_TRY(iv_run_check(r, err));
    if (r->o->kind == IV_RUN_RL) IV_TRY(iv_run_check_rl(r, err));
    IV_TRY(iv_run_open_trainer(r, err));
    r->summary->dtype = iv_dtype_name(iv_train_model(r->trainer)->gemm_type);
    IV_TRY(make_identity(r, iv_schedule_needs_steps(&r->schedule) ? r->steps : 0, err));
    IV_TRY(iv_train_weights_hash(r->trainer, r->hash, err));
    if (r->o->resume) IV_TRY(resume(r, err));
    r->summary->first_step = r->at;
    r->examples = calloc(r->o->batch_size + 1, sizeof *r->examples);
    if (!r->examples)
        return iv_fail(err, IV_NO_MEMORY, "run: no memory for batches of %llu", (unsigned long long)r->o->batch_size);
    return IV_OK;
}

iv_status iv_run_open(iv_run *r, const iv_run_options *o, iv_run_summary *summary, iv_error *err) {
    *r = (iv_run){.o = o, .summary = summary};
    *summary = (iv_run_summary){0};
    if (o->batch_size == 0 || o->batch_size > UINT32_MAX / 2)
        return iv_fail(err, IV_INVALID, "batch size: wanted 1 at least, found %llu", (unsigned long long)o->batch_size);
    iv_status status = open_all(r, err);
    if (status != IV_OK) iv_run_close(r);
    return status;
}

static iv_status open_for_gradients(iv_run *r, iv_error *err) {
    r->first = true;
    IV_TRY(open_data(r, err));
    return iv_run_open_trainer(r, err);
}

iv_status iv_run_open_model(iv_run *r, const iv_run_options *o, iv_run_summary *summary, iv_error *err) {
    *r = (iv_run){.o = o, .summary = summary, .no_optimizer = true};
    iv_status status = open_for_gradients(r, err);
    if (status != IV_OK) iv_run_close(r);
    return status;
}

void iv_run_close(iv_run *r) {
    iv_train_progress_break(&r->progress);
    iv_train_log_close(r->log, NULL), iv_train_events_close(r->events, NULL);
    for (size_t i = 0; i < r->sequence_max; i++) free(r->sequences[i].logprobs);
    free(r->sequences), free(r->examples), iv_train_identity_free(&r->identity);
    iv_train_close(r->trainer); /* before the engine, whose model it may train */
    iv_engine_close(r->engine);
    iv_baseline_close(r->baseline);
    iv_train_order_close(r->order);
    iv_train_data_close(r->data), iv_train_data_close(r->eval_data);
    iv_text_model_close(r->text);
    iv_comm_close(r->processes);
    *r = (iv_run){0};
}

iv_status iv_run_reserve(iv_run *r, size_t n, iv_error *err) {
    size_t longest = iv_run_longest(r);
    if (n <= r->sequence_max) return IV_OK;
    iv_train_sequence *more = realloc(r->sequences, n * sizeof *more);
    if (!more) return iv_fail(err, IV_NO_MEMORY, "run: no memory for %zu sequences", n);
    r->sequences = more;
    for (; r->sequence_max < n; r->sequence_max++) {
        more[r->sequence_max] = (iv_train_sequence){.logprobs = calloc(longest, sizeof(float))};
        if (!more[r->sequence_max].logprobs) return iv_fail(err, IV_NO_MEMORY, "run: no memory for %zu sequences", n);
    }
    return IV_OK;
}

void iv_run_fill(iv_run *r, const iv_train_data *data, const uint32_t *which, size_t first, size_t n) {
    for (size_t i = 0; i < n; i++) {
        iv_train_example e = iv_train_data_example(data, which ? which[i] : first + i);
        iv_train_sequence *s = &r->sequences[i];
        *s = (iv_train_sequence){e.ids, e.mask, e.count, s->logprobs, NULL};
    }
}

/* ---- the end of a step ------------------------------------------------------------------------------------------- */

static iv_status save(iv_run *r, const char *state, iv_error *err) {
    char hex[65];
    iv_digest_hex(r->hash, hex);
    iv_training_shard shard = iv_training_shard_of(r->trainer);
    uint64_t examples = iv_train_data_count(r->data), used = r->at * r->o->batch_size;
    if (r->o->drop_last) examples -= examples % r->o->batch_size; /* of an epoch */
    iv_training_progress p = {
        .step = r->at, .epoch = used / examples, .cursor = used % examples, .weight_hash = hex, .state = state};
    iv_training_model model = {
        .model = iv_train_model(r->trainer), .source = r->o->trainer.model, .trainer = r->trainer};
    iv_training_run run = run_of(r);
    iv_training_save_options options = iv_training_save_of(&model, r->o->keep);
    IV_TRY(iv_training_save(&run, &p, &shard, &options, r->processes, err));
    iv_buf path = {0};
    IV_TRY(iv_training_path(r->o->output, r->at, &path, err));
    snprintf(r->summary->checkpoint, sizeof r->summary->checkpoint, "%s", path.data);
    iv_buf_free(&path);
    return IV_OK;
}

static iv_status write_curves(iv_run *r, iv_error *err) {
    char log[4096], html[4096], svg[4096];
    IV_TRY(join_path(log, r->o->output, "metrics.jsonl", err));
    IV_TRY(join_path(html, r->o->output, "curves.html", err));
    IV_TRY(join_path(svg, r->o->output, "curves.svg", err));
    return iv_train_curves_write(log, r->o->output, html, svg, err);
}

iv_status iv_run_end_step(iv_run *r, iv_train_metrics *m, const char *state, iv_error *err) {
    char hex[65];
    iv_digest_hex(r->hash, hex);
    if (r->first && r->o->step) r->o->step(r->o->step_user, r->at, hex);
    bool last = r->at == r->steps, stop = r->o->stop && *r->o->stop;
    if (r->processes) { /* all processes stop together */
        size_t bytes[IV_RANKS_MAX];
        const void *parts[IV_RANKS_MAX];
        for (size_t i = 0; i < r->processes->size; i++) bytes[i] = sizeof stop;
        IV_TRY(iv_comm_all_gather(r->processes, &stop, bytes, parts, err));
        for (size_t i = 0; i < r->processes->size; i++) stop |= *(const bool *)parts[i];
    }
    iv_train_metrics_set_text(m, "weights", hex);
    memcpy(r->summary->weights_hash, hex, sizeof hex);
    r->summary->steps = r->at, r->summary->seconds = iv_now() - r->began;
    IV_TRY(open_files(r, r->at, err));
    if (r->log) IV_TRY(iv_train_log_add(r->log, m, err));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (r->events) IV_TRY(iv_train_events_add(r->events, m, (double)now.tv_sec, err));
    if (r->first) iv_train_progress_step(&r->progress, m, iv_now());
    if (r->o->output && (last || stop || (r->o->save_every && r->at % r->o->save_every == 0))) {
        IV_TRY(save(r, state, err));
        if (r->first) IV_TRY(write_curves(r, err));
    }
    r->summary->stopped = stop && !last;
    return IV_OK;
}
