/* Training under mpirun: supervised and by reinforcement, the weights of several processes are those of one; a step
 * that one process refuses ends in all, with its error. */
#include "comm/mpi_job.h"

#include <stdlib.h>

static char data[300], reward[300];
static int runs; /* so far: each has a directory */

static void write_data(void) {
    snprintf(data, sizeof data, "%s/problems.jsonl", folder);
    FILE *f = fopen(data, "w");
    assert_non_null(f);
    for (int i = 0; i < 24; i++) {
        fprintf(f, "{\"ids\": [%d, %d, %d, %d", 5 + i, 7 * i % 400, 3, i * i % 300);
        for (int t = 0; t < i % 7; t++) fprintf(f, ", %d", 11 * t + i);
        fprintf(f, "], \"answer\": \"\"}\n");
    }
    fclose(f);
    snprintf(reward, sizeof reward, "%s/reward.sh", folder);
    f = fopen(reward, "w");
    assert_non_null(f);
    fputs("#!/bin/sh\n"
          "while IFS= read -r line; do\n"
          "    id=${line#*'\"id\":'}\n"
          "    id=${id%%,*}\n"
          "    echo '{\"id\":'$id',\"reward\":'$((id % 16 * 7 % 5))'}'\n"
          "done\n",
          f);
    fclose(f);
    assert_int_equal(chmod(reward, 0755), 0);
}

/* Trains under `start`; the loss, that of held-out examples or their reward, and the weights of its JSON. */
static void train(const char *start, const char *kind, const char *flags, char loss[100], char weights[65]) {
    char line[2000], *out, *errors;
    snprintf(line, sizeof line,
             "%s" INVAR
             "train %s tests/data/hf/qwen3 --data %s --eval-data %s --output %s/run%d --steps 3 --batch-size 5 "
             "--lr 1e-3 --seed 11 --threads 1 --device cpu --quiet --json %s",
             start, kind, data, data, folder, runs++, flags);
    if (run(line, &out, &errors) != 0) fail_msg("%s: %s", line, errors);
    const char *hash = strstr(out, "\"weights\": \""), *number_at = strstr(out, "\"loss\": "),
               *eval_at = strstr(out, "\"eval_");
    if (!hash || !number_at || !eval_at) fail_msg("%s: no weights or loss in: %s", line, out);
    snprintf(weights, 65, "%s", hash + strlen("\"weights\": \""));
    snprintf(loss, 100, "%.*s, %.*s", (int)strcspn(number_at, ",}"), number_at, (int)strcspn(eval_at, ",}"), eval_at);
    if (strstr(out, "tokens_different") && !strstr(out, "\"tokens_different\": 0")) fail_msg("%s: %s", line, out);
    free(out), free(errors);
}

/* Checkpoints of sharded processes, continued by one from the first step on. */
static void sharded_checkpoints(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[2000], dir[400], *out, *errors, want[65], got[65], loss[100];
    write_data();
    train(MPIRUN "-n 4 ", "sft", "--shard parameters --save-every 1 --keep 0", loss, want);
    snprintf(dir, sizeof dir, "%s/run%d", folder, runs - 1);
    snprintf(line, sizeof line, "sh -c 'rm -r %s/checkpoint-000002 %s/checkpoint-000003'", dir, dir);
    assert_int_equal(run(line, &out, &errors), 0);
    free(out), free(errors);
    runs--;
    train("", "sft", "--resume", loss, got);
    assert_string_equal(want, got);
}

static void same_weights(const char *kind, const char *flags, const char *const *starts) {
    char want[65], got[65], loss[100], other[100];
    train("", kind, flags, loss, want);
    for (size_t i = 0; starts[i]; i++) {
        train(starts[i], kind, flags, other, got);
        if (strcmp(want, got) != 0 || strcmp(loss, other) != 0)
            fail_msg("%s%s: wanted %s, weights %s, found %s, %s", starts[i], kind, loss, want, other, got);
    }
    char control[600];
    snprintf(control, sizeof control, "%s --max-grad-norm 1e-3", flags);
    train("", kind, control, loss, got);
    assert_string_not_equal(want, got);
}

static void supervised(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const char *const starts[] = {MPIRUN "-n 2 ", MPIRUN "-n 4 ", NULL};
    write_data();
    same_weights("sft", "", starts);
    same_weights("sft", "--shard parameters --micro-batch 1", starts);
}

