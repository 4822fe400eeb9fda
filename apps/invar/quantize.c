/* quantize.c: invar quantize: the copy, then a comparison of both models over held-out text. */
#include "commands.h"
#include "base/json_out.h"
#include "calibration.h"
#include "divergence.h"
#include "input.h"
#include "invar_model.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 64 }; /* tokens of which both models' logits are in memory */

static const char sample_text[] =
    "The harbour lay still in the early light. A ferry had come in during the night and now rested against the quay, "
    "its "
    "engines quiet, while men in yellow coats carried crates of fish across the wet stones. Anna counted them as they "
    "passed: twelve, thirteen, fourteen. Her father had told her that a good day brought twenty. She wrote the number "
    "in "
    "her notebook, next to the date and the height of the water, as she had done every morning since spring.\n\n"
    "Water boils at a lower temperature on a mountain, because the air presses on it less. At sea level it boils at "
    "one "
    "hundred degrees; at three thousand metres, at about ninety. Rice therefore takes longer to cook there. A pot with "
    "a "
    "tight lid helps, since the steam that cannot leave raises the pressure again.\n\n"
    "def mean(values):\n    if not values:\n        raise ValueError(\"no values\")\n    return sum(values) / "
    "len(values)\n";

typedef struct comparison {
    size_t tokens, same; /* same: the likeliest next token is */
    double kl;           /* sum over the tokens */
} comparison;

static int compare_window(iv_engine *const *engines, const int32_t *ids, size_t n, size_t vocab, float *logits,
                          comparison *c, iv_error *err) {
    for (size_t e = 0; e < 2; e++)
        if (iv_engine_logits(engines[e], ids, n, logits + e * WINDOW * vocab, err) != IV_OK) return CLI_FAILED;
    for (size_t i = 0; i < n; i++) {
        const float *p = logits + i * vocab, *q = p + WINDOW * vocab;
        c->kl += cli_kl_divergence(p, q, vocab);
        c->same += cli_largest(p, vocab) == cli_largest(q, vocab);
    }
    c->tokens += n;
    return CLI_OK;
}

static int compare_all(iv_engine *const *engines, const iv_ids *ids, size_t most, comparison *c, iv_error *err) {
    iv_engine_info info[2];
    for (size_t e = 0; e < 2; e++) iv_engine_get_info(engines[e], &info[e]);
    size_t vocab = info[0].vocab_size, count = ids->count < most ? ids->count : most;
    if (vocab != info[1].vocab_size) return cli_fail(err, CLI_FAILED, "the models have different vocabularies");
    float *logits = malloc(2 * WINDOW * vocab * sizeof *logits);
    int code = logits ? CLI_OK : cli_fail(err, CLI_FAILED, "no memory for the logits of %d tokens", WINDOW);
    for (size_t at = 0, n; code == CLI_OK && at < count; at += n) {
        n = count - at < WINDOW ? count - at : WINDOW;
        code = compare_window(engines, ids->data + at, n, vocab, logits, c, err);
    }
    free(logits);
    return code;
}

/* Both models are open at once, with room for a window. */
static int compare(const cli_args *args, const char *model, const char *copy, const char *text, size_t bytes,
                   comparison *c, iv_error *err) {
    const char *names[2] = {model, copy};
    iv_engine *engines[2] = {NULL, NULL};
    iv_ids ids = {0};
    int code = CLI_OK;
    for (size_t e = 0; code == CLI_OK && e < 2; e++) {
        iv_engine_options o;
        iv_engine_options_init(&o);
        o.model = names[e], o.threads = cli_count(args, "threads", 0);
        o.max_num_seqs = 1, o.max_num_batched_tokens = WINDOW;
        if (e && strcmp(cli_text(args, "format", ""), "w8a8") == 0) o.arithmetic = "i8";
        code = cli_engine_open_with(&o, args->operands[e], &engines[e], err);
    }
    if (code == CLI_OK && iv_tokenize(iv_engine_text_model(engines[0]), text, bytes, false, &ids, err) != IV_OK)
        code = CLI_FAILED;
    if (code == CLI_OK && ids.count == 0) code = cli_fail(err, CLI_FAILED, "--text: no token in it");
    if (code == CLI_OK) code = compare_all(engines, &ids, cli_count(args, "report-tokens", 256), c, err);
    iv_ids_free(&ids);
    for (size_t e = 0; e < 2; e++)
        if (engines[e]) iv_engine_close(engines[e]);
    return code;
}

/* What was measured: the copy, and under gptq the same rounded to nearest. */
typedef struct measured {
    iv_quantize_info info;
    comparison copy, nearest;
} measured;

