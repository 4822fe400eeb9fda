/* answer.c: sampling, log-probabilities, text and stop decisions of one sequence.
 *
 * Text is shown only when it is certain: whole characters, without a suffix that may begin a stop string. */
#include "engine/answer.h"
#include "base/size.h"
#include "numerics/floats.h"
#include "numerics/rows.h"
#include "base/buf.h"

#include <math.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------------------------------------- */

/* The earliest stop string in the text that ends after `from`. */
static const char *find_stop(const iv_sequence *s, size_t from, size_t *at) {
    const char *found = NULL;
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = strlen(s->stop[i]), begin = from > n - 1 ? from - (n - 1) : 0;
        if (begin < s->shown) begin = s->shown; /* a stop string never begins in text that was shown */
        char *p = s->text.len > begin ? memmem(s->text.data + begin, s->text.len - begin, s->stop[i], n) : NULL;
        if (p && (!found || (size_t)(p - s->text.data) < *at)) *at = (size_t)(p - s->text.data), found = s->stop[i];
    }
    return found;
}

/* Bytes at the end of the text that may begin a stop string. */
static size_t held_back(const iv_sequence *s) {
    size_t held = 0;
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = iv_size_min(strlen(s->stop[i]) - 1, s->text.len - s->shown);
        for (; n > held; n--)
            if (memcmp(s->text.data + s->text.len - n, s->stop[i], n) == 0) held = n;
    }
    return held;
}

static void show(iv_sequence *s, iv_event_slot *v, size_t end) {
    if (end <= s->shown) return;
    v->text_from = s->shown, v->event.text_bytes = end - s->shown;
    s->shown = end;
}

static bool is_shown(const iv_sequence *s, int32_t token) {
    for (size_t i = 0; i < s->show_id_count; i++)
        if (s->show_ids[i] == token) return true;
    return false;
}

/* Does min_tokens allow the next token to end the answer? */
static bool may_end(const iv_sequence *s) { return s->tokens.count - s->prompt_tokens >= s->min_tokens; }

/* Pushes the token through the stream and decides which text is shown. ends: a completed stop string ends the answer.
 */
static iv_status advance_text(iv_sequence *s, iv_event_slot *v, int32_t token, bool ends, bool last, const char **stop,
                              iv_error *err) {
    if (!s->stream) return IV_OK;
    size_t from = s->text.len, at = 0;
    IV_TRY(is_shown(s, token) ? iv_token_stream_show(s->stream, token, &s->text, err)
                              : iv_token_stream_push(s->stream, token, &s->text, err));
    if (last) {
        s->flushed = true;
        IV_TRY(iv_token_stream_flush(s->stream, &s->text, err));
    }
    *stop = ends ? find_stop(s, from, &at) : NULL;
    show(s, v, *stop ? at : last ? s->text.len : s->text.len - held_back(s));
    return IV_OK;
}

