/* invariance.c: the cost of the law: whole steps of a model under each numerics, same weights, kernels and cache.
 *
 *     bench_invariance MODEL_DIRECTORY [--threads T] [--rounds R]     a Markdown table on stdout
 *
 * The numerics alternate within a round, some tens of milliseconds each. The table shows the median over rounds of the
 * ratio to invar's time in the same round, so that slow phases of the machine affect all equally. If OpenBLAS is
 * installed, vanilla-blas is included. */
#include "measure.h"

#include "baseline/ops.h"
#include "kv/pages.h"
#include "model/cpu/cpu_model.h"
#include "model/widen.h"

enum { PROMPT = 512, SEQUENCES_MAX = 32, CONTEXT = 128, ROUNDS_MAX = 1000 };

static const double turn_seconds = 0.03;

typedef struct bench {
    iv_pool *pool;
    iv_model *model;
    iv_cpu_model *state;
    iv_baseline *baselines[IV_NUMERICS_COUNT]; /* NULL: invar, or not available */
    const iv_kernels *law;
    iv_kv_pool kv;
    iv_kv_table tables[SEQUENCES_MAX];
    int32_t ids[PROMPT];
    float *logits;
    iv_error err;
} bench;

typedef struct work { /* one step: `sequences` of them, each `rows` tokens from `position` on */
    const char *name;
    size_t sequences, rows;
    int64_t position;
} work;

static void need(iv_status status, const bench *b) {
    if (status == IV_OK) return;
    fprintf(stderr, "bench_invariance: %s\n", b->err.message);
    exit(1);
}

static void open_bench(bench *b, const char *dir, size_t threads) {
    iv_model_options o = {.positions = PROMPT};
    need(iv_pool_open(threads, &b->pool, &b->err), b);
    need(iv_model_open(dir, &o, b->pool, &b->model, &b->err), b);
    need(iv_cpu_model_open(b->model, iv_kernels_select(iv_isa_detect()), IV_FMA32, b->pool, PROMPT, &b->state, &b->err),
         b);
    b->law = b->state->compute.kernels;
    need(iv_baseline_open(IV_BIO, b->law, threads, &b->baselines[IV_BIO], &b->err), b);
    need(iv_baseline_open(IV_VANILLA, b->law, threads, &b->baselines[IV_VANILLA], &b->err), b);
    if (iv_baseline_open(IV_VANILLA_BLAS, b->law, threads, &b->baselines[IV_VANILLA_BLAS], &b->err) != IV_OK)
        fprintf(stderr, "without vanilla-blas: %s\n", b->err.message);
    else
        need(iv_model_widen(b->model, b->baselines[IV_VANILLA_BLAS], b->pool, &b->err), b);
    size_t pages = (PROMPT + SEQUENCES_MAX * (CONTEXT + 64)) / 64;
    need(iv_kv_pool_open(&b->kv, b->model->kv_layout, (size_t)b->model->config.layers, pages, &b->err), b);
    for (size_t i = 0; i < SEQUENCES_MAX; i++) {
        need(iv_kv_table_open(&b->tables[i], &b->kv, PROMPT, &b->err), b);
        need(iv_kv_table_grow(&b->tables[i], &b->kv, i ? CONTEXT : PROMPT, &b->err), b);
    }
    size_t vocab = (size_t)b->model->config.vocab_size;
    for (size_t i = 0; i < PROMPT; i++) b->ids[i] = (int32_t)((i * 2654435761u) % vocab);
    b->logits = calloc(SEQUENCES_MAX * vocab, sizeof *b->logits);
    if (!b->logits) exit(1);
}

static void close_bench(bench *b) {
    for (size_t i = 0; i < SEQUENCES_MAX; i++) iv_kv_table_close(&b->tables[i], &b->kv);
    iv_kv_pool_close(&b->kv);
    iv_cpu_model_close(b->state);
    for (int n = 0; n < IV_NUMERICS_COUNT; n++) iv_baseline_close(b->baselines[n]);
    iv_model_close(b->model);
    iv_pool_close(b->pool);
    free(b->logits);
}

