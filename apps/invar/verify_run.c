/* verify_run.c: one configuration: its engine, its schedule of submissions, decoy requests and preemptions, and the
 * comparison of its events with the quiet run's. Invariants: nothing that is compared may depend on a choice made here
 * (if it does, that is the finding); a cell keeps its first difference. */
#include "lora.h"
#include "verify.h"
#include "answer.h"
#include "base/clock.h"
#include "divergence.h"
#include "stats.h"
#include "text.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* Fast, not cryptographic: it detects accidental differences. */
static uint64_t row_hash(const float *row, size_t n) {
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
    if (!event->logits) return cli_fail(err, CLI_FAILED, "the engine returned no logits");
    answer->tokens[at] = event->token;
    answer->logprobs[at] = event->logprob;
    answer->hashes[at] = row_hash(event->logits, vocab);
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
        if (row_hash(row, vocab) != answer->hashes[at]) differ(cell, VERIFY_LOGITS, at, -1, 0, 0);
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
    case VERIFY_END: snprintf(out, 256, "position %zu: the answer ends differently", cell->position); break;
    }
    return out;
}

/* ---- a configuration at work --------------------------------------------------------------------------- */

enum { BLOCK = 64, DECOYS = 2, DECOY_TOKENS_MAX = 40, RANDOM_PREEMPT_IN = 5, ARRIVAL_STEPS = 4, PRIORITIES = 3 };

typedef struct flight {
    uint64_t id;
    size_t prompt; /* SIZE_MAX: a decoy */
    size_t tokens; /* so far */
    bool diverged; /* tokens have differed */
} flight;

typedef enum pass_kind { PASS_RECORD, PASS_COMPARE, PASS_PREFIXES } pass_kind;

/* A configuration while it runs. */
typedef struct runner {
    verify_job *job;
    const verify_config *config;
    verify_result *out;
    iv_engine *engine;
    pass_kind kind;
    flight *flights;
    size_t flying, width, decoys; /* decoys: of those in flight */
    size_t *order, count;         /* prompts in order of submission */
    size_t preempted; /* requested; bounded, because long prompts in small chunks might otherwise never finish */
    uint64_t state;   /* of random choices */
} runner;

static size_t below(runner *r, size_t n) { return (size_t)(cli_random(&r->state) % n); }