/* Drops text whose events were taken, so that the buffer holds only text held back. */
static void drop_taken_text(iv_sequence *s) {
    if (s->untaken > 0 || s->shown == 0) return;
    memmove(s->text.data, s->text.data + s->shown, s->text.len - s->shown);
    s->text.len -= s->shown, s->shown = 0;
    s->text.data[s->text.len] = 0;
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

static bool is_end(const iv_engine *e, const iv_sequence *s, int32_t token) {
    for (size_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == token) return true;
    if (s->ignore_eos) return false;
    for (size_t i = 0; i < e->model->config.eos_count; i++)
        if (e->model->config.eos_ids[i] == token) return true;
    for (size_t i = 0; e->generation.has_eos && i < e->generation.eos_count; i++)
        if (e->generation.eos_ids[i] == token) return true;
    return false;
}

/* ---- allowed tokens ------------------------------------------------------------------------------------ */

/* False: the id is never drawn. */
static bool set_bit(const iv_engine *e, uint64_t *mask, int64_t id, bool value) {
    if (id < 0 || id >= e->model->config.vocab_size || !iv_token_ids_has(&e->drawable, id)) return false;
    mask[id / 64] = (mask[id / 64] & ~((uint64_t)1 << (id % 64))) | (uint64_t)value << (id % 64);
    return true;
}

/* Allows or forbids the tokens that end the answer. False: the request has no such token. */
static bool set_ends(const iv_engine *e, const iv_sequence *s, uint64_t *mask, bool value) {
    const iv_model_config *c = &e->model->config;
    bool some = false;
    for (size_t i = 0; i < s->stop_id_count; i++) some |= set_bit(e, mask, s->stop_ids[i], value);
    if (s->ignore_eos) return some;
    for (size_t i = 0; i < c->eos_count; i++) some |= set_bit(e, mask, c->eos_ids[i], value);
    for (size_t i = 0; e->generation.has_eos && i < e->generation.eos_count; i++)
        some |= set_bit(e, mask, e->generation.eos_ids[i], value);
    return some;
}

bool iv_answer_wants_logits(const iv_sequence *s) { return s->report_count > 0 || s->report_kept; }

bool iv_answer_restricts(const iv_engine *e, const iv_sequence *s) {
    if (s->mask) return true;
    if (may_end(s)) return false;
    return s->stop_id_count || (!s->ignore_eos && (e->model->config.eos_count || e->generation.has_eos));
}

static void allow_all(const iv_engine *e, uint64_t *mask, size_t vocab) {
    if (e->drawable.bits) {
        memcpy(mask, e->drawable.bits, (vocab + 63) / 64 * sizeof *mask);
        return;
    }
    for (size_t i = 0; i < vocab / 64; i++) mask[i] = ~(uint64_t)0;
    if (vocab % 64) mask[vocab / 64] = ((uint64_t)1 << vocab % 64) - 1;
}

static bool any_of(const uint64_t *mask, size_t vocab) {
    for (size_t i = 0; i < (vocab + 63) / 64; i++)
        if (mask[i]) return true;
    return false;
}

/* All tokens except those that end the answer. */
static iv_status allow_all_but_ends(const iv_engine *e, const iv_sequence *s, uint64_t *mask, iv_error *err) {
    size_t vocab = (size_t)e->model->config.vocab_size;
    allow_all(e, mask, vocab);
    set_ends(e, s, mask, false);
    if (any_of(mask, vocab)) return IV_OK;
    return iv_fail(err, IV_INVALID, "min_tokens: wanted a token that does not end the answer, found none");
}

/* The tokens that the constraint allows. Tokens that end the answer are allowed where the constraint is satisfied, from
 * min_tokens on, or earlier if no other token is allowed. *over: the constraint is satisfied and allows no token. */
static iv_status allow(const iv_engine *e, iv_sequence *s, uint64_t *mask, bool *over, iv_error *err) {
    size_t answered = s->tokens.count - s->prompt_tokens, vocab = (size_t)e->model->config.vocab_size;
    const uint64_t *found;
    bool whole;
    IV_TRY(iv_mask_get(s->mask, &found, &whole, err));
    memcpy(mask, found, (vocab + 63) / 64 * sizeof *mask);
    bool of_tokens = iv_mask_constraint(s->mask)->kind == IV_CONSTRAINT_TOKENS; /* end tokens are tokens like others */
    if (!of_tokens || !may_end(s)) set_ends(e, s, mask, false);
    bool any = any_of(mask, vocab);
    whole &= !of_tokens;
    any |= whole && (may_end(s) || !any) && set_ends(e, s, mask, true);
    *over = !any && whole;
    if (any || whole) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "constraint: no token of this vocabulary continues the answer at token %zu",
                   answered);
}

/* Without tokens that end the answer, it ends when its constraint is satisfied and allows no token. */
static iv_status check_over(const iv_engine *e, iv_sampler *sampler, iv_sequence *s, bool *over, iv_error *err) {
    *over = false;
    if (!s->mask || set_ends(e, s, sampler->mask, false)) return IV_OK;
    return allow(e, s, sampler->mask, over, err);
}

