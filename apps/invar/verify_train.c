/* verify_train.c: invar verify --train: the quiet training run, then every configuration, then the report. */
#include "verify_train.h"
#include "answer.h"
#include "commands.h"
#include "model.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct state {
    verify_axes axes;
    verify_configs configs;
    verify_trained *results; /* [VERIFY_CONFIGS_MAX]: the quiet run's address does not change */
    size_t ran;
    verify_train_job job;
    cli_progress progress;
    size_t part, parts;      /* this part of the configurations, from 0; parts 1: all */
    const char *json, *plot; /* files, or NULL */
    bool table;
    cli_style style;
} state;

/* ---- flags --------------------------------------------------------------------------------------------- */

int verify_check_mode(const cli_args *args, iv_error *err) {
    static const char *const answers[] = {"prompts",       "max-tokens",   "batch-sizes",  "chunk-sizes",
                                          "scalar-tokens", "lora-modules", "max-lora-rank"},
                             *const training[] = {"data",         "steps", "batch-size", "worlds",      "micro-batches",
                                                  "scalar-steps", "part",  "lora-rank",  "lora-targets"};
    if (cli_has(args, "lora-targets") && !cli_has(args, "lora-rank"))
        return cli_fail(err, CLI_USAGE, "--lora-targets: wanted --lora-rank too");
    if (cli_has(args, "train")) {
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
            if (cli_has(args, answers[i])) return cli_fail(err, CLI_USAGE, "--%s does not go with --train", answers[i]);
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        if (cli_has(args, training[i])) return cli_fail(err, CLI_USAGE, "--%s needs --train", training[i]);
    return CLI_OK;
}

/* --part I/N, I from 1. */
static int read_part(const cli_args *args, state *v, iv_error *err) {
    const char *text = cli_text(args, "part", "1/1");
    char found[CLI_SHOWN_BYTES];
    int end = 0;
    unsigned part = 0, parts = 0;
    bool digits = text[strspn(text, "0123456789/")] == 0 && strlen(text) < 10;
    if (!digits || sscanf(text, "%u/%u%n", &part, &parts, &end) != 2 || text[end] || part < 1 || part > parts ||
        parts > VERIFY_CONFIGS_MAX)
        return cli_fail(err, CLI_USAGE, "--part: wanted I/N with I from 1 to N, N at most %d, found '%s'",
                        VERIFY_CONFIGS_MAX, cli_shown(text, found));
    v->part = part - 1, v->parts = parts;
    return CLI_OK;
}

/* Checks flags and files before anything runs. */
static int plan(const cli_args *args, state *v, iv_error *err) {
    if (cli_has_other_ranks())
        return cli_fail(
            err, CLI_USAGE,
            "opens one trainer per configuration: do not use mpirun (--axes world,tp runs ranks as threads)");
    int code = verify_axes_read(args, true, &v->axes, err);
    if (code == CLI_OK) code = read_part(args, v, err);
    if (code == CLI_OK) code = cli_check_writable(v->json, err);
    if (code == CLI_OK) code = cli_check_writable(v->plot, err);
    if (code != CLI_OK) return code;
    verify_configs all = {0};
    if (cli_has(args, "product")) code = verify_configs_product(&v->axes, 0, &all, err);
    verify_configs_free(&all);
    if (code != CLI_OK) return code;
    v->results = calloc(VERIFY_CONFIGS_MAX, sizeof *v->results);
    return v->results ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

static int open_job(const cli_args *args, const char *path, state *v, iv_error *err) {
    verify_train_job *job = &v->job;
    iv_model_info model;
    job->path = path;
    job->dtype = cli_text(args, "dtype", "auto");
    job->device = cli_device(args);
    job->arithmetic = cli_text(args, "arithmetic", "auto");
    job->numerics = cli_text(args, "numerics", "invar");
    job->steps = cli_count(args, "steps", 20);
    job->scalar_steps = cli_count(args, "scalar-steps", 2);
    job->batch_size = cli_count(args, "batch-size", 16);
    job->seed = cli_count(args, "seed", 1);
    job->lora_rank = cli_count(args, "lora-rank", 0);
    job->lora_targets = cli_text(args, "lora-targets", NULL);
    job->progress = &v->progress;
    if (iv_inspect(path, job->dtype, &model, err) != IV_OK) return CLI_FAILED;
    if (model.index_unread) cli_warn_of_index(args->operands[0]);
    return verify_train_open(job, cli_text(args, "data", NULL), &model, err);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static int show_row(state *v, size_t c, iv_error *err) {
    cli_buffer buffer;
    if (!v->table) return CLI_OK;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (c == 0) verify_train_head(buffer.file, &v->job, &v->style);
    verify_train_row(buffer.file, &v->job, &v->configs.items[c], &v->results[c], &v->style);
    cli_progress_end(&v->progress);
    return cli_buffer_out(&buffer, err);
}

static int run_from(state *v, size_t from, bool singles, iv_error *err) {
    int code = CLI_OK;
    v->job.total = v->configs.count;
    for (size_t c = from; code == CLI_OK && c < v->configs.count; c++) {
        const verify_config *config = &v->configs.items[c];
        code = verify_train_run(&v->job, config, &v->results[v->ran++], err);
        if (c == 0) v->job.quiet = &v->results[0];
        if (code == CLI_OK) code = show_row(v, c, err);
        for (size_t a = 0; singles && v->results[c].skipped && a < VERIFY_AXES; a++) /* not in combinations either */
            if (config->value[a]) verify_axes_drop(&v->axes, (verify_axis)a, config->value[a]);
        v->job.done++;
    }
    return code;
}

/* Removes the quiet run's own device, and GPUs if it ran on the CPU and --axes does not ask for them. */
static void drop_devices(const cli_args *args, state *v) {
    bool cuda = strcmp(v->job.device, "cuda") == 0;
    verify_axes_drop(&v->axes, VERIFY_DEVICE, cuda ? VERIFY_DEVICE_CUDA : VERIFY_DEVICE_CPU);
    if (!cuda && !cli_has(args, "axes")) verify_axes_drop(&v->axes, VERIFY_DEVICE, VERIFY_DEVICE_CUDA);
}

/* Leaves the quiet run and every parts-th other configuration, each with the seed that it has in a run of all. */
static void keep_part(state *v) {
    size_t kept = 1;
    for (size_t c = 1; c < v->configs.count; c++)
        if ((c - 1) % v->parts == v->part) v->configs.items[kept++] = v->configs.items[c];
    v->configs.count = kept;
}

/* A part has the configurations that a run of all would have if none were refused. */
static int run_all(const cli_args *args, state *v, iv_error *err) {
    static const size_t nothing[VERIFY_AXES] = {0};
    uint64_t seed = v->job.seed;
    int code = verify_configs_add(&v->configs, nothing, seed, err);
    if (code == CLI_OK) code = run_from(v, 0, false, err);
    if (code != CLI_OK) return code;
    verify_axes_drop(&v->axes, VERIFY_ISA, verify_isa_value(v->job.isa));
    drop_devices(args, v);
    size_t from = v->configs.count;
    code = verify_configs_single(&v->axes, seed, &v->configs, err);
    if (code == CLI_OK && v->parts == 1) {
        code = run_from(v, from, true, err);
        from = v->configs.count;
    }
    if (code == CLI_OK)
        code = cli_has(args, "product")
                   ? verify_configs_product(&v->axes, seed, &v->configs, err)
                   : verify_configs_random(&v->axes, cli_count(args, "combinations", 8), seed, &v->configs, err);
    if (code == CLI_OK && v->parts > 1) keep_part(v);
    return code == CLI_OK ? run_from(v, from, false, err) : code;
}

/* ---- what was found ------------------------------------------------------------------------------------ */

static int write_file(const char *path, void (*write)(FILE *, const verify_train_report *),
                      const verify_train_report *r, iv_error *err) {
    cli_buffer buffer;
    if (!path) return CLI_OK;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    write(buffer.file, r);
    return cli_buffer_write(&buffer, path, err);
}

static int verdict(const verify_train_report *r, iv_error *err) {
    if (r->compared == 0)
        return cli_fail(err, CLI_FAILED, "%s: no configuration could be compared", r->job->model_name);
    if (r->worst == SIZE_MAX) return CLI_OK;
    const verify_trained *t = &r->results[r->worst];
    return cli_fail(err, CLI_FAILED,
                    "%zu of %zu configurations differ, first %s: step %zu, wanted weights %.12s, found %.12s",
                    r->differing, r->compared, r->configs[r->worst].name, t->first, r->job->quiet->hashes[t->first - 1],
                    t->hashes[t->first - 1]);
}

static int report(const state *v, iv_error *err) {
    verify_train_report r = {.job = &v->job, .configs = v->configs.items, .results = v->results, .count = v->ran};
    cli_buffer buffer;
    int code = verify_train_report_fill(&r, err);
    if (code == CLI_OK && v->table) {
        code = cli_buffer_open(&buffer, err);
        if (code == CLI_OK) {
            verify_train_foot(buffer.file, &r, &v->style);
            code = cli_buffer_out(&buffer, err);
        }
    }
    if (code == CLI_OK) code = write_file(v->json, verify_train_json, &r, err);
    if (code == CLI_OK) code = write_file(v->plot, verify_train_plot, &r, err);
    return code == CLI_OK ? verdict(&r, err) : code;
}

int verify_train(const cli_args *args, iv_error *err) {
    static state v; /* one per process; the job holds its address */
    char path[CLI_PATH_BYTES];
    v.json = cli_text(args, "json", NULL);
    v.plot = cli_text(args, "plot", NULL);
    v.table = !v.json || strcmp(v.json, "-") != 0;
    v.style = cli_style_of(STDOUT_FILENO);
    v.job.model_name = args->operands[0];
    int code = plan(args, &v, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code == CLI_OK) {
        cli_interrupt interrupt;
        cli_interrupt_watch(&interrupt);
        code = open_job(args, path, &v, err);
        cli_progress_start(&v.progress, "verify");
        if (code == CLI_OK) code = run_all(args, &v, err);
        cli_progress_end(&v.progress);
        verify_train_close(&v.job);
        cli_interrupt_unwatch(&interrupt);
    }
    if (code == CLI_OK) code = report(&v, err);
    for (size_t i = 0; i < v.ran; i++) verify_trained_free(&v.results[i]);
    free(v.results);
    verify_configs_free(&v.configs);
    return code;
}
