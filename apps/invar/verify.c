/* verify.c: invar verify: the quiet run, then every configuration, then the report. */
#include "commands.h"
#include "model.h"
#include "answer.h"
#include "text.h"
#include "lora.h"
#include "verify.h"
#include "verify_train.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The state of a run. Configuration 0 is the quiet run. */
typedef struct verify {
    verify_axes axes;
    verify_configs configs;
    verify_result *results;
    size_t ran; /* filled results */
    verify_prompts prompts;
    iv_model_info model;
    verify_job job;
    cli_progress progress;
    cli_lora adapters[CLI_LORAS_MAX];
    const char *json, *plot; /* files, or NULL */
    bool table;
    cli_style style;
} verify;

/* ---- setting up ---------------------------------------------------------------------------------------- */

/* The base and the adapters of the command line in turn. */
static int give_adapters(const cli_args *args, verify *v, iv_error *err) {
    size_t count = 0;
    int code;
    while (count < CLI_LORAS_MAX && cli_lora_nth(args, count, &v->adapters[count], &code, err)) count++;
    for (size_t i = 0; code == CLI_OK && i < v->prompts.count; i++)
        v->prompts.items[i].request.adapter = i % (count + 1) ? v->adapters[i % (count + 1) - 1].name : NULL;
    return code;
}

static int open_job(const cli_args *args, const char *path, verify *v, iv_error *err) {
    verify_job *job = &v->job;
    size_t max_tokens = cli_count(args, "max-tokens", 16);
    const char *prompts = cli_text(args, "prompts", NULL);
    iv_engine_options_init(&job->options);
    job->options.model = path;
    job->options.dtype = cli_text(args, "dtype", job->options.dtype);
    job->options.device = cli_device(args);
    job->options.arithmetic = cli_text(args, "arithmetic", job->options.arithmetic);
    job->options.numerics = cli_text(args, "numerics", job->options.numerics);
    job->scalar_tokens = cli_count(args, "scalar-tokens", 200);
    if (iv_inspect(path, job->options.dtype, &v->model, err) != IV_OK) return CLI_FAILED;
    if (v->model.index_unread) cli_warn_of_index(args->operands[0]);
    job->model = &v->model;
    job->args = args;
    job->prompts = &v->prompts;
    job->progress = &v->progress;
    int code = prompts ? verify_prompts_read(prompts, path, &v->model, max_tokens, &v->prompts, err)
                       : verify_prompts_make(&v->model, max_tokens, &v->prompts, err);
    return code == CLI_OK ? give_adapters(args, v, err) : code;
}

/* Checks flags and files before anything runs. */
static int plan(const cli_args *args, verify *v, iv_error *err) {
    if (cli_has_other_ranks()) /* other ranks serve one engine and exit with it */
        return cli_fail(err, CLI_USAGE,
                        "opens one engine per configuration: do not use mpirun (--axes tp runs "
                        "ranks as threads)");
    int code = verify_axes_read(args, false, &v->axes, err);
    if (code == CLI_OK) code = cli_check_writable(v->json, err);
    if (code == CLI_OK) code = cli_check_writable(v->plot, err);
    if (code != CLI_OK) return code;
    /* Reports a product that is too large before anything runs. */
    verify_configs all = {0};
    if (cli_has(args, "product")) code = verify_configs_product(&v->axes, 0, &all, err);
    verify_configs_free(&all);
    return code;
}

