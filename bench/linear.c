/* linear.c: one linear layer through every tile kernel, compared with the machine's ceiling in the same seconds.
 *
 *     bench_linear [--threads T] [--rows M]     a Markdown table on stdout
 *
 * With many rows the ceiling is the FMA (or vdpbf16ps) loop of peak_<isa>.c; with few it is a plain read of the
 * same number of bytes. Ceiling and kernel alternate, and the ratio is the median of the pairs' ratios, so that slow
 * phases of the machine affect both. Weights cycle through more memory than the caches hold. */
#include "bandwidth.h"
#include "measure.h"
#include "peak.h"

#include "base/size.h"
#include "device/memory.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/linear.h"
#include "numerics/floats.h"

enum { MEMORY_BYTES = 512 * 1024 * 1024, FEW_ROWS = 16 };

typedef struct subject {
    const char *name;
    iv_arithmetic arithmetic;
    const iv_tile_kernel *tile;
    iv_bench_peak *peak;
    const char *needs;
} subject;

static const subject subjects[] = {
    {"fma32 avx2", IV_FMA32, &iv_tile_bf16_fma32_avx2, iv_bench_peak_avx2, "avx2"},
    {"fma32 avx512", IV_FMA32, &iv_tile_bf16_fma32_avx512, iv_bench_peak_avx512, "avx512f"},
    {"fma32 avx512bf16", IV_FMA32, &iv_tile_bf16_fma32_avx512bf16, iv_bench_peak_avx512bf16, "avx512bf16"},
    {"tc16 avx2", IV_TC16, &iv_tile_bf16_tc16_avx2, iv_bench_peak_avx2, "avx2"},
    {"tc16 avx512", IV_TC16, &iv_tile_bf16_tc16_avx512, iv_bench_peak_avx512, "avx512f"}};

static bool here(const char *needs) {
    if (strcmp(needs, "avx512bf16") == 0) return __builtin_cpu_supports("avx512bf16");
    return iv_isa_detect() >= (strcmp(needs, "avx512f") == 0 ? IV_ISA_AVX512 : IV_ISA_AVX2);
}

static uint64_t state = 1;
static uint16_t random_bf16(float scale) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return iv_bf16_from_f32((float)((double)(state >> 11) * 0x1p-52 - 1.0) * scale);
}

typedef struct bench {
    iv_compute c;
    iv_matrix m;
    size_t rows, copies;
    unsigned char *weights;
    uint16_t *x;
    float *out;
} bench;

static void open_bench(bench *b, const subject *s, iv_kernels *table, size_t threads, size_t rows, size_t n, size_t k) {
    iv_error err;
    table->tiles.of[s->arithmetic][IV_BF16][IV_BF16] = s->tile;
    *b = (bench){.c = {.kernels = table, .arithmetic = s->arithmetic}, .rows = rows};
    if (iv_pool_open(threads, &b->c.pool, &err) != IV_OK || !iv_matrix_shape(&b->m, IV_BF16, n, k)) abort();
    size_t bytes = iv_matrix_bytes(&b->m);
    b->copies = rows > FEW_ROWS ? 1 : iv_size_max(1, MEMORY_BYTES / bytes);
    b->weights = iv_memory_alloc(b->copies * bytes);
    b->x = aligned_alloc(64, rows * k * 2);
    b->out = aligned_alloc(64, rows * n * sizeof(float));
    iv_linear_scratch(rows, k, &b->c.scratch_bytes);
    b->c.scratch = iv_memory_alloc(b->c.scratch_bytes);
    if (!b->weights || !b->x || !b->out || !b->c.scratch) abort();
    for (size_t i = 0; i < rows * k; i++) b->x[i] = random_bf16(1.0f);
    for (size_t i = 0; i < bytes / 2; i++) ((uint16_t *)(void *)b->weights)[i] = random_bf16(0.05f);
    for (size_t i = 1; i < b->copies; i++) memcpy(b->weights + i * bytes, b->weights, bytes);
}

static void close_bench(bench *b) {
    iv_pool_close(b->c.pool);
    iv_memory_free(b->weights, b->copies * iv_matrix_bytes(&b->m));
    iv_memory_free(b->c.scratch, b->c.scratch_bytes);
    free(b->x), free(b->out);
}