static int fail_at(const runner *r, size_t prompt, iv_error *err) {
    iv_error why = *err;
    size_t line = r->job->prompts->items[prompt].line;
    char where[48] = "";
    if (line) snprintf(where, sizeof where, " (line %zu)", line);
    return cli_fail(err, CLI_FAILED, "%s: request %zu%s: %.700s", r->config->name[0] ? r->config->name : "quiet run",
                    prompt, where, why.message);
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static size_t blocks(size_t tokens) { return (tokens + BLOCK - 1) / BLOCK; }

/* Room for all concurrent requests; with a prefix cache, for all prompts; for `preempt memory`, only for the longest.
 * */
static size_t kv_bytes(const verify_job *job, const verify_config *c, size_t seats) {
    size_t one = blocks(job->prompts->longest), pages = one * seats;
    if (c->value[VERIFY_PREFIX]) pages += blocks(job->prompts->prompt_tokens + job->prompts->answer_tokens);
    if (c->value[VERIFY_PREEMPT] == VERIFY_PREEMPT_MEMORY) pages = one;
    size_t ranks = c->value[VERIFY_TP] ? c->value[VERIFY_TP] : 1; /* unsplit heads are held by each rank */
    return pages * BLOCK * (size_t)job->model->kv_bytes_per_token * ranks;
}

static iv_status open_engine(runner *r, iv_error *err) {
    const verify_config *c = r->config;
    verify_job *job = r->job;
    iv_engine_options o = job->options;
    char isa[24];
    size_t longest = job->prompts->longest, seats = r->width + (c->value[VERIFY_SAMPLING] ? DECOYS : 0);
    o.max_model_len = longest > DECOY_TOKENS_MAX ? longest : DECOY_TOKENS_MAX;
    if (o.max_model_len > (size_t)job->model->max_positions) o.max_model_len = (size_t)job->model->max_positions;
    o.max_num_seqs = seats;
    o.max_num_batched_tokens = c->value[VERIFY_CHUNK] ? c->value[VERIFY_CHUNK] : longest > 512 ? longest : 512;
    o.threads = c->value[VERIFY_THREADS] ? c->value[VERIFY_THREADS] : 1;
    o.isa = c->value[VERIFY_ISA] ? verify_value_name(VERIFY_ISA, c->value[VERIFY_ISA], isa) : "auto";
    o.tensor_parallel_size = c->value[VERIFY_TP] ? c->value[VERIFY_TP] : 1;
    o.prefix_caching = c->value[VERIFY_PREFIX] != 0;
    o.speculative = c->value[VERIFY_SPECULATIVE] ? "ngram" : "off";
    o.kv_bytes = kv_bytes(job, c, seats);
    if (c->value[VERIFY_DEVICE]) o.device = c->value[VERIFY_DEVICE] == VERIFY_DEVICE_CPU ? "cpu" : "cuda";
    size_t weights = c->value[VERIFY_WEIGHTS];
    bool expanded = weights ? weights == VERIFY_EXPANDED : o.weights && strcmp(o.weights, "expanded") == 0;
    if (weights || c->value[VERIFY_DEVICE]) o.weights = expanded ? "expanded" : weights ? "packed" : "auto";
    o.enforce_eager = c->value[VERIFY_DEVICE] == VERIFY_DEVICE_EAGER;
    cli_lora_options(job->args, &o);
    iv_status status = iv_engine_open(&o, &r->engine, err);
    if (status == IV_OK && cli_lora_load(job->args, r->engine, err) != CLI_OK) status = err->status;
    return status;
}

/* An unsupported value is not a difference. */
static bool may_refuse(const verify_config *c, iv_status status) {
    return (status == IV_UNSUPPORTED || status == IV_INVALID) &&
           (c->value[VERIFY_ISA] || c->value[VERIFY_TP] || c->value[VERIFY_SPECULATIVE] || c->value[VERIFY_DEVICE]);
}

static void close_engine(runner *r) {
    iv_engine_stats stats;
    if (!r->engine) return;
    iv_engine_get_stats(r->engine, &stats);
    r->out->steps += stats.steps;
    iv_engine_close(r->engine);
    r->engine = NULL;
}

/* ---- submissions --------------------------------------------------------------------------------------- */

static flight *add_flight(runner *r, uint64_t id, size_t prompt) {
    r->flights[r->flying] = (flight){.id = id, .prompt = prompt};
    return &r->flights[r->flying++];
}

/* A prompt's request for the pass; ids must hold the prompt. */
static void shape_request(runner *r, size_t prompt, int32_t *ids, iv_request *out) {
    static const int logprobs[] = {-1, 0, 5, 20};
    const verify_prompt *p = &r->job->prompts->items[prompt];
    size_t vocab = (size_t)r->job->model->vocab_size;
    *out = p->request;
    out->logprobs = logprobs[r->config->value[VERIFY_LOGPROBS]];
    if (out->logprobs > (int)vocab) out->logprobs = (int)vocab;
    if (r->config->value[VERIFY_ORDER] == VERIFY_SHUFFLED) out->priority = (int32_t)below(r, PRIORITIES);
    if (r->kind != PASS_PREFIXES) return;
    /* Two thirds of the prompt, then a different token: a common prefix and no more. */
    size_t common = out->id_count * 2 / 3;
    memcpy(ids, p->ids, common * sizeof *ids);
    ids[common] = (int32_t)(((size_t)p->ids[common] + 1) % vocab);
    out->ids = ids, out->id_count = common + 1;
    out->max_tokens = 1, out->keep_logits = false;
}

/* *taken: whether it was accepted; a full engine is tried again later. */
static int submit(runner *r, size_t prompt, bool *taken, iv_error *err) {
    iv_request request;
    uint64_t id;
    int32_t *ids = r->kind == PASS_PREFIXES ? calloc(r->job->prompts->longest, sizeof *ids) : NULL;
    if (r->kind == PASS_PREFIXES && !ids) return cli_fail(err, CLI_FAILED, "out of memory");
    shape_request(r, prompt, ids, &request);
    iv_status status = iv_engine_submit(r->engine, &request, &id, err);
    free(ids);
    *taken = status == IV_OK;
    if (status == IV_BUSY && r->flying) return CLI_OK;
    if (status != IV_OK) return fail_at(r, prompt, err);
    add_flight(r, id, prompt);
    return CLI_OK;
}

/* A decoy: another request in the batch, with its own parameters. */
static int submit_decoy(runner *r, iv_error *err) {
    int32_t ids[DECOY_TOKENS_MAX / 2];
    size_t vocab = (size_t)r->job->model->vocab_size, n = 1 + below(r, sizeof ids / sizeof *ids);
    if (n + 1 > (size_t)r->job->model->max_positions) n = 1;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)below(r, vocab);
    const iv_logit_bias bias = {.id = ids[0], .bias = iv_engine_draws(r->engine, ids[0]) ? 3.5f : -3.5f};
    iv_request request = {.size = sizeof(iv_request),
                          .ids = ids,
                          .id_count = n,
                          .max_tokens = 1 + below(r, DECOY_TOKENS_MAX / 2),
                          .temperature = 1.7f,
                          .top_p = 0.8f,
                          .top_k = 7,
                          .min_p = 0.01f,
                          .repetition_penalty = 1.3f,
                          .presence_penalty = -1.0f,
                          .frequency_penalty = 0.5f,
                          .logit_bias = &bias,
                          .logit_bias_count = 1,
                          .has_seed = true,
                          .seed = cli_random(&r->state),
                          .logprobs = (int)below(r, 2),
                          .prompt_logprobs = -1,
                          .ignore_eos = true};
    /* At the lowest priority: decoys are always available, and with memory for one request they would otherwise starve
     * the prompts. */
    if (r->config->value[VERIFY_ORDER] == VERIFY_SHUFFLED) request.priority = PRIORITIES - 1;
    uint64_t id;
    iv_status status = iv_engine_submit(r->engine, &request, &id, err);
    if (status == IV_BUSY) return CLI_OK;
    if (status != IV_OK) return CLI_FAILED;
    add_flight(r, id, SIZE_MAX);
    r->decoys++;
    return CLI_OK;
}

