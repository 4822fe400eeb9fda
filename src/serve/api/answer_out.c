/* answer_out.c: writers of shared parts of answers. A log-probability is printed from the same float everywhere. */
#include "serve/api/answer_out.h"
#include "base/size.h"
#include "base/utf8.h"
#include "serve/api/task.h"
#include "serve/api/token_text.h"

#include <stdlib.h>
#include <string.h>

const char *iv_answer_finish(iv_finish finish) {
    switch (finish) {
    case IV_FINISH_NONE: return NULL;
    case IV_FINISH_STOP: return "stop";
    case IV_FINISH_LENGTH: return "length";
    case IV_FINISH_CANCELLED:
    case IV_FINISH_ERROR: return "abort";
    }
    return NULL;
}

/* Whether the last token is one of the request's stop ids. */
static bool ended_by_id(const iv_request *r, const iv_child *c) {
    if (c->finish != IV_FINISH_STOP || c->stop || !c->tokens.count) return false;
    for (size_t i = 0; i < r->stop_id_count; i++)
        if (r->stop_ids[i] == c->tokens.ids[c->tokens.count - 1]) return true;
    return false;
}

void iv_out_stop_reason(const iv_task *t, const iv_child *c, bool done, iv_json_out *o) {
    if (done && ended_by_id(&t->prompts[c->prompt].request, c))
        iv_out_key(o, "stop_reason"), iv_out_int(o, c->tokens.ids[c->tokens.count - 1]);
    else
        iv_out_kv_text(o, "stop_reason", done ? c->stop : NULL);
}

size_t iv_answer_token_at(const iv_child *c, size_t bytes) {
    const iv_token_list *l = &c->tokens;
    size_t characters = 0, i = 0;
    if (bytes >= c->text.len) return l->count;
    for (size_t k = 0; k < bytes; k++) characters += ((unsigned char)c->text.data[k] & 0xc0) != 0x80;
    while (i < l->count && (i + 1 < l->count ? l->text_at[i + 1] : c->characters) <= characters) i++;
    return i;
}

size_t iv_answer_content_start(const iv_child *c) {
    return iv_answer_token_at(c, iv_chat_text_reasoning_bytes(c->chat));
}

size_t iv_answer_reasoning_tokens(const iv_child *c) {
    return c->chat && iv_chat_text_reasoning_bytes(c->chat) ? iv_answer_content_start(c) : 0;
}

void iv_out_usage(const iv_task *t, iv_json_out *o) {
    uint64_t prompt = 0, generated = 0, cached = 0, reasoned = 0, n = (uint64_t)t->params.n, known = 0;
    for (size_t i = 0; i < t->child_count; i++) {
        const iv_child *c = &t->children[i];
        if (i % n == 0) known = 0, cached += c->cached_tokens;
        if (c->prompt_tokens > known)
            prompt += c->prompt_tokens - known, known = c->prompt_tokens; /* the same for all choices */
        generated += c->tokens.count, reasoned += iv_answer_reasoning_tokens(c);
    }
    iv_out_key(o, "usage"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "prompt_tokens", prompt);
    iv_out_kv_uint(o, "completion_tokens", generated);
    iv_out_kv_uint(o, "total_tokens", prompt + generated);
    iv_out_key(o, "prompt_tokens_details"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "cached_tokens", cached);
    iv_out_close(o, '}');
    if (t->format->wants_chat) {
        iv_out_key(o, "completion_tokens_details"), iv_out_open(o, '{');
        iv_out_kv_uint(o, "reasoning_tokens", reasoned);
        iv_out_close(o, '}');
    }
    iv_out_close(o, '}');
}

void iv_out_openai_head(const iv_task *t, const char *object, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", t->id);
    iv_out_kv_text(o, "object", object);
    iv_out_kv_uint(o, "created", (uint64_t)t->created);
    iv_out_kv_text(o, "model", iv_task_model(t));
}

void iv_openai_close_stream(iv_task *t, const char *object, iv_buf *out) {
    if (t->params.include_usage) {
        iv_json_out o = iv_sse_begin(out);
        iv_out_openai_head(t, object, &o);
        iv_out_key(&o, "choices"), iv_out_open(&o, '['), iv_out_close(&o, ']');
        iv_out_kv_text(&o, "system_fingerprint", t->fingerprint);
        iv_out_usage(t, &o);
        iv_out_close(&o, '}');
        iv_sse_end(t, &o);
    }
    t->lost |= !iv_buf_puts(out, "data: [DONE]\n\n");
}

