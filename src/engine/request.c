/* request.c: a request is checked and copied into a sequence. */
#include "base/size.h"
#include "base/utf8.h"
#include "engine/adapters.h"
#include "engine/answer.h"
#include "engine/queues.h"
#include "engine/replace.h"
#include "engine/sized.h"
#include "base/buf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MASK_THREADS = 2 };

static iv_request default_request(const iv_engine *e) {
    const iv_generation_config *g = &e->generation;
    iv_request r = {.add_special = true,
                    .temperature = 1.0f,
                    .top_p = 1.0f,
                    .repetition_penalty = 1.0f,
                    .logprobs = -1,
                    .prompt_logprobs = -1};
    if (g->has_temperature) r.temperature = (float)g->temperature;
    if (g->has_top_p) r.top_p = (float)g->top_p;
    if (g->has_min_p) r.min_p = (float)g->min_p;
    if (g->has_top_k) r.top_k = (int32_t)g->top_k;
    if (g->has_repetition_penalty) r.repetition_penalty = (float)g->repetition_penalty;
    if ((g->has_do_sample && !g->do_sample) || r.temperature < IV_TEMPERATURE_MIN) r.temperature = 0.0f;
    return r;
}

void iv_request_init_sized(const iv_engine *e, iv_request *r, size_t size) {
    iv_request defaults = default_request(e);
    iv_sized_init(r, size, &defaults, sizeof defaults);
}

static iv_status read_request(const iv_engine *e, const iv_request *given, iv_request *out, iv_error *err) {
    *out = default_request(e);
    return iv_sized_read("request", given, offsetof(iv_request, max_tokens), out, sizeof *out, err);
}

static iv_status in_range(const char *name, float value, float low, float high, bool low_open, iv_error *err) {
    if ((low_open ? value > low : value >= low) && value <= high) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted %s%g to %g, found %g", name, low_open ? "above " : "", (double)low,
                   (double)high, (double)value);
}

static iv_status check_logprobs(const char *name, int value, size_t vocab, iv_error *err) {
    if (value >= -1 && value <= IV_LOGPROBS_MAX && (size_t)(value < 0 ? 0 : value) <= vocab) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted -1 to %zu, found %d", name, iv_size_min(IV_LOGPROBS_MAX, vocab), value);
}

/* A request that generates nothing cannot have these. */
static iv_status check_score_only(const iv_request *r, iv_error *err) {
    if (!r->score_only) return IV_OK;
    if (r->max_tokens)
        return iv_fail(err, IV_INVALID, "max_tokens: wanted 0 with score_only, found %zu", r->max_tokens);
    if (r->constraint != IV_CONSTRAINT_NONE)
        return iv_fail(err, IV_INVALID, "constraint: a request with score_only has no answer to constrain");
    if (r->keep_receipt)
        return iv_fail(err, IV_INVALID, "keep_receipt: a request with score_only has no answer to keep one of");
    return IV_OK;
}

static iv_status check_min_tokens(const iv_engine *e, const iv_request *r, iv_error *err) {
    size_t most = r->score_only ? 0 : r->max_tokens ? r->max_tokens : e->max_model_len;
    if (r->min_tokens <= most) return IV_OK;
    return iv_fail(err, IV_INVALID, "min_tokens: wanted at most %zu, as the answer may have, found %zu", most,
                   r->min_tokens);
}

static iv_status check_array(const char *name, const void *array, size_t count, iv_error *err) {
    if (array || count == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted %zu entries, found NULL", name, count);
}

static iv_status check_ids(const char *name, const int32_t *ids, size_t count, size_t most, size_t vocab,
                           iv_error *err) {
    if (count > most) return iv_fail(err, IV_INVALID, "%s: wanted at most %zu, found %zu", name, most, count);
    IV_TRY(check_array(name, ids, count, err));
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= vocab)
            return iv_fail(err, IV_INVALID, "%s: wanted a token id below %zu, found %d", name, vocab, (int)ids[i]);
    return IV_OK;
}

static iv_status check_stops(const iv_request *r, iv_error *err) {
    if (r->stop_count > IV_STOPS_MAX)
        return iv_fail(err, IV_INVALID, "stop: wanted at most %d strings, found %zu", IV_STOPS_MAX, r->stop_count);
    IV_TRY(check_array("stop", r->stop, r->stop_count, err));
    for (size_t i = 0; i < r->stop_count; i++) {
        if (!r->stop[i]) return iv_fail(err, IV_INVALID, "stop: wanted a string, found NULL in place %zu", i);
        size_t n = strlen(r->stop[i]), bad;
        if (n == 0 || n > IV_STOP_BYTES_MAX)
            return iv_fail(err, IV_INVALID, "stop: wanted 1 to %d bytes, found %zu in string %zu", IV_STOP_BYTES_MAX, n,
                           i);
        if (!iv_utf8_valid((const uint8_t *)r->stop[i], n, &bad)) /* else text could end inside a character */
            return iv_fail(err, IV_INVALID, "stop: wanted UTF-8, found a stray byte at %zu of string %zu", bad, i);
    }
    return IV_OK;
}

