/* rl.c: reinforcement learning: rollouts on an engine in the same process, rewards, and updates of the weights that the
 * engine then runs on. Before any gradient is used, each sampled token's log-probability by the learner is compared
 * with the sampler's. */
#include "base/clock.h"
#include "numerics/floats.h"
#include "train/evaluate.h"
#include "train/rl_batch.h"
#include "train/sample.h"
#include "train/rollout/sync.h"
#include "train/trainer/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REWARD_SECONDS = 60 }; /* limit for a command, of a step */

typedef struct rl {
    iv_run *r;
    iv_trainer *reference; /* initial weights, for the KL; NULL */
    iv_reward *reward;
    iv_rl_batch batch;
    iv_train_sequence *update; /* [batch * group]: the sequences of the update, */
    uint32_t *picked;          /* and which of the batch they are */
    bool *weighed;             /* by this process in the present inner step */
    size_t picked_count;
    bool exact;              /* the learner's distribution is the one that was drawn from */
    bool sampled;            /* behavior: of the distribution drawn from, as nothing filters it */
    const uint64_t *allowed; /* ids that this distribution has; NULL: all */
    bool first;              /* inner step */
    uint64_t idle;           /* steps in a row, up to this one, without an advantage */
    uint64_t updates;
    double seconds[4]; /* rollout, reward, learner, update of the engine */
} rl;

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static iv_status open_reference(rl *x, iv_error *err) {
    const iv_run *r = x->r;
    if (r->algorithm.kl_beta == 0) return IV_OK;
    const iv_train_options *o = iv_train_options_of(r->trainer);
    iv_train_options t = {.model_dir = o->model_dir,
                          .has_dtype = true,
                          .dtype = iv_train_model(r->trainer)->gemm_type,
                          .arithmetic = o->arithmetic,
                          .cuda = o->cuda,
                          .threads = o->threads,
                          .world = 1,
                          .tp = 1,
                          .virtual_ranks = 1,
                          .pass_tokens = iv_train_pass_tokens(r->trainer),
                          .pass_tokens_least = iv_run_longest(r),
                          .recompute = IV_RECOMPUTE_LAYER,
                          .no_optimizer = true,
                          .no_gradients = true,
                          .dummy = o->dummy,
                          .dummy_seed = o->dummy_seed};
    if (iv_train_has_adapter(r->trainer)) { /* the weights do not learn: they serve both */
        t.model = o->tp == 1 ? iv_train_model(r->trainer) : NULL, t.packed = o->packed;
        t.gpu = t.model ? iv_train_gpu(r->trainer) : NULL;
        t.has_adapter = true, t.adapter = o->adapter;
    }
    return iv_train_open(&t, &x->reference, err);
}

/* Rollouts need no fingerprint: the digest of the weights would cost more than writing them. */
static iv_status update_engine(rl *x, iv_error *err) {
    double began = iv_now();
    unsigned bits = (unsigned)x->r->o->rollout_mantissa_bits;
    IV_TRY(iv_train_has_adapter(x->r->trainer)
               ? iv_train_sync_adapter(x->r->trainer, x->r->engine, IV_RUN_ADAPTER, NULL, err)
               : iv_train_sync_rounded(x->r->trainer, x->r->engine, false, bits, err));
    x->seconds[3] += iv_now() - began;
    return IV_OK;
}

static void close_rl(rl *x) {
    iv_rl_batch_free(&x->batch);
    iv_reward_close(x->reward);
    iv_train_close(x->reference);
    free(x->picked), free(x->update), free(x->weighed);
}

/* A missing answer is an error now, not when its turn comes. */
static iv_status check_answers(const rl *x, const char *path, const iv_train_data *data, iv_error *err) {
    for (size_t i = 0; data && iv_reward_needs_answer(x->reward) && i < iv_train_data_count(data); i++) {
        iv_train_example e = iv_train_data_example(data, i);
        if (!e.answer)
            return iv_fail(err, IV_INVALID, "%s:%zu: answer: wanted one for the reward '%s', found none", path,
                           e.line_number, x->r->o->reward);
    }
    return IV_OK;
}

