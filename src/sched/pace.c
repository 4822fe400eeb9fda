/* pace.c: a linear model of a step: a decode step's time, plus a time for each prompt token. */
#include "sched/pace.h"
#include "base/size.h"

/* Weight of the newest step. One slow step (a graph is captured, the host is busy) is soon outweighed. */
static const double newest = 0.2;
/* At least this part of a mixed step belongs to its prompt tokens: the estimate of decoding may be too high. */
static const double prompt_share_min = 0.25;

size_t iv_pace_tokens(const iv_pace *p, size_t budget) {
    if (p->target <= 0.0) return budget;
    size_t tokens = IV_PACE_TOKENS_FIRST;
    if (p->token > 0.0) {
        double fit = (p->target - p->decode) / p->token;
        tokens = fit >= (double)budget ? budget : fit > 0.0 ? (size_t)fit : 0;
        tokens -= tokens % IV_PACE_TOKENS_MIN; /* whole tiles of rows */
    }
    return iv_size_min(iv_size_max(tokens, IV_PACE_TOKENS_MIN), budget);
}

static void blend(double *estimate, double value) {
    *estimate = *estimate > 0.0 ? *estimate + newest * (value - *estimate) : value;
}

void iv_pace_measured(iv_pace *p, size_t prompt_tokens, size_t decode_tokens, double seconds) {
    if (p->target <= 0.0 || !(seconds > 0.0)) return;
    if (prompt_tokens == 0) {
        if (decode_tokens) blend(&p->decode, seconds);
        return;
    }
    /* A few tokens cost a whole pass over the weights, which says little about a chunk. */
    if (prompt_tokens < IV_PACE_TOKENS_MIN) return;
    double rest = seconds - (decode_tokens ? p->decode : 0.0), least = prompt_share_min * seconds;
    blend(&p->token, (rest > least ? rest : least) / (double)prompt_tokens);
}
