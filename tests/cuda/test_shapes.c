/* Models of random shapes: random config.json files of all families, run by the program over emulated GPUs, give
 * rows of logits with the bits of the CPU, in tc16 and fma32, in chunks, and over ranks (threads of one process, or
 * processes under mpirun). If one of them refuses a model, all refuse it with the same message. Models that only
 * GPUs do not support are refused by name before loading. */
#include "random.h"

#include <sys/wait.h>

#ifndef INVAR_BINARY
#define INVAR_BINARY ""
#endif
#ifndef INVAR_MPI_MODULE
#define INVAR_MPI_MODULE ""
#endif

enum { USUAL = 16, LONG = 300, TOKENS_MAX = 300, COST_MAX = 4000000 };

static char folder[] = "/tmp/invar-shapes-XXXXXX";

typedef struct shape {
    const char *family;
    size_t hidden, heads, kv_heads, dim, intermediate, layers, vocab, experts, per_token, moe;
    const char *dtype, *arithmetic;
    bool tied, bias;
    size_t window; /* 0: none */
    size_t tokens, chunk, ranks;
} shape;

#define PICK(r, list) list[rng_below(r, sizeof list / sizeof *list)]

/* Approximate multiply-adds of a chunk of the prompt. */
static size_t cost_of(const shape *s) {
    size_t q = s->heads * s->dim, kv = s->kv_heads * s->dim, wide = s->intermediate;
    if (s->experts && s->per_token * s->moe > wide) wide = s->per_token * s->moe;
    return s->tokens * (s->layers * (s->hidden * (2 * q + 2 * kv + 3 * wide + s->experts) + 8 * q * s->tokens) +
                        s->vocab * s->hidden);
}

static void draw_experts(rng *r, shape *s) {
    static const size_t experts[] = {1, 2, 3, 5, 16, 60, 128}, moe[] = {1, 8, 24, 33, 40, 72, 100};
    s->experts = PICK(r, experts), s->moe = PICK(r, moe);
    s->per_token = 1 + rng_below(r, s->experts < 10 ? s->experts : 10);
}

static shape draw(rng *r) {
    static const char *const families[] = {"qwen3", "qwen3_moe", "qwen2", "llama", "mistral"};
    static const size_t hidden[] = {1, 8, 17, 24, 40, 64, 72, 100, 128, 136, 200, 256},
                        heads[][2] = {{1, 1}, {2, 1},  {3, 1},  {5, 1},  {7, 1},  {4, 4},
                                      {9, 3}, {12, 4}, {14, 2}, {17, 1}, {32, 1}, {33, 1}},
                        dim[] = {2, 6, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 64, 128},
                        intermediate[] = {1, 24, 40, 100, 129, 136, 200, 256, 344},
                        vocab[] = {1, 31, 97, 257, 777, 1009}, windows[] = {1, 7, 63, 64, 65, 130, 400},
                        tokens[] = {1, 5, 63, 64, 65, 130, 257, TOKENS_MAX}, chunks[] = {1, 7, 37, 64, 100, 512};
    static const char *const dtypes[] = {"bfloat16", "bfloat16", "float16", "float32"};
    shape s = {.family = PICK(r, families), .hidden = PICK(r, hidden), .dim = PICK(r, dim)};
    size_t which = rng_below(r, sizeof heads / sizeof *heads);
    s.heads = heads[which][0], s.kv_heads = heads[which][1];
    s.intermediate = PICK(r, intermediate), s.layers = 1 + rng_below(r, 3), s.vocab = PICK(r, vocab);
    if (strcmp(s.family, "qwen3_moe") == 0) draw_experts(r, &s);
    s.dtype = PICK(r, dtypes), s.tied = rng_below(r, 2), s.bias = rng_below(r, 2);
    s.arithmetic = strcmp(s.dtype, "float32") == 0 || rng_below(r, 4) == 0 ? "fma32" : "tc16";
    if (strcmp(s.family, "llama") != 0 && rng_below(r, 2)) s.window = PICK(r, windows);
    s.tokens = PICK(r, tokens), s.chunk = PICK(r, chunks), s.ranks = 1;
    if (rng_below(r, 3) == 0) s.ranks = 2 + rng_below(r, 7);
    if (s.ranks > 1 && rng_below(r, 4)) s.intermediate = 128 * (1 + rng_below(r, 3)); /* of eight leaves */
    while (s.tokens > 1 && cost_of(&s) > COST_MAX) s.tokens /= 2;
    if (s.chunk < s.tokens / 8) s.chunk = s.tokens / 3;
    if (s.ranks > 1 && s.chunk < s.tokens) s.chunk = s.tokens;
    return s;
}

