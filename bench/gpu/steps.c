/* bench_steps MODEL [flags]: steps of the whole engine, one open model for many cases.
 *
 *     --cases LIST     decode:BATCH:CONTEXT   mean milliseconds of a step in which each of BATCH sequences gets a token
 *                                             after CONTEXT others; and the part of it that is planning, sampling on
 *                                             the host and events
 *                      mixed:BATCH:CONTEXT:TOKENS   the same of a step that also reads a prompt of TOKENS
 *                      prefill:TOKENS         milliseconds until a prompt's first token
 *                      score:TOKENS           milliseconds until each token of a prompt has its log-probability and
 *                                             the top tokens
 *                      latency:BATCH:IN:OUT   seconds until BATCH requests are answered; an engine's first such case
 *                                             is preceded by a few untimed tokens
 *                      same:COUNT:IN:OUT      seconds until COUNT requests for the same prompt are answered, with 0.9
 *                                             to 1.1 of OUT tokens, and the number of different answers, over the
 *                                             tokens that all of them have
 *     --numerics LIST  invar, vanilla, bio: an engine for each, in sequence
 *     --lora DIR --loras LIST   decode cases with so many copies of an adapter (make_adapter.py) in turn, 0: the base
 *                      alone; by turns, with fresh requests in each, which have the adapters one after another
 *     --arithmetic LIST   auto, fma32, tc16, i8, i8x2 ...: for each of the numerics an engine for each, by turns
 *     --rounds N       how often, 1 unless given
 *     --tp N, --device D, --weights W, --threads N, --max-num-batched-tokens N, --enforce-eager,
 * --files, --turns N
 *     --json FILE      appends records for figures.py
 *
 * Weights are dummies unless --files is given. A step's time is the engine's wall-clock time over many steps, including
 * planning, sampling and events. Prompts are pseudo-random ids, different for each request; no prefix is cached. */
#include "invar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEQS_MAX = 256 }; /* of `same`: further ones wait */
enum { LORAS_MAX = 8 };
enum { CASES_MAX = 64, TURNS_MAX = 64, NUMERICS_MAX = 4, WARM_STEPS = 8, WINDOW_STEPS = 32 };

typedef enum kind { DECODE, MIXED, PREFILL, SCORE, LATENCY, SAME } kind;

typedef struct one_case {
    kind kind;
    size_t batch, in, out; /* in: context of a decode; out of a mixed step: tokens of the prompt */
} one_case;

typedef struct bench {
    iv_engine_options options;
    const char *numerics[NUMERICS_MAX];
    one_case cases[CASES_MAX];
    const char *arithmetics[NUMERICS_MAX];
    size_t numerics_count, arithmetic_count, case_count, turns, rounds;
    FILE *records;
    iv_engine *engine;
    iv_engine_info info;
    size_t next_prompt;
    bool warm; /* the engine has answered a batch */
    const char *lora;
    size_t loras[LORAS_MAX], lora_count; /* numbers of adapters, and how many of them */
    size_t adapters;                     /* of requests now */
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(iv_status status, const iv_error *err) {
    if (status == IV_OK) return;
    fprintf(stderr, "bench_steps: %s\n", err->message);
    exit(1);
}

static void usage(const char *problem, const char *word) {
    fprintf(stderr, "bench_steps: %s '%s'\nusage: bench_steps MODEL --cases LIST [flags], see bench/gpu/steps.c\n",
            problem, word);
    exit(2);
}

static void *room(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) usage("no memory for", "prompts");
    return p;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_size);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    return (x ^ x >> 27) * 0x94d049bb133111ebu;
}

/* A greedy request for max_tokens after `tokens` ids, with a different prompt for each number; 0: the prompt is scored.
 */
