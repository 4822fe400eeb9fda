/* Processes with a GPU each: the program over emulated GPUs under mpirun gives the bytes of the CPU's tc16, by NCCL
 * (a stand-in for it) and through host memory, also when logits are scored in slices, and when it trains. Impossible
 * options are refused. A hanging rank ends the job, also while the ranks connect. A checkpoint's type has the effect of
 * the flag. */
#include "comm/mpi_cases.h"
#include "kernels/cuda/nccl.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#define WITH_NCCL "env LD_LIBRARY_PATH=" NCCL_FOLDER " "
#define OVER(way) " --device cuda --rank-transport " way " --max-model-len 512 --rank-timeout 60000"

static void digest_of(const char *line, char digest[100]) {
    char *out, *errors;
    int code = run(line, &out, &errors);
    if (code != 0) fail_msg("%s: exit %d: %s", line, code, errors);
    snprintf(digest, 100, "%.90s", digest_in(out));
    free(out), free(errors);
}

static void same_digests(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const struct {
        const char *name;
        int ids;
        const char *arithmetic;
    } models[] = {{"tests/data/hf/qwen3", 70, "tc16"},
                  {"tests/data/hf/llama31", 10, "tc16"},
                  {"tests/data/shapes/window --load-format dummy", 5, "tc16"},
                  {"tests/data/hf/qwen3 --lora tests/data/adapters/qwen3", 20, "tc16"},
                  {"tests/data/hf/qwen3", 70, "i8+tc16"},
                  {"tests/data/hf/qwen3_moe", 30, "i8x2+tc16"},
                  {"tests/data/hf/qwen3_moe", 70, "tc16"}}; /* 17 rows per expert: packed */
    enum { MODELS = sizeof models / sizeof *models };
    char ids[1000], line[3000], want[100], got[100];
    for (size_t m = 0; m < MODELS; m++) {
        char request[1500];
        strcpy(ids, "3");
        for (int i = 1; i < models[m].ids; i++) sprintf(ids + strlen(ids), ",%d", (i * 37 + 11) % 97);
        snprintf(request, sizeof request,
                 INVAR "generate %s --ids %s --max-tokens 3 --ignore-eos --seed 3 --json --arithmetic %s",
                 models[m].name, ids, models[m].arithmetic);
        snprintf(line, sizeof line, "%s --device cpu", request);
        digest_of(line, want);
        for (int ranks = 2; ranks <= 4; ranks += m > 0 ? 2 : 1)
            for (int nccl = 0; nccl < 2; nccl++) {
                /* In usual runs the models after the first have each number of ranks and each transport once. */
                if (m > 0 && !getenv("INVAR_TEST_LONG") && (ranks == 4) != (nccl + m) % 2) continue;
                snprintf(line, sizeof line, "%s" MPIRUN "-n %d %s%s%s", nccl ? WITH_NCCL : "", ranks, request,
                         nccl ? OVER("nccl") : OVER("host"), nccl ? " --enforce-eager" : "");
                digest_of(line, got);
                if (strcmp(got, want) != 0) fail_msg("%s: wanted %s, got %s", line, want, got);
                printf("%s, %s: %d processes, %s: equal\n", models[m].name, models[m].arithmetic, ranks,
                       nccl ? "nccl" : "host");
            }
    }
    snprintf(line, sizeof line,
             "env FAKE_NCCL_FLIP=1 " WITH_NCCL MPIRUN "-n 2 " INVAR
             "generate %s --ids %s --max-tokens 3 --ignore-eos --seed 3 --json --arithmetic tc16 --enforce-eager" OVER(
                 "nccl"),
             models[MODELS - 1].name, ids);
    digest_of(line, got);
    assert_string_not_equal(got, want); /* one flipped bit in transit is detected */
}

/* ---- training -----------------------------------------------------------------------------------------------------
 */