/* ---- what happens between steps ------------------------------------------------------------------------ */

/* IV_NOT_FOUND: it is queued, or has just finished. */
static int disturb(runner *r, iv_error *err) {
    if (r->config->value[VERIFY_PREEMPT] == VERIFY_PREEMPT_RANDOM && r->flying && r->preempted < 3 * r->count &&
        (r->preempted == 0 || below(r, RANDOM_PREEMPT_IN) == 0)) { /* at least once, even in a short run */
        iv_status status = iv_engine_preempt(r->engine, r->flights[below(r, r->flying)].id, err);
        if (status != IV_OK && status != IV_NOT_FOUND) return CLI_FAILED;
        r->preempted += status == IV_OK;
    }
    if (r->config->value[VERIFY_SAMPLING] == VERIFY_LEAVING && r->decoys && below(r, 4) == 0)
        for (size_t i = 0; i < r->flying; i++) {
            if (r->flights[i].prompt != SIZE_MAX) continue;
            iv_status status = iv_engine_cancel(r->engine, r->flights[i].id, err);
            return status == IV_OK || status == IV_NOT_FOUND ? CLI_OK : CLI_FAILED;
        }
    return CLI_OK;
}

static int take_token(runner *r, flight *f, const iv_event *event, iv_error *err) {
    size_t at = f->tokens++;
    if (f->prompt == SIZE_MAX || r->kind == PASS_PREFIXES) return CLI_OK;
    verify_answer *answer = &r->job->quiet[f->prompt];
    if (r->kind == PASS_RECORD) return verify_record_token(r->job, answer, event, err);
    if (!f->diverged) f->diverged = !verify_compare_token(r->job, answer, at, event, &r->out->cells[f->prompt]);
    return CLI_OK;
}

