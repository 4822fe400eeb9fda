/* frames.c: one function for each struct both writes and reads it, so that the two cannot disagree. */
#include "serve/engine/frames.h"
#include "base/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    RECEIVE_BYTES = 64 << 10, /* room for one call */
    KEEP_BYTES = 1 << 20      /* larger buffers are freed when empty */
};

/* Where a struct is written to, or read from. */
typedef struct wire {
    iv_buf *out; /* NULL: reads */
    const char *at;
    size_t left;
    bool bad; /* no memory, or damaged */
} wire;

/* ---- values ------------------------------------------------------------------------------------------- */

static const char zeros[8];

static void word(wire *w, uint64_t *value) {
    if (w->bad) return;
    if (w->out) {
        w->bad = !iv_buf_append(w->out, value, sizeof *value);
        return;
    }
    if ((w->bad = w->left < sizeof *value)) return;
    memcpy(value, w->at, sizeof *value);
    w->at += sizeof *value, w->left -= sizeof *value;
}

static void size(wire *w, size_t *value) {
    uint64_t v = *value;
    word(w, &v);
    if (w->bad) return;
    *value = (size_t)v;
    w->bad = *value != v;
}

static void signed_word(wire *w, int64_t *value, int64_t low, int64_t high) {
    uint64_t v = (uint64_t)*value;
    word(w, &v);
    if (w->bad) return;
    *value = (int64_t)v;
    w->bad = *value < low || *value > high;
}

static void int32(wire *w, int32_t *value) {
    int64_t v = *value;
    signed_word(w, &v, INT32_MIN, INT32_MAX);
    if (!w->bad) *value = (int32_t)v;
}

/* An enum of values 0 to `last`. */
static void choice(wire *w, unsigned *value, unsigned last) {
    int64_t v = *value;
    signed_word(w, &v, 0, last);
    if (!w->bad) *value = (unsigned)v;
}
#define CHOICE(w, member, last)                 \
    do {                                        \
        unsigned choice_ = (unsigned)(member);  \
        choice(w, &choice_, (unsigned)(last));  \
        if (!(w)->bad) (member) = (int)choice_; \
    } while (0)

static void flag(wire *w, bool *value) {
    unsigned v = *value;
    choice(w, &v, 1);
    if (!w->bad) *value = v == 1;
}

static void real32(wire *w, float *value) {
    uint64_t v = 0;
    memcpy(&v, value, sizeof *value);
    word(w, &v);
    if (w->bad) return;
    memcpy(value, &v, sizeof *value);
    w->bad = v > UINT32_MAX;
}

static void real64(wire *w, double *value) {
    uint64_t v;
    memcpy(&v, value, sizeof v);
    word(w, &v);
    if (!w->bad) memcpy(value, &v, sizeof v);
}

/* ---- arrays ------------------------------------------------------------------------------------------- */

static void write_bytes(wire *w, const void *bytes, size_t n) {
    size_t padding = (8 - n % 8) % 8;
    w->bad = w->bad || (n && !iv_buf_append(w->out, bytes, n)) || !iv_buf_append(w->out, zeros, padding);
}

static const char *read_bytes(wire *w, size_t n) {
    size_t whole;
    const char *at = w->at;
    w->bad = w->bad || !iv_size_round_up(n, 8, &whole) || whole > w->left;
    if (w->bad) return NULL;
    w->at += whole, w->left -= whole;
    return at;
}

/* An array of elements whose alignment is at most 8; NULL only if empty, and stays so. */
static void *array(wire *w, const void *from, size_t *count, size_t each) {
    size_t bytes;
    bool there = from != NULL;
    flag(w, &there);
    size(w, count);
    if (w->bad || (w->bad = !iv_size_mul(*count, each, &bytes) || (!there && *count > 0))) return NULL;
    if (!there) return NULL;
    if (!w->out) return (void *)read_bytes(w, bytes);
    write_bytes(w, from, bytes);
    return (void *)from;
}