static void write_examples(char path[300]) {
    snprintf(path, 300, "%s/examples.jsonl", folder);
    FILE *f = fopen(path, "w");
    if (!f) fail_msg("cannot write %s", path);
    for (int i = 0; i < 24; i++) {
        fprintf(f, "{\"ids\": [%d, %d, %d", 5 + i, 7 * i % 400, i * i % 300);
        for (int t = 0; t < i * 5 % 11; t++) fprintf(f, ", %d", (11 * t + 3 * i) % 400);
        fputs("]}\n", f);
    }
    fclose(f);
}

/* The hash of the weights after two steps; AdamW's update follows from every gradient. */
static void trained(const char *start, const char *model, const char *examples, const char *flags, char weights[65]) {
    static int runs;
    char line[2000], *out, *errors;
    snprintf(line, sizeof line,
             "%s" INVAR
             "train sft tests/data/hf/%s --data %s --output %s/trained%d --steps 2 --batch-size 7 --lr 1e-3 --seed 11 "
             "--threads 1 --arithmetic tc16 --quiet --json %s",
             start, model, examples, folder, runs++, flags);
    if (run(line, &out, &errors) != 0) fail_msg("%s: %s", line, errors);
    const char *hash = strstr(out, "\"weights\": \"");
    if (!hash) fail_msg("%s: no weights in: %s", line, out);
    snprintf(weights, 65, "%s", hash + strlen("\"weights\": \""));
    free(out), free(errors);
}

/* Data-parallel processes with GPUs: gradients and weights from GPU to GPU, or through the host, whole or in slices,
 * with the CPU's weights; a tied embedding's look-ups take their own way. */
static void same_trained_weights(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const struct {
        const char *model, *start, *flags; /* no start: the CPU's, which the next ones have */
        bool longest; /* with INVAR_TEST_LONG only: others have the transport and the number of ranks */
    } ways[] = {
        {"qwen3", NULL, "--device cpu", false},
        {"qwen3", MPIRUN "-n 2 ", "--device cuda --rank-transport host", false},
        {"qwen3", WITH_NCCL MPIRUN "-n 2 ", "--device cuda --rank-transport nccl", true},
        {"qwen3", WITH_NCCL MPIRUN "-n 4 ", "--device cuda --micro-batch 1", true},
        {"qwen3", MPIRUN "-n 2 ", "--device cuda --rank-transport host --shard parameters", false},
        {"qwen3", WITH_NCCL MPIRUN "-n 2 ", "--device cuda --rank-transport nccl --shard parameters", true},
        {"qwen3", WITH_NCCL MPIRUN "-n 4 ", "--device cuda --micro-batch 1 --shard parameters", false},
        {"qwen3", MPIRUN "-n 2 ", "--device cuda --dp 4 --shard parameters", false},
        {"qwen3", MPIRUN "-n 2 ", "--device cuda --dp 2 --tp 2 --shard parameters", false},
        {"qwen3_moe", NULL, "--device cpu", false},
        {"qwen3_moe", WITH_NCCL MPIRUN "-n 2 ", "--device cuda --rank-transport nccl", false},
        {"qwen3_moe", WITH_NCCL MPIRUN "-n 2 ", "--device cuda --rank-transport nccl --shard parameters", false}};
    char examples[300], want[65], got[65];
    write_examples(examples);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (ways[i].longest && !getenv("INVAR_TEST_LONG")) continue;
        trained(ways[i].start ? ways[i].start : "", ways[i].model, examples, ways[i].flags, ways[i].start ? got : want);
        if (ways[i].start && strcmp(want, got) != 0)
            fail_msg("%s%s %s: wanted %s, found %s", ways[i].start, ways[i].model, ways[i].flags, want, got);
        printf("%s: %s%s: %.8s\n", ways[i].model, ways[i].start ? ways[i].start : "", ways[i].flags,
               ways[i].start ? got : want);
        fflush(stdout);
    }
    for (int shard = 0; shard < 2; shard++) { /* a flipped bit in transit is a different hash */
        trained("env FAKE_NCCL_FLIP=1 " WITH_NCCL MPIRUN "-n 2 ", "qwen3_moe", examples,
                shard ? "--device cuda --shard parameters" : "--device cuda", got);
        assert_string_not_equal(got, want);
    }
    char line[1000];
    snprintf(line, sizeof line,
             WITH_NCCL QUIETLY "-n 2 " INVAR "train sft tests/data/hf/qwen3 --data %s --output %s/none --steps 1 "
                               "--batch-size 4 --dp 4 --device cuda --rank-transport nccl",
             examples, folder);
    refused(line, "rank_transport nccl: wanted one GPU for each process, found 2");
}