/* Samples the next token on the host. */
static iv_status draw(const iv_engine *e, iv_sampler *sampler, iv_sequence *s, const float *logits, float *logprob,
                      int32_t *token, iv_error *err) {
    iv_sampling p = s->sampling;
    bool over = false;
    p.allowed = e->drawable.bits;
    if (iv_answer_restricts(e, s)) {
        IV_TRY(s->mask ? allow(e, s, sampler->mask, &over, err) : allow_all_but_ends(e, s, sampler->mask, err));
        p.allowed = sampler->mask;
    }
    if (over) return iv_fail(err, IV_UNSUPPORTED, "constraint: it allows an empty answer only");
    *token = iv_sample_with_logprob(sampler, e->kernels, &p, logits, s->seen, s->seen_count, s->tokens.count, logprob);
    return IV_OK;
}

static void note_seen(iv_sequence *s, int32_t token) {
    size_t at = 0; /* binary insertion keeps `seen` sorted */
    for (size_t high = s->seen_count; at < high;) {
        size_t middle = at + (high - at) / 2;
        if (s->seen[middle].id < token)
            at = middle + 1;
        else
            high = middle;
    }
    if (at == s->seen_count || s->seen[at].id != token) {
        IV_ASSERT(s->seen_count < s->seen_capacity);
        memmove(s->seen + at + 1, s->seen + at, (s->seen_count++ - at) * sizeof *s->seen);
        s->seen[at] = (iv_seen){.id = token};
    }
    s->seen[at].generated++;
}

/* Row `index` of this sequence's logits in the step. */
typedef struct measured_row {
    const float *logits;
    const iv_row_result *sampled;   /* of the backend, if it sampled or scored the row, or NULL */
    const iv_logprob *top_logprobs; /* with `sampled` */
    size_t index;
    float max, log_sum; /* log softmax is (x - max) - log_sum */
} measured_row;

/* False if the row is no distribution: it has a NaN or +infinity, or only -infinity. */
static bool measure(const iv_engine *e, measured_row *r) {
    float sum;
    if (r->sampled) {
        r->max = r->sampled->max, r->log_sum = r->sampled->log_sum;
    } else {
        e->kernels->sum_exp(r->logits, (size_t)e->model->config.vocab_size, &r->max, &sum);
        r->log_sum = iv_ref_log(sum);
    }
    return r->log_sum >= 0.0f && r->log_sum < 1e30f;
}

static iv_status not_finite(size_t position, iv_error *err) {
    return iv_fail(err, IV_NOT_FINITE, "logits of token %zu of the sequence are not finite", position);
}

static float logprob_of(const measured_row *r, int32_t token) {
    return r->sampled ? r->sampled->logprob : (r->logits[token] - r->max) - r->log_sum;
}

static void list_top(const iv_engine *e, const measured_row *r, iv_event_slot *v, int wanted) {
    v->event.top_count = wanted > 0 ? (size_t)wanted : 0;
    if (r->sampled) {
        for (size_t i = 0; i < v->event.top_count; i++)
            v->top[i] = (iv_logprob){.id = r->top_logprobs[i].id, .logprob = r->top_logprobs[i].logprob};
        return;
    }
    iv_top_logprobs(e->kernels, r->logits, (size_t)e->model->config.vocab_size, r->max, r->log_sum, v->top,
                    v->event.top_count);
}

/* The reported tokens' log-probabilities at the position of a token. */
static void report(iv_sequence *s, const measured_row *r, size_t position) {
    for (size_t i = 0; i < s->report_count; i++)
        s->reports[position * s->report_count + i] = (r->logits[s->report_ids[i]] - r->max) - r->log_sum;
}

