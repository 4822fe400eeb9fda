/* run_check.c: options that are out of range, and those that could not change anything: nothing asked for is ignored.
 */
#include "train/run_state.h"
#include "train/rollout/sync.h"

#include <string.h>

bool iv_run_filters(const iv_run_options *o) { return o->top_p < 1.0 || o->top_k > 0 || o->min_p > 0; }

iv_status iv_run_check(const iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    const iv_schedule *s = &r->schedule;
    const char *name = iv_schedule_name(s->kind);
    bool decays = s->kind == IV_SCHEDULE_WARMUP_STABLE_DECAY;
    if (s->decay && !decays)
        return iv_fail(err, IV_INVALID, "--decay-steps: wanted --lr-scheduler warmup_stable_decay, found %s", name);
    if (o->min_lr_ratio != 0 && !decays && s->kind != IV_SCHEDULE_COSINE_WITH_MIN_LR)
        return iv_fail(err, IV_INVALID,
                       "--min-lr-ratio: wanted --lr-scheduler cosine_with_min_lr or warmup_stable_decay, found %s",
                       name);
    if (o->min_lr_ratio != 0 && decays && !s->decay && !s->warmup)
        return iv_fail(err, IV_INVALID, "--min-lr-ratio: wanted --decay-steps or --warmup, found neither");
    double highest = 0;
    for (uint64_t i = 0; i < r->steps && highest == 0; i++) highest = iv_schedule_rate(s, i);
    if (highest == 0)
        return iv_fail(err, IV_INVALID,
                       "--lr: wanted a learning rate above 0 in a step, found 0 in all %llu (--lr %g, --warmup %s)",
                       (unsigned long long)r->steps, o->learning_rate, o->warmup);
    return IV_OK;
}

/* Standard input can be read once. */
iv_status iv_run_check_data(const iv_run_options *o, iv_error *err) {
    if (!o->eval_data && o->eval_every)
        return iv_fail(err, IV_INVALID, "eval data: wanted a file of held-out examples, found none");
    if (o->eval_data && strcmp(o->eval_data, "-") == 0 && strcmp(o->data, "-") == 0)
        return iv_fail(err, IV_INVALID, "eval data: wanted a file, found standard input, which is the training data");
    if (strcmp(o->longer, "error") != 0 && !o->max_length)
        return iv_fail(err, IV_INVALID, "--longer %s: wanted --max-length too, found no limit", o->longer);
    return IV_OK;
}

/* ---- rl ---------------------------------------------------------------------------------------------------------- */

static iv_status check_algorithm(const iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    const iv_algorithm *a = &r->algorithm;
    const char *name = iv_algorithm_name(a->kind);
    if (o->kl && a->kl_beta == 0) return iv_fail(err, IV_INVALID, "--kl: wanted --kl-beta above 0, found 0");
    if (a->kl_in_reward && a->kl != IV_KL_K1)
        return iv_fail(err, IV_INVALID, "--kl: wanted k1 for %s, whose KL is in the reward, found %s", name, o->kl);
    if (o->eps_low >= 0 || o->eps_high >= 0) {
        const char *flag = o->eps_low >= 0 ? "--eps-low" : "--eps-high";
        if (!a->clip)
            return iv_fail(err, IV_INVALID, "%s: wanted an algorithm with a clipped ratio, found %s", flag, name);
        if (o->inner_steps == 1)
            return iv_fail(err, IV_INVALID,
                           "%s: wanted --inner-steps above 1, found 1: every ratio is 1, and nothing is clipped", flag);
    }
    if (a->correction != IV_CORRECTION_NONE && strcmp(o->on_mismatch, "stop") == 0)
        return iv_fail(err, IV_INVALID,
                       "--correction %s: wanted --on-mismatch report, found stop: a run that ends where sampler and "
                       "learner differ has no weight but 1",
                       o->correction);
    if (a->correction == IV_CORRECTION_NONE && o->correction_cap >= 0)
        return iv_fail(err, IV_INVALID, "--correction-cap: wanted --correction truncate or mask, found none");
    if (o->overlong_buffer >= 0 && o->max_new_tokens == 1)
        return iv_fail(err, IV_INVALID,
                       "--overlong-buffer: wanted --max-new-tokens above 1, found 1: all completions are as long");
    return IV_OK;
}

static iv_status check_sampling(const iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    if (o->temperature <= IV_TEMPERATURE_MIN)
        return iv_fail(err, IV_INVALID, "temperature: wanted more than %g for rl, found %g", (double)IV_TEMPERATURE_MIN,
                       o->temperature);
    if (iv_run_filters(o) && o->temperature != 1.0)
        return iv_fail(err, IV_UNSUPPORTED, "rl with top_p, top_k or min_p: wanted temperature 1, found %g",
                       o->temperature);
    if (o->group_size < 2)
        return iv_fail(err, IV_INVALID,
                       "--group-size: wanted 2 at least, found %llu: a completion is compared with the others of its "
                       "prompt, and alone it teaches nothing",
                       (unsigned long long)o->group_size);
    if (o->top_k == 1 || o->min_p >= 1)
        return iv_fail(err, IV_INVALID,
                       "%s 1: wanted more than the likeliest token, found that alone: all completions of a prompt are "
                       "equal and teach nothing",
                       o->top_k == 1 ? "--top-k" : "--min-p");
    if (o->inner_steps == 0 || o->max_new_tokens == 0)
        return iv_fail(err, IV_INVALID, "group size, inner steps, new tokens: wanted 1 at least");
    return IV_OK;
}

iv_status iv_run_check_rl(const iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    IV_TRY(check_sampling(r, err));
    bool adapter = o->trainer.lora_rank || o->trainer.lora;
    if (adapter && strcmp(o->rollout_numerics, "invar") != 0)
        return iv_fail(err, IV_UNSUPPORTED,
                       "--rollout-numerics: wanted invar for an adapter (--lora-rank, --lora), found %s",
                       o->rollout_numerics);
    if (adapter && o->rollout_mantissa_bits != IV_F32_MANTISSA_BITS)
        return iv_fail(err, IV_INVALID,
                       "--rollout-mantissa-bits: wanted all weights to learn, found an adapter (--lora-rank, --lora)");
    if (o->rollout_mantissa_bits > IV_F32_MANTISSA_BITS)
        return iv_fail(err, IV_INVALID, "mantissa bits of rollouts: wanted 0 to %d, found %llu", IV_F32_MANTISSA_BITS,
                       (unsigned long long)o->rollout_mantissa_bits);
    if (r->processes && o->rollout_mantissa_bits < IV_F32_MANTISSA_BITS && strcmp(o->shard, "parameters") == 0)
        return iv_fail(err, IV_UNSUPPORTED, "mantissa bits of rollouts: wanted shard optimizer, found parameters");
    if (o->rollout_sync_every == 0)
        return iv_fail(err, IV_INVALID, "steps between updates of the sampler: wanted 1 at least");
    if (strcmp(o->on_mismatch, "stop") != 0 && strcmp(o->on_mismatch, "report") != 0)
        return iv_fail(err, IV_INVALID, "on mismatch: wanted stop or report, found '%s'", o->on_mismatch);
    return check_algorithm(r, err);
}
