/* Ranks as processes: the program prints the same bytes under mpirun as alone; incompatible ranks are refused; a rank
 * that dies or hangs ends the job within seconds, with a message. */
#include "engine/made_model.h"
#include "mpi_cases.h"

#define GENERATE INVAR "generate models/tiny-math -p '2 + 2 =' --seed 3 --json "

static void same_answers(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const char *const ways[] = {GENERATE "--tp 2", MPIRUN "-n 1 " GENERATE, MPIRUN "-n 2 " GENERATE "--tp 2",
                                       MPIRUN "-n 4 " GENERATE "--max-num-batched-tokens 3",
                                       MPIRUN "-n 3 " GENERATE "--speculative ngram"};
    char *want, *out, *errors;
    assert_int_equal(run(GENERATE, &want, &errors), 0);
    free(errors);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (run(ways[i], &out, &errors) != 0) fail_msg("%s: %s", ways[i], errors);
        if (strncmp(digest_in(want), digest_in(out), 80) != 0) fail_msg("%s: wanted %s, got %s", ways[i], want, out);
        if (strchr(out, '\n') != strrchr(out, '\n')) fail_msg("%s: another rank printed too: %s", ways[i], out);
        free(out), free(errors);
    }
    assert_int_equal(run(MPIRUN "-n 2 " GENERATE "--arithmetic tc16", &out, &errors), 0);
    assert_int_not_equal(strncmp(digest_in(want), digest_in(out), 80), 0); /* negative control */
    free(out), free(errors), free(want);
}

static void same_logits_of(const char *model) {
    static const char *const starts[] = {"", MPIRUN "-n 2 ", MPIRUN "-n 4 "};
    char line[1000], *want = NULL;
    for (size_t i = 0; i < 3; i++) {
        char *out, *errors;
        snprintf(line, sizeof line,
                 "sh -c '%s" INVAR "logits %s --ids 5,9,200,31,7,7,80 --out %s/logits && sha256sum < %s/logits'",
                 starts[i], model, folder, folder);
        if (run(line, &out, &errors) != 0) fail_msg("%s: %s", line, errors);
        if (want)
            assert_string_equal(out, want);
        else
            want = strdup(out);
        free(out), free(errors);
    }
    free(want);
}

static void same_logits(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    same_logits_of("tests/data/hf/qwen3_moe");
    made_model m;
    made_one_head(&m);
    same_logits_of(made_write(&m));
    made_close(&m);
}

/* Free memory differs between processes and changes; all use the value of one of them. */
static void a_share_of_changing_memory(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char *out, *errors;
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        while (pid == 0) {
            enum { BYTES = 200 << 20 };
            char *p = malloc(BYTES);
            if (!p) _exit(1);
            memset(p, 1, BYTES);
            __asm__ volatile("" ::"r"(p) : "memory");
            free(p);
        }
        int code = run(MPIRUN "-n 6 " GENERATE "--max-tokens 1 --kv-cache-memory 0.5", &out, &errors);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        if (code != 0) fail_msg("exit %d: %s", code, errors);
        free(out), free(errors);
    }
}

/* Without --tp a receipt is computed by as many ranks as there are; those of two makers need two engines. */
static void receipts(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[2000], *out, *errors;
    snprintf(line, sizeof line,
             "sh -c '" INVAR "generate models/tiny-math --ids 5,6 --max-tokens 9 --receipt %s/a && " INVAR
             "generate models/tiny-math --ids 5,6 --max-tokens 9 --arithmetic tc16 --receipt %s/b && "
             "cat %s/a %s/b > %s/both && " MPIRUN "-n 2 " INVAR "replay %s/a'",
             folder, folder, folder, folder, folder, folder);
    if (run(line, &out, &errors) != 0) fail_msg("%s: %s", line, errors);
    if (!strstr(out, "/a:1  equal  ")) fail_msg("wanted an equal receipt, found: %s", out);
    free(out), free(errors);
    snprintf(line, sizeof line, QUIETLY "-n 2 " INVAR "replay %s/both", folder);
    refused(line, "wanted receipts of one maker");
}

static void those_that_do_not_belong_together(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
#define IDS "--ids 1,2,3 --max-tokens 4 "
    refused(QUIETLY "-n 1 " INVAR "generate tests/data/hf/qwen3 " IDS ": -n 1 " INVAR
                    "generate tests/data/hf/qwen2 " IDS,
            "rank 1: fingerprint");
    refused(QUIETLY "-n 1 " INVAR "generate models/tiny-math " IDS ": -n 1 " INVAR
                    "generate models/tiny-math --arithmetic tc16 " IDS,
            "rank 1: fingerprint");
    refused(QUIETLY "-n 2 " INVAR "generate models/tiny-math " IDS ": -n 1 " INVAR
                    "generate models/tiny-math --max-num-seqs 5 " IDS,
            "rank 2: max_num_seqs: wanted 16 as on rank 0, found 5");
    refused(QUIETLY "-n 1 " INVAR "generate models/tiny-math " IDS ": -n 1 " INVAR
                    "generate models/tiny-math --max-num-batched-tokens 100 " IDS,
            "rank 1: max_num_batched_tokens: wanted 512 as on rank 0, found 100");
    refused(QUIETLY "-n 2 " INVAR "generate models/tiny-math --tp 4 " IDS,
            "tensor_parallel_size: wanted 2, the processes of mpirun, found 4");
    refused(QUIETLY "-n 1 " INVAR "generate models/tiny-math " IDS ": -n 1 " INVAR "generate no/such/model " IDS,
            "no such model directory");
    refused(QUIETLY "-n 9 " INVAR "generate models/tiny-math " IDS, "wanted 1 to 8 processes, found 9");
}

/* Without the module next to it the program names the missing file. */
static void no_module(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[1000];
    snprintf(line, sizeof line, "mkdir %s/bin && cp " INVAR_BINARY " %s/bin/invar", folder, folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, MPIRUN "-n 2 %s/bin/invar generate models/tiny-math " IDS, folder);
    refused(line, "apt install libopenmpi-dev openmpi-bin");
}

/* A program started through PATH or a link finds the module next to its real file. */
static void module_is_found(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[1000], *out, *errors;
    snprintf(line, sizeof line, "ln -s " INVAR_BINARY " %s/linked", folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "env PATH=%s:$PATH " MPIRUN "-n 2 linked generate models/tiny-math " IDS, folder);
    if (run(line, &out, &errors) != 0) fail_msg("%s: %s", line, errors);
    free(out), free(errors);
}

static void a_rank_is_killed(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    lost(1, SIGKILL);
    lost(0, SIGKILL);
}

static void a_rank_hangs(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    lost(2, SIGSTOP);
    lost(0, SIGSTOP);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_answers),
                                       cmocka_unit_test(same_logits),
                                       cmocka_unit_test(a_share_of_changing_memory),
                                       cmocka_unit_test(receipts),
                                       cmocka_unit_test(those_that_do_not_belong_together),
                                       cmocka_unit_test(no_module),
                                       cmocka_unit_test(module_is_found),
                                       cmocka_unit_test(a_rank_is_killed),
                                       cmocka_unit_test(a_rank_hangs)};
    return cmocka_run_group_tests(tests, begin_jobs, end_jobs);
}