/* A checkpoint that is float32 only by its config.json is computed as with --dtype float32, and not as tc16 on a
 * GPU. */
static void float32_checkpoints(void **state) {
    (void)state;
    static const char *const ways[] = {"--device cpu", "--device cuda", "--device auto",
                                       "--device cuda --dtype float32"};
    char dir[] = "/tmp/invar-test-XXXXXX", line[3000], want[100], got[100], *out, *errors;
    const char *made = "generate %s --ids 1,2,3 --max-tokens 2 --ignore-eos --seed 3 --json --enforce-eager %s";
    assert_non_null(mkdtemp(dir));
    snprintf(line, sizeof line,
             "cd %s && cp model.safetensors %s && sed 's/\"bfloat16\"/\"float32\"/' config.json >%s/config.json",
             INVAR_SOURCE_DIR "/tests/data/hf/qwen3", dir, dir);
    assert_int_equal(system(line), 0);
    size_t begin = sizeof INVAR - 1;
    strcpy(line, INVAR);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(line + begin, sizeof line - begin, made, dir, ways[i]);
        digest_of(line, i ? got : want);
        if (i && strcmp(got, want) != 0) fail_msg("%s: wanted %s, got %s", ways[i], want, got);
    }
    snprintf(line + begin, sizeof line - begin, made, dir, "--device cuda --arithmetic tc16");
    assert_int_equal(run(line, &out, &errors), 1);
    if (!strstr(errors, "arithmetic tc16: wanted dtype bfloat16 or float16, found float32")) fail_msg("%s", errors);
    free(out), free(errors);
    snprintf(line, sizeof line, "rm -r %s", dir);
    assert_int_equal(system(line), 0);
}

static void write_scored(void) {
    enum { TOKENS = 150 };
    char path[300], line[1000];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    if (!f) fail_msg("cannot write %s", path);
    fputs("{\"model_type\": \"qwen3\", \"dtype\": \"bfloat16\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06,"
          "\"attention_bias\": false, \"max_position_embeddings\": 512, \"rope_theta\": 10000.0,"
          "\"tie_word_embeddings\": true, \"eos_token_id\": null, \"bos_token_id\": null, \"hidden_size\": 64,"
          "\"intermediate_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,"
          "\"num_hidden_layers\": 6, \"vocab_size\": 1024}\n",
          f);
    fclose(f);
    snprintf(path, sizeof path, "%s/scored", folder);
    f = fopen(path, "w");
    if (!f) fail_msg("cannot write %s", path);
    fputs("{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": \"m\", "
          "\"max_tokens\": 1, \"echo\": true, \"logprobs\": 3, \"seed\": 1, \"prompt\": [3",
          f);
    for (int i = 1; i < TOKENS; i++) fprintf(f, ", %d", (i * 37 + 11) % 97);
    fputs("]}}\n", f);
    fclose(f);
    snprintf(line, sizeof line,
             "cd " INVAR_SOURCE_DIR "/models/tiny-math && cp tokenizer.json tokenizer_config.json %s", folder);
    assert_int_equal(system(line), 0);
}

/* The log-probabilities in a command's answer; the caller frees. */
static char *scores_of(const char *before, const char *after) {
    char line[2000], *out, *errors;
    snprintf(line, sizeof line,
             "%s" INVAR "batch %s -i %s/scored -o - --served-model-name m --load-format dummy --arithmetic tc16 "
             "--max-num-seqs 2%s",
             before, folder, folder, after);
    int code = run(line, &out, &errors);
    char *scores = strstr(out, "\"token_logprobs\""), *end = scores ? strstr(scores, "\"usage\"") : NULL;
    if (code != 0 || !end) fail_msg("%s: exit %d: %s%s", line, code, out, errors);
    scores = strndup(scores, (size_t)(end - scores));
    free(out), free(errors);
    return scores;
}