static int take_end(runner *r, flight *f, const iv_event *event, iv_error *err) {
    size_t prompt = f->prompt, tokens = f->tokens;
    *f = r->flights[--r->flying];
    if (prompt == SIZE_MAX) {
        r->decoys--;
        return CLI_OK;
    }
    r->out->cached += event->cached_tokens, r->out->preemptions += event->preemptions;
    r->out->drafted += event->drafted_tokens, r->out->accepted += event->accepted_tokens;
    if (r->kind == PASS_PREFIXES) return CLI_OK;
    verify_answer *answer = &r->job->quiet[prompt];
    verify_cell *cell = &r->out->cells[prompt];
    if (r->kind == PASS_RECORD && verify_record_end(r->job, answer, event, err) != CLI_OK)
        return fail_at(r, prompt, err);
    if (event->error) snprintf(r->out->reason, sizeof r->out->reason, "%s", event->error);
    verify_compare_end(answer, tokens, event, cell);
    return CLI_OK;
}

static int take_events(runner *r, iv_error *err) {
    int code = CLI_OK;
    for (iv_event event; code == CLI_OK && iv_engine_next_event(r->engine, &event);) {
        size_t i = 0;
        while (i < r->flying && r->flights[i].id != event.request) i++;
        if (i == r->flying)
            return cli_fail(err, CLI_FAILED, "the engine sent an event of a request that it does not have");
        code = event.kind == IV_EVENT_TOKEN ? take_token(r, &r->flights[i], &event, err)
                                            : take_end(r, &r->flights[i], &event, err);
    }
    return code;
}

/* ---- a pass: some prompts from submission to end ------------------------------------------------------- */

static int one_step(runner *r, iv_error *err) {
    bool busy;
    int signal = cli_interrupt_caught();
    if (signal) return 128 + signal;
    int code = disturb(r, err);
    if (code != CLI_OK) return code;
    if (iv_engine_step(r->engine, &busy, err) != IV_OK) {
        iv_error why = *err;
        return cli_fail(err, CLI_FAILED, "%s: %.800s", r->config->name, why.message);
    }
    iv_engine_stats stats;
    iv_engine_get_stats(r->engine, &stats);
    if (stats.running > r->out->together) r->out->together = stats.running;
    code = take_events(r, err);
    if (code == CLI_OK && !busy && r->flying)
        code = cli_fail(err, CLI_FAILED, "%s: the engine stopped before all requests ended", r->config->name);
    cli_progress_count(r->job->progress, r->job->done, r->job->total,
                       r->config->name[0] ? r->config->name : "quiet run");
    return code;
}

static int run_pass(runner *r, pass_kind kind, const size_t *order, size_t count, iv_error *err) {
    bool spread = r->config->value[VERIFY_ORDER] == VERIFY_SPREAD;
    size_t next = 0, wait = 0;
    int code = CLI_OK;
    r->kind = kind;
    while (code == CLI_OK && (next < count || r->flying > r->decoys)) {
        for (bool taken = true; code == CLI_OK && taken && next < count && r->flying - r->decoys < r->width && !wait;) {
            code = submit(r, order[next], &taken, err);
            if (taken) next++;
            if (spread) wait = below(r, ARRIVAL_STEPS);
        }
        if (wait) wait--;
        while (code == CLI_OK && r->config->value[VERIFY_SAMPLING] && r->decoys < DECOYS) {
            size_t before = r->decoys;
            code = submit_decoy(r, err);
            if (r->decoys == before) break;
        }
        if (code == CLI_OK && r->flying) code = one_step(r, err);
    }
    for (size_t i = 0; code == CLI_OK && i < r->flying; i++) {
        iv_status status = iv_engine_cancel(r->engine, r->flights[i].id, err);
        if (status != IV_OK && status != IV_NOT_FOUND) code = CLI_FAILED;
    }
    while (code == CLI_OK && r->flying) code = one_step(r, err);
    return code;
}

