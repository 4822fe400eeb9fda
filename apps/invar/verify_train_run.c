/* verify_train_run.c: the training run of one configuration, in parts where it is interrupted, and its comparison. */
#include "verify_train.h"
#include "answer.h"
#include "base/clock.h"
#include "stats.h"
#include "text.h"
#include "train/run.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_LEAST = 2, LENGTH_MOST = 60, OPEN_FOLDERS = 16 };

/* ---- folder and data ----------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void remove_tree(const char *path) { nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS); }

/* Two and a half batches: epochs end inside of a batch. A quarter of the tokens is not learned, some have a weight. */
static void write_sequences(FILE *out, const verify_train_job *job, const iv_model_info *model) {
    uint64_t random = job->seed;
    size_t most = model->max_positions < LENGTH_MOST ? (size_t)model->max_positions : LENGTH_MOST;
    for (size_t i = 0; i < 2 * job->batch_size + (job->batch_size + 1) / 2; i++) {
        size_t n = LENGTH_LEAST + cli_random(&random) % (most - LENGTH_LEAST + 1);
        fputs("{\"ids\": [", out);
        for (size_t t = 0; t < n; t++)
            fprintf(out, "%s%llu", t ? ", " : "",
                    (unsigned long long)(cli_random(&random) % (uint64_t)model->vocab_size));
        fputs("], \"mask\": [0", out);
        for (size_t t = 1; t < n; t++) {
            uint64_t pick = t == 1 ? 1 : cli_random(&random) % 8;
            fputs(pick == 0 ? ", 0.25" : pick < 6 ? ", 1" : ", 0", out);
        }
        fputs("]}\n", out);
    }
}

int verify_train_open(verify_train_job *job, const char *data, const iv_model_info *model, iv_error *err) {
    const char *temporary = getenv("TMPDIR");
    if (!temporary || !*temporary) temporary = "/tmp";
    if (model->max_positions < LENGTH_LEAST)
        return cli_fail(err, CLI_FAILED, "%s: wanted %d positions at least, found %lld", job->model_name, LENGTH_LEAST,
                        (long long)model->max_positions);
    if (snprintf(job->folder, sizeof job->folder, "%s/invar-verify-XXXXXX", temporary) >= (int)sizeof job->folder)
        return cli_fail(err, CLI_FAILED, "$TMPDIR: the path is too long");
    if (!mkdtemp(job->folder)) {
        int why = errno;
        job->folder[0] = 0;
        return cli_fail(err, CLI_FAILED, "%s: cannot make a temporary folder: %s", temporary, strerror(why));
    }
    job->data_name = data;
    if (data) {
        if (snprintf(job->data, sizeof job->data, "%s", data) < (int)sizeof job->data) return CLI_OK;
        return cli_fail(err, CLI_FAILED, "--data: the path is too long");
    }
    cli_buffer buffer;
    snprintf(job->data, sizeof job->data, "%s/data.jsonl", job->folder);
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    write_sequences(buffer.file, job, model);
    return cli_buffer_write(&buffer, job->data, err);
}

void verify_train_close(verify_train_job *job) {
    if (job->folder[0]) remove_tree(job->folder);
    job->folder[0] = 0;
}

/* ---- a run --------------------------------------------------------------------------------------------- */

typedef struct runner {
    verify_train_job *job;
    const verify_config *config;
    verify_trained *out;
    size_t until; /* of the present part */
    volatile sig_atomic_t stop;
} runner;

static void take_step(void *user, uint64_t step, const char *hash) {
    runner *r = user;
    const verify_train_job *job = r->job;
    verify_trained *out = r->out;
    memcpy(out->hashes[step - 1], hash, sizeof(verify_hash));
    out->compared = step;
    if (job->quiet && memcmp(job->quiet->hashes[step - 1], hash, sizeof(verify_hash)) != 0) {
        out->differing++;
        if (out->first == 0) out->first = step;
    }
    cli_progress_count(job->progress, job->done * job->steps + step, job->total * job->steps,
                       r->config->name[0] ? r->config->name : "quiet run");
    if (step == r->until || cli_interrupt_caught()) r->stop = 1;
}

/* Where the run is interrupted, and the data-parallel ranks of each part. */
static void cut(const verify_train_job *job, const verify_config *c, verify_trained *out) {
    static const size_t worlds[] = {1, 2, 4, 8};
    size_t steps = c->value[VERIFY_ISA] == VERIFY_SCALAR && job->scalar_steps && job->scalar_steps < job->steps
                       ? job->scalar_steps
                       : job->steps;
    uint64_t random = c->seed;
    size_t wanted = c->value[VERIFY_RESUME] == VERIFY_RESUME_WORLDS ? 3 : c->value[VERIFY_RESUME] ? 2 : 1;
    out->parts = wanted < steps ? wanted : steps;
    out->worlds[0] = c->value[VERIFY_WORLD] ? c->value[VERIFY_WORLD] : 1;
    for (size_t i = 0, at = 0; i < out->parts; i++) {
        size_t left = out->parts - 1 - i; /* parts after this one, of a step at least */
        at += left ? 1 + cli_random(&random) % (steps - at - left) : steps - at;
        out->until[i] = at;
        if (i == 0) continue;
        do
            out->worlds[i] =
                c->value[VERIFY_RESUME] == VERIFY_RESUME_WORLDS ? worlds[cli_random(&random) % 4] : out->worlds[0];
        while (c->value[VERIFY_RESUME] == VERIFY_RESUME_WORLDS && out->worlds[i] == out->worlds[i - 1]);
    }
}