static uint64_t submit_prompt(bench *b, uint64_t prompt, size_t tokens, size_t max_tokens) {
    int32_t *ids = room(tokens, sizeof *ids);
    uint64_t state = 0x9e3779b97f4a7c15u * prompt, id;
    for (size_t i = 0; i < tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % b->info.vocab_size);
    }
    iv_request r;
    iv_error err;
    iv_request_init(b->engine, &r);
    char adapter[32];
    snprintf(adapter, sizeof adapter, "a%zu", b->adapters ? (size_t)prompt % b->adapters : 0);
    if (b->adapters) r.adapter = adapter;
    r.ids = ids, r.id_count = tokens, r.max_tokens = max_tokens;
    r.temperature = 0, r.top_k = 0, r.top_p = 1, r.min_p = 0, r.repetition_penalty = 1, r.ignore_eos = true;
    if (max_tokens == 0) r.score_only = true, r.prompt_logprobs = 1;
    need(iv_engine_submit(b->engine, &r, &id, &err), &err);
    free(ids);
    return id;
}

static uint64_t submit(bench *b, size_t tokens, size_t max_tokens) {
    return submit_prompt(b, ++b->next_prompt, tokens, max_tokens);
}

/* One step; returns its tokens. Stores the digest of request `of` when it ends. */
static size_t step(bench *b, bool *busy, uint64_t of, char digest[96]) {
    iv_error err;
    size_t tokens = 0;
    need(iv_engine_step(b->engine, busy, &err), &err);
    for (iv_event v; iv_engine_next_event(b->engine, &v);) {
        tokens += v.kind == IV_EVENT_TOKEN;
        if (v.kind != IV_EVENT_TOKEN && v.finish == IV_FINISH_ERROR) usage("a request failed:", v.error);
        if (v.kind != IV_EVENT_TOKEN && v.request == of && digest) snprintf(digest, 96, "%s", v.digest);
    }
    return tokens;
}

static void drain(bench *b) {
    for (bool busy = true; busy;) step(b, &busy, 0, NULL);
}

static void record_head(const bench *b, const char *what) {
    fprintf(b->records, "{\"bench\": \"%s\", \"method\": \"%s\", \"model\": \"", what, b->info.numerics);
    const char *name = strrchr(b->options.model, '/');
    for (name = name ? name + 1 : b->options.model; *name; name++)
        if ((unsigned char)*name >= ' ' && *name != '"' && *name != '\\') fputc(*name, b->records);
    fprintf(b->records, "\", \"arithmetic\": \"%s", b->info.arithmetic);
    fprintf(b->records, "\", \"device\": \"%s\", \"gpus\": %zu, ", b->info.device, b->info.tensor_parallel_size);
}

static void report_ms(const bench *b, const one_case *c, double ms, double host_ms) {
    static const char *const names[] = {"decode", "mixed", "prefill", "score"};
    size_t rows = c->kind == DECODE ? c->batch : c->kind == MIXED ? c->batch + c->out : c->in;
    const char *what = names[c->kind];
    printf(
        "%-8s %-8s batch %4zu  context %6zu  rows %6zu  %10.3f ms  %10.1f tokens/s  %.3f ms of it outside the model\n",
        b->info.numerics, what, c->batch, c->in, rows, ms, 1e3 * (double)rows / ms, host_ms);
    if (!b->records) return;
    record_head(b, "model");
    fprintf(b->records, "\"what\": \"%s\", \"batch\": %zu, \"rows\": %zu, \"context\": %zu, \"ms\": %.4f}\n", what,
            c->batch, c->kind == DECODE ? 1 : rows, c->in, ms);
}

/* Milliseconds per step since `before` outside the model. */
static double host_ms(const bench *b, const iv_engine_stats *before) {
    iv_engine_stats s;
    iv_engine_get_stats(b->engine, &s);
    double seconds = s.step_seconds - before->step_seconds - (s.forward_seconds - before->forward_seconds);
    return 1e3 * seconds / (double)(s.steps - before->steps);
}

/* Tokens that a sequence has after its prompt by the middle of the measured steps, including those of the steps that
 * read the other prompts. */
static size_t grown(const bench *b, const one_case *c) {
    return c->batch * c->in / b->options.max_num_batched_tokens / 2 + WARM_STEPS + b->turns * WINDOW_STEPS / 2;
}