static int add_result(verify *v, iv_error *err) {
    verify_result *more = realloc(v->results, (v->ran + 1) * sizeof *more);
    if (!more) return cli_fail(err, CLI_FAILED, "out of memory");
    v->results = more;
    return CLI_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Prints a row as soon as it is known, so that a long run shows its progress. */
static int show_row(verify *v, const verify_config *config, const verify_result *result, bool first, iv_error *err) {
    cli_buffer buffer;
    if (!v->table) return CLI_OK;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (first) verify_table_head(buffer.file, &v->job, v->job.model_name, &v->style);
    verify_table_row(buffer.file, config, result, v->prompts.count, &v->style);
    cli_progress_end(&v->progress);
    return cli_buffer_out(&buffer, err);
}

static int run_quiet(verify *v, iv_error *err) {
    int code = add_result(v, err);
    if (code != CLI_OK) return code;
    code = verify_run_quiet(&v->job, &v->results[v->ran++], err);
    if (code == CLI_OK) code = show_row(v, &v->configs.items[0], &v->results[0], true, err);
    v->job.done++;
    return code;
}

/* A value that was refused alone is removed from the combinations. */
static void forget(verify *v, const verify_config *config) {
    for (size_t a = 0; a < VERIFY_AXES; a++)
        if (config->value[a]) verify_axes_drop(&v->axes, (verify_axis)a, config->value[a]);
}

static int run_from(verify *v, size_t from, bool singles, iv_error *err) {
    int code = CLI_OK;
    v->job.total = v->configs.count;
    for (size_t c = from; code == CLI_OK && c < v->configs.count; c++) {
        const verify_config *config = &v->configs.items[c];
        code = add_result(v, err);
        if (code != CLI_OK) break;
        verify_result *result = &v->results[v->ran++];
        code = verify_run(&v->job, config, result, err);
        if (code == CLI_OK) code = show_row(v, config, result, false, err);
        if (code == CLI_OK && singles && result->skipped) forget(v, config);
        v->job.done++;
    }
    return code;
}

/* Removes the quiet run's own device, and GPUs if it ran on the CPU and --axes does not ask for them. */
static void drop_devices(const cli_args *args, verify *v) {
    bool cuda = strcmp(v->job.options.device, "cuda") == 0;
    verify_axes_drop(&v->axes, VERIFY_DEVICE, cuda ? VERIFY_DEVICE_CUDA : VERIFY_DEVICE_CPU);
    if (cuda || cli_has(args, "axes")) return;
    verify_axes_drop(&v->axes, VERIFY_DEVICE, VERIFY_DEVICE_CUDA);
    verify_axes_drop(&v->axes, VERIFY_DEVICE, VERIFY_DEVICE_EAGER);
}

/* Removes the quiet run's own way to hold weights; the other too where it is the same, unless --axes asks for it. */
static void drop_weights(const cli_args *args, verify *v) {
    const char *own = v->job.options.weights;
    bool cuda = strcmp(v->job.options.device, "cuda") == 0, chosen = own && strcmp(own, "auto") != 0;
    bool expanded = chosen ? strcmp(own, "expanded") == 0 : cuda,
         same = v->job.model->expanded_bytes == v->job.model->weight_bytes;
    verify_axes_drop(&v->axes, VERIFY_WEIGHTS, expanded ? VERIFY_EXPANDED : VERIFY_PACKED);
    if (same && !cli_has(args, "axes")) v->axes.counts[VERIFY_WEIGHTS] = 0;
}

static int run_all(const cli_args *args, verify *v, iv_error *err) {
    static const size_t nothing[VERIFY_AXES] = {0};
    uint64_t seed = cli_count(args, "seed", 1);
    int code = verify_configs_add(&v->configs, nothing, seed, err);
    if (code == CLI_OK) code = run_quiet(v, err);
    if (code != CLI_OK) return code;
    verify_axes_drop(&v->axes, VERIFY_ISA, verify_isa_value(v->job.isa));
    drop_devices(args, v), drop_weights(args, v);
    size_t from = v->configs.count;
    code = verify_configs_single(&v->axes, seed, &v->configs, err);
    if (code == CLI_OK) code = run_from(v, from, true, err);
    from = v->configs.count;
    if (code == CLI_OK)
        code = cli_has(args, "product")
                   ? verify_configs_product(&v->axes, seed, &v->configs, err)
                   : verify_configs_random(&v->axes, cli_count(args, "combinations", 8), seed, &v->configs, err);
    return code == CLI_OK ? run_from(v, from, false, err) : code;
}

/* ---- what was found ------------------------------------------------------------------------------------ */

static int write_files(const verify *v, const verify_report *report, iv_error *err) {
    cli_buffer buffer;
    if (v->json) {
        if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
        verify_report_json(buffer.file, report);
        if (cli_buffer_write(&buffer, v->json, err) != CLI_OK) return CLI_FAILED;
    }
    if (v->plot) {
        if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
        verify_report_plot(buffer.file, report);
        if (cli_buffer_write(&buffer, v->plot, err) != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

static int verdict(const verify_report *r, iv_error *err) {
    char difference[256];
    if (r->compared == 0) return cli_fail(err, CLI_FAILED, "%s: no configuration could be compared", r->model);
    if (r->worst == SIZE_MAX) return CLI_OK;
    const verify_result *result = &r->results[r->worst];
    return cli_fail(err, CLI_FAILED, "%zu of %zu configurations differ, first %s: request %zu, %s", r->differing,
                    r->compared, r->configs[r->worst].name, result->first,
                    verify_difference(&result->cells[result->first], difference));
}

static int report(const verify *v, iv_error *err) {
    verify_report r = {.model = v->job.model_name,
                       .job = &v->job,
                       .configs = v->configs.items,
                       .results = v->results,
                       .count = v->ran};
    cli_buffer buffer;
    int code = verify_report_open(&r, err);
    if (code == CLI_OK && v->table) {
        code = cli_buffer_open(&buffer, err);
        if (code == CLI_OK) {
            verify_table_foot(buffer.file, &r, &v->style);
            code = cli_buffer_out(&buffer, err);
        }
    }
    if (code == CLI_OK) code = write_files(v, &r, err);
    if (code == CLI_OK) code = verdict(&r, err);
    verify_report_close(&r);
    return code;
}

int cli_verify(const cli_args *args, iv_error *err) {
    static verify v; /* one per process; the job holds its address */
    char path[CLI_PATH_BYTES];
    if (verify_check_mode(args, err) != CLI_OK) return CLI_USAGE;
    if (cli_has(args, "train")) return verify_train(args, err);
    v.json = cli_text(args, "json", NULL);
    v.plot = cli_text(args, "plot", NULL);
    v.table = !v.json || strcmp(v.json, "-") != 0;
    v.style = cli_style_of(STDOUT_FILENO);
    v.job.model_name = args->operands[0];
    int code = plan(args, &v, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code == CLI_OK) code = open_job(args, path, &v, err);
    if (code == CLI_OK) {
        cli_interrupt interrupt;
        cli_interrupt_watch(&interrupt);
        cli_progress_start(&v.progress, "verify");
        code = run_all(args, &v, err);
        cli_progress_end(&v.progress);
        cli_interrupt_unwatch(&interrupt);
    }
    if (code == CLI_OK) code = report(&v, err);
    for (size_t i = 0; i < v.ran; i++) verify_result_free(&v.results[i]);
    free(v.results);
    verify_job_free(&v.job);
    verify_prompts_free(&v.prompts);
    verify_configs_free(&v.configs);
    return code;
}
