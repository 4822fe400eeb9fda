/* Processes with a GPU each: the program over emulated GPUs under mpirun gives the bytes that the CPU's tc16 gives, by
 * NCCL (a stand-in for it) and through the host's memory; what cannot be is refused; a rank that hangs ends the job. */
#define main test_mpi_main
int main(void);
#include "comm/test_mpi.c"
#undef main
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>

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
    } models[] = {{"tests/data/hf/qwen3", 70},
                  {"tests/data/hf/llama31", 10},
                  {"tests/data/shapes/window --load-format dummy", 5},
                  {"tests/data/hf/qwen3_moe", 20}};
    enum { MODELS = sizeof models / sizeof *models };
    char ids[1000], line[3000], want[100], got[100];
    for (size_t m = 0; m < MODELS; m++) {
        char request[1500];
        strcpy(ids, "3");
        for (int i = 1; i < models[m].ids; i++) sprintf(ids + strlen(ids), ",%d", (i * 37 + 11) % 97);
        snprintf(request, sizeof request,
                 INVAR "generate %s --ids %s --max-tokens 3 --ignore-eos --seed 3 --json --arithmetic tc16",
                 models[m].name, ids);
        snprintf(line, sizeof line, "%s --device cpu", request);
        digest_of(line, want);
        for (int ranks = 2; ranks <= 4; ranks += m > 0 ? 2 : 1)
            for (int nccl = 0; nccl < 2; nccl++) {
                snprintf(line, sizeof line, "%s" MPIRUN "-n %d %s%s%s", nccl ? WITH_NCCL : "", ranks, request,
                         nccl ? OVER("nccl") : OVER("host"), nccl ? " --enforce-eager" : "");
                digest_of(line, got);
                if (strcmp(got, want) != 0) fail_msg("%s: wanted %s, got %s", line, want, got);
                printf("%s: %d processes, %s: equal\n", models[m].name, ranks, nccl ? "nccl" : "host");
            }
    }
    snprintf(line, sizeof line,
             "env FAKE_NCCL_FLIP=1 " WITH_NCCL MPIRUN "-n 2 " INVAR
             "generate %s --ids %s --max-tokens 3 --ignore-eos --seed 3 --json --arithmetic tc16 --enforce-eager" OVER(
                 "nccl"),
             models[MODELS - 1].name, ids);
    digest_of(line, got);
    assert_string_not_equal(got, want); /* a bit of what travels is seen */
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
#define ASK INVAR "generate tests/data/hf/qwen3 --ids 1,2,3 --max-tokens 4"
    refused(QUIETLY "-n 2 env OMPI_COMM_WORLD_LOCAL_RANK=70 " ASK OVER("host"),
            "wanted GPU 70 for process 70 of this machine, the driver shows 64");
    refused(QUIETLY "-n 1 " ASK OVER("host") " : -n 1 " ASK " --arithmetic tc16 --device cpu", "rank 1: ");
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

/* ---- the calls themselves, a thread a rank ------------------------------------------------------------------- */

enum { RANKS = 3, VALUES = 5000 };

/* No GPU is needed for this. */
int __wrap_cudaSetDevice(int device);
int __wrap_cudaSetDevice(int device) { return (void)device, 0; }

static iv_nccl_id meeting_place;
static pthread_barrier_t together;
static uint16_t sums[RANKS][VALUES];
static uint32_t moved[RANKS][2 * RANKS][VALUES];

static uint16_t small(size_t rank, size_t i) { /* bfloat16 of a whole number below 32 */
    float f = (float)((i * 7 + rank * 5) % 32);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* What was wrong; NULL: nothing. */
static const char *try_rank(size_t rank) {
    size_t to_all = 0, to_first = 0;
    iv_nccl_piece pieces[RANKS], more[RANKS];
    iv_nccl *n;
    iv_error err;
    int ordinal = 0;
    if (iv_nccl_open(&meeting_place, RANKS, rank, 1, &ordinal, &n, &err) != IV_OK) return "it was not opened";
    for (size_t i = 0; i < VALUES; i++) {
        sums[rank][i] = small(rank, i);
        moved[rank][rank][i] = moved[rank][RANKS + rank][i] = (uint32_t)(rank * 1000000 + i);
    }
    for (size_t r = 0; r < RANKS; r++) {
        size_t bytes = r == 1 ? 0 : sizeof moved[rank][r] - r; /* of different sizes; one has nothing */
        pieces[r] = (iv_nccl_piece){moved[rank][r], bytes, r};
        more[r] = (iv_nccl_piece){moved[rank][RANKS + r], bytes, r};
    }
    int code = iv_nccl_sum(n, IV_BF16, sums[rank], VALUES, NULL);
    code |= iv_nccl_move(n, pieces, RANKS, false, NULL);
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
    ASSERT_OK(iv_nccl_make_id("test", &meeting_place, &err), &err);
    pthread_barrier_init(&together, NULL, RANKS);
    const char *said[RANKS] = {"0", "1", "2"};
    for (size_t r = 0; r < RANKS; r++) assert_int_equal(pthread_create(&threads[r], NULL, one_rank, &said[r]), 0);
    for (size_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (size_t r = 0; r < RANKS; r++)
        if (said[r]) fail_msg("rank %zu: %s", r, said[r]);
    pthread_barrier_destroy(&together);
}

int main(void) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_and_moves), cmocka_unit_test(what_cannot_be_is_refused),
                                       cmocka_unit_test(same_digests), cmocka_unit_test(a_gpu_rank_hangs)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[200];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) == 0 ? failed : 1;
}