/* A step of a batch that decodes and a prompt that is read whole; a step without one lies between two. */
static double mixed_ms(bench *b, const one_case *c) {
    bool busy;
    double start = now();
    submit(b, c->out, 1);
    size_t tokens = step(b, &busy, 0, NULL);
    double ms = 1e3 * (now() - start);
    if (tokens != c->batch + 1) usage("more than one step in", "mixed (more --max-num-batched-tokens?)");
    step(b, &busy, 0, NULL);
    return ms;
}

static double decode_ms(bench *b, const one_case *c) {
    bool busy;
    double start = now();
    size_t tokens = 0;
    for (int i = 0; i < WINDOW_STEPS; i++) tokens += step(b, &busy, 0, NULL);
    if (tokens != c->batch * WINDOW_STEPS) usage("the batch did not stay whole in", "decode (more memory?)");
    return 1e3 * (now() - start) / WINDOW_STEPS;
}

/* All prompts are read first; then only decoding is timed, a window of steps at a time. */
static void run_decode(bench *b, const one_case *c) {
    size_t reading = c->batch * c->in / b->options.max_num_batched_tokens + c->batch + 2, tokens;
    size_t most = reading + WARM_STEPS + b->turns * WINDOW_STEPS + 2;
    size_t prompt = c->in > grown(b, c) ? c->in - grown(b, c) : 1, room_left = b->options.max_model_len - prompt;
    iv_engine_stats before;
    uint64_t *ids = room(c->batch, sizeof *ids);
    double taken[TURNS_MAX];
    bool busy;
    iv_error err;
    if (most > room_left) most = room_left;
    for (size_t i = 0; i < c->batch; i++) ids[i] = submit(b, prompt, most);
    do tokens = step(b, &busy, 0, NULL);
    while (busy && tokens < c->batch);
    for (int i = 0; i < WARM_STEPS; i++) step(b, &busy, 0, NULL);
    iv_engine_get_stats(b->engine, &before);
    for (size_t turn = 0; turn < b->turns; turn++) taken[turn] = c->kind == MIXED ? mixed_ms(b, c) : decode_ms(b, c);
    double outside = host_ms(b, &before);
    for (size_t i = 0; i < c->batch; i++)
        if (iv_engine_cancel(b->engine, ids[i], &err) != IV_OK) continue;
    drain(b);
    free(ids);
    report_ms(b, c, median(taken, b->turns), outside);
}

/* A window of steps of a fresh batch. */
static double fresh_decode_ms(bench *b, const one_case *c, size_t tokens_before) {
    uint64_t *ids = room(c->batch, sizeof *ids);
    size_t tokens;
    iv_error err;
    bool busy;
    for (size_t i = 0; i < c->batch; i++) ids[i] = submit(b, c->in, tokens_before + WARM_STEPS + WINDOW_STEPS + 2);
    do tokens = step(b, &busy, 0, NULL);
    while (busy && tokens < c->batch);
    for (int i = 0; i < WARM_STEPS; i++) step(b, &busy, 0, NULL);
    double ms = decode_ms(b, c);
    for (size_t i = 0; i < c->batch; i++)
        if (iv_engine_cancel(b->engine, ids[i], &err) != IV_OK) continue;
    drain(b);
    free(ids);
    return ms;
}

/* Numbers of adapters by turns. */
static void run_adapted(bench *b, const one_case *c) {
    size_t reading = c->batch * c->in / b->options.max_num_batched_tokens + c->batch + 2;
    double taken[LORAS_MAX][TURNS_MAX], first = 0;
    for (size_t turn = 0; turn < b->turns; turn++)
        for (size_t i = 0; i < b->lora_count; i++) {
            b->adapters = b->loras[i];
            taken[i][turn] = fresh_decode_ms(b, c, reading);
        }
    b->adapters = 0;
    for (size_t i = 0; i < b->lora_count; i++) {
        double ms = median(taken[i], b->turns);
        if (i == 0) first = ms;
        printf("%-8s decode   batch %4zu  context %6zu  adapters %3zu  %10.3f ms  %.3f of the first\n",
               b->info.numerics, c->batch, c->in, b->loras[i], ms, ms / first);
        if (!b->records) continue;
        record_head(b, "adapters");
        fprintf(b->records, "\"batch\": %zu, \"context\": %zu, \"adapters\": %zu, \"ms\": %.4f}\n", c->batch, c->in,
                b->loras[i], ms);
    }
}

