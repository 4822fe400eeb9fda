/* sample.c: prompts divided over processes, and rewards that the first of them asks for. */
#include "train/sample.h"
#include "train/trainer/adapter.h"
#include "base/size.h"
#include "comm/agree.h"

#include <stdlib.h>
#include <string.h>

static iv_train_example example_of(const iv_run_prompts *p, size_t i) {
    return iv_train_data_example(p->data, p->examples ? p->examples[i] : i);
}

static iv_status sample_own(const iv_run *r, const iv_rollout_prompt *prompts, size_t count,
                            const iv_rollout_options *o, iv_rollout **out, iv_error *err) {
    size_t size = r->processes ? r->processes->size : 1, rank = r->processes ? r->processes->rank : 0;
    size_t from = count * rank / size, to = count * (rank + 1) / size;
    iv_rollout_options with = *o;
    if (iv_train_has_adapter(r->trainer)) with.adapter = IV_RUN_ADAPTER;
    *out = NULL;
    return from < to ? iv_rollout_run(r->engine, prompts + from, to - from, &with, out, err) : IV_OK;
}

static iv_status share_rollout(const iv_run *r, iv_status status, size_t group, iv_rollout **out, iv_error *err) {
    iv_rollout *mine = *out;
    *out = NULL;
    status = iv_comm_agree(r->processes, status, err);
    if (status == IV_OK) status = iv_rollout_gather(r->processes, mine, group, out, err);
    iv_rollout_close(mine);
    return status;
}

iv_status iv_run_sample(iv_run *r, const iv_run_prompts *p, const iv_rollout_options *o, iv_rollout **out,
                        iv_error *err) {
    iv_rollout_prompt *prompts = calloc(p->count, sizeof *prompts);
    if (!prompts) return iv_fail(err, IV_NO_MEMORY, "rl: no memory for %zu prompts", p->count);
    for (size_t i = 0; i < p->count; i++) {
        iv_train_example e = example_of(p, i);
        prompts[i] = (iv_rollout_prompt){e.ids, e.count, i};
    }
    iv_status status = sample_own(r, prompts, p->count, o, out, err);
    free(prompts);
    return r->processes ? share_rollout(r, status, o->group, out, err) : status;
}

static iv_status share_rewards(const iv_run *r, iv_status status, double *rewards, size_t n, iv_error *err) {
    const void *bytes;
    size_t got;
    IV_TRY(iv_comm_agree(r->processes, status, err));
    IV_TRY(iv_comm_broadcast(r->processes, rewards, n * sizeof *rewards, &bytes, &got, err));
    IV_ASSERT(got == n * sizeof *rewards);
    if (!r->first) memcpy(rewards, bytes, got);
    return IV_OK;
}

/* The text of a prompt, with its special tokens; empty if the model has no tokenizer. Given to reward programs. */
static iv_status prompt_text(const iv_run *r, const iv_train_example *e, iv_text *out, iv_error *err) {
    if (!r->text || !r->text->tokenizer) return IV_OK;
    return iv_detokenize(r->text, e->ids, e->count, true, out, err);
}

static iv_status score(const iv_run *r, iv_reward *reward, const iv_run_prompts *p, size_t group,
                       const iv_rollout *rollout, iv_text *prompts, double *rewards, iv_error *err) {
    size_t n = p->count * group;
    iv_reward_item *items = calloc(n + 1, sizeof *items);
    iv_status status = items ? IV_OK : iv_fail(err, IV_NO_MEMORY, "rl: no memory for %zu rewards", n);
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        iv_train_example e = example_of(p, i / group);
        iv_completion c = iv_rollout_at(rollout, i / group, i % group);
        iv_text *prompt = &prompts[i / group];
        if (i % group == 0) status = prompt_text(r, &e, prompt, err);
        items[i] = (iv_reward_item){.completion = {c.text, c.text_bytes},
                                    .answer = {e.answer, e.answer_bytes},
                                    .line = {e.line, e.line_bytes},
                                    .prompt = {prompt->data ? prompt->data : "", prompt->bytes},
                                    .tokens = c.count};
    }
    if (status == IV_OK) status = iv_reward_score(reward, items, n, rewards, err);
    free(items);
    return status;
}

iv_status iv_run_judge(iv_run *r, iv_reward *reward, const iv_run_prompts *p, size_t group, const iv_rollout *rollout,
                       double *rewards, iv_error *err) {
    iv_status status = IV_OK;
    if (r->first) {
        iv_text *prompts = calloc(p->count + 1, sizeof *prompts);
        status = prompts ? score(r, reward, p, group, rollout, prompts, rewards, err)
                         : iv_fail(err, IV_NO_MEMORY, "rl: no memory for %zu prompts", p->count);
        for (size_t i = 0; prompts && i < p->count; i++) iv_text_free(&prompts[i]);
        free(prompts);
    }
    return r->processes ? share_rewards(r, status, rewards, p->count * group, err) : status;
}
