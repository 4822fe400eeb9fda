/* gather.c: the completions of all processes in each of them, as bytes: each completion's numbers, ids,
 * log-probabilities and text. */
#include "base/size.h"
#include "comm/agree.h"
#include "train/rollout/state.h"

#include <string.h>

typedef struct header {
    uint64_t seed, count, text_bytes, finish;
} header;

static bool put(iv_buf *to, const void *bytes, size_t n) { return n == 0 || iv_buf_append(to, bytes, n); }

static iv_status write_all(const iv_rollout *r, iv_buf *to, iv_error *err) {
    bool ok = true;
    for (size_t i = 0; ok && i < r->prompts * r->group; i++) {
        const iv_rollout_collected *c = &r->at[i];
        header h = {c->seed, c->ids.count, c->text.len, (uint64_t)c->finish};
        ok = put(to, &h, sizeof h) && put(to, c->ids.data, c->ids.count * sizeof(int32_t)) &&
             put(to, c->logprobs.data, c->logprobs.len) &&
             put(to, c->sampling_logprobs.data, c->sampling_logprobs.len) && put(to, c->text.data, c->text.len);
    }
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "rollout: no memory to send %zu prompts", r->prompts);
}

/* Bytes of another process, as far as they were read. */
typedef struct reading {
    const char *at;
    size_t left;
} reading;

static bool take(reading *r, void *to, size_t n) {
    if (n > r->left) return false;
    if (n) memcpy(to, r->at, n);
    r->at += n, r->left -= n;
    return true;
}

static bool take_buf(reading *r, iv_buf *to, size_t n) {
    if (n > r->left || (n && !iv_buf_append(to, r->at, n))) return false;
    r->at += n, r->left -= n;
    return true;
}

static bool read_one(reading *r, iv_rollout_collected *c) {
    header h;
    size_t bytes;
    if (!take(r, &h, sizeof h) || !iv_size_mul(h.count, sizeof(float), &bytes) || bytes > r->left) return false;
    c->seed = h.seed, c->finish = (iv_finish)h.finish, c->done = true;
    for (size_t i = 0; i < h.count; i++) {
        int32_t id;
        if (!take(r, &id, sizeof id) || !iv_ids_push(&c->ids, id)) return false;
    }
    if (!take_buf(r, &c->logprobs, bytes) || !take_buf(r, &c->sampling_logprobs, bytes) ||
        !take_buf(r, &c->text, h.text_bytes) || !iv_buf_reserve(&c->text, 1))
        return false;
    c->text.data[c->text.len] = 0;
    return true;
}

static bool read_all(reading *r, size_t completions, iv_rollout_collected *at) {
    for (size_t i = 0; i < completions; i++)
        if (!read_one(r, &at[i])) return false;
    return r->left == 0;
}

typedef struct part {
    uint64_t prompts, bytes;
} part;

static iv_status gather(iv_comm *comm, const iv_rollout *mine, size_t group, iv_buf *bytes, iv_rollout **out,
                        iv_error *err) {
    part own = {mine ? mine->prompts : 0, 0}, parts[IV_RANKS_MAX];
    size_t sizes[IV_RANKS_MAX], prompts = 0, at = 0;
    const void *blocks[IV_RANKS_MAX];
    if (mine) IV_TRY(write_all(mine, bytes, err));
    own.bytes = bytes->len;
    IV_TRY(iv_comm_gather_copies(comm, &own, sizeof own, parts, err));
    for (size_t p = 0; p < comm->size; p++) sizes[p] = parts[p].bytes, prompts += parts[p].prompts;
    IV_TRY(iv_rollout_new(prompts, group, out, err));
    IV_TRY(iv_comm_all_gather(comm, bytes->data, sizes, blocks, err));
    for (size_t p = 0; p < comm->size; at += parts[p++].prompts) {
        reading r = {blocks[p], sizes[p]};
        if (parts[p].prompts && !read_all(&r, parts[p].prompts * group, (*out)->at + at * group))
            return iv_fail(err, IV_NO_MEMORY, "rollout: the completions of process %zu cannot be read", p);
    }
    return IV_OK;
}

iv_status iv_rollout_gather(iv_comm *comm, const iv_rollout *mine, size_t group, iv_rollout **out, iv_error *err) {
    iv_buf bytes = {0};
    *out = NULL;
    iv_status status = iv_comm_agree(comm, gather(comm, mine, group, &bytes, out, err), err);
    iv_buf_free(&bytes); /* all have read it */
    if (status != IV_OK) iv_rollout_close(*out), *out = NULL;
    return status;
}