/* The parameters in effect, set by the request, the model's defaults, or ours. */
static void out_parameters(const iv_task *t, const iv_request *r, iv_json_out *o) {
    const iv_api_params *p = &t->params;
    iv_out_key(o, "parameters"), iv_out_open(o, '{');
    iv_out_key(o, "max_tokens");
    if (r->max_tokens || r->score_only)
        iv_out_uint(o, r->max_tokens);
    else
        iv_out_null(o); /* to max_model_len */
    if (r->min_tokens) iv_out_kv_uint(o, "min_tokens", r->min_tokens);
    iv_out_kv_shortest(o, "temperature", r->temperature), iv_out_kv_shortest(o, "top_p", r->top_p),
        iv_out_kv_shortest(o, "min_p", r->min_p);
    iv_out_key(o, "top_k"), iv_out_int(o, r->top_k);
    iv_out_kv_shortest(o, "repetition_penalty", r->repetition_penalty);
    iv_out_kv_shortest(o, "presence_penalty", r->presence_penalty),
        iv_out_kv_shortest(o, "frequency_penalty", r->frequency_penalty);
    iv_out_key(o, "stop"), iv_out_open(o, '[');
    for (size_t i = 0; i < r->stop_count; i++) iv_out_text(o, r->stop[i]);
    iv_out_close(o, ']');
    iv_out_key(o, "stop_token_ids"), iv_out_ids(o, r->stop_ids, r->stop_id_count);
    iv_out_kv_bool(o, "ignore_eos", r->ignore_eos), iv_out_kv_bool(o, "skip_special_tokens", !r->keep_special);
    iv_out_key(o, "logit_bias"), iv_out_open(o, '{');
    for (size_t i = 0; i < r->logit_bias_count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", (int)r->logit_bias[i].id);
        iv_out_kv_shortest(o, id, r->logit_bias[i].bias);
    }
    iv_out_close(o, '}');
    if (iv_api_truncates(p)) iv_out_key(o, "truncate_prompt_tokens"), iv_out_int(o, p->truncate);
    if (p->drop_items) iv_out_kv_uint(o, "dropped_items", t->dropped);
    if (r->constraint != IV_CONSTRAINT_NONE) iv_out_kv_text(o, "constraint", iv_constraint_name(r->constraint));
    iv_out_close(o, '}');
}

static void out_outcome(const iv_child *c, iv_json_out *o) {
    iv_out_key(o, "seed"); /* spelled as requested: see params.c */
    if (c->seed_unsigned)
        iv_out_uint(o, c->seed);
    else
        iv_out_int(o, (int64_t)c->seed);
    iv_out_kv_text(o, "digest", c->digest[0] ? c->digest : NULL);
    if (!c->receipt) return;
    iv_out_key(o, "receipt"), iv_out_raw(o, c->receipt, strlen(c->receipt));
}

void iv_out_invar(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_child *first = c ? c : &t->children[0];
    iv_out_key(o, "invar"), iv_out_open(o, '{');
    out_outcome(first, o);
    iv_out_kv_text(o, "fingerprint", first->fingerprint);
    if (*first->adapter) iv_out_kv_text(o, "adapter_digest", first->adapter);
    iv_out_kv_uint(o, "weight_version", t->weight_version);
    iv_out_kv_text(o, "logprobs", "raw"); /* before temperature and filters; sampling_logprob is after them */
    out_parameters(t, &t->prompts[first->prompt].request, o);
    if (t->params.ignored.len) iv_out_kv_text(o, "ignored", t->params.ignored.data);
    if (!c && t->child_count > 1) {
        iv_out_key(o, "choices"), iv_out_open(o, '[');
        for (size_t i = 0; i < t->child_count; i++) {
            iv_out_open(o, '{');
            iv_out_kv_uint(o, "index", i);
            out_outcome(&t->children[i], o);
            iv_out_close(o, '}');
        }
        iv_out_close(o, ']');
    }
    iv_out_close(o, '}');
}

/* ---- log-probabilities -------------------------------------------------------------------------------- */

typedef struct namer {
    const iv_task *t;
    iv_buf bytes, name;
} namer;

static void name_token(namer *n, int32_t id, iv_json_out *o) {
    const iv_server *s = n->t->server;
    iv_error err = {0};
    if (iv_token_bytes(iv_bridge_text_model(s->bridge), s->token_texts, id, &n->bytes, &err) != IV_OK ||
        !iv_token_name(id, &n->bytes, n->t->params.tokens_as_ids, &n->name))
        iv_buf_clear(&n->bytes), iv_buf_clear(&n->name), o->failed |= err.status == IV_NO_MEMORY;
}

static void free_namer(namer *n) { iv_buf_free(&n->bytes), iv_buf_free(&n->name); }

static void out_name(const namer *n, iv_json_out *o) {
    iv_out_string(o, n->name.data ? n->name.data : "", n->name.len);
}