static int run_passes(runner *r, iv_error *err) {
    const verify_config *c = r->config;
    size_t first = c->value[VERIFY_RESTART] ? r->count / 2 : r->count;
    int code = CLI_OK;
    if (c->value[VERIFY_PREFIX] == VERIFY_SHARED) code = run_pass(r, PASS_PREFIXES, r->order, r->count, err);
    if (code == CLI_OK) code = run_pass(r, PASS_COMPARE, r->order, first, err);
    if (code == CLI_OK && first < r->count) {
        close_engine(r);
        if (open_engine(r, err) != IV_OK) return CLI_FAILED;
        code = run_pass(r, PASS_COMPARE, r->order + first, r->count - first, err);
    }
    if (code == CLI_OK && c->value[VERIFY_PREFIX] == VERIFY_WARM)
        code = run_pass(r, PASS_COMPARE, r->order, r->count, err);
    return code;
}

/* ---- a configuration ----------------------------------------------------------------------------------- */

static void choose_order(runner *r) {
    size_t most = r->config->value[VERIFY_ISA] == VERIFY_SCALAR ? r->job->scalar_tokens : 0, used = 0;
    for (size_t i = 0; i < r->job->prompts->count; i++) {
        const iv_request *q = &r->job->prompts->items[i].request;
        if (most && i > 0 && used + q->id_count + q->max_tokens > most) continue;
        used += q->id_count + q->max_tokens;
        r->order[r->count++] = i;
    }
    size_t order = r->config->value[VERIFY_ORDER];
    for (size_t i = r->count; i-- > 1;) {
        size_t j = order == VERIFY_REVERSED ? r->count - 1 - i : order ? below(r, i + 1) : i;
        if (order == VERIFY_REVERSED && j >= i) break;
        size_t swap = r->order[i];
        r->order[i] = r->order[j], r->order[j] = swap;
    }
}

/* Sums over cells, and a digest of digests. */
static int summarize(const verify_job *job, verify_result *out, iv_error *err) {
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    double top = 0;
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    bool good = digest && EVP_DigestInit_ex(digest, EVP_sha256(), NULL);
    out->first = SIZE_MAX;
    for (size_t i = 0; good && i < job->prompts->count; i++) {
        const verify_cell *cell = &out->cells[i];
        if (!cell->ran) continue;
        good = EVP_DigestUpdate(digest, cell->digest, strlen(cell->digest));
        out->ran++, out->rows += cell->rows, top += cell->top_sum;
        if (cell->most > out->most) out->most = cell->most;
        if (cell->kind == VERIFY_SAME) continue;
        if (out->first == SIZE_MAX) out->first = i;
        out->differing++;
    }
    good = good && EVP_DigestFinal_ex(digest, hash, &bytes) && bytes == 32;
    EVP_MD_CTX_free(digest);
    if (!good) return cli_fail(err, CLI_FAILED, "SHA-256: libcrypto failed");
    memcpy(out->digest, "sha256:", 8);
    for (size_t i = 0; i < bytes; i++) snprintf(out->digest + 7 + 2 * i, 3, "%02x", hash[i]);
    if (out->rows) out->top = top / (double)out->rows;
    return CLI_OK;
}

static int open_runner(verify_job *job, const verify_config *config, verify_result *out, runner *r, iv_error *err) {
    size_t prompts = job->prompts->count;
    *out = (verify_result){.first = SIZE_MAX, .cells = calloc(prompts, sizeof *out->cells)};
    *r =
        (runner){.job = job, .config = config, .out = out, .width = verify_config_width(config), .state = config->seed};
    r->flights = calloc(r->width + DECOYS, sizeof *r->flights);
    r->order = calloc(prompts, sizeof *r->order);
    if (!out->cells || !r->flights || !r->order) return cli_fail(err, CLI_FAILED, "out of memory");
    for (size_t i = 0; i < prompts; i++) out->cells[i].token_from = SIZE_MAX;
    choose_order(r);
    return CLI_OK;
}

