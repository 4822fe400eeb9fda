/* verify_compare.c: rows, log-probabilities, tokens, ends. Invariant: a cell keeps its first difference, whatever comes
 * behind it. */
#include "verify_compare.h"
#include "divergence.h"
#include "text.h"

#include <string.h>

uint64_t verify_row_hash(const float *row, size_t n) {
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- the quiet run ------------------------------------------------------------------------------------- */

int verify_record_token(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err) {
    size_t vocab = (size_t)job->model->vocab_size, at = answer->count;
    if (!event->logits) return cli_fail(err, CLI_FAILED, "the engine gave no logits");
    answer->tokens[at] = event->token;
    answer->logprobs[at] = event->logprob;
    answer->hashes[at] = verify_row_hash(event->logits, vocab);
    if (at < job->kept) memcpy(answer->rows + at * vocab, event->logits, vocab * sizeof *event->logits);
    answer->count++;
    return CLI_OK;
}

int verify_record_end(const verify_job *job, verify_answer *answer, const iv_event *event, iv_error *err) {
    (void)job;
    if (event->finish == IV_FINISH_ERROR)
        return cli_fail(err, CLI_FAILED, "%.800s", event->error ? event->error : "the request ended in an error");
    answer->finish = event->finish;
    snprintf(answer->digest, sizeof answer->digest, "%s", event->digest ? event->digest : "");
    return CLI_OK;
}

/* ---- the others ---------------------------------------------------------------------------------------- */

static void differ(verify_cell *cell, verify_kind kind, size_t position, int32_t token, float want, float found) {
    if (cell->kind != VERIFY_SAME) return;
    cell->kind = kind;
    cell->position = position;
    cell->token = token;
    cell->want = want;
    cell->found = found;
}

static void compare_row(const verify_job *job, const verify_answer *answer, size_t at, const float *row,
                        verify_cell *cell) {
    size_t vocab = (size_t)job->model->vocab_size;
    cell->rows++;
    if (at >= job->kept) {
        if (verify_row_hash(row, vocab) != answer->hashes[at]) differ(cell, VERIFY_LOGITS, at, -1, 0, 0);
        return;
    }
    const float *want = answer->rows + at * vocab;
    size_t first = cli_first_difference(want, row, vocab);
    if (first == vocab) return;
    differ(cell, VERIFY_LOGITS, at, (int32_t)first, want[first], row[first]);
    double most = cli_probability_divergence(want, row, vocab);
    if (most > cell->most) cell->most = most;
    cell->top_sum += cli_top_divergence(want, row, vocab, VERIFY_TOP);
}

bool verify_compare_token(const verify_job *job, const verify_answer *answer, size_t at, const iv_event *event,
                          verify_cell *cell) {
    if (at >= answer->count || !event->logits) {
        differ(cell, VERIFY_END, at, event->token, 0, 0);
        if (at < cell->token_from) cell->token_from = at;
        return false;
    }
    compare_row(job, answer, at, event->logits, cell);
    if (cli_ulp_distance(answer->logprobs[at], event->logprob) != 0 && answer->tokens[at] == event->token)
        differ(cell, VERIFY_LOGPROB, at, event->token, answer->logprobs[at], event->logprob);
    if (answer->tokens[at] == event->token) return true;
    differ(cell, VERIFY_TOKEN, at, event->token, 0, 0);
    if (at < cell->token_from) cell->token_from = at;
    return false;
}

void verify_compare_end(const verify_answer *answer, size_t count, const iv_event *event, verify_cell *cell) {
    const char *digest = event->digest ? event->digest : "";
    if (count != answer->count || event->finish != answer->finish || strcmp(digest, answer->digest) != 0)
        differ(cell, VERIFY_END, count, -1, 0, 0);
    if (count != answer->count && count < cell->token_from) cell->token_from = count;
    if (!cell->ran || strcmp(cell->digest, answer->digest) == 0)
        snprintf(cell->digest, sizeof cell->digest, "%s", digest);
    cell->ran = true;
}

const char *verify_difference(const verify_cell *cell, char out[256]) {
    char want[32], found[32];
    unsigned long long ulps = cli_ulp_distance(cell->want, cell->found);
    snprintf(want, sizeof want, "%.9g", (double)cell->want);
    snprintf(found, sizeof found, "%.9g", (double)cell->found);
    switch (cell->kind) {
    case VERIFY_SAME: out[0] = 0; break;
    case VERIFY_LOGITS:
        if (cell->token < 0)
            snprintf(out, 256, "position %zu: logits differ (known by hash only)", cell->position);
        else
            snprintf(out, 256, "position %zu, token %d: wanted logit %s, found %s, %llu ulp%s apart", cell->position,
                     (int)cell->token, want, found, ulps, ulps == 1 ? "" : "s");
        break;
    case VERIFY_LOGPROB:
        snprintf(out, 256, "position %zu, token %d: wanted log-probability %s, found %s, %llu ulp%s apart",
                 cell->position, (int)cell->token, want, found, ulps, ulps == 1 ? "" : "s");
        break;
    case VERIFY_TOKEN:
        snprintf(out, 256, "position %zu: found token %d from the same logits", cell->position, (int)cell->token);
        break;
    case VERIFY_END: snprintf(out, 256, "position %zu: the answer ends otherwise", cell->position); break;
    }
    return out;
}