/* n bytes and a NUL; NULL stays NULL. */
static const char *text_of(wire *w, const char *from, size_t *n) {
    bool there = from != NULL;
    flag(w, &there);
    size(w, n);
    if (w->bad || (w->bad = *n >= IV_FRAME_BYTES_MAX || (!there && *n > 0)) || !there) return NULL;
    if (!w->out) {
        const char *text = read_bytes(w, *n + 1);
        w->bad = w->bad || text[*n] != 0;
        return w->bad ? NULL : text;
    }
    size_t padding = 8 - *n % 8; /* at least the NUL */
    w->bad = (*n && !iv_buf_append(w->out, from, *n)) || !iv_buf_append(w->out, zeros, padding);
    return from;
}

/* A string without NUL inside. */
static void text(wire *w, const char **value) {
    size_t n = *value ? strlen(*value) : 0;
    *value = text_of(w, *value, &n);
    w->bad = w->bad || (*value && strlen(*value) != n);
}

static void text_there(wire *w, const char **value) {
    text(w, value);
    w->bad = w->bad || !*value;
}

/* A string in an array of `room` bytes. */
static void text_within(wire *w, char *value, size_t capacity) {
    const char *from = value;
    text_there(w, &from);
    if (w->bad || w->out) return;
    size_t n = strlen(from);
    if ((w->bad = n >= capacity)) return;
    memcpy(value, from, n + 1);
}

/* ---- structs ------------------------------------------------------------------------------------------ */

/* A new member of these structs needs a line below. */
_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(iv_engine_options) == 256 && sizeof(iv_engine_info) == 224 && sizeof(iv_request) == 328 &&
                    sizeof(iv_event) == 216 && sizeof(iv_event_details) == 72),
               "frames.c sends every member");

static void options(wire *w, iv_engine_options *o) {
    o->size = sizeof *o;
    text(w, &o->model), text(w, &o->load_format), word(w, &o->dummy_seed), text(w, &o->dtype), text(w, &o->device);
    flag(w, &o->enforce_eager), text(w, &o->arithmetic), text(w, &o->isa), size(w, &o->threads);
    size(w, &o->max_model_len), size(w, &o->max_num_seqs), size(w, &o->max_num_batched_tokens);
    text(w, &o->numerics), size(w, &o->tensor_parallel_size), text(w, &o->rank_transport);
    size(w, &o->rank_timeout_ms), size(w, &o->kv_bytes), real64(w, &o->kv_fraction), flag(w, &o->prefix_caching);
    text(w, &o->speculative), size(w, &o->speculative_tokens), flag(w, &o->trainable);
    size(w, &o->step_target_ms), flag(w, &o->sample_all_ids), text(w, &o->weights), size(w, &o->state_cache_bytes);
    size(w, &o->max_loras), size(w, &o->max_lora_rank), size(w, &o->expert_parallel_size);
}

static void info(wire *w, iv_engine_info *i) {
    const char **const texts[] = {&i->fingerprint,
                                  &i->model_type,
                                  &i->dtype,
                                  &i->arithmetic,
                                  &i->isa,
                                  &i->numerics,
                                  &i->device,
                                  &i->gpu,
                                  &i->rank_transport,
                                  &i->weights_digest,
                                  &i->configuration_digest,
                                  &i->tokenizer_digest,
                                  &i->template_digest,
                                  &i->generation_unapplied,
                                  &i->sampled_ids_digest};
    size_t *const sizes[] = {&i->tensor_parallel_size,
                             &i->rank,
                             &i->threads,
                             &i->vocab_size,
                             &i->max_model_len,
                             &i->kv_tokens,
                             &i->weight_bytes,
                             &i->kv_bytes_per_token,
                             &i->max_num_seqs,
                             &i->max_num_batched_tokens};
    int32_t version = i->numerics_version;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) text_there(w, texts[k]);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) size(w, sizes[k]);
    int32(w, &version);
    i->numerics_version = version;
    real64(w, &i->load_seconds), flag(w, &i->index_unread);
}