static iv_status open_reward(rl *x, iv_error *err) {
    const iv_run_options *o = x->r->o;
    iv_reward_options w = {.spec = o->reward,
                           .format = o->reward_format,
                           .length = (double)o->max_new_tokens,
                           .seconds = o->reward_timeout >= 0 ? o->reward_timeout : REWARD_SECONDS};
    IV_TRY(iv_reward_open(&w, &x->reward, err));
    bool command = iv_reward_is_command(x->r->o->reward);
    if (o->reward_timeout >= 0 && !command)
        return iv_fail(err, IV_INVALID, "--reward-timeout: wanted a command as --reward, found '%s'", o->reward);
    if (o->reward_format && (command || !strstr(o->reward, "format")))
        return iv_fail(err, IV_INVALID, "--reward-format: wanted --reward format, found '%s'", o->reward);
    IV_TRY(check_answers(x, o->data, x->r->data, err));
    return check_answers(x, o->eval_data, x->r->eval_data, err);
}

static iv_status open_rl(rl *x, iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    *x = (rl){.r = r, .sampled = !iv_run_filters(o), .exact = true};
    if (x->sampled) x->allowed = r->engine->drawable.bits; /* else the model's own: of 10.7 */
    if (r->at % o->rollout_sync_every != 0)                /* the weights in between are in no checkpoint */
        return iv_fail(
            err, IV_UNSUPPORTED,
            "resume: wanted a checkpoint at a multiple of %llu steps, at which the sampler is updated, found "
            "step %llu",
            (unsigned long long)o->rollout_sync_every, (unsigned long long)r->at);
    if (r->first) IV_TRY(open_reward(x, err));
    x->picked = calloc(o->batch_size * o->group_size + 1, sizeof *x->picked);
    x->update = calloc(o->batch_size * o->group_size + 1, sizeof *x->update);
    x->weighed = calloc(o->batch_size * o->group_size + 1, sizeof *x->weighed);
    if (!x->picked || !x->update || !x->weighed)
        return iv_fail(err, IV_NO_MEMORY, "rl: no memory for steps of %llu prompts", (unsigned long long)o->batch_size);
    IV_TRY(open_reference(x, err));
    x->updates = iv_train_slice_of(r->trainer).steps;
    return update_engine(x, err);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static iv_run_prompts prompts_of(const rl *x) {
    return (iv_run_prompts){x->r->data, x->r->examples, x->r->o->batch_size};
}

static iv_status sample(rl *x, iv_rollout **out, iv_error *err) {
    const iv_run_options *o = x->r->o;
    double began = iv_now();
    iv_run_prompts p = prompts_of(x);
    iv_rollout_options w;
    iv_rollout_options_init(&w);
    w.group = o->group_size, w.max_tokens = o->max_new_tokens, w.temperature = (float)o->temperature;
    w.top_p = (float)o->top_p, w.min_p = (float)o->min_p, w.top_k = (int32_t)o->top_k;
    w.seed = o->seed, w.step = x->r->at;
    iv_status status = iv_run_sample(x->r, &p, &w, out, err);
    x->seconds[0] += iv_now() - began;
    return status;
}

static iv_status score(rl *x, const iv_rollout *rollout, iv_error *err) {
    double began = iv_now();
    iv_run_prompts p = prompts_of(x);
    iv_status status = iv_run_judge(x->r, x->reward, &p, x->batch.group, rollout, x->batch.rewards, err);
    x->seconds[1] += iv_now() - began;
    return status;
}

/* The learner's log-probabilities against the sampler's. */
static iv_status compare(const rl *x, size_t i, iv_error *err) {
    const iv_loss_sequence *s = &x->batch.losses[i];
    for (size_t t = 1; x->exact && t < s->n; t++)
        if (s->mask[t] != 0.0f && iv_bits(s->logp[t]) != iv_bits(s->behavior[t]))
            return iv_fail(
                err, IV_INVALID,
                "step %llu, completion %zu of prompt %zu, token %zu: wanted the sampler's log-probability %.9g, "
                "the learner's is %.9g (--on-mismatch report goes on)",
                (unsigned long long)x->r->at + 1, i % x->batch.group, i / x->batch.group, t, (double)s->behavior[t],
                (double)s->logp[t]);
    return IV_OK;
}

static iv_status weigh(void *context, size_t sequence, iv_error *err) {
    rl *x = context;
    size_t i = x->picked[sequence];
    iv_rl_batch *b = &x->batch;
    x->weighed[sequence] = true;
    if (x->first) {
        memcpy(b->old[i], b->losses[i].logp, b->losses[i].n * sizeof *b->old[i]);
        if (strcmp(x->r->o->on_mismatch, "stop") == 0) IV_TRY(compare(x, i, err));
    }
    return iv_algorithm_sequence(&x->r->algorithm, i, &b->losses[i], b->advantages[i], b->coefficients[i], &b->sums[i],
                                 err);
}

/* Sequences of other processes, for the report and for what inner steps compare with. */
static iv_status weigh_others(rl *x, iv_error *err) {
    for (size_t k = 0; k < x->picked_count; k++)
        if (!x->weighed[k]) IV_TRY(weigh(x, k, err));
    return IV_OK;
}

/* Log-probabilities of a model for the picked sequences, into out[sequence] through the learner's own arrays. */
static iv_status score_with(rl *x, iv_trainer *model, float *const *out, iv_error *err) {
    iv_train_batch b = {.sequences = x->update,
                        .count = x->picked_count,
                        .temperature = (float)x->r->o->temperature,
                        .allowed = x->allowed};
    double began = iv_now();
    IV_TRY(iv_train_score(model, &b, err));
    for (size_t k = 0; k < x->picked_count; k++) {
        size_t i = x->picked[k];
        memcpy(out[i], x->batch.losses[i].logp, x->batch.losses[i].n * sizeof(float));
    }
    x->seconds[2] += iv_now() - began;
    return IV_OK;
}

static bool kl_in_reward(const rl *x) { return x->reference && x->r->algorithm.kl_in_reward; }

/* What a KL in the reward compares: of every sequence the learner's and the reference's log-probabilities. A run that
 * stops on a mismatch has the learner's from the sampler: `compare` checks it before a gradient is used. */
static iv_status score_for_rewards(rl *x, iv_error *err) {
    iv_rl_batch *b = &x->batch;
    if (!kl_in_reward(x)) return IV_OK;
    x->picked_count = iv_rl_batch_pick(b, x->update, x->picked);
    IV_TRY(score_with(x, x->reference, b->reference, err));
    if (strcmp(x->r->o->on_mismatch, "stop") != 0) return score_with(x, x->r->trainer, b->old, err);
    for (size_t i = 0; i < b->n; i++) memcpy(b->old[i], b->behavior[i], b->losses[i].n * sizeof(float));
    return IV_OK;
}

/* Rewards to advantages and the sequences of the update. */
static iv_status weigh_rewards(rl *x, size_t *kept, iv_error *err) {
    iv_rl_batch *b = &x->batch;
    bool moves = false;
    IV_TRY(score_for_rewards(x, err));
    IV_TRY(iv_rl_batch_weigh(b, &x->r->algorithm, kept, err));
    x->picked_count = iv_rl_batch_pick(b, x->update, x->picked);
    for (size_t k = 0; k < x->picked_count; k++) moves |= b->advantages[x->picked[k]] != 0;
    x->idle = moves ? 0 : x->idle + 1;
    x->r->summary->idle_steps += !moves;
    return IV_OK;
}

static void total_of(const rl *x, iv_loss_sums *total) {
    *total = (iv_loss_sums){0};
    for (size_t k = 0; k < x->picked_count; k++) iv_loss_add(total, &x->batch.sums[x->picked[k]]);
}

/* Of all inner steps; the comparison with the sampler, whose weights are those of the first, is of the first. */
static iv_loss_report report_of(const iv_loss_sums *first, const iv_loss_sums *all, double denominator,
                                uint64_t steps) {
    iv_loss_report r = iv_loss_finish(all, denominator * (double)steps), own = iv_loss_finish(first, denominator);
    r.k1 = own.k1, r.k3 = own.k3, r.largest_logp = own.largest_logp, r.largest_p = own.largest_p;
    r.sequences = own.sequences, r.tokens = own.tokens, r.equal = own.equal;
    return r;
}

/* The inner steps over one batch. *norm: their mean. */
static iv_status learn(rl *x, iv_loss_report *report, double *norm, double *rate, iv_error *err) {
    iv_run *r = x->r;
    double began, denominator;
    iv_loss_sequence *losses = calloc(x->picked_count + 1, sizeof *losses);
    if (!losses) return iv_fail(err, IV_NO_MEMORY, "rl: no memory");
    for (size_t k = 0; k < x->picked_count; k++) losses[k] = x->batch.losses[x->picked[k]];
    iv_status status = iv_algorithm_denominator(&r->algorithm, losses, x->picked_count, &denominator, err);
    free(losses);
    IV_TRY(status);
    if (x->reference && !kl_in_reward(x)) IV_TRY(score_with(x, x->reference, x->batch.reference, err));
    began = iv_now();
    iv_loss_sums first = {0}, all = {0};
    iv_train_batch b = {.sequences = x->update,
                        .count = x->picked_count,
                        .temperature = (float)r->o->temperature,
                        .allowed = x->allowed,
                        .weigh = weigh,
                        .context = x};
    for (size_t k = 0; k < r->o->inner_steps; k++) {
        iv_train_result g, a = {0};
        iv_loss_sums total;
        *rate = iv_schedule_rate(&r->schedule, r->at);
        x->first = k == 0;
        memset(x->weighed, 0, x->picked_count * sizeof *x->weighed);
        IV_TRY(iv_train_gradients(r->trainer, &b, denominator, &g, err));
        IV_TRY(weigh_others(x, err));
        IV_TRY(iv_train_apply(r->trainer, &(iv_train_update){denominator, *rate, r->o->max_grad_norm}, &a, err));
        memcpy(r->hash, a.weights_hash, sizeof r->hash);
        x->updates++, *norm += a.norm / (double)r->o->inner_steps;
        total_of(x, &total);
        if (k == 0) first = total;
        iv_loss_add(&all, &total);
    }
    *report = report_of(&first, &all, denominator, r->o->inner_steps);
    x->seconds[2] += iv_now() - began;
    return IV_OK;
}

static void rewards_of(const iv_rl_batch *b, double *mean, double *deviation, double *best) {
    double sum = 0, squares = 0, groups = 0;
    for (size_t i = 0; i < b->n; i++) sum += b->rewards[i];
    *mean = sum / (double)b->n;
    for (size_t i = 0; i < b->n; i++) squares += (b->rewards[i] - *mean) * (b->rewards[i] - *mean);
    *deviation = sqrt(squares / (double)b->n);
    for (size_t g = 0; g < b->n / b->group; g++) {
        double top = b->rewards[g * b->group];
        for (size_t i = 1; i < b->group; i++) top = fmax(top, b->rewards[g * b->group + i]);
        groups += top;
    }
    *best = groups / (double)(b->n / b->group);
}

static void fill_metrics(rl *x, iv_train_metrics *m, const iv_loss_report *l, double norm, double rate,
                         double seconds) {
    iv_run *r = x->r;
    const iv_rl_batch *b = &x->batch;
    double mean, deviation, best, entropy = 0;
    rewards_of(b, &mean, &deviation, &best);
    for (size_t i = 0; i < b->n; i++)
        for (size_t t = 0; t < b->losses[i].n; t++) entropy -= (double)b->behavior[i][t];
    iv_train_metrics_begin(m, r->at);
    iv_train_metrics_set(m, "reward", mean), iv_train_metrics_set(m, "reward_deviation", deviation);
    iv_train_metrics_set(m, "reward_best_of_group", best);
    iv_train_metrics_set(m, "kl", l->k3), iv_train_metrics_set(m, "kl_k1", l->k1);
    iv_train_metrics_set(m, "largest_logprob_difference", l->largest_logp);
    iv_train_metrics_set(m, "largest_probability_difference", l->largest_p);
    iv_train_metrics_set(m, "tokens_compared", (double)l->tokens),
        iv_train_metrics_set(m, "tokens_equal", (double)l->equal);
    iv_train_metrics_set(m, "loss", l->loss), iv_train_metrics_set(m, "kl_reference", l->kl);
    iv_train_metrics_set(m, "clipped_low", l->clipped_low), iv_train_metrics_set(m, "clipped_high", l->clipped_high);
    iv_train_metrics_set(m, "ratio_mean", l->ratio_mean), iv_train_metrics_set(m, "ratio_max", l->ratio_max);
    iv_train_metrics_set(m, "entropy_estimate", entropy / (double)b->completion_tokens);
    iv_train_metrics_set(m, "completion_length", (double)b->completion_tokens / (double)b->n);
    iv_train_metrics_set(m, "sequences_learned", (double)x->picked_count);
    if (x->idle >= IV_TRAIN_IDLE_STEPS) iv_train_metrics_set(m, "steps_without_advantage", (double)x->idle);
    iv_train_metrics_set(m, "gradient_norm", norm), iv_train_metrics_set(m, "learning_rate", rate);
    iv_train_metrics_set(m, "tokens_per_second", (double)b->tokens / seconds);
    iv_train_metrics_set(m, "seconds", seconds), iv_train_metrics_set(m, "seconds_rollout", x->seconds[0]);
    iv_train_metrics_set(m, "seconds_reward", x->seconds[1]), iv_train_metrics_set(m, "seconds_learner", x->seconds[2]);
    iv_train_metrics_set(m, "seconds_engine_update", x->seconds[3]);
    r->summary->reward = mean, r->summary->loss = l->loss, r->summary->tokens += b->tokens;
    r->summary->compared += l->tokens, r->summary->different += l->tokens - l->equal;
    r->summary->largest_difference = fmax(r->summary->largest_difference, l->largest_logp);
}

static iv_status finish_step(rl *x, const iv_loss_report *l, double norm, double rate, double began, iv_error *err) {
    iv_train_metrics m;
    char state[64];
    x->r->at++;
    fill_metrics(x, &m, l, norm, rate, iv_now() - began);
    snprintf(state, sizeof state, "{\"updates\":%llu}", (unsigned long long)x->updates);
    return iv_run_end_evaluated(x->r, iv_run_eval_reward(x->r, x->reward, &m, err), &m, state, err);
}

static iv_status step(rl *x, iv_error *err) {
    iv_run *r = x->r;
    iv_rollout *rollout;
    size_t kept = 0;
    double began = iv_now(), norm = 0, rate = 0;
    iv_loss_report report = {0};
    memset(x->seconds, 0, sizeof x->seconds);
    IV_TRY(iv_train_order_step(r->order, r->at, r->examples, NULL, err));
    IV_TRY(sample(x, &rollout, err));
    iv_status status = iv_rl_batch_make(r->data, r->examples, r->o->batch_size, r->o->group_size, rollout, x->sampled,
                                        x->reference != NULL, &x->batch, err);
    if (status == IV_OK) status = score(x, rollout, err);
    iv_rollout_close(rollout);
    if (status == IV_OK) status = weigh_rewards(x, &kept, err);
    if (status == IV_OK && kept) status = learn(x, &report, &norm, &rate, err);
    bool due = (r->at + 1) % r->o->rollout_sync_every == 0;
    if (status == IV_OK && due && (kept || r->o->rollout_sync_every > 1)) status = update_engine(x, err);
    if (status == IV_OK) status = finish_step(x, &report, norm, rate, began, err);
    iv_rl_batch_free(&x->batch);
    return status;
}

iv_status iv_run_rl(iv_run *r, iv_error *err) {
    rl x;
    iv_status status = open_rl(&x, r, err);
    if (status == IV_OK) status = iv_run_begin(r, err);
    while (status == IV_OK && r->at < r->steps && !r->summary->stopped) status = step(&x, err);
    close_rl(&x);
    return status;
}