/* Seconds of one pass over all copies. */
static double one_pass(bench *b) {
    double begin = iv_bench_seconds();
    for (size_t i = 0; i < b->copies; i++) {
        b->m.data = b->weights + i * iv_matrix_bytes(&b->m);
        iv_linear(&b->c, &(iv_linear_args){.weight = &b->m,
                                           .type = IV_BF16,
                                           .x = b->x,
                                           .x_stride = b->m.k,
                                           .rows = b->rows,
                                           .out = b->out,
                                           .out_stride = b->m.n});
    }
    return iv_bench_seconds() - begin;
}

typedef struct ceiling {
    iv_bench_peak *peak; /* or a read of bytes when NULL */
    long rounds;
    const unsigned char *data;
    size_t bytes;
    double done[IV_BENCH_THREADS_MAX];
    uint64_t sum[IV_BENCH_THREADS_MAX]; /* of the words read, so that no load is optimized away */
} ceiling;

static void ceiling_work(void *context, int thread, int threads) {
    ceiling *l = context;
    if (l->peak)
        l->done[thread] = l->peak(l->rounds);
    else {
        size_t part = l->bytes / (size_t)threads / 4096 * 4096;
        l->done[thread] = (double)part;
        iv_bench_read *read = iv_isa_detect() >= IV_ISA_AVX512 ? iv_bench_read_avx512 : iv_bench_read_avx2;
        l->sum[thread] = read(l->data + (size_t)thread * part, part);
    }
}

static double ceiling_rate(ceiling *l, int threads) {
    double seconds = iv_bench_together(ceiling_work, l, threads), done = 0;
    for (int i = 0; i < threads; i++) done += l->done[i];
    return done / seconds;
}

static void measure(const subject *s, size_t threads, size_t rows, size_t n, size_t k) {
    iv_kernels table = *iv_kernels_select(iv_isa_detect());
    bench b;
    double rate[IV_BENCH_REPEATS], ratio[IV_BENCH_REPEATS];
    bool few = rows <= FEW_ROWS && s->arithmetic == IV_FMA32;
    open_bench(&b, s, &table, threads, rows, n, k);
    ceiling l = {
        .peak = few ? NULL : s->peak, .rounds = 1000000, .data = b.weights, .bytes = b.copies * iv_matrix_bytes(&b.m)};
    double work = few ? (double)l.bytes : 2.0 * (double)rows * (double)n * (double)k * (double)b.copies;
    one_pass(&b);
    for (int i = 0; i < IV_BENCH_REPEATS; i++) {
        double before = ceiling_rate(&l, (int)threads);
        rate[i] = work / one_pass(&b);
        double after = ceiling_rate(&l, (int)threads);
        ratio[i] = rate[i] / ((before + after) / 2);
    }
    printf("| %s | %zu | %zu | %zux%zu | %.1f %s | %.0f %% of %s |\n", s->name, threads, rows, n, k,
           iv_bench_median(rate, IV_BENCH_REPEATS) / 1e9, few ? "GB/s" : "GFLOP/s",
           100 * iv_bench_median(ratio, IV_BENCH_REPEATS), few ? "read bandwidth" : "the FMA loop");
    fflush(stdout);
    close_bench(&b);
}

int main(int argc, char **argv) {
    size_t threads = (size_t)iv_bench_argument(argc, argv, "--threads", 1, 1, IV_BENCH_THREADS_MAX);
    size_t only = (size_t)iv_bench_argument(argc, argv, "--rows", 0, 0, 4096);
    static const size_t rows[] = {1, 4, 16, 512}, shapes[][2] = {{4096, 1024}, {1024, 3072}};
    printf("| kernel | threads | rows | shape | rate | ratio |\n|---|---|---|---|---|---|\n");
    for (size_t s = 0; s < sizeof subjects / sizeof *subjects; s++)
        for (size_t r = 0; here(subjects[s].needs) && r < sizeof rows / sizeof *rows; r++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                if (only ? rows[r] != only : subjects[s].arithmetic == IV_TC16 && rows[r] > FEW_ROWS) continue;
                measure(&subjects[s], threads, rows[r], shapes[i][0], shapes[i][1]);
            }
    return 0;
}