static void request(wire *w, iv_request *r, const char **stop) {
    int32_t logprobs = r->logprobs, prompt_logprobs = r->prompt_logprobs;
    r->size = sizeof *r;
    int32(w, &r->priority), flag(w, &r->add_special);
    r->text = text_of(w, r->text, &r->text_bytes);
    r->ids = array(w, r->ids, &r->id_count, sizeof *r->ids);
    size(w, &r->max_tokens), size(w, &r->min_tokens);
    real32(w, &r->temperature), real32(w, &r->top_p), real32(w, &r->min_p), int32(w, &r->top_k);
    real32(w, &r->repetition_penalty), real32(w, &r->presence_penalty), real32(w, &r->frequency_penalty);
    r->logit_bias = array(w, r->logit_bias, &r->logit_bias_count, sizeof *r->logit_bias);
    flag(w, &r->has_seed), word(w, &r->seed);
    int32(w, &logprobs), flag(w, &r->sampling_logprobs), int32(w, &prompt_logprobs);
    r->logprobs = logprobs, r->prompt_logprobs = prompt_logprobs;
    size(w, &r->prompt_logprobs_start), flag(w, &r->score_only);
    size(w, &r->stop_count);
    w->bad = w->bad || r->stop_count > IV_STOPS_MAX;
    for (size_t i = 0; !w->bad && i < r->stop_count; i++) {
        stop[i] = w->out ? r->stop[i] : NULL;
        text_there(w, &stop[i]);
    }
    r->stop = r->stop_count ? stop : NULL;
    r->stop_ids = array(w, r->stop_ids, &r->stop_id_count, sizeof *r->stop_ids);
    CHOICE(w, r->constraint, IV_CONSTRAINT_TOKENS);
    text(w, &r->constraint_text);
    CHOICE(w, r->reasoning, IV_REASONING_FORM_NONE * IV_REASONING_FORM_STEP);
    flag(w, &r->ignore_eos), flag(w, &r->keep_special);
    r->show_ids = array(w, r->show_ids, &r->show_id_count, sizeof *r->show_ids);
    flag(w, &r->keep_receipt);
    r->given_ids = array(w, r->given_ids, &r->given_count, sizeof *r->given_ids);
    size_t given = r->given_count;
    r->given_logprobs = array(w, r->given_logprobs, &given, sizeof *r->given_logprobs);
    w->bad = w->bad || given != r->given_count;
    r->report_ids = array(w, r->report_ids, &r->report_id_count, sizeof *r->report_ids);
    flag(w, &r->report_kept), flag(w, &r->report_experts), text(w, &r->adapter);
}

static void event(wire *w, iv_event *e) {
    CHOICE(w, e->kind, IV_EVENT_PROMPT);
    word(w, &e->seed);
    e->text = text_of(w, e->text, &e->text_bytes);
    w->bad = w->bad || !e->text;
    int32(w, &e->token), size(w, &e->position), real32(w, &e->logprob);
    e->top = array(w, e->top, &e->top_count, sizeof *e->top);
    real32(w, &e->sampling_logprob);
    if (e->kind != IV_EVENT_DONE) return;
    CHOICE(w, e->finish, IV_FINISH_ERROR);
    text(w, &e->error);
    CHOICE(w, e->error_status, IV_NOT_FINITE);
    text(w, &e->stop);
    e->ids = array(w, e->ids, &e->id_count, sizeof *e->ids);
    size(w, &e->prompt_tokens), text(w, &e->digest), real64(w, &e->prefill_seconds), real64(w, &e->decode_seconds);
    size(w, &e->cached_tokens), size(w, &e->preemptions), size(w, &e->drafted_tokens), size(w, &e->accepted_tokens);
    text(w, &e->receipt);
}

static void details(wire *w, iv_event_details *d) {
    size_t experts = 0, each;
    d->size = sizeof *d;
    d->reported = array(w, d->reported, &d->reported_count, sizeof *d->reported);
    d->kept = array(w, d->kept, &d->kept_count, sizeof *d->kept);
    size(w, &d->expert_rows), size(w, &d->expert_layers), size(w, &d->experts_per_token);
    w->bad = w->bad || !iv_size_mul(d->expert_layers, d->experts_per_token, &each) ||
             !iv_size_mul(d->expert_rows, each, &experts);
    if (w->bad) return;
    size_t found = d->experts ? experts : 0;
    d->experts = array(w, d->experts, &found, sizeof *d->experts);
    w->bad = w->bad || (d->experts ? found != experts : experts != 0);
}