static void same_scores_slice_after_slice(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    write_scored();
    char *want = scores_of("", " --device cpu --max-model-len 512");
    for (int nccl = 0; nccl < 2; nccl++) {
        char *got = scores_of(nccl ? WITH_NCCL MPIRUN "-n 2 " : MPIRUN "-n 2 ",
                              nccl ? OVER("nccl") " --enforce-eager" : OVER("host"));
        assert_string_equal(got, want);
        free(got);
    }
    char *other = scores_of("env FAKE_NCCL_FLIP=1 " WITH_NCCL MPIRUN "-n 2 ", OVER("nccl") " --enforce-eager");
    assert_string_not_equal(other, want);
    free(other), free(want);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
#define ASK INVAR "generate tests/data/hf/qwen3 --ids 1,2,3 --max-tokens 4"
    refused(QUIETLY "-n 2 env OMPI_COMM_WORLD_LOCAL_RANK=70 " ASK OVER("host"),
            "wanted GPU 70 for process 70 of this machine, the driver shows 64");
    static const struct {
        const char *first, *second, *message;
    } unlike[] = {
        {OVER("host"), " --arithmetic tc16 --device cpu", "rank 1: device: wanted cuda as on rank 0, found cpu"},
        {OVER("host"), OVER("nccl"), "rank 1: rank_transport: wanted host as on rank 0, found nccl"},
        {OVER("host") " --enforce-eager", OVER("host"), "rank 1: enforce_eager: wanted 1 as on rank 0, found 0"},
        {OVER("host"), OVER("host") " --speculative ngram", "rank 1: rows of logits at once"}};
    for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++) {
        char line[1000];
        snprintf(line, sizeof line, QUIETLY "-n 1 " ASK "%s : -n 1 " ASK "%s", unlike[i].first, unlike[i].second);
        refused(line, unlike[i].message);
    }
    void *real = dlopen("libnccl.so.2", RTLD_NOW);
    if (real) return;
    refused(QUIETLY "-n 2 " ASK OVER("nccl"), "wanted NCCL (libnccl.so.2) among the libraries, found none");
}

static void a_gpu_rank_hangs(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    setenv("INVAR_MORE_FLAGS", "--device cuda --rank-transport host", 1);
    lost(1, SIGKILL);
    lost(2, SIGSTOP);
    unsetenv("INVAR_MORE_FLAGS");
}

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* All ranks report the reason and exit, except a stopped one: mpirun ends it, or continues it first, and then it may
 * find that the other rank has ended. */
static void a_rank_is_lost_while_they_connect(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const struct {
        const char *how, *message;
        int ends;
    } ways[] = {
        {"init", "rank 0: NCCL: timed out after 1000 ms waiting for 2 ranks to connect (rank_timeout_ms sets it)", 2},
        {"move", "rank 0: NCCL: timed out after 1000 ms waiting for 2 ranks to connect (rank_timeout_ms sets it)", 2},
        {"stop", "rank 1: no answer to rank 0 for 2.0 s", 1}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char line[1500], *out, *errors;
        int stopped = 2 - ways[i].ends;
        snprintf(line, sizeof line,
                 "env FAKE_NCCL_LOST=%s " WITH_NCCL QUIETLY "-n 2 sh -c '" ASK
                 " --device cuda --rank-transport nccl --enforce-eager --max-model-len 512 --rank-timeout 100; "
                 "echo ended with $?; exit %d'",
                 ways[i].how, stopped); /* 0: mpirun lets the other rank end too */
        double begin = seconds();
        int code = run(line, &out, &errors);
        double took = seconds() - begin;
        printf("lost (%s): after %.1f s\n", ways[i].how, took);
        int ended = (int)count_of(out, "ended with 1");
        if ((code != 0) != (stopped > 0) || ended < ways[i].ends || ended > 2 ||
            count_of(errors, ways[i].message) != ways[i].ends || took > END_MAX_S)
            fail_msg("%s: exit %d after %.1f s, wanted '%s', found: %s%s", line, code, took, ways[i].message, out,
                     errors);
        free(out), free(errors);
    }
}

