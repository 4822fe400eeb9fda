/* emit.c: a sampled token becomes text, perhaps an end, and an event.
 *
 * Text is shown only when it is certain: whole characters, and nothing that may still turn out to be the
 * beginning of a stop string. */
#include "engine/engine.h"
#include "base/size.h"
#include "numerics/floats.h"
#include "numerics/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *iv_finish_name(iv_finish finish) {
    static const char *const names[] = {NULL, "stop", "length", "cancelled", "error"};
    return (size_t)finish < sizeof names / sizeof *names ? names[finish] : NULL;
}

static iv_event_node *new_event(const iv_sequence *s, iv_event_kind kind) {
    iv_event_node *n = calloc(1, sizeof *n);
    if (n) n->event = (iv_event){.request = s->id, .kind = kind, .seed = s->sampling.seed, .text = ""};
    return n;
}

static void free_event(iv_event_node *n) {
    if (!n) return;
    iv_buf_free(&n->text);
    iv_buf_free(&n->error);
    free(n->ids), free(n->logits), free(n->receipt);
    free(n);
}

static void queue_event(iv_engine *e, iv_event_node *n) {
    if (n->text.len) n->event.text = n->text.data;
    n->event.text_bytes = n->text.len;
    *e->events_tail = n, e->events_tail = &n->next;
}

bool iv_engine_next_event(iv_engine *e, iv_event *out) {
    free_event(e->taken);
    e->taken = e->events;
    if (!e->taken) return false;
    e->events = e->taken->next;
    if (!e->events) e->events_tail = &e->events;
    *out = e->taken->event;
    return true;
}

void iv_events_free(iv_engine *e) {
    iv_event unused;
    while (iv_engine_next_event(e, &unused)) continue;
}

/* The earliest stop string in the text, looking only where one could newly be. */
static const char *find_stop(const iv_sequence *s, size_t from, size_t *at) {
    const char *found = NULL;
    size_t begin = from > IV_STOP_BYTES_MAX ? from - IV_STOP_BYTES_MAX : 0;
    if (begin < s->shown) begin = s->shown; /* a stop string never reaches back into what was shown */
    for (size_t i = 0; i < s->stop_count; i++) {
        char *p = s->text.len > begin
                      ? memmem(s->text.data + begin, s->text.len - begin, s->stop[i], strlen(s->stop[i]))
                      : NULL;
        if (p && (!found || (size_t)(p - s->text.data) < *at)) *at = (size_t)(p - s->text.data), found = s->stop[i];
    }
    return found;
}

/* How many last bytes may be the beginning of a stop string. */
static size_t held_back(const iv_sequence *s) {
    size_t held = 0;
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = iv_size_min(strlen(s->stop[i]) - 1, s->text.len - s->shown);
        for (; n > held; n--)
            if (memcmp(s->text.data + s->text.len - n, s->stop[i], n) == 0) held = n;
    }
    return held;
}

static iv_status show(iv_sequence *s, iv_event_node *n, size_t end, iv_error *err) {
    if (end <= s->shown) return IV_OK;
    if (!iv_buf_append(&n->text, s->text.data + s->shown, end - s->shown))
        return iv_fail(err, IV_NO_MEMORY, "text: no memory");
    s->shown = end;
    return IV_OK;
}

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