static void load_adapters(bench *b) {
    char name[32];
    iv_error err;
    for (size_t i = 0; i < b->options.max_loras; i++) {
        snprintf(name, sizeof name, "a%zu", i);
        need(iv_engine_load_adapter(b->engine, name, b->lora, &err), &err);
    }
}

/* Until the prompt's first token, or until the end of a scored prompt (c->out is 0). */
static void run_prefill(bench *b, const one_case *c) {
    double taken[TURNS_MAX];
    iv_engine_stats before;
    iv_engine_get_stats(b->engine, &before);
    for (size_t turn = 0; turn <= b->turns; turn++) { /* the first is warm-up */
        bool busy = true;
        double start = now();
        submit(b, c->in, c->out);
        while (busy && step(b, &busy, 0, NULL) == 0) continue;
        if (turn) taken[turn - 1] = 1e3 * (now() - start);
        if (busy) drain(b);
    }
    report_ms(b, c, median(taken, b->turns), host_ms(b, &before));
}

/* Once per engine: the extra cost of the first batch (graph capture, module loading) is not latency. */
static void warm_up(bench *b, const one_case *c) {
    if (b->warm) return;
    for (size_t i = 0; i < c->batch; i++) submit(b, c->in < 128 ? c->in : 128, c->out < 4 ? c->out : 4);
    drain(b);
    b->warm = true;
}