void iv_answer_score_row(const iv_engine *e, size_t row, const float *logits) {
    iv_event_slot *v = &e->item_events[row];
    measured_row r = {.logits = logits,
                      .sampled = e->sample_on_backend[row] ? &e->sampled[row] : NULL,
                      .top_logprobs = e->top_logprobs + row * IV_TOP_LOGPROBS_MAX};
    v->event.logprob = NAN;
    if (!measure(e, &r)) return;
    v->event.logprob = logprob_of(&r, v->event.token);
    if (!r.sampled) report(v->sequence, &r, v->event.position);
    list_top(e, &r, v, v->sequence->prompt_logprobs);
}

/* Adds the token to its sequence and to the digest. */
static void append_token(iv_sequence *s, int32_t token, float logprob) {
    uint32_t bits[2] = {(uint32_t)token, iv_bits(logprob)};
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(bits[i / 4] >> (8 * (i % 4)));
    iv_digest_add(s->digest, raw, sizeof raw);
    if (s->receipt_bits) s->receipt_bits[s->tokens.count - s->prompt_tokens] = bits[1];
    IV_ASSERT(iv_ids_push(&s->tokens, token)); /* reserved at submission */
    note_seen(s, token);
    if (s->mask) iv_mask_push(s->mask, token);
}

static void note_token(const iv_engine *e, iv_sequence *s, iv_event_slot *v, int32_t token, const measured_row *r) {
    size_t vocab = (size_t)e->model->config.vocab_size;
    v->event.token = token, v->event.logprob = logprob_of(r, token);
    if (s->kept_logits)
        v->event.logits = memcpy(s->kept_logits + r->index * vocab, r->logits, vocab * sizeof *r->logits);
    if (s->logprobs > 0) list_top(e, r, v, s->logprobs);
    report(s, r, s->tokens.count);
    append_token(s, token, v->event.logprob);
}

iv_status iv_answer_give(const iv_engine *e, iv_sequence *s, int32_t token, float logprob, iv_error *err) {
    iv_event_slot unused = {.sequence = s};
    const char *stop = NULL;
    size_t at = s->tokens.count - s->prompt_tokens;
    bool ends = may_end(s);
    append_token(s, token, logprob);
    if (is_end(e, s, token))
        return iv_fail(err, IV_INVALID, "given tokens: token %zu, %d, ends the answer", at, (int)token);
    IV_TRY(advance_text(s, &unused, token, ends, false, &stop, err));
    if (stop) return iv_fail(err, IV_INVALID, "given tokens: token %zu, %d, completes a stop string", at, (int)token);
    drop_taken_text(s);
    return IV_OK;
}

/* The tokens that the sampler has just kept. */
static iv_status note_kept(iv_sequence *s, const iv_sampler *sampler, iv_error *err) {
    size_t *at = s->kept_at + 2 * s->tokens.count;
    at[0] = s->kept.count;
    if (!iv_ids_append(&s->kept, sampler->order, sampler->kept))
        return iv_fail(err, IV_NO_MEMORY, "kept tokens: no memory");
    at[1] = s->kept.count;
    return IV_OK;
}

/* Samples one row and fills in its event. */
static iv_status answer_row(const iv_engine *e, iv_sampler *sampler, iv_step_item *item, size_t row, iv_error *err) {
    iv_sequence *s = item->sequence;
    measured_row r = {.logits = item->logits + row * (size_t)e->model->config.vocab_size, .index = row};
    if (item->sampled) r.sampled = item->sampled + row, r.top_logprobs = item->top_logprobs + row * IV_TOP_LOGPROBS_MAX;
    iv_event_slot *v = &item->events[item->event_count];
    v->sequence = s;
    v->event =
        (iv_event){.request = s->id, .kind = IV_EVENT_TOKEN, .seed = s->sampling.seed, .position = s->tokens.count};
    if (!measure(e, &r)) return not_finite(s->tokens.count, err);
    int32_t token = r.sampled ? r.sampled->token : 0;
    float *sampling_logprob = s->sampling_logprobs ? &v->event.sampling_logprob : NULL;
    bool ends = may_end(s);
    if (!r.sampled) IV_TRY(draw(e, sampler, s, r.logits, sampling_logprob, &token, err));
    if (s->report_kept) IV_TRY(note_kept(s, sampler, err));
    if (r.sampled && sampling_logprob) *sampling_logprob = r.sampled->sampling_logprob;
    note_token(e, s, v, token, &r);
    bool end = is_end(e, s, token), over = false, full = s->tokens.count >= s->tokens_max;
    bool needs_mask = !end && s->mask && !iv_mask_find(s->mask); /* iv_answer_resume decides whether it is over */
    if (!end && !needs_mask) IV_TRY(check_over(e, sampler, s, &over, err));
    end |= over;
    full &= !needs_mask;
    IV_TRY(advance_text(s, v, token, ends, end || full, &item->stop, err));
    item->event_count++;
    item->finish = end || item->stop ? IV_FINISH_STOP : full ? IV_FINISH_LENGTH : IV_FINISH_NONE;
    item->needs_mask = needs_mask && !item->stop;
    return IV_OK;
}

