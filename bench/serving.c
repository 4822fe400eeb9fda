/* bench_serving MODEL: the time of a step with many sequences by phase, and the gain of drafts. Prompts are arithmetic
 * questions and beginnings of short stories; every number is from one run. Rates use CPU time. */
#include "invar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct load {
    size_t sequences, max_tokens;
    float temperature;
    int32_t top_k;
    float top_p;
    const char *speculative;
    bool chat;
} load;

/* CPU time is less sensitive to other load. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const iv_error *err) {
    fprintf(stderr, "bench_serving: %s\n", err->message);
    exit(1);
}

static void submit(iv_engine *e, const load *l, size_t i) {
    char text[200];
    iv_request r;
    iv_error err;
    uint64_t id;
    if (l->chat)
        snprintf(text, sizeof text, "<|im_start|>user\nCompute %zu + %zu.<|im_end|>\n<|im_start|>assistant\n",
                 17 * i + 3, 31 * i + 8);
    else
        snprintf(text, sizeof text, "Once upon a time, there were %zu little friends who", i + 2);
    iv_request_init(e, &r);
    r.text = text, r.text_bytes = strlen(text), r.max_tokens = l->max_tokens, r.ignore_eos = !l->chat;
    r.temperature = l->temperature, r.top_k = l->top_k, r.top_p = l->top_p, r.min_p = 0, r.repetition_penalty = 1;
    r.has_seed = true, r.seed = i;
    if (iv_engine_submit(e, &r, &id, &err) != IV_OK) fail(&err);
}

static void run(const char *model, size_t threads, const load *l) {
    iv_engine_options o;
    iv_engine *e;
    iv_engine_stats s;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = model, o.threads = threads, o.max_num_seqs = 64, o.speculative = l->speculative, o.max_model_len = 256;
    if (iv_engine_open(&o, &e, &err) != IV_OK) fail(&err);
    for (size_t i = 0; i < l->sequences; i++) submit(e, l, i);
    double start = now();
    for (bool busy = true; busy;) {
        if (iv_engine_step(e, &busy, &err) != IV_OK) fail(&err);
        for (iv_event v; iv_engine_next_event(e, &v);) continue;
    }
    double seconds = now() - start;
    iv_engine_get_stats(e, &s);
    printf("%4zu sequences  temperature %.1f  top_k %-3d %-6s %8.0f tokens/s of CPU  %5.2f tokens a step and sequence  "
           "step "
           "%7.0f us  "
           "of it outside the model %5.2f %%  (sampling %5.2f %%)  drafts accepted %3.0f %%\n",
           l->sequences, (double)l->temperature, (int)l->top_k, l->speculative, (double)s.tokens_generated / seconds,
           (double)s.tokens_generated / (double)s.steps / (double)(l->sequences < 64 ? l->sequences : 64),
           1e6 * s.step_seconds / (double)s.steps, 100 * (s.step_seconds - s.forward_seconds) / s.step_seconds,
           100 * s.sample_seconds / s.step_seconds,
           s.drafted_tokens ? 100.0 * (double)s.accepted_tokens / (double)s.drafted_tokens : 0.0);
    iv_engine_close(e);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_serving MODEL [THREADS]\n");
        return 2;
    }
    size_t threads = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    bool chat = strstr(argv[1], "tiny-math") != NULL;
    const load loads[] = {
        {64, 60, 0, 0, 1, "off", chat},   {64, 60, 1, 0, 1, "off", chat},   {64, 60, 0.6f, 20, 0.95f, "off", chat},
        {1, 200, 0, 0, 1, "off", chat},   {1, 200, 0, 0, 1, "ngram", chat}, {1, 200, 1, 0, 1, "off", chat},
        {1, 200, 1, 0, 1, "ngram", chat}, {8, 200, 0, 0, 1, "off", chat},   {8, 200, 0, 0, 1, "ngram", chat},
        {8, 200, 1, 0, 1, "off", chat},   {8, 200, 1, 0, 1, "ngram", chat}};
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) run(argv[1], threads, &loads[i]);
    return 0;
}
