/* run_case.h: a small training run in a temporary directory, for the tests of run.h. */
#ifndef IV_TESTS_RUN_CASE_H
#define IV_TESTS_RUN_CASE_H

#include "random.h"
#include "base/file.h"
#include "format/json.h"
#include "train/run.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CASE_STEPS_MAX = 64, CASE_EXAMPLES = 20, CASE_VOCAB = 512 };

static char case_folder[64];

static inline const char *case_path(const char *name) {
    static char paths[16][256]; /* enough for the paths in use at the same time */
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", case_folder, name);
    return path;
}

static inline int case_remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}
static inline void case_remove(const char *path) { nftw(path, case_remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static inline void case_write_data(const char *name, rng *r) {
    FILE *file = fopen(case_path(name), "w");
    assert_non_null(file);
    for (size_t i = 0; i < CASE_EXAMPLES; i++) {
        size_t n = 2 + rng_below(r, 14);
        fputs("{\"ids\": [", file);
        for (size_t t = 0; t < n; t++) fprintf(file, "%s%zu", t ? ", " : "", rng_below(r, CASE_VOCAB));
        fputs("], \"mask\": [0, 1", file);
        for (size_t t = 2; t < n; t++) fputs(rng_below(r, 3) ? ", 1" : ", 0", file);
        fputs("]}\n", file);
    }
    assert_int_equal(fclose(file), 0);
}

static inline int case_open(void **state) {
    (void)state;
    strcpy(case_folder, "/tmp/invar_run_XXXXXX");
    return mkdtemp(case_folder) ? 0 : -1;
}
static inline int case_close(void **state) {
    (void)state;
    case_remove(case_folder);
    return 0;
}

/* A run of `steps` steps of data.jsonl into `output`; the caller sets more. */
static inline iv_run_options case_options(const char *output, uint64_t steps) {
    static char model[4096];
    iv_run_options o;
    snprintf(model, sizeof model, "%s/tests/data/hf/qwen3", INVAR_SOURCE_DIR);
    iv_run_defaults(&o, IV_RUN_SFT);
    o.trainer.model = model, o.data = case_path("data.jsonl"), o.output = output ? case_path(output) : NULL;
    o.steps = steps, o.batch_size = 6, o.seed = 3, o.learning_rate = 1e-3, o.trainer.weight_decay = 0.1;
    o.trainer.threads = 1, o.quiet = true;
    return o;
}

/* The lines of metrics.jsonl. */
typedef struct case_log {
    size_t lines;
    uint64_t steps[CASE_STEPS_MAX];
    double loss[CASE_STEPS_MAX];
    char weights[CASE_STEPS_MAX][65];
} case_log;

static inline void case_read_log(const char *output, case_log *log) {
    char path[512];
    iv_error err;
    iv_buf file = {0};
    *log = (case_log){0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", output);
    ASSERT_OK(iv_file_read(path, 1 << 24, &file, &err), &err);
    if (file.len && file.data[file.len - 1] != '\n') fail_msg("%s: the last line is not whole", path);
    for (char *line = strtok(file.data, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j;
        assert_true(log->lines < CASE_STEPS_MAX);
        ASSERT_OK(iv_json_parse(path, line, strlen(line), &j, &err), &err);
        log->steps[log->lines] = (uint64_t)json_integer_value(json_object_get(j, "step"));
        log->loss[log->lines] = json_number_value(json_object_get(j, "loss"));
        snprintf(log->weights[log->lines++], 65, "%s", json_string_value(json_object_get(j, "weights")));
        json_decref(j);
    }
    iv_buf_free(&file);
}

static inline void case_same_log(const char *output, const case_log *want) {
    case_log log;
    case_read_log(output, &log);
    if (log.lines != want->lines) fail_msg("%s: wanted %zu lines, found %zu", output, want->lines, log.lines);
    for (size_t i = 0; i < log.lines; i++) {
        if (log.steps[i] != i + 1) fail_msg("%s: line %zu is of step %zu", output, i + 1, (size_t)log.steps[i]);
        if (strcmp(log.weights[i], want->weights[i]) != 0)
            fail_msg("%s: step %zu: wanted weights %s, found %s", output, i + 1, want->weights[i], log.weights[i]);
        if (log.loss[i] != want->loss[i]) fail_msg("%s: step %zu: another loss", output, i + 1);
    }
}

static inline void expect_failure(const iv_run_options *o, iv_status status, const char *words) {
    iv_error err = {0};
    iv_run_summary summary;
    iv_status found = iv_run_train(o, &summary, &err);
    if (found != status || !strstr(err.message, words))
        fail_msg("wanted status %d and \"%s\", found %d: %s", (int)status, words, (int)found, err.message);
}

static inline bool exists(const char *folder, const char *name) {
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

#endif