/* Options about the answer's text require a tokenizer. */
static iv_status need_text(const iv_engine *e, const char *what, iv_error *err) {
    if (e->text_model->tokenizer) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted a model with a tokenizer.json, found none in %s", what,
                   e->text_model->model);
}

static iv_status check_fields(const iv_engine *e, const iv_request *r, iv_error *err) {
    size_t vocab = (size_t)e->model->config.vocab_size;
    IV_TRY(in_range("temperature", r->temperature, 0.0f, 100.0f, false, err));
    IV_TRY(in_range("top_p", r->top_p, 0.0f, 1.0f, true, err));
    IV_TRY(in_range("min_p", r->min_p, 0.0f, 1.0f, false, err));
    IV_TRY(in_range("repetition_penalty", r->repetition_penalty, 0.0f, 100.0f, true, err));
    IV_TRY(in_range("presence_penalty", r->presence_penalty, -2.0f, 2.0f, false, err));
    IV_TRY(in_range("frequency_penalty", r->frequency_penalty, -2.0f, 2.0f, false, err));
    if (r->top_k < 0) return iv_fail(err, IV_INVALID, "top_k: wanted 0 (off) or more, found %d", (int)r->top_k);
    IV_TRY(check_logprobs("logprobs", r->logprobs, vocab, err));
    IV_TRY(check_logprobs("prompt_logprobs", r->prompt_logprobs, vocab, err));
    IV_TRY(check_score_only(r, err));
    IV_TRY(check_min_tokens(e, r, err));
    if (r->constraint != IV_CONSTRAINT_NONE) IV_TRY(need_text(e, "constraint", err));
    IV_TRY(check_stops(r, err));
    if (r->stop_count > 0) IV_TRY(need_text(e, "stop", err));
    /* A request made from a receipt ignores the model's end-of-sequence ids and lists them itself. */
    size_t most = IV_STOP_IDS_MAX + (r->ignore_eos ? 2 * IV_EOS_IDS_MAX : 0);
    IV_TRY(check_ids("stop ids", r->stop_ids, r->stop_id_count, most, vocab, err));
    IV_TRY(check_ids("show ids", r->show_ids, r->show_id_count, IV_SHOW_IDS_MAX, vocab, err));
    if (r->logit_bias_count > IV_LOGIT_BIAS_MAX)
        return iv_fail(err, IV_INVALID, "logit_bias: wanted at most %d entries, found %zu", IV_LOGIT_BIAS_MAX,
                       r->logit_bias_count);
    IV_TRY(check_array("logit_bias", r->logit_bias, r->logit_bias_count, err));
    for (size_t i = 0; i < r->logit_bias_count; i++) {
        int32_t id = r->logit_bias[i].id;
        if (id < 0 || (size_t)id >= vocab)
            return iv_fail(err, IV_INVALID, "logit_bias: wanted a token id below %zu, found %d", vocab, (int)id);
        IV_TRY(in_range("logit_bias", r->logit_bias[i].bias, -100.0f, 100.0f, false, err));
        if (r->logit_bias[i].bias > 0 && !iv_token_ids_has(&e->drawable, id))
            return iv_fail(err, IV_INVALID,
                           "logit_bias: id %d has no token, so it is never drawn: wanted no bias above 0, found %g "
                           "(sample_all_ids draws all ids)",
                           (int)id, (double)r->logit_bias[i].bias);
    }
    return IV_OK;
}

static iv_status check_length(const iv_engine *e, const iv_request *r, size_t tokens, iv_error *err) {
    if (tokens < e->max_model_len || (r->score_only && tokens == e->max_model_len)) return IV_OK;
    return iv_fail(err, IV_CONTEXT_LENGTH, "prompt: %zu tokens leave no room for an answer in max_model_len %zu",
                   tokens, e->max_model_len);
}

