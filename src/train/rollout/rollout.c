/* rollout.c: submits requests, drives the engine, collects events by request. */
#include "train/rollout/state.h"
#include "base/size.h"
#include "numerics/philox.h"

#include <stdlib.h>
#include <string.h>

/* A run in progress. */
typedef struct running {
    iv_engine *e;
    const iv_rollout_prompt *prompts;
    const iv_rollout_options *o;
    iv_rollout *r;
    size_t *order; /* [submitted]: completions in the order of their request ids, which ascend */
    size_t total, submitted, done;
    uint64_t tokens;
} running;

void iv_rollout_options_init(iv_rollout_options *o) {
    *o = (iv_rollout_options){.group = 1, .temperature = 1, .top_p = 1};
}

uint64_t iv_rollout_seed(uint64_t seed, uint64_t step, uint64_t prompt_index, uint32_t group_index) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)(step >> 32), (uint32_t)prompt_index,
                                 (uint32_t)(prompt_index >> 32)};
    uint32_t first[4], second[4];
    iv_philox4x32(counter, key, first);
    const uint32_t next[4] = {first[0], first[1], group_index, 0}, next_key[2] = {first[2], first[3]};
    iv_philox4x32(next, next_key, second);
    return (uint64_t)second[1] << 32 | second[0];
}

/* ---- submitting ----------------------------------------------------------------------------------------- */

static iv_status name_prompt(const running *s, size_t completion, iv_error *err) {
    size_t prompt = completion / s->o->group, index = completion % s->o->group;
    return iv_error_prefix(err, "prompt %zu (index %llu), completion %zu", prompt,
                           (unsigned long long)s->prompts[prompt].index, index);
}

static iv_status check_options(const iv_rollout_options *o, size_t count, size_t *total, iv_error *err) {
    if (count == 0) return iv_fail(err, IV_INVALID, "rollout: wanted one prompt at least, found 0");
    if (o->group < 1 || o->group > IV_ROLLOUT_GROUP_MAX)
        return iv_fail(err, IV_INVALID, "rollout: group: wanted 1 to %d, found %zu", IV_ROLLOUT_GROUP_MAX, o->group);
    if (o->max_tokens < 1) return iv_fail(err, IV_INVALID, "rollout: max_tokens: wanted 1 or more, found 0");
    if (!iv_size_mul(count, o->group, total))
        return iv_fail(err, IV_LIMIT, "rollout: %zu prompts in groups of %zu are too many", count, o->group);
    return IV_OK;
}

/* A completion that ended at max_model_len would depend on the engine's settings. */
static iv_status check_lengths(const running *s, size_t count, iv_error *err) {
    iv_engine_info info;
    iv_engine_stats stats;
    iv_engine_get_info(s->e, &info), iv_engine_get_stats(s->e, &stats);
    if (stats.running + stats.waiting > 0)
        return iv_fail(err, IV_BUSY, "rollout: wanted an idle engine, found %zu requests that run and %zu that wait",
                       stats.running, stats.waiting);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        if (!iv_size_add(s->prompts[i].count, s->o->max_tokens, &length) || length > info.max_model_len)
            return iv_fail(
                err, IV_CONTEXT_LENGTH,
                "prompt %zu (index %llu): %zu tokens and max_tokens %zu: wanted at most max_model_len %zu in "
                "all",
                i, (unsigned long long)s->prompts[i].index, s->prompts[i].count, s->o->max_tokens, info.max_model_len);
    }
    return IV_OK;
}

static iv_request request_of(const running *s, size_t completion) {
    const iv_rollout_options *o = s->o;
    const iv_rollout_prompt *p = &s->prompts[completion / o->group];
    iv_request r;
    iv_request_init(s->e, &r);
    r.ids = p->ids, r.id_count = p->count, r.max_tokens = o->max_tokens, r.min_tokens = o->min_tokens;
    r.temperature = o->temperature, r.top_p = o->top_p, r.min_p = o->min_p, r.top_k = o->top_k;
    r.repetition_penalty = 1, r.presence_penalty = 0, r.frequency_penalty = 0;
    r.has_seed = true, r.seed = s->r->at[completion].seed;
    r.logprobs = 0, r.sampling_logprobs = true, r.adapter = o->adapter;
    r.stop = o->stop, r.stop_count = o->stop_count, r.stop_ids = o->stop_ids, r.stop_id_count = o->stop_id_count;
    r.ignore_eos = o->ignore_eos, r.keep_special = o->keep_special;
    return r;
}

/* As many as the engine's queue takes. One completion of each prompt comes before the second of any, so that later ones
 * find the prompt in the prefix cache. */
static iv_status submit_more(running *s, iv_error *err) {
    size_t prompts = s->r->prompts;
    for (; s->submitted < s->total; s->submitted++) {
        size_t completion = s->submitted % prompts * s->o->group + s->submitted / prompts;
        iv_rollout_collected *c = &s->r->at[completion];
        uint32_t index = (uint32_t)(completion % s->o->group);
        c->seed = iv_rollout_seed(s->o->seed, s->o->step, s->prompts[completion / s->o->group].index, index);
        iv_request r = request_of(s, completion);
        iv_status status = iv_engine_submit(s->e, &r, &c->request, err);
        if (status == IV_BUSY && s->submitted > s->done) return IV_OK; /* the queue is full for now */
        if (status != IV_OK) return name_prompt(s, completion, err);
        IV_ASSERT(s->submitted == 0 || s->r->at[s->order[s->submitted - 1]].request < c->request);
        s->order[s->submitted] = completion;
    }
    return IV_OK;
}

/* ---- events --------------------------------------------------------------------------------------------- */