static void run_latency(bench *b, const one_case *c) {
    char digest[96] = "";
    warm_up(b, c);
    double start = now();
    b->next_prompt = 0; /* the same requests in any order of cases, so that digests can be compared */
    uint64_t first = submit(b, c->in, c->out);
    for (size_t i = 1; i < c->batch; i++) submit(b, c->in, c->out);
    for (bool busy = true; busy;) step(b, &busy, first, digest);
    double seconds = now() - start;
    printf("%-8s latency  batch %4zu  reads %6zu  writes %6zu  %8.3f s  %s\n", b->info.numerics, c->batch, c->in,
           c->out, seconds, digest);
    if (!b->records) return;
    record_head(b, "latency");
    fprintf(b->records, "\"batch\": %zu, \"input\": %zu, \"output\": %zu, \"seconds\": %.4f, \"digest\": \"%s\"}\n",
            c->batch, c->in, c->out, seconds, digest);
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* All at once; the scheduler mixes them in steps. */
static void run_same(bench *b, const one_case *c) {
    uint64_t *said = room(c->batch, sizeof *said), first = 0;
    size_t common = c->out - c->out / 10, different = 0;
    double start = now();
    for (size_t i = 0; i < c->batch; i++) {
        uint64_t id = submit_prompt(b, 1, c->in, common + mixed(i + 1) % (2 * (c->out / 10) + 1));
        if (i == 0) first = id;
        if (id != first + i) usage("wanted ids in a row, request", "ids");
    }
    for (bool busy = true; busy;) {
        iv_error err;
        need(iv_engine_step(b->engine, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(b->engine, &v);)
            if (v.kind == IV_EVENT_TOKEN && v.position < c->in + common)
                said[v.request - first] = mixed(said[v.request - first] + (uint64_t)v.token + 1);
    }
    double seconds = now() - start;
    qsort(said, c->batch, sizeof *said, by_value);
    for (size_t i = 0; i < c->batch; i++) different += i == 0 || said[i] != said[i - 1];
    printf("%-8s same     count %4zu  reads %6zu  writes %6zu  %8.3f s  %zu different answers\n", b->info.numerics,
           c->batch, c->in, c->out, seconds, different);
    free(said);
    if (!b->records) return;
    record_head(b, "same");
    fprintf(b->records, "\"count\": %zu, \"input\": %zu, \"output\": %zu, \"seconds\": %.4f, \"unique\": %zu}\n",
            c->batch, c->in, c->out, seconds, different);
}

/* The longest sequence and the largest batch of all cases. */
static void size_engine(bench *b) {
    size_t longest = 0, batch = 1;
    for (size_t i = 0; i < b->case_count; i++) {
        const one_case *c = &b->cases[i];
        size_t reading = c->batch * c->in / b->options.max_num_batched_tokens + c->batch + 2;
        size_t more = c->kind <= MIXED ? reading + WARM_STEPS + b->turns * WINDOW_STEPS + 2 : c->out;
        if (c->kind == MIXED && c->out + 1 > longest) longest = c->out + 1;
        if (c->kind == SAME) more = c->out + c->out / 10;
        if (c->in + more > longest) longest = c->in + more;
        size_t together = c->kind == SAME && c->batch > SEQS_MAX ? SEQS_MAX : c->batch;
        together += c->kind == MIXED;
        if (together > batch) batch = together;
    }
    b->options.max_model_len = longest, b->options.max_num_seqs = batch;
}

static void run_engine(bench *b, const char *numerics, const char *arithmetic) {
    iv_error err;
    b->options.numerics = numerics, b->options.arithmetic = arithmetic;
    need(iv_engine_open(&b->options, &b->engine, &err), &err);
    iv_engine_get_info(b->engine, &b->info);
    b->warm = false;
    printf("# %s, %s, %s, %s %s, %zu rank%s, loaded in %.1f s\n", b->options.model, b->info.numerics,
           b->info.arithmetic, b->info.device, b->info.gpu, b->info.tensor_parallel_size,
           b->info.tensor_parallel_size == 1 ? "" : "s", b->info.load_seconds);
    load_adapters(b);
    for (size_t i = 0; i < b->case_count; i++) {
        const one_case *c = &b->cases[i];
        static void (*const run[])(bench *, const one_case *) = {run_decode,  run_decode,  run_prefill,
                                                                 run_prefill, run_latency, run_same};
        b->lora_count && c->kind == DECODE ? run_adapted(b, c) : run[c->kind](b, c);
        fflush(stdout); /* an interrupted run keeps its records */
        if (b->records) fflush(b->records);
    }
    iv_engine_close(b->engine);
}

static size_t count_of(const char *word) {
    char *end;
    unsigned long n = strtoul(word, &end, 10);
    if (*end || n == 0 || n > 1u << 24) usage("wanted a number, found", word);
    return (size_t)n;
}

static void parse_cases(bench *b, char *list) {
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        one_case c = {.batch = 1};
        char end;
        if (b->case_count == CASES_MAX) usage("too many cases at", at);
        if (sscanf(at, "decode:%zu:%zu%c", &c.batch, &c.in, &end) == 2)
            c.kind = DECODE;
        else if (sscanf(at, "mixed:%zu:%zu:%zu%c", &c.batch, &c.in, &c.out, &end) == 3)
            c.kind = MIXED;
        else if (sscanf(at, "prefill:%zu%c", &c.in, &end) == 1)
            c.kind = PREFILL, c.out = 1;
        else if (sscanf(at, "score:%zu%c", &c.in, &end) == 1)
            c.kind = SCORE;
        else if (sscanf(at, "latency:%zu:%zu:%zu%c", &c.batch, &c.in, &c.out, &end) == 3)
            c.kind = LATENCY;
        else if (sscanf(at, "same:%zu:%zu:%zu%c", &c.batch, &c.in, &c.out, &end) == 3)
            c.kind = SAME;
        else
            usage("wanted a case, found", at);
        if ((c.kind > SCORE || c.kind == MIXED) && !c.out) usage("wanted tokens to write, found", at);
        if (!c.batch || !c.in || c.batch > 4096 || c.in > 1u << 24 || c.out > 1u << 24) usage("too large:", at);
        b->cases[b->case_count++] = c;
    }
}

static void parse_numerics(bench *b, char *list) {
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        if (b->numerics_count == NUMERICS_MAX) usage("too many numerics at", at);
        b->numerics[b->numerics_count++] = at;
    }
}

