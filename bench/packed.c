/* packed.c: the linear layers of Qwen3-0.6B with packed weights, and as int8 products, compared with bfloat16 ones in
 * the same seconds.
 *
 *     bench_packed [--threads T] [--rows M] [--isa avx2|avx512] [--only NAME]     a Markdown table on stdout
 *         --processor 1    the program's processor time instead of the clock's, for machines that are not quiet
 *
 * A pass is the four matrices of a layer, repeated over more memory than the caches hold. Passes of both kinds
 * alternate, and the ratio is the median of the pairs' ratios. Codes are random, scales near 1 / 64. */
#include "measure.h"

#include "base/size.h"
#include "device/memory.h"
#include "kernels/int8.h"
#include "kernels/linear.h"
#include "kernels/packed_panel.h"
#include "numerics/floats.h"

enum { LAYERS = 28, MATRICES = 4 };

static const size_t shapes[MATRICES][2] = {{4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}};

typedef struct subject {
    const char *name;
    iv_code_form form;
    int terms; /* of int8 products; 0: widened to floats */
} subject;

#define FORM(f, kind_, second_, inner_, type, group_, outer_)                                                \
    {                                                                                                        \
        .format = f, .kind = kind_, .second = second_, .inner = inner_, .scale_type = type, .group = group_, \
        .outer = outer_                                                                                      \
    }
static const subject subjects[] = {
    {"i8", {0}, 1},
    {"i8x2", {0}, 2},
    {"FP8, blocks of 128", FORM(IV_WEIGHT_FP8, IV_CODES_E4M3, IV_SECOND_NONE, IV_INNER_NONE, IV_F32, 128, 128), 0},
    {"INT8, a scale a row",
     FORM(IV_WEIGHT_INT8, IV_CODES_INT8, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 1 << 20, 1 << 20), 0},
    {"Q8_0", FORM(IV_WEIGHT_Q8_0, IV_CODES_INT8, IV_SECOND_NONE, IV_INNER_NONE, IV_F16, 32, 32), 0},
    {"INT4, groups of 128", FORM(IV_WEIGHT_PACK4, IV_CODES_INT4, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 128, 128), 0},
    {"INT4, zero points", FORM(IV_WEIGHT_PACK4, IV_CODES_INT4, IV_SECOND_ZERO, IV_INNER_NONE, IV_BF16, 128, 128), 0},
    {"Q4_0", FORM(IV_WEIGHT_Q4_0, IV_CODES_INT4, IV_SECOND_NONE, IV_INNER_NONE, IV_F16, 32, 32), 0},
    {"MXFP4", FORM(IV_WEIGHT_MXFP4, IV_CODES_E2M1, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 32, 32), 0},
    {"NVFP4", FORM(IV_WEIGHT_NVFP4, IV_CODES_E2M1, IV_SECOND_NONE, IV_INNER_E4M3_DIVIDED, IV_F32, 16, 1 << 20), 0},
    {"Q4_K", FORM(IV_WEIGHT_Q4_K, IV_CODES_UINT4, IV_SECOND_MIN, IV_INNER_UINT8, IV_F16, 32, 256), 0},
    {"Q5_K", FORM(IV_WEIGHT_Q5_K, IV_CODES_UINT5, IV_SECOND_MIN, IV_INNER_UINT8, IV_F16, 32, 256), 0},
    {"Q6_K", FORM(IV_WEIGHT_Q6_K, IV_CODES_INT6, IV_SECOND_NONE, IV_INNER_INT8, IV_F16, 16, 256), 0},
};

typedef struct weights {
    iv_matrix m[MATRICES];
    size_t at[MATRICES], layer_bytes;
    unsigned char *data;
} weights;