iv_finish iv_answer_resume(const iv_engine *e, iv_sampler *sampler, iv_sequence *s) {
    const uint64_t *unused;
    bool may_end_here, over = false;
    iv_status status = iv_mask_get(s->mask, &unused, &may_end_here, &s->error);
    if (status == IV_OK && s->tokens.count > s->prompt_tokens) status = check_over(e, sampler, s, &over, &s->error);
    if (status != IV_OK) return IV_FINISH_ERROR;
    return over ? IV_FINISH_STOP : s->tokens.count >= s->tokens_max ? IV_FINISH_LENGTH : IV_FINISH_NONE;
}

/* Draft lengths adapt: twice the length after a fully accepted draft, else one more than was accepted. */
static void note_draft(iv_sequence *s, size_t drafted, size_t accepted) {
    if (drafted == 0) return;
    s->drafted_tokens += drafted, s->accepted_tokens += accepted;
    s->draft_limit = accepted == drafted ? iv_size_min(2 * drafted, IV_DRAFT_MAX) : accepted + 1;
}

/* Whether a given token's log-probability is what it was. */
static iv_status check_given(const iv_sequence *s, const iv_event *v, iv_error *err) {
    size_t at = v->position - s->prompt_tokens;
    float want = s->given_logprobs[at];
    if (iv_bits(v->logprob) == iv_bits(want)) return IV_OK;
    return iv_fail(err, IV_IO, "given tokens: the log-probability of token %zu of the answer was %a and is now %a", at,
                   (double)want, (double)v->logprob);
}

/* Reports the scored prompt rows, up to the first that is not finite, and checks those of given tokens. */
static iv_status report_scores(iv_step_item *item, iv_error *err) {
    iv_sequence *s = item->sequence;
    for (size_t i = 0; i < item->scored; i++) {
        const iv_event *v = &item->scores[i].event;
        if (isnan(v->logprob)) return not_finite(v->position, err);
        if (v->position >= s->prompt_tokens)
            IV_TRY(check_given(s, v, err));
        else
            item->score_count++;
        s->next_score = v->position + 1;
    }
    return IV_OK;
}

void iv_answer_item(const iv_engine *e, iv_sampler *sampler, iv_step_item *item) {
    iv_sequence *s = item->sequence;
    size_t accepted = 0;
    drop_taken_text(s);
    if (report_scores(item, &s->error) != IV_OK)
        item->finish = IV_FINISH_ERROR;
    else if (item->samples && s->score_only)
        item->finish = IV_FINISH_LENGTH;
    if (!item->samples || item->finish != IV_FINISH_NONE) return;
    for (size_t row = 0; row <= item->draft; row++) {
        if (answer_row(e, sampler, item, row, &s->error) != IV_OK) item->finish = IV_FINISH_ERROR;
        if (item->finish != IV_FINISH_NONE || item->needs_mask || row == item->draft) break;
        if (s->tokens.data[s->tokens.count - 1] != s->draft[row]) break;
        s->computed++, accepted++; /* the next row was computed from this token */
    }
    note_draft(s, item->draft, accepted);
}