static double steps(bench *b, const work *w, iv_numerics numerics, size_t count) {
    iv_attention_span spans[SEQUENCES_MAX];
    uint32_t last[SEQUENCES_MAX];
    for (size_t i = 0; i < w->sequences; i++) {
        spans[i] = (iv_attention_span){i * w->rows, w->rows, w->position, b->tables[i].pages};
        last[i] = (uint32_t)((i + 1) * w->rows - 1);
    }
    iv_batch batch = {.ids = b->ids,
                      .tokens = w->sequences * w->rows,
                      .spans = spans,
                      .span_count = w->sequences,
                      .kv = b->kv.data,
                      .kv_layer_bytes = iv_kv_plane_bytes(&b->kv),
                      .logit_rows = last,
                      .logit_count = w->sequences,
                      .logits = b->logits};
    b->state->compute.kernels = numerics == IV_INVAR ? b->law : iv_baseline_kernels(b->baselines[numerics]);
    double begin = iv_bench_seconds();
    for (size_t i = 0; i < count; i++) need(iv_cpu_model_forward(b->state, &batch, &b->err), b);
    return iv_bench_seconds() - begin;
}

static void measure(bench *b, const work *w, size_t rounds) {
    static double rate[IV_NUMERICS_COUNT][ROUNDS_MAX], ratio[IV_NUMERICS_COUNT][ROUNDS_MAX];
    double once = steps(b, w, IV_INVAR, 2) / 2;
    size_t count = once >= turn_seconds ? 1 : (size_t)(turn_seconds / once) + 1;
    int kinds = b->baselines[IV_VANILLA_BLAS] ? IV_NUMERICS_COUNT : IV_VANILLA_BLAS;
    for (int n = IV_BIO; n < kinds; n++) steps(b, w, (iv_numerics)n, 1);
    for (size_t r = 0; r < rounds; r++) {
        double law = 0;
        for (int i = 0; i < kinds; i++) { /* forwards and backwards alternately, to vary the predecessors */
            int n = r % 2 ? kinds - 1 - i : i;
            rate[n][r] = steps(b, w, (iv_numerics)n, count);
            if (n == IV_INVAR) law = rate[n][r];
        }
        for (int n = 0; n < kinds; n++) {
            ratio[n][r] = law / rate[n][r] - 1;
            rate[n][r] = (double)(w->sequences * w->rows * count) / rate[n][r];
        }
    }
    for (int n = 0; n < kinds; n++) {
        printf("| %s | %s | %.1f | ", w->name, iv_numerics_name((iv_numerics)n), iv_bench_median(rate[n], rounds));
        if (n == IV_INVAR)
            printf("|\n");
        else
            printf("%+.1f %% |\n", 100 * iv_bench_median(ratio[n], rounds));
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: bench_invariance MODEL_DIRECTORY [--threads T] [--rounds R]\n");
        return 2;
    }
    size_t threads = (size_t)iv_bench_argument(argc, argv, "--threads", 1, 1, IV_BENCH_THREADS_MAX);
    size_t rounds = (size_t)iv_bench_argument(argc, argv, "--rounds", 15, 1, ROUNDS_MAX);
    static const work works[] = {{"decode, 1 sequence", 1, 1, CONTEXT - 1},
                                 {"decode, 8 sequences", 8, 1, CONTEXT - 1},
                                 {"decode, 32 sequences", 32, 1, CONTEXT - 1},
                                 {"prefill, 64 tokens", 1, 64, 0},
                                 {"prefill, 512 tokens", 1, PROMPT, 0}};
    static bench b;
    open_bench(&b, argv[1], threads);
    printf("| step | numerics | tokens/s | invar takes longer by |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) measure(&b, &works[i], rounds);
    close_bench(&b);
    return 0;
}
