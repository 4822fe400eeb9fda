/* training_runs.h: runs of `invar train` on a GPU, their data, and how GPUs divide them. */
#ifndef IV_TESTS_CUDA_TRAINING_RUNS_H
#define IV_TESTS_CUDA_TRAINING_RUNS_H

#include "random.h"

#include "device/gpu.h"
#include "train/run.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>

static char folder[] = "/tmp/invar-training-XXXXXX";
static char data[300], reward[300];
static bool has_gpu, has_tensor_cores, few;
static bool
    lends; /* a pass fits into the pages of a small model: on GPUs of few multiprocessors, which need less scratch */
static size_t gpus;
static void (*before_layout)(size_t layout);

static inline void write_data(void) {
    snprintf(data, sizeof data, "%s/data.jsonl", folder);
    FILE *f = fopen(data, "w");
    assert_non_null(f);
    for (int i = 0; i < 12; i++) {
        fprintf(f, "{\"ids\": [%d, %d, %d", 5 + i, 7 * i % 400, i * i % 300);
        for (int t = 0; t < i * 5 % 23; t++) fprintf(f, ", %d", (11 * t + 3 * i) % 400);
        fputs("], \"answer\": \"\"}\n", f);
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

static inline int begin(void **state) {
    (void)state;
    iv_gpu *gpu;
    iv_error err;
    has_gpu = iv_gpu_count(&gpus, &err) == IV_OK && gpus > 0;
    if (has_gpu && iv_gpu_open(0, true, &gpu, &err) == IV_OK) has_tensor_cores = true, iv_gpu_close(gpu);
    if (!mkdtemp(folder)) return -1;
    write_data();
    return 0;
}

static inline int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *w) {
    (void)s, (void)kind, (void)w;
    return remove(path);
}

static inline int end(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

#define SKIP_WITHOUT_A_GPU()                            \
    do {                                                \
        if (!has_gpu) {                                 \
            printf("SKIPPED: 1 GPU wanted, 0 found\n"); \
            skip();                                     \
        }                                               \
    } while (0)

static inline const char *path_of(const char *name) {
    static char paths[4][400];
    static int next;
    char *out = paths[next++ % 4];
    snprintf(out, 400, "%s/%s", folder, name);
    return out;
}

typedef struct problem {
    const char *model, *arithmetic, *dtype;
    bool narrow; /* one leaf: no tensor-parallel ranks */
} problem;

static inline void options_of(iv_run_options *o, const problem *p, iv_run_kind kind, const char *device) {
    static char model[4200];
    snprintf(model, sizeof model, "%s/%s", INVAR_SOURCE_DIR, p->model);
    iv_run_defaults(o, kind);
    o->trainer.model = model, o->data = data, o->trainer.device = device, o->trainer.arithmetic = p->arithmetic,
    o->trainer.dtype = p->dtype;
    o->steps = 2, o->batch_size = few ? 2 : 4, o->learning_rate = 1e-3, o->seed = 11, o->trainer.threads = 2,
    o->quiet = true;
}

static inline void run(const iv_run_options *o, iv_run_summary *s) {
    iv_error err;
    ASSERT_OK(iv_run_train(o, s, &err), &err);
    assert_string_equal(s->device, o->trainer.device);
}

typedef struct layout {
    size_t dp, tp, micro_batch, pass_tokens;
    const char *recompute;
    bool shard; /* parameters too; the layouts of several_gpus are tried in both ways */
} layout;

static const layout layouts[] = {
    {2, 1, 0, 0, "none", 0},  {1, 2, 0, 0, "none", 0},      {2, 2, 1, 0, "layer", 0}, {4, 1, 1, 0, "attention", 0},
    {4, 2, 0, 0, "layer", 0}, {1, 2, 2, 0, "attention", 0}, {8, 1, 0, 0, "none", 0},  {2, 2, 0, 64, "none", 0},
};

static inline void lay_out(iv_run_options *o, const layout *y) {
    o->trainer.data_parallel = y->dp, o->trainer.tensor_parallel = y->tp, o->trainer.micro_batch = y->micro_batch;
    o->trainer.pass_tokens = y->pass_tokens, o->trainer.recompute = y->recompute, o->separate = y->micro_batch != 0;
    o->shard = y->shard ? "parameters" : "optimizer";
}

#endif
