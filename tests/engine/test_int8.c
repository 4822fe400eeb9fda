/* The arithmetics i8 and i8x2 through whole engines: every family, ranks and instruction sets with one set of bits,
 * distances from floats, memory, the names, a file's int8 codes, and what is refused. */
#include "client.h"
#include "kernels/kernels.h"
#include "model/tensor_data.h"

#include <dirent.h>
#include <math.h>

enum { IDS = 24, NAMES_MAX = 128 };

static iv_engine_options options_for(const char *model, const char *arithmetic) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = model, o.arithmetic = arithmetic, o.threads = 2, o.max_model_len = 64;
    return o;
}

/* All logits of a prompt; NULL where the model has no such number of ranks. */
static float *logits_of(const iv_engine_options *o, size_t *vocab) {
    int32_t ids[IDS];
    iv_engine *e = NULL;
    iv_engine_info info;
    iv_error err;
    iv_status status = iv_engine_open(o, &e, &err);
    if (status == IV_UNSUPPORTED && o->tensor_parallel_size > 1) return NULL;
    ASSERT_OK(status, &err);
    iv_engine_get_info(e, &info);
    *vocab = info.vocab_size;
    for (size_t i = 0; i < IDS; i++) ids[i] = (int32_t)((7 * i + 3) % info.vocab_size);
    float *out = malloc(IDS * info.vocab_size * sizeof *out);
    ASSERT_OK(iv_engine_logits(e, ids, IDS, out, &err), &err);
    iv_engine_close(e);
    return out;
}

static double distance(const float *got, const float *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) d += pow((double)got[i] - (double)want[i], 2), w += pow((double)want[i], 2);
    return sqrt(d / w);
}

static char *joined(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

static size_t models_in(const char *folder, char **dirs) {
    char *path = joined(INVAR_SOURCE_DIR, folder);
    DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.') continue;
        assert_true(n < NAMES_MAX);
        dirs[n++] = joined(path, entry->d_name);
    }
    closedir(d), free(path);
    return n;
}

/* Of one model: ranks and plain C have the bits of one rank with the best kernels. Returns the ranks tried. */
static size_t check_model(const char *dir, const char *arithmetic, const float *floats, double *apart) {
    size_t vocab, tried = 0;
    iv_engine_options o = options_for(dir, arithmetic);
    float *want = logits_of(&o, &vocab), *got;
    *apart = distance(want, floats, IDS * vocab);
    assert_true(isfinite(*apart) && *apart > 0);
    for (size_t ranks = 1; ranks <= 8; ranks += ranks < 3 ? 1 : 5) {
        o = options_for(dir, arithmetic);
        o.tensor_parallel_size = ranks, o.isa = ranks == 1 ? "scalar" : ranks == 2 ? "avx2" : "auto";
        o.max_num_batched_tokens = ranks == 1 ? 7 : 0; /* in chunks */
        if (ranks == 2 && iv_isa_detect() < IV_ISA_AVX2) o.isa = "auto";
        if (!(got = logits_of(&o, &vocab))) continue;
        assert_same_bits(dir, want, got, IDS * vocab, sizeof *want, false);
        free(got), tried += ranks > 1;
    }
    free(want);
    return tried;
}

static void every_family(void **state) {
    (void)state;
    char *dirs[2 * NAMES_MAX];
    size_t count = models_in("tests/data/families", dirs), ranked = 0, step = SANITIZED ? 5 : 1;
    count += models_in("tests/data/hf", dirs + count);
    for (size_t i = 0; i < count; free(dirs[i++])) {
        size_t vocab;
        double one, two;
        if (i % step) continue;
        iv_engine_options o = options_for(dirs[i], "fma32");
        float *floats = logits_of(&o, &vocab);
        ranked += check_model(dirs[i], "i8", floats, &one);
        ranked += check_model(dirs[i], "i8x2+tc16", floats, &two);
        printf("%s: %.3g from floats with one term, %.3g with two\n", strrchr(dirs[i], '/') + 1, one, two);
        assert_true(one < 0.5 && two < 0.5);
        free(floats);
    }
    assert_true(ranked >= count / step);
}

/* ---- names and memory --------------------------------------------------------------------------------------- */

static void names_and_memory(void **state) {
    (void)state;
    static const char *const names[][2] = {{"i8", "i8+fma32"},       {"i8x2", "i8x2+fma32"},     {"i8+tc16", "i8+tc16"},
                                           {"i8+fma32", "i8+fma32"}, {"i8x2+tc16", "i8x2+tc16"}, {"auto", "fma32"}};
    size_t bytes[6];
    char seen[6][100];
    for (size_t i = 0; i < 6; i++) {
        iv_engine_options o = small_options();
        o.arithmetic = names[i][0];
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        char head[60];
        iv_engine_get_info(e, &info);
        assert_string_equal(info.arithmetic, names[i][1]);
        snprintf(head, sizeof head, "iv3-%s-bfloat16-", names[i][1]);
        assert_int_equal(strncmp(info.fingerprint, head, strlen(head)), 0);
        snprintf(seen[i], sizeof seen[i], "%s", info.fingerprint + strlen(head));
        bytes[i] = info.weight_bytes;
        for (size_t k = 0; k < i; k++)
            assert_int_equal(strcmp(seen[i], seen[k]) == 0, strcmp(names[i][1], names[k][1]) == 0);
        iv_engine_close(e);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[0] < bytes[5] * 6 / 10); /* the embedding stays */
}