/* All members of iv_engine_stats have 8 bytes. */
_Static_assert(sizeof(iv_engine_stats) == 17 * sizeof(uint64_t), "iv_engine_stats has 17 numbers");

static void stats(wire *w, iv_bridge_stats *s) {
    for (size_t i = 0; i < sizeof s->engine; i += sizeof(uint64_t)) {
        uint64_t v;
        memcpy(&v, (char *)&s->engine + i, sizeof v);
        word(w, &v);
        memcpy((char *)&s->engine + i, &v, sizeof v);
    }
    size(w, &s->queued), size(w, &s->waiting_events), flag(w, &s->paused), flag(w, &s->loading);
    word(w, &s->weight_version);
    text_within(w, s->fingerprint, sizeof s->fingerprint);
    text_within(w, s->weights_digest, sizeof s->weights_digest);
    for (size_t i = 0; i < IV_STEP_BUCKETS; i++) word(w, &s->step_tokens[i]);
}

static void status(wire *w, iv_frame *f) {
    CHOICE(w, f->status, IV_NOT_FINITE);
    text_there(w, &f->text);
}

static void payload(wire *w, iv_frame *f) {
    switch (f->kind) {
    case IV_FRAME_OPEN:
        options(w, &f->options);
        text(w, &f->text), word(w, &f->weight_version), word(w, &f->beat_ms);
        return;
    case IV_FRAME_SUBMIT:
        word(w, &f->id), flag(w, &f->flag);
        request(w, &f->request, f->stop);
        return;
    case IV_FRAME_CANCEL: word(w, &f->id); return;
    case IV_FRAME_HOLD: word(w, &f->id), flag(w, &f->flag); return;
    case IV_FRAME_COMMAND:
        word(w, &f->id);
        CHOICE(w, f->command, IV_COMMAND_KINDS - 1);
        text(w, &f->text);
        return;
    case IV_FRAME_PROGRESS: word(w, &f->done), word(w, &f->total); return;
    case IV_FRAME_READY:
        info(w, &f->info);
        request(w, &f->request, f->stop);
        stats(w, &f->stats);
        return;
    case IV_FRAME_IDENTITY: word(w, &f->weight_version), text_there(w, &f->text); return;
    case IV_FRAME_EVENT:
        word(w, &f->id);
        event(w, &f->event);
        details(w, &f->details);
        return;
    case IV_FRAME_REFUSED: word(w, &f->id), status(w, f); return;
    case IV_FRAME_RESULT: word(w, &f->id), status(w, f), word(w, &f->weight_version); return;
    case IV_FRAME_STATS: stats(w, &f->stats), word(w, &f->done); return;
    case IV_FRAME_ALIVE: word(w, &f->done); return;
    case IV_FRAME_FAILED:
    case IV_FRAME_LOST: status(w, f); return;
    case IV_FRAME_KINDS: break;
    }
    w->bad = true;
}

/* ---- records ------------------------------------------------------------------------------------------ */

typedef struct header {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t bytes;
} header;
_Static_assert(sizeof(header) == IV_FRAME_HEADER_BYTES, "no padding");

bool iv_frame_encode(const iv_frame *f, iv_buf *out) {
    iv_frame copy = *f;
    size_t start = out->len;
    header h = {.magic = IV_FRAME_MAGIC, .version = IV_FRAME_VERSION, .kind = (uint16_t)f->kind};
    wire w = {.out = out, .bad = !iv_buf_append(out, &h, sizeof h)};
    payload(&w, &copy);
    h.bytes = w.bad ? 0 : out->len - start - sizeof h;
    if (w.bad || h.bytes > IV_FRAME_BYTES_MAX) {
        out->len = start;
        return false;
    }
    memcpy(out->data + start, &h, sizeof h);
    return true;
}