static void write_comparison(iv_json_out *json, const comparison *c, const char *kl, const char *same) {
    iv_out_kv_double(json, kl, c->kl / (double)c->tokens);
    iv_out_kv_double(json, same, (double)c->same / (double)c->tokens);
}

static void write_json(FILE *file, const cli_args *args, const char *method, const measured *m) {
    iv_json_out json = {.spaced = true, .file = file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_text(&json, "directory", args->operands[1]);
    iv_out_kv_text(&json, "format", cli_text(args, "format", "fp8"));
    iv_out_kv_text(&json, "method", method);
    iv_out_kv_uint(&json, "tensors", m->info.tensors);
    iv_out_kv_uint(&json, "quantized", m->info.quantized);
    iv_out_kv_uint(&json, "files", m->info.files);
    iv_out_kv_uint(&json, "bytes", m->info.bytes);
    iv_out_kv_uint(&json, "model_bytes", m->info.model_bytes);
    if (m->info.calibration_tokens) {
        iv_out_kv_uint(&json, "calibration_tokens", m->info.calibration_tokens);
        iv_out_kv_uint(&json, "unseen", m->info.unseen);
        iv_out_kv_uint(&json, "smoothed_norms", m->info.smoothed);
    }
    if (m->copy.tokens) {
        iv_out_kv_uint(&json, "report_tokens", m->copy.tokens);
        write_comparison(&json, &m->copy, "kl_divergence", "top1_agreement");
    }
    if (m->nearest.tokens) write_comparison(&json, &m->nearest, "nearest_kl_divergence", "nearest_top1_agreement");
    iv_out_close(&json, '}');
    fputc('\n', file);
}

static void print_comparison(FILE *file, const char *what, const comparison *c) {
    if (!c->tokens) return;
    fprintf(file, "%s %zu tokens: KL divergence %.4g from the model, the likeliest token is the same %.1f %%\n", what,
            c->tokens, c->kl / (double)c->tokens, 100 * (double)c->same / (double)c->tokens);
}

static void print(FILE *file, const cli_args *args, const measured *m) {
    const iv_quantize_info *info = &m->info;
    char bytes[24], model_bytes[24];
    fprintf(file, "%s: %zu layers in %s, %zu %s, %s of %s (%.0f %%)\n", args->operands[1], info->quantized,
            cli_text(args, "format", "fp8"), info->files, info->files == 1 ? "file" : "files",
            cli_human_bytes((double)info->bytes, bytes), cli_human_bytes((double)info->model_bytes, model_bytes),
            100 * (double)info->bytes / (double)info->model_bytes);
    if (info->smoothed)
        fprintf(file, "smoothed behind %zu norms, by %llu tokens\n", info->smoothed,
                (unsigned long long)info->calibration_tokens);
    else if (info->calibration_tokens)
        fprintf(file, "GPTQ over %llu tokens\n", (unsigned long long)info->calibration_tokens);
    if (info->unseen)
        fprintf(file, "%zu layers were reached by no token (experts): rounded to nearest\n", info->unseen);
    print_comparison(file, "over", &m->copy);
    print_comparison(file, "rounded to nearest, over", &m->nearest);
}

static int report(const cli_args *args, const char *method, const measured *m, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(buffer.file, args, method, m);
    else
        print(buffer.file, args, m);
    return cli_buffer_out(&buffer, err);
}

/* calibration: NULL rounds to nearest. */
static int write_copy(const cli_args *args, const char *path, const char *dir, const cli_calibration *calibration,
                      iv_quantize_info *info, iv_error *err) {
    iv_quantize_options o;
    cli_progress progress;
    iv_quantize_options_init(&o);
    o.format = cli_text(args, "format", o.format);
    o.group_size = cli_count(args, "group-size", 0);
    o.max_shard_bytes = cli_count(args, "max-shard-size", o.max_shard_bytes);
    o.overwrite = cli_has(args, "overwrite");
    o.threads = cli_count(args, "threads", 0);
    bool smooth = cli_has(args, "smooth");
    if (calibration) o.calibration = calibration->texts, o.calibration_count = calibration->count;
    if (calibration && smooth) o.smooth = strtod(cli_text(args, "smooth", ""), NULL);
    if (calibration && !smooth) {
        o.method = "gptq";
        o.damping = cli_has(args, "damping") ? strtod(cli_text(args, "damping", ""), NULL) : o.damping;
        o.act_order = cli_has(args, "act-order");
    }
    cli_progress_start(&progress, args->operands[0]);
    o.progress = cli_progress_step, o.user = &progress;
    iv_status status = iv_quantize(path, dir, &o, info, err);
    cli_progress_end(&progress);
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

static int read_calibration(const cli_args *args, const char *path, cli_calibration *out, iv_error *err) {
    iv_text_model *t;
    iv_model_info info;
    size_t longest = cli_count(args, "max-seq-length", 2048);
    if (iv_inspect(path, "auto", &info, err) != IV_OK || iv_text_model_open(path, &t, err) != IV_OK) return CLI_FAILED;
    if (longest > (size_t)info.max_positions) longest = (size_t)info.max_positions;
    int code = cli_calibration_read(t, cli_text(args, "calibrate", ""), cli_count(args, "num-calibration-samples", 512),
                                    longest, out, err);
    iv_text_model_close(t);
    return code;
}

static int check_flags(const cli_args *args, bool gptq, iv_error *err) {
    bool smooth = cli_has(args, "smooth");
    static const char *const of_gptq[] = {"calibrate", "num-calibration-samples", "max-seq-length", "damping",
                                          "act-order"};
    if (args->operand_count < 2) return cli_fail(err, CLI_USAGE, "wanted MODEL and DIR, found MODEL alone");
    if (cli_has(args, "max-shard-size") && cli_is_gguf(args->operands[1]))
        return cli_fail(err, CLI_USAGE, "--max-shard-size: a GGUF is written as one file");
    if (gptq && !cli_has(args, "calibrate"))
        return cli_fail(err, CLI_USAGE, "--method gptq: wanted --calibrate FILE with texts, found none");
    if (smooth && gptq) return cli_fail(err, CLI_USAGE, "--smooth: is of --method nearest, found gptq");
    if (smooth && !cli_has(args, "calibrate"))
        return cli_fail(err, CLI_USAGE, "--smooth: wanted --calibrate FILE with texts, found none");
    for (size_t i = smooth ? 3 : 0; !gptq && i < sizeof of_gptq / sizeof *of_gptq; i++)
        if (cli_has(args, of_gptq[i]))
            return cli_fail(err, CLI_USAGE, "--%s: is of --method gptq, which needs --calibrate FILE", of_gptq[i]);
    return CLI_OK;
}

/* A directory of files alone. */
static void remove_directory(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(path);
}

/* The same rounded to nearest, in a directory next to the copy while it is measured. */
static int measure_nearest(const cli_args *args, const char *path, const char *text, size_t bytes, comparison *c,
                           iv_error *err) {
    char dir[CLI_PATH_BYTES];
    const char *copy = args->operands[1];
    size_t n = strlen(copy);
    iv_quantize_info info;
    while (n > 1 && copy[n - 1] == '/') n--;
    int made = snprintf(dir, sizeof dir, "%.*s.nearest-XXXXXX", (int)n, copy);
    if (made < 0 || (size_t)made >= sizeof dir || !mkdtemp(dir))
        return cli_fail(err, CLI_FAILED, "%.300s: no directory could be made next to it: %s", copy, strerror(errno));
    int code = write_copy(args, path, dir, NULL, &info, err);
    if (code == CLI_OK) code = compare(args, path, dir, text, bytes, c, err);
    remove_directory(dir);
    return code;
}

static int run(const cli_args *args, const char *path, const char *text, size_t bytes,
               const cli_calibration *calibration, measured *m, iv_error *err) {
    int code = write_copy(args, path, args->operands[1], calibration, &m->info, err);
    if (code != CLI_OK || cli_count(args, "report-tokens", 256) == 0) return code;
    code = compare(args, path, args->operands[1], text, bytes, &m->copy, err);
    return code == CLI_OK && calibration ? measure_nearest(args, path, text, bytes, &m->nearest, err) : code;
}

int cli_quantize(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    cli_bytes text = {0};
    cli_calibration calibration = {0};
    measured m = {0};
    const char *method =
        cli_text(args, "method", cli_has(args, "calibrate") && !cli_has(args, "smooth") ? "gptq" : "nearest");
    bool gptq = strcmp(method, "gptq") == 0, calibrates = gptq || cli_has(args, "smooth");
    int code = check_flags(args, gptq, err);
    if (code != CLI_OK) return code;
    if (cli_is_other_rank()) return CLI_SERVED; /* under mpirun the first process alone */
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "text") && cli_read_file(cli_text(args, "text", ""), true, &text, err) != CLI_OK)
        return CLI_FAILED; /* before anything is written */
    if (calibrates) code = read_calibration(args, path, &calibration, err);
    if (code == CLI_OK)
        code = run(args, path, text.data ? text.data : sample_text, text.data ? text.count : sizeof sample_text - 1,
                   calibrates ? &calibration : NULL, &m, err);
    free(text.data);
    cli_calibration_free(&calibration);
    return code == CLI_OK ? report(args, method, &m, err) : code;
}