static iv_status read_prompt(const iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    if ((r->text != NULL) == (r->ids != NULL))
        return iv_fail(err, IV_INVALID, "prompt: wanted either text or token ids, found %s",
                       r->text ? "both" : "neither");
    if (r->ids) IV_TRY(check_length(e, r, r->id_count, err)); /* before reading the arrays */
    if (r->text)
        IV_TRY(iv_tokenize(e->text_model, r->text, r->text_bytes, r->add_special, &s->tokens, err));
    else if (!iv_ids_append(&s->tokens, r->ids, r->id_count))
        return iv_fail(err, IV_NO_MEMORY, "prompt: no memory");
    s->prompt_tokens = s->tokens.count;
    if (s->prompt_tokens == 0) return iv_fail(err, IV_INVALID, "prompt: wanted at least one token, found none");
    IV_TRY(check_length(e, r, s->prompt_tokens, err));
    if (r->prompt_logprobs >= 0 && r->prompt_logprobs_start > s->prompt_tokens)
        return iv_fail(err, IV_INVALID, "prompt_logprobs_start: wanted at most %zu, the prompt's tokens, found %zu",
                       s->prompt_tokens, r->prompt_logprobs_start);
    for (size_t i = 0; i < s->prompt_tokens; i++)
        if (s->tokens.data[i] < 0 || s->tokens.data[i] >= e->model->config.vocab_size)
            return iv_fail(err, IV_INVALID, "prompt: token %zu: wanted an id below %lld, found %d", i,
                           (long long)e->model->config.vocab_size, (int)s->tokens.data[i]);
    return IV_OK;
}

static int by_id(const void *a, const void *b) {
    int32_t x = ((const iv_seen *)a)->id, y = ((const iv_seen *)b)->id;
    return x < y ? -1 : x > y;
}

/* The prompt's distinct tokens, with capacity for all generated ones. */
static bool start_seen(iv_sequence *s) {
    s->seen_capacity = s->tokens_max;
    s->seen = calloc(s->seen_capacity, sizeof *s->seen);
    if (!s->seen) return false;
    for (size_t i = 0; i < s->prompt_tokens; i++) s->seen[i].id = s->tokens.data[i];
    qsort(s->seen, s->prompt_tokens, sizeof *s->seen, by_id);
    for (size_t i = 0; i < s->prompt_tokens; i++)
        if (s->seen_count == 0 || s->seen[s->seen_count - 1].id != s->seen[i].id) s->seen[s->seen_count++] = s->seen[i];
    return true;
}

/* Reserves memory so that steps allocate none: tokens, text, kept logits, the draft index. */
static iv_status make_room(const iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    size_t text = 0, logits = 0, vocab = (size_t)e->model->config.vocab_size;
    bool ok = iv_ids_reserve(&s->tokens, s->tokens_max - s->prompt_tokens);
    if (e->text_model->tokenizer) {
        IV_TRY(iv_token_stream_open(e->text_model->tokenizer, !r->keep_special, &s->stream, err));
        IV_TRY(iv_token_stream_follow(s->stream, s->tokens.data, s->prompt_tokens, r->constraint != IV_CONSTRAINT_NONE,
                                      err));
        IV_TRY(iv_token_stream_reserve(s->stream, e->longest_token_bytes, err));
        ok = ok &&
             iv_size_mul(3 * (e->rows_max + 1), e->longest_token_bytes, &text) && /* an invalid byte becomes three */
             iv_buf_reserve(&s->text, text + 2 * IV_STOP_BYTES_MAX);
    }
    if (r->keep_logits)
        ok = ok && iv_size_mul(e->rows_max, vocab, &logits) &&
             (s->kept_logits = calloc(logits, sizeof *s->kept_logits)) != NULL;
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    if (e->rows_max > 1 && !r->score_only) IV_TRY(iv_draft_index_open(&s->draft_index, s->tokens_max, err));
    s->draft_limit = e->rows_max - 1;
    return iv_kv_table_open(&s->table, &e->kv, s->tokens_max, err);
}