static iv_status note_token(const iv_engine *e, iv_sequence *s, iv_event_node *n, int32_t token, const float *logits,
                            iv_error *err) {
    size_t vocab = (size_t)e->model->config.vocab_size;
    float max, sum;
    e->forward->compute.kernels->sum_exp(logits, vocab, &max, &sum);
    float log_sum = iv_ref_log(sum), logprob = (logits[token] - max) - log_sum;
    if (!(log_sum >= 0.0f && log_sum < 1e30f)) /* a NaN or an infinity among them reaches the sum */
        return iv_fail(err, IV_FORMAT, "logits of token %zu of the sequence are not finite", s->tokens.count);
    n->event.token = token, n->event.logprob = logprob;
    if (s->keep_logits) {
        if (!(n->logits = malloc(vocab * sizeof *logits))) return iv_fail(err, IV_NO_MEMORY, "logits: no memory");
        n->event.logits = memcpy(n->logits, logits, vocab * sizeof *logits);
    }
    if (s->logprobs > 0) iv_top_logprobs(logits, vocab, max, log_sum, n->top, (size_t)s->logprobs);
    n->event.top = n->top, n->event.top_count = s->logprobs > 0 ? (size_t)s->logprobs : 0;
    uint32_t bits[2] = {(uint32_t)token, iv_bits(logprob)};
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(bits[i / 4] >> (8 * (i % 4)));
    iv_digest_add(s->digest, raw, sizeof raw);
    if (s->receipt_bits) s->receipt_bits[s->tokens.count - s->prompt_tokens] = bits[1];
    if (!iv_ids_push(&s->tokens, token)) return iv_fail(err, IV_NO_MEMORY, "tokens: no memory");
    size_t at = 0; /* seen stays sorted: binary insertion */
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
    return IV_OK;
}

/* Pushes the token through the stream and decides what may be shown. */
static iv_status advance_text(iv_sequence *s, iv_event_node *n, int32_t token, bool last, const char **stop,
                              iv_error *err) {
    if (!s->stream) return IV_OK;
    size_t from = s->text.len, at = 0;
    IV_TRY(iv_token_stream_push(s->stream, token, &s->text, err));
    if (last) IV_TRY(iv_token_stream_flush(s->stream, &s->text, err));
    *stop = s->stop_count ? find_stop(s, from, &at) : NULL;
    if (*stop) return show(s, n, at, err);
    return show(s, n, last ? s->text.len : s->text.len - held_back(s), err);
}

iv_status iv_emit_token(iv_engine *e, iv_sequence *s, int32_t token, const float *logits, iv_finish *finish,
                        iv_error *err) {
    const char *stop = NULL;
    iv_event_node *n = new_event(s, IV_EVENT_TOKEN);
    if (!n) return iv_fail(err, IV_NO_MEMORY, "event: no memory");
    iv_status status = note_token(e, s, n, token, logits, err);
    bool end = is_end(e, s, token), full = s->tokens.count >= s->tokens_max;
    if (status == IV_OK) status = advance_text(s, n, token, end || full, &stop, err);
    if (status != IV_OK) {
        free_event(n);
        return status;
    }
    queue_event(e, n);
    if (s->first_token == 0) s->first_token = iv_now();
    *finish = end || stop ? IV_FINISH_STOP : full ? IV_FINISH_LENGTH : IV_FINISH_NONE;
    if (*finish != IV_FINISH_NONE) iv_emit_done(e, s, *finish, NULL, stop);
    return IV_OK;
}

void iv_emit_done(iv_engine *e, iv_sequence *s, iv_finish finish, const char *message, const char *stop) {
    iv_event_node *n = new_event(s, IV_EVENT_DONE);
    uint8_t digest[32];
    if (!n) return;
    size_t count = s->tokens.count - s->prompt_tokens;
    n->ids = calloc(count + 1, sizeof *n->ids);
    if (!n->ids)
        count = 0;
    else
        memcpy(n->ids, s->tokens.data + s->prompt_tokens, count * sizeof *n->ids);
    if (message && iv_buf_puts(&n->error, message)) n->event.error = n->error.data;
    if (stop) {
        snprintf(n->stop, sizeof n->stop, "%s", stop);
        n->event.stop = n->stop;
    }
    iv_digest_finish(s->digest, digest);
    s->digest = NULL;
    memcpy(n->digest, "sha256:", 7);
    iv_digest_hex(digest, n->digest + 7);
    n->event.finish = finish, n->event.ids = n->ids, n->event.id_count = count,
    n->event.prompt_tokens = s->prompt_tokens;
    n->event.digest = n->digest;
    n->event.preemptions = s->preemptions;
    double now = iv_now(), first = s->first_token > 0 ? s->first_token : now;
    if (s->receipt_bits) n->event.receipt = n->receipt = iv_receipt_write(e, s, &n->event);
    n->event.prefill_seconds = s->admitted > 0 ? first - s->admitted : 0, n->event.decode_seconds = now - first;
    queue_event(e, n);
}