iv_status iv_frame_decode(const char *bytes, size_t n, iv_frame *f, size_t *used, iv_error *err) {
    header h;
    *used = 0;
    if (n < sizeof h) return IV_OK;
    memcpy(&h, bytes, sizeof h);
    if (h.magic != IV_FRAME_MAGIC || h.version != IV_FRAME_VERSION)
        return iv_fail(err, IV_FORMAT, "engine record: wanted magic %08x version %d, found %08x version %d",
                       (unsigned)IV_FRAME_MAGIC, IV_FRAME_VERSION, (unsigned)h.magic, h.version);
    if (h.kind == 0 || h.kind >= IV_FRAME_KINDS || h.bytes > IV_FRAME_BYTES_MAX || h.bytes % 8)
        return iv_fail(err, IV_FORMAT, "engine record: wanted kind 1 to %d of at most %d bytes, found %d of %llu",
                       IV_FRAME_KINDS - 1, IV_FRAME_BYTES_MAX, h.kind, (unsigned long long)h.bytes);
    if (n - sizeof h < h.bytes) return IV_OK;
    *f = (iv_frame){.kind = (iv_frame_kind)h.kind};
    wire w = {.at = bytes + sizeof h, .left = (size_t)h.bytes};
    payload(&w, f);
    if (w.bad || w.left)
        return iv_fail(err, IV_FORMAT, "engine record: kind %d of %llu bytes: damaged %zu bytes before its end", h.kind,
                       (unsigned long long)h.bytes, w.left);
    *used = sizeof h + (size_t)h.bytes;
    return IV_OK;
}

/* ---- buffers at a socket ------------------------------------------------------------------------------ */

/* Makes room behind `end`: moves the bytes to the front, then grows. */
static bool make_space(iv_frame_reader *r) {
    if (r->begin == r->end) r->begin = r->end = 0;
    if (r->capacity - r->end >= RECEIVE_BYTES) return true;
    if (r->begin >= RECEIVE_BYTES || r->begin > r->capacity / 2) {
        memmove(r->data, r->data + r->begin, r->end - r->begin); /* begin is a multiple of 8, so it stays aligned */
        r->end -= r->begin, r->begin = 0;
    }
    if (r->capacity - r->end >= RECEIVE_BYTES) return true;
    size_t wanted = iv_size_max(2 * r->capacity, r->end + 2 * RECEIVE_BYTES);
    char *data = realloc(r->data, wanted);
    if (!data) return false;
    r->data = data, r->capacity = wanted;
    return true;
}

iv_frame_io iv_frame_receive(iv_frame_reader *r, int fd) {
    if (r->begin == r->end && r->capacity > KEEP_BYTES) iv_frame_reader_free(r);
    if (!make_space(r)) return IV_FRAME_IO_END;
    ssize_t n;
    do n = recv(fd, r->data + r->end, r->capacity - r->end, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return IV_FRAME_IO_NONE;
    if (n <= 0) return IV_FRAME_IO_END;
    r->end += (size_t)n;
    return IV_FRAME_IO_MORE;
}

iv_status iv_frame_next(iv_frame_reader *r, iv_frame *f, bool *got, const char **raw, size_t *raw_bytes,
                        iv_error *err) {
    size_t used;
    *got = false;
    IV_TRY(iv_frame_decode(r->data + r->begin, r->end - r->begin, f, &used, err));
    if (used && raw) *raw = r->data + r->begin + IV_FRAME_HEADER_BYTES, *raw_bytes = used - IV_FRAME_HEADER_BYTES;
    r->begin += used;
    *got = used > 0;
    return IV_OK;
}

void iv_frame_reader_free(iv_frame_reader *r) {
    free(r->data);
    *r = (iv_frame_reader){0};
}

/* A peer that reads slowly may never have read everything. */
static void drop_sent(iv_frame_writer *w) {
    if (w->sent < KEEP_BYTES) return;
    memmove(w->buf.data, w->buf.data + w->sent, iv_frame_unsent(w));
    w->buf.len -= w->sent, w->sent = 0;
}

bool iv_frame_send(iv_frame_writer *w, int fd) {
    while (iv_frame_unsent(w)) {
        ssize_t n = send(fd, w->buf.data + w->sent, iv_frame_unsent(w), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (n < 0) {
            drop_sent(w);
            return true;
        }
        w->sent += (size_t)n;
    }
    w->sent = 0;
    if (w->buf.cap > KEEP_BYTES)
        iv_buf_free(&w->buf);
    else
        iv_buf_clear(&w->buf);
    return true;
}

void iv_frame_writer_free(iv_frame_writer *w) {
    iv_buf_free(&w->buf);
    *w = (iv_frame_writer){0};
}