static iv_status copy_fields(const iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    size_t room = e->max_model_len - s->prompt_tokens;
    if (r->score_only) room = 0;
    s->tokens_max = s->prompt_tokens + (r->max_tokens ? iv_size_min(r->max_tokens, room) : room);
    s->prompt_logprobs = r->prompt_logprobs, s->score_only = r->score_only;
    s->sampling_logprobs = r->sampling_logprobs;
    s->next_score = r->prompt_logprobs < 0 ? s->prompt_tokens : iv_size_max(1, r->prompt_logprobs_start);
    s->logprobs = r->logprobs, s->ignore_eos = r->ignore_eos, s->keep_special = r->keep_special;
    s->priority = r->priority, s->min_tokens = iv_size_min(r->min_tokens, s->tokens_max - s->prompt_tokens);
    s->sampling = (iv_sampling){.temperature = r->temperature < IV_TEMPERATURE_MIN ? 0.0f : r->temperature,
                                .top_p = r->top_p,
                                .min_p = r->min_p,
                                .top_k = r->top_k,
                                .repetition_penalty = r->repetition_penalty,
                                .presence_penalty = r->presence_penalty,
                                .frequency_penalty = r->frequency_penalty,
                                .bias_count = r->logit_bias_count,
                                .seed = r->seed};
    if (!r->has_seed && getrandom(&s->sampling.seed, sizeof s->sampling.seed, 0) != sizeof s->sampling.seed)
        return iv_fail(err, IV_IO, "seed: the system gave no random bytes");
    if (!r->has_seed)
        s->sampling.seed &= 0x7fffffffffffffffu; /* so that it fits a signed 64-bit integer of a JSON reader */
    s->bias = calloc(r->logit_bias_count + 1, sizeof *s->bias);
    s->stop_ids = calloc(r->stop_id_count + 1, sizeof *s->stop_ids);
    s->digest = iv_digest_new();
    bool ok = s->bias && s->stop_ids && s->digest && start_seen(s);
    if (r->keep_receipt)
        ok = ok && (s->receipt_bits = calloc(s->tokens_max - s->prompt_tokens, sizeof *s->receipt_bits)) != NULL;
    for (size_t i = 0; ok && i < r->logit_bias_count; i++) s->bias[i] = r->logit_bias[i];
    for (size_t i = 0; ok && i < r->stop_id_count; i++) s->stop_ids[s->stop_id_count++] = r->stop_ids[i];
    for (size_t i = 0; i < r->show_id_count; i++) s->show_ids[s->show_id_count++] = r->show_ids[i];
    for (size_t i = 0; ok && i < r->stop_count; i++, s->stop_count++) ok = (s->stop[i] = strdup(r->stop[i])) != NULL;
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    s->sampling.bias = s->bias;
    return IV_OK;
}

static iv_status check_reports(const iv_engine *e, const iv_request *r, iv_error *err) {
    size_t vocab = (size_t)e->model->config.vocab_size;
    bool cuts = (r->top_k > 0 && (size_t)r->top_k < vocab) || r->top_p < 1.0f || r->min_p > 0.0f;
    IV_TRY(check_ids("report ids", r->report_ids, r->report_id_count, IV_REPORT_IDS_MAX, vocab, err));
    if (r->report_kept && !cuts && r->temperature >= IV_TEMPERATURE_MIN)
        return iv_fail(err, IV_INVALID, "report_kept: wanted top_p, top_k or min_p that drops tokens, found none");
    if (r->report_id_count && r->prompt_logprobs >= 0 && e->gpu_model)
        return iv_fail(err, IV_UNSUPPORTED, "report ids: not for the prompt's tokens on a GPU");
    if (!r->report_experts || e->model->config.experts) return IV_OK;
    return iv_fail(err, IV_INVALID, "report_experts: the model has no experts");
}

static void *zeros(size_t a, size_t b, size_t each) {
    size_t n;
    return iv_size_mul(a, b, &n) ? calloc(n ? n : 1, each) : NULL;
}

/* Memory by position: a token's part is written once it is known. */
static iv_status open_reports(iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    const iv_model_config *c = &e->model->config;
    bool ok = true;
    if (r->report_id_count) {
        s->report_count = r->report_id_count;
        s->report_ids = zeros(s->report_count, 1, sizeof *s->report_ids);
        s->reports = zeros(s->tokens_max + 1, s->report_count, sizeof *s->reports);
        ok = s->report_ids && s->reports;
        if (ok) memcpy(s->report_ids, r->report_ids, s->report_count * sizeof *s->report_ids);
    }
    s->report_kept = r->report_kept;
    if (r->report_kept) ok = ok && (s->kept_at = zeros(s->tokens_max + 1, 2, sizeof *s->kept_at)) != NULL;
    if (r->report_experts) {
        s->experts = zeros(s->tokens_max, (size_t)(c->layers * c->experts_per_token), sizeof *s->experts);
        if (!e->routed) e->routed = zeros(iv_size_max(e->max_num_batched_tokens, 1), 1, sizeof *e->routed);
        ok = ok && s->experts && e->routed;
    }
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "request: no memory for its reports");
}

/* Before anything of the request is copied. */
static iv_status check_given(const iv_engine *e, const iv_request *r, iv_error *err) {
    if (r->given_count == 0) return IV_OK;
    if (r->score_only) return iv_fail(err, IV_INVALID, "given tokens: a request with score_only has no answer");
    if (!r->has_seed && r->temperature >= IV_TEMPERATURE_MIN)
        return iv_fail(err, IV_INVALID, "given tokens: wanted the seed that they were drawn with, found none");
    IV_TRY(check_array("given log-probabilities", r->given_logprobs, r->given_count, err));
    return check_ids("given tokens", r->given_ids, r->given_count, e->max_model_len,
                     (size_t)e->model->config.vocab_size, err);
}