/* Layouts that only CPUs have run there, in parts too: a run on a GPU continues on the CPU and back. */
static const char *device_of(const runner *r, size_t part) {
    const size_t *value = r->config->value;
    if (value[VERIFY_DEVICE]) return value[VERIFY_DEVICE] == VERIFY_DEVICE_CPU ? "cpu" : "cuda";
    bool layout = r->out->worlds[part] > 1 || value[VERIFY_TP] || value[VERIFY_THREADS] || value[VERIFY_ISA];
    return layout && r->job->quiet ? "cpu" : r->job->device;
}

static void set_options(runner *r, size_t part, const char *output, iv_run_options *o) {
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512"}, *const recomputes[] = {"none", "attention",
                                                                                                   "layer"};
    const verify_train_job *job = r->job;
    const size_t *value = r->config->value;
    iv_run_defaults(o, IV_RUN_SFT);
    o->trainer.model = job->path, o->data = job->data, o->output = output;
    o->trainer.dtype = job->dtype, o->trainer.arithmetic = job->arithmetic, o->numerics = job->numerics;
    o->steps = job->steps, o->batch_size = job->batch_size, o->seed = job->seed;
    o->learning_rate = 1e-3, o->trainer.weight_decay = 0.1, o->schedule = "cosine";
    o->trainer.lora_rank = job->lora_rank, o->trainer.lora_targets = job->lora_targets;
    o->trainer.device = device_of(r, part);
    o->trainer.data_parallel = r->out->worlds[part];
    o->trainer.tensor_parallel = value[VERIFY_TP] ? value[VERIFY_TP] : 1;
    o->trainer.threads = value[VERIFY_THREADS] ? value[VERIFY_THREADS] : 1;
    o->trainer.micro_batch = value[VERIFY_MICRO_BATCH];
    o->trainer.recompute = recomputes[value[VERIFY_RECOMPUTE]], o->trainer.isa = isas[value[VERIFY_ISA]];
    o->keep = 1, o->resume = part > 0, o->quiet = true;
    o->stop = &r->stop, o->step = take_step, o->step_user = r;
}

static bool may_refuse(const verify_config *c, iv_status status) {
    return (status == IV_UNSUPPORTED || status == IV_INVALID) &&
           (c->value[VERIFY_ISA] || c->value[VERIFY_TP] || c->value[VERIFY_WORLD] || c->value[VERIFY_DEVICE]);
}

static int run_part(runner *r, size_t part, const char *output, iv_error *err) {
    iv_run_options o;
    iv_run_summary summary;
    verify_trained *out = r->out;
    size_t after = part ? out->until[part - 1] : 0;
    r->stop = 0, r->until = out->until[part];
    set_options(r, part, output, &o);
    iv_status status = iv_run_train(&o, &summary, err);
    if (part == 0 && status != IV_OK && out->compared == 0 && may_refuse(r->config, status)) {
        out->skipped = true;
        snprintf(out->reason, sizeof out->reason, "%.250s", err->message);
        return CLI_OK;
    }
    if (cli_interrupt_caught()) return 128 + cli_interrupt_caught();
    if (status != IV_OK) {
        iv_error why = *err;
        return cli_fail(err, CLI_FAILED, "%s%s%.800s", r->config->name, r->config->name[0] ? ": " : "", why.message);
    }
    if (summary.first_step != after || summary.steps != r->until)
        return cli_fail(err, CLI_FAILED, "%s: wanted steps %zu to %zu, found %zu to %zu", r->config->name, after + 1,
                        r->until, (size_t)summary.first_step + 1, (size_t)summary.steps);
    out->loss = summary.loss;
    if (!r->job->quiet)
        r->job->isa = summary.isa, r->job->dtype = summary.dtype, r->job->arithmetic = summary.arithmetic,
        r->job->device = summary.device;
    return CLI_OK;
}

int verify_train_run(verify_train_job *job, const verify_config *config, verify_trained *out, iv_error *err) {
    char output[VERIFY_FOLDER_BYTES + 16];
    runner r = {.job = job, .config = config, .out = out};
    double began = iv_now();
    int code = CLI_OK;
    *out = (verify_trained){.hashes = calloc(job->steps, sizeof *out->hashes)};
    if (!out->hashes) return cli_fail(err, CLI_FAILED, "out of memory");
    cut(job, config, out);
    snprintf(output, sizeof output, "%s/run", job->folder);
    for (size_t i = 0; code == CLI_OK && i < out->parts && !out->skipped; i++)
        code = run_part(&r, i, out->parts > 1 ? output : NULL, err);
    if (out->parts > 1) remove_tree(output);
    out->seconds = iv_now() - began;
    return code;
}

void verify_trained_free(verify_trained *t) {
    free(t->hashes);
    *t = (verify_trained){0};
}