/* ---- the calls themselves, one thread per rank
 * ---------------------------------------------------------------------- */

enum { RANKS = 3, VALUES = 5000 };

/* Needs no GPU: enqueued work is done at once or never. */
static atomic_bool never_done;
static atomic_int frees;
int __wrap_cudaSetDevice(int device);
int __wrap_cudaMalloc(void **p, size_t bytes);
int __wrap_cudaFree(void *p);
int __wrap_cudaStreamCreateWithFlags(void **stream, unsigned flags);
int __wrap_cudaStreamQuery(void *stream);
int __wrap_cudaSetDevice(int device) { return (void)device, 0; }
int __wrap_cudaMalloc(void **p, size_t bytes) { return (*p = malloc(bytes)) == NULL; }
int __wrap_cudaFree(void *p) { return free(p), atomic_fetch_add(&frees, 1), 0; }
int __wrap_cudaStreamCreateWithFlags(void **stream, unsigned flags) { return (void)flags, *stream = NULL, 0; }
int __wrap_cudaStreamQuery(void *stream) { return (void)stream, atomic_load(&never_done) ? cudaErrorNotReady : 0; }

static iv_nccl_id group_id;
static pthread_barrier_t together;
static uint16_t sums[RANKS][VALUES];
static uint32_t moved[RANKS][2 * RANKS][VALUES];