/* The answer's tokens from an earlier engine. They are scored like a prompt's. */
static iv_status take_given(const iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    if (r->given_count == 0) return IV_OK;
    if (r->given_count >= s->tokens_max - s->prompt_tokens)
        return iv_fail(err, IV_INVALID, "given tokens: wanted less than the answer's %zu, found %zu",
                       s->tokens_max - s->prompt_tokens, r->given_count);
    s->given_logprobs = calloc(r->given_count, sizeof *s->given_logprobs);
    if (!s->given_logprobs) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    memcpy(s->given_logprobs, r->given_logprobs, r->given_count * sizeof *s->given_logprobs);
    for (; s->given < r->given_count; s->given++)
        IV_TRY(iv_answer_give(e, s, r->given_ids[s->given], r->given_logprobs[s->given], err));
    return IV_OK;
}

static iv_status compile(iv_engine *e, const iv_request *r, bool quick, iv_constraint **out, iv_error *err) {
    return iv_constraint_take(&e->constraints, e->text_model->tokenizer, (size_t)e->model->config.vocab_size, r, quick,
                              out, err);
}

iv_status iv_engine_compile(iv_engine *e, const iv_request *given, bool quick, iv_constraint **out, iv_error *err) {
    iv_request r;
    *out = NULL;
    IV_TRY(read_request(e, given, &r, err));
    if (r.constraint == IV_CONSTRAINT_NONE) return iv_fail(err, IV_INVALID, "constraint: wanted one, found none");
    IV_TRY(need_text(e, "constraint", err));
    return compile(e, &r, quick, out, err);
}

/* The mask of the answer's next token is computed once its first tokens are known. */
static iv_status open_mask(iv_engine *e, const iv_request *r, iv_sequence *s, iv_error *err) {
    iv_constraint *c = iv_constraint_retain(r->compiled);
    if (r->constraint == IV_CONSTRAINT_NONE) return IV_OK;
    if (!c) IV_TRY(compile(e, r, false, &c, err));
    IV_TRY(iv_mask_open(c, s->tokens_max - s->prompt_tokens, (size_t)e->model->config.vocab_size, &s->mask, err));
    if (!e->jobs) IV_TRY(iv_jobs_open(MASK_THREADS, &e->jobs, err));
    return IV_OK;
}

iv_status iv_engine_submit(iv_engine *e, const iv_request *given, uint64_t *id, iv_error *err) {
    iv_request full;
    const iv_request *r = &full;
    IV_TRY(read_request(e, given, &full, err));
    IV_TRY(iv_replace_check_whole(e, err));
    if (e->waiting.count + e->held.count >= IV_WAITING_MAX)
        return iv_fail(err, IV_BUSY, "queue: %d requests wait already", IV_WAITING_MAX);
    IV_TRY(check_fields(e, r, err));
    IV_TRY(check_given(e, r, err));
    IV_TRY(check_reports(e, r, err));
    if (r->id && iv_queues_find(e, r->id))
        return iv_fail(err, IV_INVALID, "id: %llu waits or runs already", (unsigned long long)r->id);
    while (!r->id && iv_queues_find(e, e->next_id)) e->next_id++;
    iv_loaded_adapter *adapter;
    IV_TRY(iv_adapters_find(e, r->adapter, &adapter, err));
    iv_sequence *s = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    iv_status status = read_prompt(e, r, s, err);
    if (status == IV_OK) status = copy_fields(e, r, s, err);
    if (status == IV_OK) status = make_room(e, r, s, err);
    if (status == IV_OK) iv_adapters_use(adapter, s);
    if (status == IV_OK) status = open_reports(e, r, s, err);
    if (status == IV_OK) status = open_mask(e, r, s, err);
    if (status == IV_OK) status = take_given(e, r, s, err);
    if (status != IV_OK) {
        iv_sequence_free(s, &e->kv);
        return status;
    }
    if (s->mask && !iv_mask_find(s->mask)) iv_queues_send_mask(e, s);
    IV_ASSERT(iv_kv_peak(&e->kv.groups, s->tokens_max, 1) <=
              e->kv.pages); /* max_model_len fits, so every sequence fits alone */
    *id = s->id = r->id ? r->id : e->next_id++;
    s->arrival = e->next_arrival++;
    iv_queues_add(e, s);
    return IV_OK;
}