/* ---- a file's codes ----------------------------------------------------------------------------------------- */

/* A tensor that is read back is code * scale, rounded: the file's own only if both are. */
static void codes_of_a_file(void **state) {
    (void)state;
    char dir[4200];
    iv_model *m, *plain;
    iv_pool *pool;
    iv_error err;
    size_t compared = 0;
    snprintf(dir, sizeof dir, "%s", source_path("tests/data/packed_models/llama_w8a8_int8_a"));
    ASSERT_OK(iv_pool_open(1, &pool, &err), &err);
    iv_model_options o = {.positions = 64, .terms = 1, .ranks = 3, .rank_count = 3};
    ASSERT_OK(iv_model_open(dir, &o, pool, &m, &err), &err);
    o = (iv_model_options){.positions = 64};
    ASSERT_OK(iv_model_open(dir, &o, pool, &plain, &err), &err);
    assert_memory_equal(m->weights_digest, plain->weights_digest, 32);
    for (size_t i = 0; i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i], *u = iv_model_tensor(plain, t->info.name);
        size_t n = t->rows * t->columns;
        if (!t->int8) continue;
        float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
        ASSERT_OK(iv_tensor_read(t, IV_F32, a, n * sizeof *a, &err), &err);
        ASSERT_OK(iv_tensor_read(u, IV_F32, b, n * sizeof *b, &err), &err);
        assert_same_bits(t->info.name, b, a, n, sizeof *a, false);
        assert_int_equal(iv_tensor_write(m, (iv_tensor *)(uintptr_t)t, IV_F32, a, n * sizeof *a, &err), IV_UNSUPPORTED);
        free(a), free(b), compared++;
    }
    assert_true(compared >= 7);
    iv_model_close(m), iv_model_close(plain), iv_pool_close(pool);
}

/* ---- refused, and the control ------------------------------------------------------------------------------- */

static void refused(const iv_engine_options *o, const char *words) {
    iv_engine *e = NULL;
    iv_error err;
    iv_status status = iv_engine_open(o, &e, &err);
    assert_true(status == IV_UNSUPPORTED || status == IV_INVALID);
    if (!strstr(err.message, words)) fail_msg("wanted '%s' in '%s'", words, err.message);
}

static void what_is_not_there(void **state) {
    (void)state;
    char fp8[4200], gguf[4200], mxfp4[4200];
    iv_engine_options o = small_options();
    o.arithmetic = "i8", o.max_loras = 1;
    refused(&o, "adapters");
    o.max_loras = 0, o.trainable = true;
    refused(&o, "no learner");
    o.trainable = false, o.numerics = "vanilla-blas", o.arithmetic = "i8x2";
    refused(&o, "arithmetic i8x2: OpenBLAS");
    o.numerics = "invar", o.arithmetic = "i8x3";
    refused(&o, "i8 or i8x2");
    snprintf(fp8, sizeof fp8, "%s", source_path("tests/data/packed_models/qwen3_fp8_a"));
    snprintf(gguf, sizeof gguf, "%s", source_path("tests/data/packed_models/gguf_llama_q8_0_a/model.gguf"));
    snprintf(mxfp4, sizeof mxfp4, "%s", source_path("tests/data/packed_models/gpt_oss_mxfp4_a"));
    o.arithmetic = "i8", o.model = fp8;
    refused(&o, "found fp8");
    o.model = gguf;
    refused(&o, "found Q8_0 in groups");
    o.model = mxfp4;
    refused(&o, "found mxfp4");
}

/* Engines that quantize a batch at once have other bits in other batches; the law's have not. */
static void control_a_scale_for_a_batch(void **state) {
    (void)state;
    for (int vanilla = 0; vanilla <= 1; vanilla++) {
        answer *alone[2], *together = answers_new(2);
        iv_engine_options o = small_options();
        o.arithmetic = "i8", o.numerics = vanilla ? "vanilla" : "invar", o.prefix_caching = false;
        iv_engine *e = open_with(&o);
        iv_request r[2] = {ask(e, "<|im_start|>user\n12345 + 678 = ?<|im_end|>\n<|im_start|>assistant\n", 12),
                           ask(e, "<|im_start|>user\nMia has 12 apples.<|im_end|>\n<|im_start|>assistant\n", 12)};
        bool other = false;
        r[0].ignore_eos = r[1].ignore_eos = true;
        for (int i = 0; i < 2; i++) alone[i] = answer_to(e, &r[i]);
        for (int i = 0; i < 2; i++) submit(e, &r[i], &together[i]);
        run_all(e, together, 2);
        for (int i = 0; i < 2; i++) other |= strcmp(alone[i]->digest, together[i].digest) != 0;
        assert_int_equal(other, vanilla);
        iv_engine_close(e);
        answers_free(alone[0], 1), answers_free(alone[1], 1), answers_free(together, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family), cmocka_unit_test(names_and_memory),
                                       cmocka_unit_test(codes_of_a_file), cmocka_unit_test(what_is_not_there),
                                       cmocka_unit_test(control_a_scale_for_a_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