static void parse_arithmetics(bench *b, char *list) {
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        if (b->arithmetic_count == NUMERICS_MAX) usage("too many arithmetics at", at);
        b->arithmetics[b->arithmetic_count++] = at;
    }
}

static void parse_loras(bench *b, char *list) {
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        if (b->lora_count == LORAS_MAX) usage("too many numbers of adapters at", at);
        size_t n = strcmp(at, "0") == 0 ? 0 : count_of(at);
        b->loras[b->lora_count++] = n;
        if (n > b->options.max_loras) b->options.max_loras = n;
    }
}

static void parse_flag(bench *b, const char *flag, char *value) {
    iv_engine_options *o = &b->options;
    if (strcmp(flag, "--cases") == 0)
        parse_cases(b, value);
    else if (strcmp(flag, "--numerics") == 0)
        parse_numerics(b, value);
    else if (strcmp(flag, "--lora") == 0)
        b->lora = value;
    else if (strcmp(flag, "--loras") == 0)
        parse_loras(b, value);
    else if (strcmp(flag, "--tp") == 0)
        o->tensor_parallel_size = count_of(value);
    else if (strcmp(flag, "--device") == 0)
        o->device = value;
    else if (strcmp(flag, "--arithmetic") == 0)
        parse_arithmetics(b, value);
    else if (strcmp(flag, "--rounds") == 0)
        b->rounds = count_of(value);
    else if (strcmp(flag, "--weights") == 0)
        o->weights = value;
    else if (strcmp(flag, "--threads") == 0)
        o->threads = count_of(value);
    else if (strcmp(flag, "--max-num-batched-tokens") == 0)
        o->max_num_batched_tokens = count_of(value);
    else if (strcmp(flag, "--turns") == 0)
        b->turns = count_of(value);
    else if (strcmp(flag, "--json") == 0)
        b->records = fopen(value, "a");
    else
        usage("no flag", flag);
    if (b->turns > TURNS_MAX) usage("too many turns:", value);
    if (strcmp(flag, "--json") == 0 && !b->records) usage("cannot write", value);
}

int main(int argc, char **argv) {
    static bench b = {.turns = 5, .rounds = 1};
    iv_engine_options_init(&b.options);
    b.options.load_format = "dummy", b.options.device = "auto", b.options.arithmetic = "auto";
    b.options.prefix_caching = false, b.options.max_num_batched_tokens = 8192;
    if (argc < 2) usage("wanted a model, found", "nothing");
    b.options.model = argv[1];
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--files") == 0)
            b.options.load_format = "auto";
        else if (strcmp(argv[i], "--enforce-eager") == 0)
            b.options.enforce_eager = true;
        else if (i + 1 < argc)
            parse_flag(&b, argv[i], argv[i + 1]), i++;
        else
            usage("wanted a value for", argv[i]);
    }
    if (!b.case_count) usage("wanted", "--cases");
    if (b.options.max_loras && !b.lora) usage("wanted", "--lora");
    if (!b.arithmetic_count) b.arithmetics[b.arithmetic_count++] = "auto";
    if (!b.numerics_count) b.numerics[b.numerics_count++] = "invar";
    if (strcmp(b.options.device, "cpu") != 0) b.options.kv_fraction = 0.9; /* no other process uses the GPU */
    size_engine(&b);
    for (size_t round = 0; round < b.rounds; round++)
        for (size_t i = 0; i < b.numerics_count; i++)
            for (size_t k = 0; k < b.arithmetic_count; k++) run_engine(&b, b.numerics[i], b.arithmetics[k]);
    if (b.records && fclose(b.records) != 0) usage("cannot write", "the records");
    return 0;
}
