/* mask.c: a matcher with a copy of the answer, so that a job does not read the sequence. */
#include "engine/mask.h"
#include "base/clock.h"
#include "base/size.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    INLINE_EFFORT = 512,   /* about 10 microseconds, inside a step */
    SLICE_EFFORT = 1 << 18 /* about 10 milliseconds */
};

struct iv_mask {
    iv_job job; /* first */
    iv_constraint *constraint;
    iv_matcher matcher;
    int32_t *ids;
    size_t count, capacity;
    uint64_t *bits;
    bool known, may_end; /* known: bits, or status, are valid for `count` tokens */
    iv_status status;
    iv_error error;
    uint64_t answer_effort, effort;  /* left: of the answer, of this mask */
    double slow_since, slow_seconds; /* since: 0 while its job is fast; seconds: of the answer's earlier masks */
    bool pending, closed;
    size_t *pending_count;
    atomic_bool slow;
};

static void free_mask(iv_mask *m) {
    iv_constraint_release(m->constraint);
    free(m->ids), free(m->bits);
    free(m);
}

/* ---- computing ----------------------------------------------------------------------------------------- */

static void finish(iv_mask *m, iv_status status) {
    if (m->slow_since > 0) m->slow_seconds += iv_now() - m->slow_since;
    m->slow_since = 0;
    m->known = true;
    m->status = status;
}

/* False: it takes more effort. */
static bool try(iv_mask *m, uint64_t effort) {
    uint64_t left = effort = effort < m->effort ? effort : m->effort;
    iv_status status = iv_grammar_try_mask(m->constraint->grammar, &m->matcher, m->ids, m->count, &left, m->bits,
                                           &m->may_end, &m->error);
    m->effort -= effort - left, m->answer_effort -= effort - left;
    if (status == IV_BUSY && m->effort > 0) return false;
    if (status == IV_BUSY)
        status = iv_fail(&m->error, IV_LIMIT,
                         "constraint: there are too many ways to go on from token %zu of the answer", m->count);
    finish(m, status);
    return true;
}

bool iv_mask_find(iv_mask *m) { return m->known || try(m, INLINE_EFFORT); }

static bool run(iv_job *job) {
    iv_mask *m = (iv_mask *)job;
    bool found = try(m, SLICE_EFFORT);
    double t = iv_now();
    if (!found && m->slow_since == 0) m->slow_since = t;
    if (!found && m->slow_seconds + (t - m->slow_since) > IV_MASK_SECONDS_MAX) {
        finish(m, iv_fail(&m->error, IV_LIMIT, "constraint: the tokens that may follow were not found within %d s",
                          IV_MASK_SECONDS_MAX));
        found = true;
    }
    if (!found) atomic_store(&m->slow, true);
    iv_constraints_trim(m->constraint->all);
    return found;
}

static void done(iv_job *job, bool ran) {
    iv_mask *m = (iv_mask *)job;
    if (!ran) finish(m, iv_fail(&m->error, IV_LIMIT, "constraint: the engine was closed"));
    m->pending = false;
    if (m->closed) {
        free_mask(m);
        return;
    }
    --*m->pending_count;
}

/* ---- for the owner ------------------------------------------------------------------------------------- */

static void begin(iv_mask *m) {
    m->known = false;
    m->effort = m->answer_effort < IV_GRAMMAR_MASK_EFFORT_MAX ? m->answer_effort : IV_GRAMMAR_MASK_EFFORT_MAX;
}

iv_status iv_mask_open(iv_constraint *constraint, size_t answer_max, size_t vocab_size, iv_mask **out, iv_error *err) {
    iv_mask *m = calloc(1, sizeof *m);
    if (!m) {
        iv_constraint_release(constraint);
        return iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
    }
    *m = (iv_mask){.job = {.run = run, .done = done},
                   .constraint = constraint,
                   .capacity = answer_max,
                   .ids = calloc(answer_max + 1, sizeof *m->ids),
                   .bits = calloc(vocab_size / 64 + 1, sizeof *m->bits),
                   .answer_effort = IV_MASK_ANSWER_EFFORT_MAX};
    if (!m->ids || !m->bits) {
        free_mask(m);
        return iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
    }
    begin(m);
    *out = m;
    return IV_OK;
}

void iv_mask_close(iv_mask *m) {
    if (!m) return;
    m->closed = true;
    if (m->pending)
        --*m->pending_count; /* `done` will free it */
    else
        free_mask(m);
}

const iv_constraint *iv_mask_constraint(const iv_mask *m) { return m->constraint; }

void iv_mask_push(iv_mask *m, int32_t token) {
    IV_ASSERT(!m->pending && m->count < m->capacity);
    m->ids[m->count++] = token;
    begin(m);
}

void iv_mask_send(iv_mask *m, iv_jobs *jobs, size_t *pending) {
    IV_ASSERT(!m->pending && !m->known);
    m->pending = true, m->pending_count = pending;
    ++*pending;
    if (atomic_load(&m->slow)) { /* the answer's earlier masks were slow, and so will be this one */
        m->slow_since = iv_now();
        iv_jobs_submit_background(jobs, &m->job);
    } else {
        iv_jobs_submit(jobs, &m->job);
    }
}

bool iv_mask_is_pending(const iv_mask *m) { return m->pending; }
bool iv_mask_is_slow(const iv_mask *m) { return atomic_load(&m->slow); }

iv_status iv_mask_get(const iv_mask *m, const uint64_t **bits, bool *may_end, iv_error *err) {
    IV_ASSERT(!m->pending && m->known);
    if (m->status != IV_OK) *err = m->error;
    *bits = m->bits, *may_end = m->may_end;
    return m->status;
}
