/* journal.c: a list in order of arrival, a table by id, and an entry's tokens. */
#include "serve/engine/journal.h"
#include "base/digest.h"
#include "base/size.h"
#include "serve/engine/local_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- list and table ----------------------------------------------------------------------------------- */

static void enter(iv_journal *j, iv_journal_entry *e) {
    iv_journal_entry **bucket = &j->buckets[(e->id = ++j->next_id) % IV_JOURNAL_BUCKETS];
    e->bucket_next = *bucket, *bucket = e;
    e->previous = j->last;
    if (j->last)
        j->last->next = e;
    else
        j->first = e;
    j->last = e;
}

static void free_entry(iv_journal_entry *e) {
    free(e->request);
    iv_ids_free(&e->ids);
    free(e->logprobs);
    iv_buf_free(&e->last);
    free(e);
}

static bool draw_seed(iv_request *r) {
    if (r->has_seed) return true;
    r->has_seed = true;
    if (getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed) return false;
    r->seed &= INT64_MAX; /* as the engine does */
    return true;
}

iv_journal_entry *iv_journal_add_request(iv_journal *j, const iv_request *r, void *owner) {
    iv_journal_entry *e = calloc(1, sizeof *e + 1);
    if (!e || !(e->request = iv_bridge_copy_request(r)) || !draw_seed(e->request)) {
        if (e) free_entry(e);
        return NULL;
    }
    e->owner = owner, e->request->compiled = NULL, e->silent = true;
    e->bytes = r->text_bytes + r->id_count * sizeof *r->ids; /* as copied: no overflow */
    if (r->constraint_text) e->bytes += strlen(r->constraint_text);
    enter(j, e);
    j->requests++, j->silent_bytes += e->bytes;
    return e;
}

iv_journal_entry *iv_journal_add_command(iv_journal *j, iv_command command, const char *text, void *owner) {
    size_t n = text ? strlen(text) : 0;
    iv_journal_entry *e = calloc(1, sizeof *e + n + 1);
    if (!e) return NULL;
    e->owner = owner, e->command = command;
    if (n) memcpy(e->text, text, n);
    enter(j, e);
    j->commands++;
    return e;
}

iv_journal_entry *iv_journal_find(const iv_journal *j, uint64_t id) {
    iv_journal_entry *e = j->buckets[id % IV_JOURNAL_BUCKETS];
    while (e && e->id != id) e = e->bucket_next;
    return e;
}

static void end_silence(iv_journal *j, iv_journal_entry *e) {
    if (!e->silent) return;
    e->silent = false;
    j->silent_bytes -= e->bytes;
}

void iv_journal_remove(iv_journal *j, iv_journal_entry *e) {
    iv_journal_entry **at = &j->buckets[e->id % IV_JOURNAL_BUCKETS];
    while (*at != e) at = &(*at)->bucket_next;
    *at = e->bucket_next;
    if (e->previous)
        e->previous->next = e->next;
    else
        j->first = e->next;
    if (e->next)
        e->next->previous = e->previous;
    else
        j->last = e->previous;
    end_silence(j, e);
    if (e->request)
        j->requests--;
    else
        j->commands--;
    free_entry(e);
}

/* ---- tokens ------------------------------------------------------------------------------------------- */

static bool append(iv_journal_entry *e, const iv_event *v) {
    if (!iv_ids_push(&e->ids, v->token)) return false;
    if (e->ids.capacity > e->logprobs_capacity) {
        float *logprobs = realloc(e->logprobs, e->ids.capacity * sizeof *logprobs);
        if (!logprobs) {
            e->ids.count--;
            return false;
        }
        e->logprobs = logprobs, e->logprobs_capacity = e->ids.capacity;
    }
    e->logprobs[e->ids.count - 1] = v->logprob;
    return true;
}

static iv_status differs(const iv_journal_entry *e, const iv_event *v, iv_error *err) {
    return iv_fail(err, IV_IO,
                   "the restarted engine does not repeat the answer: token %zu was %d with log-probability %a and is "
                   "now %d with %a",
                   e->ids.count - 1, (int)e->ids.data[e->ids.count - 1], (double)e->logprobs[e->ids.count - 1],
                   (int)v->token, (double)v->logprob);
}

iv_status iv_journal_note(iv_journal *j, iv_journal_entry *e, const iv_event *v, const char *raw, size_t raw_bytes,
                          bool *repeated, iv_error *err) {
    size_t want = v->kind == IV_EVENT_PROMPT ? e->prompt_next : e->next_position;
    *repeated = e->repeats;
    if (e->repeats) {
        e->repeats = false;
        if (raw_bytes == e->last.len && memcmp(raw, e->last.data, raw_bytes) == 0) return IV_OK;
        return differs(e, v, err);
    }
    end_silence(j, e);
    e->advanced = true;
    if (want && v->position != want)
        return iv_fail(err, IV_IO, "the engine's events: wanted one of position %zu, found %zu", want, v->position);
    if (v->kind == IV_EVENT_PROMPT) {
        e->prompt_next = v->position + 1;
        return IV_OK;
    }
    e->next_position = v->position + 1;
    iv_buf_clear(&e->last);
    if (append(e, v) && iv_buf_append(&e->last, raw, raw_bytes)) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "no memory for an event of the engine");
}

iv_status iv_journal_check_end(const iv_journal_entry *e, const iv_event *v, iv_error *err) {
    char want[7 + 65] = "sha256:";
    uint8_t raw[32];
    if (!e->continued || v->finish == IV_FINISH_ERROR) return IV_OK;
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "no memory for a digest");
    for (size_t i = 0; i < e->ids.count; i++) {
        uint32_t pair[2] = {(uint32_t)e->ids.data[i], 0};
        uint8_t bytes[8];
        memcpy(&pair[1], &e->logprobs[i], sizeof pair[1]);
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)(pair[k / 4] >> (8 * (k % 4)));
        iv_digest_add(d, bytes, sizeof bytes);
    }
    iv_digest_finish(d, raw);
    iv_digest_hex(raw, want + 7);
    bool same = v->id_count == e->ids.count && (!v->id_count || memcmp(v->ids, e->ids.data, v->id_count * 4) == 0);
    if (same && v->digest && strcmp(want, v->digest) == 0) return IV_OK;
    return iv_fail(err, IV_IO, "the restarted engine does not repeat the answer: its digest was %s and is now %s", want,
                   v->digest ? v->digest : "none");
}

void iv_journal_interrupt(iv_journal_entry *e) {
    e->repeats = e->ids.count > 0;
    e->continued |= e->sent;
    e->sent = e->advanced = false;
}

iv_request iv_journal_request(const iv_journal_entry *e) {
    iv_request r = *e->request;
    if (e->prompt_next) r.prompt_logprobs_start = e->prompt_next;
    if (e->ids.count > 1) r.given_ids = e->ids.data, r.given_logprobs = e->logprobs, r.given_count = e->ids.count - 1;
    return r;
}
