/* checkpoint_case.h: a made-up run whose state is a function of its step, so that any checkpoint can be checked. */
#ifndef IV_TESTS_TRAIN_CHECKPOINT_CASE_H
#define IV_TESTS_TRAIN_CHECKPOINT_CASE_H

#include "support.h"
#include "base/file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/files.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

enum { CASE_ELEMENTS = 3 * 4096 };

typedef struct checkpoint_case {
    char root[256], dir[300]; /* dir: of the run */
    iv_training_run run;
    size_t keep;
} checkpoint_case;

static inline void case_open(checkpoint_case *c) {
    const char *tmp = getenv("TMPDIR");
    snprintf(c->root, sizeof c->root, "%s/invar-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(c->root));
    snprintf(c->dir, sizeof c->dir, "%s/run", c->root);
    c->run = (iv_training_run){.dir = c->dir,
                               .identity = "iv1-train-0123456789abcdef",
                               .initial_weights = "sha256:00ff",
                               .hyperparameters = "{\"learning_rate\": 0.001, \"virtual_ranks\": 8, \"seed\": \"7\"}",
                               .law_version = 1,
                               .elements = CASE_ELEMENTS};
    c->keep = 3;
}

static inline void case_close(checkpoint_case *c) {
    iv_error err;
    ASSERT_OK(iv_training_remove_tree(c->root, &err), &err);
}

static inline float case_value(uint64_t step, size_t part, size_t i) {
    return (float)((step * 7919 + part * 104729 + i * 31) % 65521) * 0.5f - 1000.0f;
}

/* The model of a checkpoint: a file whose text is the step. */
static inline iv_status case_export(void *user, const char *dir, iv_error *err) {
    char path[512], text[32];
    if (mkdir(dir, 0777) != 0) return iv_fail(err, IV_IO, "%s: cannot be made: %s", dir, strerror(errno));
    snprintf(path, sizeof path, "%s/model.txt", dir);
    int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)*(const uint64_t *)user);
    return iv_file_write(path, text, (size_t)n, err);
}

/* One rank's part of a save: rank r of w owns the r-th of w ranges. */
static inline iv_status case_save_rank(const checkpoint_case *c, uint64_t step, size_t rank, size_t ranks,
                                       iv_comm *comm, iv_error *err) {
    size_t first = rank * CASE_ELEMENTS / ranks, count = (rank + 1) * CASE_ELEMENTS / ranks - first;
    float *arrays = malloc(IV_TRAINING_BUFFERS * count * sizeof *arrays);
    assert_non_null(arrays);
    iv_training_shard shard = {.first = first, .count = count};
    for (size_t p = 0; p < IV_TRAINING_BUFFERS; p++) {
        shard.data[p] = arrays + p * count;
        for (size_t i = 0; i < count; i++) arrays[p * count + i] = case_value(step, p, first + i);
    }
    char hash[32], state[64];
    snprintf(hash, sizeof hash, "hash-%llu", (unsigned long long)step);
    snprintf(state, sizeof state, "{\"tokens\": %llu}", (unsigned long long)step * 100);
    iv_training_progress p = {
        .step = step, .epoch = step / 10, .cursor = step % 10, .weight_hash = hash, .state = state};
    iv_training_save_options o = {.export = case_export, .export_user = &step, .keep = c->keep};
    iv_status status = iv_training_save(&c->run, &p, &shard, &o, comm, err);
    free(arrays);
    return status;
}

static inline iv_status case_save(const checkpoint_case *c, uint64_t step, iv_error *err) {
    return case_save_rank(c, step, 0, 1, NULL, err);
}

/* Threads as ranks. */
typedef struct case_rank {
    const checkpoint_case *c;
    iv_comm *comm;
    uint64_t step;
    iv_status status;
    iv_error err;
    void (*before)(size_t rank); /* in the thread; may be NULL */
} case_rank;

static inline void *case_run_rank(void *context) {
    case_rank *r = context;
    if (r->before) r->before(r->comm->rank);
    r->status = case_save_rank(r->c, r->step, r->comm->rank, r->comm->size, r->comm, &r->err);
    return NULL;
}

static inline void case_save_ranks(const checkpoint_case *c, uint64_t step, size_t ranks, void (*before)(size_t rank),
                                   case_rank *results) {
    iv_comm *comms[IV_RANKS_MAX];
    pthread_t threads[IV_RANKS_MAX];
    iv_error err;
    ASSERT_OK(iv_comm_threads_open(ranks, comms, &err), &err);
    for (size_t r = 0; r < ranks; r++) {
        results[r] = (case_rank){.c = c, .comm = comms[r], .step = step, .before = before};
        assert_int_equal(pthread_create(&threads[r], NULL, case_run_rank, &results[r]), 0);
    }
    for (size_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (size_t r = 0; r < ranks; r++) iv_comm_close(comms[r]);
}

/* Every number and every string of the checkpoint are those of its step. */
static inline void case_check(const iv_training_checkpoint *c, uint64_t step) {
    const iv_training_saved *s = iv_training_get(c);
    char text[64], path[1024];
    iv_error err;
    assert_int_equal(s->progress.step, step);
    assert_int_equal(s->progress.epoch, step / 10);
    assert_int_equal(s->progress.cursor, step % 10);
    snprintf(text, sizeof text, "hash-%llu", (unsigned long long)step);
    assert_string_equal(s->progress.weight_hash, text);
    snprintf(text, sizeof text, "{\"tokens\":%llu}", (unsigned long long)step * 100);
    assert_string_equal(s->progress.state, text);
    float *got = malloc(CASE_ELEMENTS * sizeof *got);
    assert_non_null(got);
    for (size_t p = 0; p < IV_TRAINING_BUFFERS; p++) {
        ASSERT_OK(iv_training_read(c, (iv_training_buffer)p, 0, CASE_ELEMENTS, got, &err), &err);
        for (size_t i = 0; i < CASE_ELEMENTS; i++)
            if (got[i] != case_value(step, p, i)) fail_msg("step %d part %zu element %zu", (int)step, p, i);
    }
    free(got);
    assert_non_null(s->model);
    snprintf(path, sizeof path, "%s/model.txt", s->model);
    FILE *f = fopen(path, "r");
    unsigned long long saved = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &saved), 1);
    fclose(f);
    assert_int_equal(saved, step);
}

/* The newest whole checkpoint is that of `step`, and its content is right. */
static inline void case_expect_latest(const checkpoint_case *c, uint64_t step, iv_buf *notes) {
    iv_training_checkpoint *found;
    iv_buf own = {0};
    iv_error err;
    ASSERT_OK(iv_training_resume(&c->run, NULL, &found, notes ? notes : &own, &err), &err);
    assert_non_null(found);
    case_check(found, step);
    iv_training_close(found);
    iv_buf_free(&own);
}

#endif