static uint16_t small(size_t rank, size_t i) { /* bfloat16 of an integer below 32 */
    float f = (float)((i * 7 + rank * 5) % 32);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* The error, or NULL. */
static const char *try_rank(size_t rank) {
    size_t to_all = 0, to_first = 0;
    iv_nccl_chunk chunks[RANKS], more[RANKS];
    iv_nccl *n;
    iv_error err;
    int ordinal = 0;
    if (iv_nccl_open(&group_id, RANKS, rank, 1, &ordinal, 60000, &n, &err) != IV_OK) return "it was not opened";
    for (size_t i = 0; i < VALUES; i++) {
        sums[rank][i] = small(rank, i);
        moved[rank][rank][i] = moved[rank][RANKS + rank][i] = (uint32_t)(rank * 1000000 + i);
    }
    for (size_t r = 0; r < RANKS; r++) {
        size_t bytes = r == 1 ? 0 : sizeof moved[rank][r] - r; /* of different sizes; one is empty */
        chunks[r] = (iv_nccl_chunk){moved[rank][r], bytes, r};
        more[r] = (iv_nccl_chunk){moved[rank][RANKS + r], bytes, r};
    }
    iv_nccl_block to[RANKS], from[RANKS];
    static uint32_t received[RANKS][RANKS][VALUES];
    for (size_t r = 0; r < RANKS; r++) { /* rank 0 sends nothing to rank 2 */
        to[r] = (iv_nccl_block){moved[rank][rank], rank == 0 && r == 2 ? 0 : 4 * (r + 1)};
        from[r] = (iv_nccl_block){received[rank][r], r == 0 && rank == 2 ? 0 : 4 * (rank + 1)};
    }
    if (iv_nccl_exchange(n, to, from, NULL)) return "blocks were not exchanged";
    for (size_t r = 0; r < RANKS; r++) {
        size_t count = r == rank || (r == 0 && rank == 2) ? 0 : rank + 1;
        for (size_t i = 0; i < RANKS + 1; i++)
            if (received[rank][r][i] != (i < count ? (uint32_t)(r * 1000000 + i) : 0)) return "other blocks";
    }
    int code = iv_nccl_sum(n, IV_BF16, sums[rank], VALUES, NULL);
    code |= iv_nccl_move(n, chunks, RANKS, false, NULL);
    code |= iv_nccl_move(n, more, RANKS, true, NULL);
    if (iv_nccl_sum(n, IV_F32, sums[rank], VALUES, NULL) == 0) return "a sum of float32 was not refused";
    pthread_barrier_wait(&together);
    for (size_t i = 0; i < VALUES - 1; i++) {
        float sum = 0, got;
        for (size_t r = 0; r < RANKS; r++) sum += (float)((i * 7 + r * 5) % 32);
        uint32_t u = (uint32_t)sums[rank][i] << 16;
        memcpy(&got, &u, sizeof got);
        if (got != sum) return "another sum";
        to_all += moved[rank][2][i] == 2000000 + i && moved[rank][0][i] == i;
        to_first += moved[rank][RANKS + 2][i] == 2000000 + i;
    }
    iv_nccl_close(n);
    if (code || to_all != VALUES - 1) return "other bytes";
    if (to_first != (rank == 0 || rank == 2 ? VALUES - 1 : 0)) return "bytes for rank 0 alone went elsewhere";
    return NULL;
}

static void *one_rank(void *argument) {
    const char **said = argument;
    *said = try_rank((size_t)(**said - '0'));
    return NULL;
}

static void sums_and_moves(void **state) {
    (void)state;
    iv_error err;
    pthread_t threads[RANKS];
    if (!dlopen(NCCL_FOLDER "/libnccl.so.2", RTLD_NOW)) fail_msg("%s", dlerror()); /* by its name from now on */
    ASSERT_OK(iv_nccl_make_id("test", &group_id, &err), &err);
    pthread_barrier_init(&together, NULL, RANKS);
    const char *said[RANKS] = {"0", "1", "2"};
    for (size_t r = 0; r < RANKS; r++) assert_int_equal(pthread_create(&threads[r], NULL, one_rank, &said[r]), 0);
    for (size_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (size_t r = 0; r < RANKS; r++)
        if (said[r]) fail_msg("rank %zu: %s", r, said[r]);
    pthread_barrier_destroy(&together);
}

/* Two ranks of four time out waiting for the others, which come too late and find what is left of them. */
static void opening_looks_at_the_clock(void **state) {
    (void)state;
    iv_error err;
    iv_nccl_id id;
    iv_nccl *n[2];
    const int ordinals[2] = {0, 1};
    ASSERT_OK(iv_nccl_make_id("test", &id, &err), &err);
    double begin = seconds();
    assert_int_equal(iv_nccl_open(&id, 4, 0, 2, ordinals, 300, n, &err), IV_IO);
    double took = seconds() - begin;
    assert_string_equal(err.message,
                        "NCCL: timed out after 300 ms waiting for 4 ranks to connect (rank_timeout_ms sets it)");
    assert_true(took > 0.299 && took < 5);
    assert_true(!n[0] && !n[1]);
    ASSERT_OK(iv_nccl_open(&id, 4, 2, 2, ordinals, 60000, n, &err), &err);
    iv_nccl_close(n[0]), iv_nccl_close(n[1]);
    ASSERT_OK(iv_nccl_make_id("test", &id, &err), &err);
    atomic_store(&never_done, true);
    int before = atomic_load(&frees);
    assert_int_equal(iv_nccl_open(&id, 1, 0, 1, ordinals, 100, n, &err), IV_IO);
    for (int i = 0; atomic_load(&frees) == before && i < 5000; i++) usleep(1000); /* aborts what waits on the GPU */
    assert_int_equal(atomic_load(&frees), before + 1);
    atomic_store(&never_done, false);
}

int main(void) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_and_moves),
                                       cmocka_unit_test(opening_looks_at_the_clock),
                                       cmocka_unit_test(float32_checkpoints),
                                       cmocka_unit_test(what_cannot_be_is_refused),
                                       cmocka_unit_test(same_digests),
                                       cmocka_unit_test(same_trained_weights),
                                       cmocka_unit_test(same_scores_slice_after_slice),
                                       cmocka_unit_test(a_rank_is_lost_while_they_connect),
                                       cmocka_unit_test(a_gpu_rank_hangs)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[200];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) == 0 ? failed : 1;
}
