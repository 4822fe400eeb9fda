/* run_check.c: what reinforcement learning refuses, before anything is opened. */
#include "train/run_state.h"
#include "train/sync.h"

#include <string.h>

bool iv_run_filters(const iv_run_options *o) { return o->top_p < 1.0 || o->top_k > 0 || o->min_p > 0; }

iv_status iv_run_check_rl(const iv_run *r, iv_error *err) {
    const iv_run_options *o = r->o;
    if (o->temperature <= IV_TEMPERATURE_MIN)
        return iv_fail(err, IV_INVALID, "temperature: wanted more than %g for rl, found %g", (double)IV_TEMPERATURE_MIN,
                       o->temperature);
    if (iv_run_filters(o) && o->temperature != 1.0)
        return iv_fail(err, IV_UNSUPPORTED, "rl with top_p, top_k or min_p: wanted temperature 1, found %g",
                       o->temperature);
    if (o->group_size == 0 || o->inner_steps == 0 || o->max_new_tokens == 0)
        return iv_fail(err, IV_INVALID, "group size, inner steps, new tokens: wanted 1 at least");
    if (o->rollout_mantissa_bits > IV_F32_MANTISSA_BITS)
        return iv_fail(err, IV_INVALID, "mantissa bits of rollouts: wanted 0 to %d, found %llu", IV_F32_MANTISSA_BITS,
                       (unsigned long long)o->rollout_mantissa_bits);
    if (r->processes && o->rollout_mantissa_bits < IV_F32_MANTISSA_BITS && strcmp(o->shard, "parameters") == 0)
        return iv_fail(err, IV_UNSUPPORTED, "mantissa bits of rollouts: wanted shard optimizer, found parameters");
    if (o->rollout_sync_every == 0)
        return iv_fail(err, IV_INVALID, "steps between updates of the sampler: wanted 1 at least");
    if (strcmp(o->on_mismatch, "stop") != 0 && strcmp(o->on_mismatch, "report") != 0)
        return iv_fail(err, IV_INVALID, "on mismatch: wanted stop or report, found '%s'", o->on_mismatch);
    return IV_OK;
}