/* Entry k of a token: the token itself, then the top alternatives without it. NULL: no more. */
static const iv_logprob *entry(const iv_token_list *l, size_t i, size_t k, iv_logprob *self) {
    *self = (iv_logprob){.id = l->ids[i], .logprob = l->logprobs[i]};
    if (k == 0) return self;
    for (size_t at = l->top_at[i]; at < l->top_at[i + 1]; at++)
        if (l->top[at].id != self->id && --k == 0) return &l->top[at];
    return NULL;
}

/* {"name": logprob, ...}; a token whose name is already taken is named by its id. */
static void out_top_object(namer *n, const iv_token_list *l, size_t i, iv_json_out *o) {
    enum { NAMES_MAX = 24 };
    char *names[NAMES_MAX];
    size_t count = 0;
    iv_logprob self;
    const iv_logprob *e;
    iv_out_open(o, '{');
    for (; count < NAMES_MAX && (e = entry(l, i, count, &self)) != NULL; count++) {
        name_token(n, e->id, o);
        for (size_t k = 0; k < count; k++)
            if (names[k] && strcmp(names[k], n->name.data ? n->name.data : "") == 0)
                o->failed |= !iv_token_name(e->id, &n->bytes, true, &n->name);
        names[count] = strdup(n->name.data ? n->name.data : "");
        o->failed |= !names[count];
        out_name(n, o);
        if (!iv_buf_putc(o->buf, ':')) o->failed = true;
        o->comma = false;
        iv_out_float(o, e->logprob);
    }
    iv_out_close(o, '}');
    for (size_t k = 0; k < count; k++) free(names[k]);
}

/* How many of the `left` remaining bytes of an echoed prompt belong to the named token: none for a special token
 * that the text does not contain ("<s>"), all but a space that the start of the text lost, and U+FFFD for a cut
 * character. */
static size_t bytes_in(const namer *n, int32_t id, const char *text, size_t left) {
    const char *s = n->bytes.data;
    static const char cut[] = "\xef\xbf\xbd";
    size_t length = n->bytes.len;
    iv_text shown = {0};
    iv_error err;
    if (length <= left && memcmp(text, s, length) == 0) return length;
    if (length - 1 <= left && s[0] == ' ' && memcmp(text, s + 1, length - 1) == 0) return length - 1;
    if (iv_utf8_length((const uint8_t *)s, length) == 0)
        return left >= sizeof cut - 1 && memcmp(text, cut, sizeof cut - 1) == 0 ? sizeof cut - 1 : 0;
    bool special = iv_detokenize(iv_bridge_text_model(n->t->server->bridge), &id, 1, false, &shown, &err) == IV_OK &&
                   shown.bytes == 0;
    iv_text_free(&shown);
    return special ? 0 : iv_size_min(length, left);
}

/* The offsets of the prompt's tokens in the echoed text. */
static void out_prompt_offsets(namer *n, const iv_ids *ids, const iv_text *text, iv_json_out *o) {
    size_t at = 0, characters = 0;
    for (size_t i = 0; i < ids->count; i++) {
        bool inside = at < text->bytes && ((unsigned char)text->data[at] & 0xc0) == 0x80; /* a character of several */
        iv_out_uint(o, characters - inside);
        name_token(n, ids->data[i], o);
        if (n->bytes.len == 0) continue;
        for (size_t end = at + bytes_in(n, ids->data[i], text->data ? text->data + at : "", text->bytes - at); at < end;
             at++)
            characters += ((unsigned char)text->data[at] & 0xc0) != 0x80;
    }
}

/* The prompt's tokens, or none: the log-probability of position i is scored[i - 1]. */
static const iv_ids *prompt_ids(const iv_task *t, const iv_child *c, bool echo) {
    static const iv_ids none;
    return echo ? &t->prompts[c->prompt].ids : &none;
}