static void write_config(const shape *s) {
    char path[100];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "{\"model_type\": \"%s\", \"hidden_size\": %zu, \"num_attention_heads\": %zu, \"num_key_value_heads\": %zu, "
        "\"head_dim\": %zu, \"intermediate_size\": %zu, \"num_hidden_layers\": %zu, \"vocab_size\": %zu, "
        "\"dtype\": \"%s\", \"tie_word_embeddings\": %s, \"attention_bias\": %s, \"mlp_bias\": %s, "
        "\"max_position_embeddings\": 512, \"rope_theta\": %s, \"bos_token_id\": null, \"eos_token_id\": null, "
        "\"sliding_window\": ",
        s->family, s->hidden, s->heads, s->kv_heads, s->dim, s->intermediate, s->layers, s->vocab, s->dtype,
        s->tied ? "true" : "false", s->bias ? "true" : "false", s->bias ? "true" : "false",
        s->tied ? "1000000.0" : "10000.0");
    if (s->window)
        fprintf(f, "%zu, \"use_sliding_window\": true, \"max_window_layers\": 1", s->window);
    else
        fprintf(f, "null");
    if (s->experts)
        fprintf(f,
                ", \"num_experts\": %zu, \"num_experts_per_tok\": %zu, \"moe_intermediate_size\": %zu, "
                "\"norm_topk_prob\": %s, \"decoder_sparse_step\": %d",
                s->experts, s->per_token, s->moe, s->tied ? "true" : "false", s->bias ? 1 : 2);
    fprintf(f, "}\n");
    assert_int_equal(fclose(f), 0);
}

static void describe(const shape *s, char *text, size_t bytes) {
    snprintf(text, bytes,
             "%s hidden %zu, heads %zu/%zu of %zu, intermediate %zu, layers %zu, vocabulary %zu, experts %zu of %zu "
             "(%zu), window %zu, %s %s%s%s, %zu tokens, chunks of %zu, %zu ranks",
             s->family, s->hidden, s->heads, s->kv_heads, s->dim, s->intermediate, s->layers, s->vocab, s->per_token,
             s->experts, s->moe, s->window, s->dtype, s->arithmetic, s->tied ? ", tied" : "", s->bias ? ", biases" : "",
             s->tokens, s->chunk, s->ranks);
}

/* ---- the program ------------------------------------------------------------------------------------------ */

static char *contents(const char *name, size_t *bytes) {
    char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return *bytes = 0, NULL;
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(1, *bytes + 1);
    assert_true(data && fread(data, 1, *bytes, f) == *bytes);
    fclose(f);
    return data;
}

/* The logits it writes, or NULL and the line with its error message. */
static char *logits_by(const char *before, const shape *s, const char *after, size_t *bytes, char why[400]) {
    char line[6000], *out = line;
    out +=
        sprintf(out, "cd %s && rm -f out && %s" INVAR_BINARY " logits . --out out --load-format dummy --arithmetic %s ",
                folder, before, s->arithmetic);
    out += sprintf(out, "--max-model-len 512 --max-num-batched-tokens %zu %s --ids 0", s->chunk, after);
    for (size_t i = 1; i < s->tokens; i++) out += sprintf(out, ",%zu", (i * 37 + 11) % s->vocab);
    sprintf(out, " 2>errors");
    int status = system(line), code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    size_t length;
    char *said = contents("errors", &length), *from = strstr(said, "invar: ");
    if (code != 0 && (code != 1 || !from)) fail_msg("%.500s: exit %d: %s", line, code, said);
    snprintf(why, 400, "%.*s", code && from ? (int)strcspn(from, "\n") : 0, from ? from : "");
    free(said);
    return code ? (*bytes = 0, NULL) : contents("out", bytes);
}