/* Tensor-parallel ranks that are processes; with --dp they are threads of each process. */
static void tensor_parallel(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char want[65], got[65], loss[100], other[100], flags[500];
    static const struct {
        const char *start, *flags;
    } ways[] = {{MPIRUN "-n 2 ", "--tp 2"},
                {MPIRUN "-n 4 ", "--tp 2 --micro-batch 1"},
                {MPIRUN "-n 4 ", "--tp 4 --recompute layer"},
                {MPIRUN "-n 2 ", "--tp 2 --dp 4"}};
    write_data();
    train("", "sft", "", loss, want);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        train(ways[i].start, "sft", ways[i].flags, other, got);
        if (strcmp(want, got) != 0 || strcmp(loss, other) != 0)
            fail_msg("%s %s: wanted %s, weights %s, found %s, %s", ways[i].start, ways[i].flags, loss, want, other,
                     got);
    }
    snprintf(flags, sizeof flags, "--reward %s --group-size 4 --max-new-tokens 12 --inner-steps 2 --kl-beta 0.05",
             reward);
    train("", "rl", flags, loss, want);
    strcat(flags, " --tp 2 --rollout-tp 2");
    train(MPIRUN "-n 4 ", "rl", flags, other, got);
    assert_string_equal(want, got);
    assert_string_equal(loss, other);
}

/* A checkpoint of four processes, two of them a data-parallel rank, continued by one process. */
static void tensor_parallel_checkpoints(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[2000], dir[400], *out, *errors, want[65], got[65], loss[100];
    write_data();
    train(MPIRUN "-n 4 ", "sft", "--tp 2 --save-every 1 --keep 0", loss, want);
    snprintf(dir, sizeof dir, "%s/run%d", folder, runs - 1);
    snprintf(line, sizeof line, "sh -c 'rm -r %s/checkpoint-000002 %s/checkpoint-000003'", dir, dir);
    assert_int_equal(run(line, &out, &errors), 0);
    free(out), free(errors);
    runs--;
    train("", "sft", "--resume --dp 2", loss, got);
    assert_string_equal(want, got);
}

static void refused_layouts(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const struct {
        const char *start, *flags, *said;
    } cases[] = {
        {MPIRUN "-n 3 ", "--tp 2", "tensor-parallel ranks: wanted a divisor of the 3 processes of mpirun, found 2"},
        {MPIRUN "-n 2 ", "--tp 4", "tensor-parallel ranks: wanted a divisor of the 2 processes of mpirun, found 4"},
        {MPIRUN "-n 4 ", "--tp 2 --dp 1",
         "wanted a multiple of the 4 processes, or as many as make one process of each"},
        {MPIRUN "-n 4 ", "--tp 2 --dp 6", "data-parallel ranks: wanted a divisor of the 8 virtual ranks, found 6"},
        {MPIRUN "-n 8 ", "--tp 2 --dp 2",
         "wanted a multiple of the 8 processes, or as many as make one process of each"},
        {MPIRUN "-n 2 ", "--tp 2 --shard parameters",
         "shard parameters: wanted 1 tensor-parallel rank on device cpu, found 2"},
    };
    write_data();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[2000], *out, *errors;
        snprintf(line, sizeof line,
                 "%s" INVAR "train sft tests/data/hf/qwen3 --data %s --output %s/refused --steps 1 --batch-size 4 "
                 "--threads 1 --device cpu --quiet %s",
                 cases[i].start, data, folder, cases[i].flags);
        int code = run(line, &out, &errors);
        if (code == 0 || !strstr(errors, cases[i].said)) fail_msg("%s: exit %d: %s", line, code, errors);
        free(out), free(errors);
    }
}

static void reinforcement(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    static const char *const starts[] = {MPIRUN "-n 2 ", MPIRUN "-n 8 ", NULL}; /* 8: some have no prompt */
    char flags[500];
    write_data();
    snprintf(flags, sizeof flags, "--reward %s --group-size 4 --max-new-tokens 12 --inner-steps 2 --kl-beta 0.05",
             reward);
    same_weights("rl", flags, starts);
    strcat(flags, " --shard parameters");
    same_weights("rl", flags, starts);
}

/* One process finds a token whose log-probability differs; the others do not wait for it. */
static void one_error_for_all(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char line[2000], *out, *errors;
    write_data();
    snprintf(line, sizeof line,
             MPIRUN
             "-n 2 " INVAR "train rl tests/data/hf/qwen3 --data %s --output %s/mismatch --steps 2 --batch-size 8 "
             "--reward %s --group-size 4 --max-new-tokens 12 --threads 1 --device cpu --quiet --rollout-numerics "
             "vanilla",
             data, folder, reward);
    int code = run(line, &out, &errors);
    if (code == 0 || !strstr(errors, "the sampler's log-probability")) fail_msg("exit %d: %s", code, errors);
    free(out), free(errors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supervised),       cmocka_unit_test(sharded_checkpoints),
        cmocka_unit_test(tensor_parallel),  cmocka_unit_test(tensor_parallel_checkpoints),
        cmocka_unit_test(refused_layouts),  cmocka_unit_test(reinforcement),
        cmocka_unit_test(one_error_for_all)};
    return cmocka_run_group_tests(tests, begin_jobs, end_jobs);
}
