/* linear.c: how fast one linear layer runs, by kernel, rows and threads: GFLOP/s, and bytes of weights a second.
 *
 *     build/bench/bench_linear [threads]        a Markdown table on stdout
 *
 * Weights cycle through more memory than the caches hold, as a model's layers do. */
#include "base/size.h"
#include "device/memory.h"
#include "kernels/cpu/tile_common.h"
#include "kernels/linear.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COPIES_BYTES = 768 * 1024 * 1024, REPEATS = 5 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static uint64_t state = 1;
static float uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 11) * 0x1p-52 - 1.0);
}

typedef struct subject {
    const char *name;
    iv_arithmetic arithmetic;
    const iv_tile_kernel *tile;
    iv_dtype type;
} subject;

static void measure(const subject *s, size_t threads, size_t rows, size_t n, size_t k) {
    iv_error err;
    iv_kernels table = *iv_kernels_select(iv_isa_detect());
    iv_compute c = {.kernels = &table, .arithmetic = s->arithmetic};
    iv_matrix m;
    table.tile[s->arithmetic][s->type][s->type] = s->tile;
    if (iv_pool_open(threads, &c.pool, &err) != IV_OK || !iv_matrix_shape(&m, s->type, n, k)) exit(1);
    size_t copies = iv_size_max(1, COPIES_BYTES / iv_matrix_bytes(&m)), width = iv_dtype_bytes(s->type);
    if (rows > 64) copies = iv_size_min(copies, 4);
    unsigned char *data = iv_memory_alloc(copies * iv_matrix_bytes(&m));
    uint16_t *x = aligned_alloc(64, rows * k * width);
    float *out = aligned_alloc(64, rows * n * sizeof *out);
    iv_linear_scratch(rows, k, &c.scratch_bytes);
    c.scratch = aligned_alloc(64, (c.scratch_bytes + 63) / 64 * 64);
    for (size_t i = 0; i < rows * k; i++) x[i] = s->type == IV_BF16 ? iv_bf16_from_f32(uniform()) : iv_f16_from_f32(uniform());
    for (size_t i = 0; i < iv_matrix_bytes(&m) / 2; i++) {
        float v = uniform() * 0.05f;
        ((uint16_t *)(void *)data)[i] = s->type == IV_BF16 ? iv_bf16_from_f32(v) : iv_f16_from_f32(v);
    }
    for (size_t i = 1; i < copies; i++) memcpy(data + i * iv_matrix_bytes(&m), data, iv_matrix_bytes(&m));
    double seconds[REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        double start = now();
        for (size_t i = 0; i < copies; i++) {
            m.data = data + i * iv_matrix_bytes(&m);
            iv_linear(&c, &(iv_linear_args){.weight = &m, .type = s->type, .x = x, .x_stride = k, .rows = rows, .out = out, .out_stride = n});
        }
        if (r >= 0) seconds[r] = (now() - start) / (double)copies;
    }
    qsort(seconds, REPEATS, sizeof *seconds, by_value);
    double t = seconds[REPEATS / 2];
    printf("| %s | %zu | %zu | %zux%zu | %.1f | %.1f | %.1f |\n", s->name, threads, rows, n, k, t * 1e6,
           2.0 * (double)rows * (double)n * (double)k / t / 1e9, (double)iv_matrix_bytes(&m) / t / 1e9);
    fflush(stdout);
    iv_pool_close(c.pool);
    iv_memory_free(data, copies * iv_matrix_bytes(&m));
    free(x), free(out), free(c.scratch);
}

int main(int argc, char **argv) {
    size_t threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    const char *only = argc > 2 ? argv[2] : "";
    const subject subjects[] = {{"fma32 avx2", IV_FMA32, &iv_tile_bf16_fma32_avx2, IV_BF16},
                                {"fma32 avx512", IV_FMA32, &iv_tile_bf16_fma32_avx512, IV_BF16},
                                {"fma32 avx512bf16", IV_FMA32, &iv_tile_bf16_fma32_avx512bf16, IV_BF16},
                                {"tc16 avx2", IV_TC16, &iv_tile_bf16_tc16_avx2, IV_BF16},
                                {"tc16 avx512", IV_TC16, &iv_tile_bf16_tc16_avx512, IV_BF16}};
    static const size_t rows[] = {1, 2, 4, 8, 16, 64, 512}, shapes[][2] = {{4096, 1024}, {1024, 3072}};
    printf("| kernel | threads | rows | shape | us | GFLOP/s | weight GB/s |\n|---|---|---|---|---|---|---|\n");
    for (size_t s = 0; s < sizeof subjects / sizeof *subjects; s++) {
        if (iv_isa_detect() < (strstr(subjects[s].name, "avx512") ? IV_ISA_AVX512 : IV_ISA_AVX2)) continue;
        if (strstr(subjects[s].name, "bf16") && !__builtin_cpu_supports("avx512bf16")) continue;
        if (*only && strcmp(subjects[s].name, only) != 0) continue;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                if (subjects[s].arithmetic == IV_FMA32 || rows[r] <= 16) measure(&subjects[s], threads, rows[r], shapes[i][0], shapes[i][1]);
    }
    return 0;
}