static bool mpi_is_here(void) {
    return access(INVAR_MPI_MODULE, R_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0;
}

#define ON_CUDA " --device cuda --enforce-eager --max-num-seqs 2 --kv-cache-memory 32M --rank-timeout 120000"

/* Returns true if it was computed, not refused. */
static bool compare(const shape *s, rng *r) {
    char text[500], before[200], after[200], want_why[400], why[400];
    size_t want_bytes, bytes;
    describe(s, text, sizeof text);
    write_config(s);
    snprintf(after, sizeof after, "--device cpu --threads 1 --tp %zu", s->ranks);
    char *want = logits_by("", s, after, &want_bytes, want_why);
    size_t at = (size_t)snprintf(before, sizeof before, "env INVAR_EMULATED_SEED=%u INVAR_EMULATED_SMS=%u ",
                                 (unsigned)rng_below(r, 1000000), 2 + (unsigned)rng_below(r, 12));
    bool processes = s->ranks > 1 && rng_below(r, 2) && mpi_is_here();
    snprintf(after, sizeof after, ON_CUDA " --rank-transport host");
    if (processes)
        snprintf(before + at, sizeof before - at, "mpirun --quiet --oversubscribe -n %zu ", s->ranks);
    else
        snprintf(after, sizeof after, ON_CUDA " --tp %zu", s->ranks);
    char *got = logits_by(before, s, after, &bytes, why);
    if (strcmp(want_why, why) != 0) fail_msg("%s: the CPU says '%s', the GPU '%s'", text, want_why, why);
    if (want && (bytes != want_bytes || memcmp(want, got, bytes) != 0)) {
        size_t first = 0;
        while (first < bytes && first < want_bytes && want[first] == got[first]) first++;
        fail_msg("%s: other logits, from byte %zu of %zu on", text, first, want_bytes);
    }
    printf("%s%s: %s\n", text, processes ? " as processes" : "", want ? "equal" : why);
    fflush(stdout);
    free(want), free(got);
    return bytes > 0;
}

static void random_shapes(void **state) {
    (void)state;
    size_t count = trials(USUAL, LONG), computed = 0;
    rng r = rng_start("shapes");
    for (size_t i = 0; i < 6 * count && computed < count; i++) { /* about one in ten is refused */
        shape s = draw(&r);
        computed += compare(&s, &r);
    }
    assert_int_equal(computed, count);
}

/* Control: other sums are detected. */
static void control_another_arithmetic_differs(void **state) {
    (void)state;
    char *logits[2], why[400];
    size_t bytes[2];
    rng r = {1};
    shape s = draw(&r);
    s.hidden = s.intermediate = 136, s.dtype = "bfloat16", s.vocab = 97, s.tokens = 9;
    write_config(&s);
    for (int i = 0; i < 2; i++) {
        s.arithmetic = i ? "fma32" : "tc16";
        logits[i] = logits_by("", &s, "--device cpu", &bytes[i], why);
        assert_non_null(logits[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_not_equal(logits[0], logits[1], bytes[0]);
    free(logits[0]), free(logits[1]);
}

static void what_gpus_do_not_take(void **state) {
    (void)state;
    shape s = {"qwen3_moe", 16, 2, 1, 16, 16, 1, 31, 513, 2, 8, "bfloat16", "tc16", false, true, 0, 3, 64, 1};
    size_t bytes;
    char why[400];
    write_config(&s);
    char *cpu = logits_by("", &s, "--device cpu", &bytes, why);
    assert_non_null(cpu);
    free(cpu);
    assert_null(logits_by("", &s, ON_CUDA, &bytes, why));
    assert_string_equal(why, "invar: num_experts: device cuda takes at most 512, found 513 (device cpu takes more)");
    shape wide = s; /* a step of 65,536 rows, in 4 GiB */
    wide.hidden = 16384, wide.experts = 8, wide.chunk = 65536;
    write_config(&wide);
    assert_null(logits_by("", &wide, "--device cuda --enforce-eager", &bytes, why));
    if (!strstr(why, "on each GPU, ") || !strstr(why, "max_num_batched_tokens 65536")) fail_msg("%s", why);
    write_config(&s);
    s.experts = 512;
    assert_true(compare(&s, &(rng){1}));
}

int main(void) {
    if (access(INVAR_BINARY, X_OK) != 0) {
        printf("  SKIPPED: no program over emulated GPUs was built\n");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes),
                                       cmocka_unit_test(control_another_arithmetic_differs),
                                       cmocka_unit_test(what_gpus_do_not_take)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[100];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) == 0 ? failed : 1;
}