static void close_runner(runner *r) {
    close_engine(r);
    free(r->flights);
    free(r->order);
}

int verify_run(verify_job *job, const verify_config *config, verify_result *out, iv_error *err) {
    runner r;
    double start = iv_now();
    int code = open_runner(job, config, out, &r, err);
    if (code == CLI_OK) {
        iv_status status = open_engine(&r, err);
        out->skipped = status != IV_OK && may_refuse(config, status);
        if (out->skipped)
            snprintf(out->reason, sizeof out->reason, "%.250s", err->message);
        else
            code = status == IV_OK ? run_passes(&r, err) : CLI_FAILED;
    }
    close_runner(&r);
    if (code == CLI_OK && !out->skipped) code = summarize(job, out, err);
    out->seconds = iv_now() - start;
    return code;
}

/* Allocates the quiet answers; computes how many whole rows fit. */
static int open_quiet(verify_job *job, iv_error *err) {
    size_t row = (size_t)job->model->vocab_size * sizeof(float), longest = 0;
    const verify_prompts *p = job->prompts;
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i].request.max_tokens > longest) longest = p->items[i].request.max_tokens;
    job->kept = VERIFY_KEPT_BYTES / row / p->count;
    if (job->kept > longest) job->kept = longest;
    job->quiet = calloc(p->count, sizeof *job->quiet);
    bool good = job->quiet != NULL;
    for (size_t i = 0; good && i < p->count; i++) {
        size_t n = p->items[i].request.max_tokens, kept = n < job->kept ? n : job->kept;
        verify_answer *a = &job->quiet[i];
        a->tokens = calloc(n, sizeof *a->tokens);
        a->logprobs = calloc(n, sizeof *a->logprobs);
        a->hashes = calloc(n, sizeof *a->hashes);
        a->rows = calloc(kept ? kept : 1, row);
        good = a->tokens && a->logprobs && a->hashes && a->rows;
    }
    return good ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory for the logits of %zu requests", p->count);
}

int verify_run_quiet(verify_job *job, verify_result *out, iv_error *err) {
    static const verify_config quiet = {.name = ""};
    runner r;
    double start = iv_now();
    int code = open_runner(job, &quiet, out, &r, err);
    if (code == CLI_OK) code = open_quiet(job, err);
    if (code == CLI_OK) code = open_engine(&r, err) == IV_OK ? CLI_OK : CLI_FAILED;
    if (code == CLI_OK) {
        iv_engine_info info;
        iv_engine_get_info(r.engine, &info);
        snprintf(job->fingerprint, sizeof job->fingerprint, "%s", info.fingerprint);
        snprintf(job->isa, sizeof job->isa, "%s", info.isa);
        snprintf(job->dtype, sizeof job->dtype, "%s", info.dtype);
        /* The engine's automatic choices are fixed for all configurations. */
        job->options.device = strcmp(info.device, "cuda") == 0 ? "cuda" : "cpu";
        job->options.arithmetic = info.arithmetic; /* a static string */
        code = run_pass(&r, PASS_RECORD, r.order, r.count, err);
    }
    close_runner(&r);
    if (code == CLI_OK) code = summarize(job, out, err);
    out->seconds = iv_now() - start;
    return code;
}

void verify_result_free(verify_result *result) {
    free(result->cells);
    *result = (verify_result){0};
}

void verify_job_free(verify_job *job) {
    for (size_t i = 0; job->quiet && i < job->prompts->count; i++) {
        verify_answer *a = &job->quiet[i];
        free(a->tokens), free(a->logprobs), free(a->rows), free(a->hashes);
    }
    free(job->quiet);
    job->quiet = NULL;
}