void iv_out_logprobs_legacy(const iv_task *t, const iv_child *c, size_t from, bool echo, iv_json_out *o) {
    namer n = {.t = t};
    const iv_ids *p = prompt_ids(t, c, echo);
    const iv_token_list *l = &c->tokens, *s = &c->scored;
    size_t shift = t->params.echo ? c->echo_characters : 0;
    iv_out_open(o, '{');
    iv_out_key(o, "tokens"), iv_out_open(o, '[');
    for (size_t i = 0; i < p->count; i++) name_token(&n, p->data[i], o), out_name(&n, o);
    for (size_t i = from; i < l->count; i++) name_token(&n, l->ids[i], o), out_name(&n, o);
    iv_out_close(o, ']');
    iv_out_key(o, "token_logprobs"), iv_out_open(o, '[');
    for (size_t i = 0; i < p->count; i++)
        i > 0 && i - 1 < s->count ? iv_out_float(o, s->logprobs[i - 1]) : iv_out_null(o);
    for (size_t i = from; i < l->count; i++) iv_out_float(o, l->logprobs[i]);
    iv_out_close(o, ']');
    iv_out_key(o, "top_logprobs"), iv_out_open(o, '[');
    for (size_t i = 0; i < p->count; i++) i > 0 && i - 1 < s->count ? out_top_object(&n, s, i - 1, o) : iv_out_null(o);
    for (size_t i = from; i < l->count; i++) out_top_object(&n, l, i, o);
    iv_out_close(o, ']');
    iv_out_key(o, "text_offset"), iv_out_open(o, '[');
    if (echo) out_prompt_offsets(&n, p, &t->prompts[c->prompt].text, o);
    for (size_t i = from; i < l->count; i++) iv_out_uint(o, shift + l->text_at[i]);
    iv_out_close(o, ']');
    if (t->params.sampling_logprobs) {
        iv_out_key(o, "sampling_logprobs"), iv_out_open(o, '[');
        for (size_t i = 0; i < p->count; i++) iv_out_null(o);
        for (size_t i = from; i < l->count; i++) iv_out_float(o, l->sampling[i]);
        iv_out_close(o, ']');
    }
    iv_out_close(o, '}');
    free_namer(&n);
}

static void out_chat_entry(namer *n, int32_t id, float logprob, iv_json_out *o) {
    name_token(n, id, o);
    iv_out_key(o, "token"), out_name(n, o);
    iv_out_key(o, "logprob"), iv_out_float(o, logprob);
    iv_out_key(o, "bytes"), iv_out_open(o, '[');
    for (size_t i = 0; i < n->bytes.len; i++) iv_out_uint(o, (unsigned char)n->bytes.data[i]);
    iv_out_close(o, ']');
    iv_out_key(o, "token_id"), iv_out_int(o, id);
}

void iv_out_logprobs_list(const iv_task *t, const iv_child *c, size_t from, size_t to, iv_json_out *o) {
    namer n = {.t = t};
    const iv_token_list *l = &c->tokens;
    iv_out_open(o, '[');
    for (size_t i = from; i < to; i++) {
        iv_out_open(o, '{');
        out_chat_entry(&n, l->ids[i], l->logprobs[i], o);
        if (t->params.sampling_logprobs) iv_out_key(o, "sampling_logprob"), iv_out_float(o, l->sampling[i]);
        iv_out_key(o, "top_logprobs"), iv_out_open(o, '[');
        for (size_t at = l->top_at[i]; at < l->top_at[i + 1]; at++) {
            iv_out_open(o, '{');
            out_chat_entry(&n, l->top[at].id, l->top[at].logprob, o);
            iv_out_close(o, '}');
        }
        iv_out_close(o, ']'), iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
    free_namer(&n);
}

void iv_out_logprobs_chat(const iv_task *t, const iv_child *c, size_t from, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_key(o, "content"), iv_out_logprobs_list(t, c, from, c->tokens.count, o);
    iv_out_close(o, '}');
}

/* Rank among all tokens, if it is among the top ones; else 0. */
static size_t rank_of(const iv_token_list *l, size_t i, int32_t id) {
    for (size_t at = l->top_at[i]; at < l->top_at[i + 1]; at++)
        if (l->top[at].id == id) return at - l->top_at[i] + 1;
    return 0;
}

void iv_out_prompt_logprobs(const iv_task *t, const iv_child *c, iv_json_out *o) {
    namer n = {.t = t};
    const iv_token_list *s = &c->scored;
    iv_out_open(o, '['), iv_out_null(o);
    for (size_t i = 0; i < s->count; i++) {
        iv_logprob self;
        const iv_logprob *e;
        iv_out_open(o, '{');
        for (size_t k = 0; (e = entry(s, i, k, &self)) != NULL; k++) {
            char id[16];
            size_t rank = rank_of(s, i, e->id);
            snprintf(id, sizeof id, "%d", (int)e->id);
            iv_out_key(o, id), iv_out_open(o, '{');
            iv_out_key(o, "logprob"), iv_out_float(o, e->logprob);
            iv_out_key(o, "rank");
            rank ? iv_out_uint(o, rank) : iv_out_null(o);
            name_token(&n, e->id, o);
            iv_out_key(o, "decoded_token"), out_name(&n, o);
            iv_out_close(o, '}');
        }
        iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
    free_namer(&n);
}

void iv_out_prompt_ids(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_ids *ids = &t->prompts[c->prompt].ids;
    iv_out_key(o, "prompt_token_ids"), iv_out_ids(o, ids->data, ids->count);
}