static uint64_t state = 1;
static uint32_t random_word(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void fill_packed(iv_matrix *m) {
    iv_row_codes o;
    if (!iv_row_codes_alloc(&m->codes, 1, m->k, &o)) abort();
    const iv_packed_rows_in in = {.rows = o, .form = &m->codes, .columns = m->k};
    for (size_t n = 0; n < m->n; n++) {
        for (size_t i = 0; i < m->k; i++)
            o.codes[i] = (uint8_t)(random_word() & (iv_code_bits(m->codes.kind) == 8 ? 0x7e : 15));
        for (size_t g = 0; g < iv_code_groups(&m->codes, m->k); g++) {
            float x =
                m->codes.inner ? (float)(16 + (random_word() & 15)) : 0x1p-6f + (float)(random_word() & 127) * 0x1p-14f;
            o.scales[g] = x, o.seconds[g] = m->codes.second == IV_SECOND_ZERO ? 3 : x;
        }
        for (size_t g = 0; g < iv_code_outers(&m->codes, m->k); g++) o.outer_scales[g] = o.outer_seconds[g] = 0x1p-10f;
        iv_packed_panel_put(m, &in, n, 1);
    }
    iv_row_codes_free(&o);
}

static void fill_int8(iv_matrix *m) {
    uint8_t *codes = malloc(m->k);
    float scale = 0x1p-12f;
    if (!codes) abort();
    for (size_t n = 0; n < m->n; n++) {
        for (size_t i = 0; i < m->k; i++) codes[i] = (uint8_t)random_word();
        iv_int8_put_codes(m, codes, &scale, m->k, 0, n, 1);
    }
    free(codes);
}

static void open_weights(weights *w, const subject *s) {
    w->layer_bytes = 0;
    for (int i = 0; i < MATRICES; i++) {
        iv_matrix *m = &w->m[i];
        if (!iv_matrix_shape(m, IV_BF16, shapes[i][0], shapes[i][1])) abort();
        iv_code_form form = s ? s->form : (iv_code_form){0};
        if (s && form.group > m->k) form.group = m->k;
        if (s && form.outer > m->k) form.outer = m->k;
        if (s && !(s->terms ? iv_int8_shape(m, s->terms) : iv_packed_panel_shape(m, &form))) abort();
        w->at[i] = w->layer_bytes, w->layer_bytes += iv_matrix_bytes(m);
    }
    w->data = iv_memory_alloc(LAYERS * w->layer_bytes);
    if (!w->data) abort();
    for (int i = 0; i < MATRICES; i++) {
        iv_matrix *m = &w->m[i];
        m->data = w->data + w->at[i];
        if (s && s->terms)
            fill_int8(m);
        else if (s)
            fill_packed(m);
        else
            for (size_t k = 0; k < iv_matrix_bytes(m) / 2; k++)
                ((uint16_t *)(void *)m->data)[k] = (uint16_t)(0x3c00 | (random_word() & 0x80ff));
    }
    for (size_t l = 1; l < LAYERS; l++) memcpy(w->data + l * w->layer_bytes, w->data, w->layer_bytes);
}

static bool processor_time;

static double seconds(void) {
    struct timespec now;
    if (!processor_time) return iv_bench_seconds();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double one_pass(weights *w, iv_compute *c, const uint16_t *x, size_t rows, float *out) {
    double begin = seconds();
    for (size_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < MATRICES; i++) {
            w->m[i].data = w->data + l * w->layer_bytes + w->at[i];
            iv_linear(c, &(iv_linear_args){.weight = &w->m[i],
                                           .type = IV_BF16,
                                           .x = x,
                                           .x_stride = shapes[i][1],
                                           .rows = rows,
                                           .out = out,
                                           .out_stride = shapes[i][0]});
        }
    return seconds() - begin;
}

int main(int argc, char **argv) {
    size_t threads = (size_t)iv_bench_argument(argc, argv, "--threads", 1, 1, IV_BENCH_THREADS_MAX);
    size_t rows = (size_t)iv_bench_argument(argc, argv, "--rows", 1, 1, 512), most_k = 3072, most_n = 6144;
    iv_isa isa = iv_isa_detect();
    const char *only = NULL;
    iv_error err;
    processor_time = iv_bench_argument(argc, argv, "--processor", 0, 0, 1);
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--isa") == 0 && iv_isa_parse(argv[i + 1], &isa, &err) != IV_OK) return 2;
    iv_compute c = {.kernels = iv_kernels_select(isa), .arithmetic = IV_FMA32};
    iv_linear_scratch(rows, most_k, &c.scratch_bytes);
    c.scratch = iv_memory_alloc(c.scratch_bytes);
    c.widened_bytes = most_k * IV_PANEL_COLUMNS * sizeof(uint16_t);
    c.widened = iv_memory_alloc(c.widened_bytes * threads);
    uint16_t *x = malloc(rows * most_k * sizeof *x);
    float *out = malloc(rows * most_n * sizeof *out);
    if (!c.scratch || !c.widened || !x || !out || iv_pool_open(threads, &c.pool, &err) != IV_OK) abort();
    for (size_t i = 0; i < rows * most_k; i++) x[i] = (uint16_t)(0x3f00 | (random_word() & 0x80ff));
    weights plain, packed;
    open_weights(&plain, NULL);
    printf("| weights | %s, threads | rows | bytes of bfloat16's | ms of bfloat16 | ms | speed of bfloat16's |\n",
           iv_isa_name(c.kernels->isa));
    printf("|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        double ms[IV_BENCH_REPEATS], plain_ms[IV_BENCH_REPEATS], ratio[IV_BENCH_REPEATS];
        if (only && strcmp(only, subjects[i].name) != 0) continue;
        open_weights(&packed, &subjects[i]);
        one_pass(&plain, &c, x, rows, out), one_pass(&packed, &c, x, rows, out);
        for (int r = 0; r < IV_BENCH_REPEATS; r++) {
            plain_ms[r] = 1e3 * one_pass(&plain, &c, x, rows, out), ms[r] = 1e3 * one_pass(&packed, &c, x, rows, out);
            ratio[r] = plain_ms[r] / ms[r];
        }
        printf("| %s | %zu | %zu | %.2f | %.1f | %.1f | %.2f |\n", subjects[i].name, threads, rows,
               (double)packed.layer_bytes / (double)plain.layer_bytes, iv_bench_median(plain_ms, IV_BENCH_REPEATS),
               iv_bench_median(ms, IV_BENCH_REPEATS), iv_bench_median(ratio, IV_BENCH_REPEATS));
        fflush(stdout);
        iv_memory_free(packed.data, LAYERS * packed.layer_bytes);
    }
    iv_memory_free(plain.data, LAYERS * plain.layer_bytes);
    iv_memory_free(c.scratch, c.scratch_bytes), iv_memory_free(c.widened, c.widened_bytes * threads);
    iv_pool_close(c.pool);
    free(x), free(out);
    return 0;
}