/* The completion of a request, total if it is none of this run's. */
static size_t find(const running *s, uint64_t request) {
    size_t low = 0, high = s->submitted;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint64_t at = s->r->at[s->order[middle]].request;
        if (at == request) return s->order[middle];
        if (at < request)
            low = middle + 1;
        else
            high = middle;
    }
    return s->total;
}

static iv_status take_token(running *s, size_t completion, const iv_event *v, iv_error *err) {
    iv_rollout_collected *c = &s->r->at[completion];
    if (!iv_ids_push(&c->ids, v->token) || !iv_buf_append(&c->logprobs, &v->logprob, sizeof v->logprob) ||
        !iv_buf_append(&c->sampling_logprobs, &v->sampling_logprob, sizeof v->sampling_logprob) ||
        !iv_buf_append(&c->text, v->text, v->text_bytes))
        return iv_fail(err, IV_NO_MEMORY, "rollout: no memory for its tokens");
    s->tokens++;
    return IV_OK;
}

static iv_status take_done(running *s, size_t completion, const iv_event *v, iv_error *err) {
    iv_rollout_collected *c = &s->r->at[completion];
    c->done = true, c->finish = v->finish;
    s->done++;
    if (v->finish == IV_FINISH_ERROR) return iv_fail(err, v->error_status, "%s", v->error);
    if (v->finish == IV_FINISH_CANCELLED) return iv_fail(err, IV_INVALID, "the request was cancelled");
    if (!iv_buf_append(&c->text, v->text, v->text_bytes) || !iv_buf_reserve(&c->text, 1))
        return iv_fail(err, IV_NO_MEMORY, "rollout: no memory for its text");
    c->text.data[c->text.len] = 0;
    return IV_OK;
}

static iv_status take_events(running *s, iv_error *err) {
    iv_status status = IV_OK;
    for (iv_event v; iv_engine_next_event(s->e, &v);) {
        size_t completion = find(s, v.request);
        if (completion == s->total || status != IV_OK) continue; /* an event that was left from before */
        if (v.kind == IV_EVENT_TOKEN) status = take_token(s, completion, &v, err);
        if (v.kind == IV_EVENT_DONE) status = take_done(s, completion, &v, err);
        if (status != IV_OK) name_prompt(s, completion, err);
    }
    return status;
}

/* ---- the run -------------------------------------------------------------------------------------------- */

static void report(const running *s) {
    iv_rollout_progress p = {.done = s->done, .total = s->total, .tokens = s->tokens};
    if (s->o->progress) s->o->progress(s->o->user, &p);
}

static iv_status drive(running *s, iv_error *err) {
    while (s->done < s->total) {
        bool busy;
        IV_TRY(submit_more(s, err));
        IV_TRY(iv_engine_step(s->e, &busy, err));
        IV_TRY(take_events(s, err));
        report(s);
    }
    return IV_OK;
}

/* After an error: the other requests end, and their events are dropped. */
static void cancel_all(running *s) {
    iv_error unused;
    for (size_t i = 0; i < s->submitted; i++) {
        const iv_rollout_collected *c = &s->r->at[s->order[i]];
        if (!c->done) iv_engine_cancel(s->e, c->request, &unused);
    }
    for (bool busy = true; busy;) {
        for (iv_event v; iv_engine_next_event(s->e, &v);) continue;
        if (iv_engine_step(s->e, &busy, &unused) != IV_OK) return;
    }
    for (iv_event v; iv_engine_next_event(s->e, &v);) continue;
}

iv_status iv_rollout_new(size_t prompts, size_t group, iv_rollout **out, iv_error *err) {
    iv_rollout *r = calloc(1, sizeof *r);
    if (r) *r = (iv_rollout){.prompts = prompts, .group = group, .at = calloc(prompts * group + 1, sizeof *r->at)};
    if (r && r->at) {
        *out = r;
        return IV_OK;
    }
    free(r);
    return iv_fail(err, IV_NO_MEMORY, "rollout: no memory for %zu completions", prompts * group);
}

iv_status iv_rollout_run(iv_engine *e, const iv_rollout_prompt *prompts, size_t count, const iv_rollout_options *o,
                         iv_rollout **out, iv_error *err) {
    running s = {.e = e, .prompts = prompts, .o = o};
    IV_TRY(check_options(o, count, &s.total, err));
    IV_TRY(check_lengths(&s, count, err));
    IV_TRY(iv_rollout_new(count, o->group, &s.r, err));
    s.order = calloc(s.total, sizeof *s.order);
    iv_status status = s.order ? drive(&s, err) : iv_fail(err, IV_NO_MEMORY, "rollout: no memory");
    if (status != IV_OK) {
        cancel_all(&s);
        iv_rollout_close(s.r);
    } else {
        *out = s.r;
    }
    free(s.order);
    return status;
}

void iv_rollout_close(iv_rollout *r) {
    if (!r) return;
    for (size_t i = 0; i < r->prompts * r->group; i++) {
        iv_rollout_collected *c = &r->at[i];
        iv_ids_free(&c->ids);
        iv_buf_free(&c->logprobs), iv_buf_free(&c->sampling_logprobs), iv_buf_free(&c->text);
    }
    free(r->at);
    free(r);
}

iv_completion iv_rollout_at(const iv_rollout *r, size_t prompt, size_t index) {
    IV_ASSERT(prompt < r->prompts && index < r->group);
    const iv_rollout_collected *c = &r->at[prompt * r->group + index];
    return (iv_completion){.seed = c->seed,
                           .ids = c->ids.data,
                           .logprobs = (const float *)(const void *)c->logprobs.data,
                           .sampling_logprobs = (const float *)(const void *)c->sampling_logprobs.data,
                           .count = c->ids.count,
                           .finish = c->finish,
                           .text = c->text.data,
                           .text_bytes = c->text.len};
}
