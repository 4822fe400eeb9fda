/* quantize.c: invar quantize: the copy, then a comparison of both models over held-out text. */
#include "commands.h"
#include "base/json_out.h"
#include "divergence.h"
#include "input.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

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

static void write_json(FILE *file, const cli_args *args, const iv_quantize_info *info, const comparison *c) {
    iv_json_out json = {.spaced = true, .file = file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_text(&json, "directory", args->operands[1]);
    iv_out_kv_text(&json, "format", cli_text(args, "format", "fp8"));
    iv_out_kv_uint(&json, "tensors", info->tensors);
    iv_out_kv_uint(&json, "quantized", info->quantized);
    iv_out_kv_uint(&json, "files", info->files);
    iv_out_kv_uint(&json, "bytes", info->bytes);
    iv_out_kv_uint(&json, "model_bytes", info->model_bytes);
    if (c->tokens) {
        iv_out_kv_uint(&json, "report_tokens", c->tokens);
        iv_out_kv_double(&json, "kl_divergence", c->kl / (double)c->tokens);
        iv_out_kv_double(&json, "top1_agreement", (double)c->same / (double)c->tokens);
    }
    iv_out_close(&json, '}');
    fputc('\n', file);
}

static int report(const cli_args *args, const iv_quantize_info *info, const comparison *c, iv_error *err) {
    cli_buffer buffer;
    char bytes[24], model_bytes[24];
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(buffer.file, args, info, c);
    else {
        fprintf(buffer.file, "%s: %zu layers in %s, %zu %s, %s of %s (%.0f %%)\n", args->operands[1], info->quantized,
                cli_text(args, "format", "fp8"), info->files, info->files == 1 ? "file" : "files",
                cli_human_bytes((double)info->bytes, bytes), cli_human_bytes((double)info->model_bytes, model_bytes),
                100 * (double)info->bytes / (double)info->model_bytes);
        if (c->tokens)
            fprintf(buffer.file,
                    "over %zu tokens: KL divergence %.4g from the model, the likeliest token is the same %.1f %%\n",
                    c->tokens, c->kl / (double)c->tokens, 100 * (double)c->same / (double)c->tokens);
    }
    return cli_buffer_out(&buffer, err);
}

static int write_copy(const cli_args *args, const char *path, iv_quantize_info *info, iv_error *err) {
    iv_quantize_options o;
    cli_progress progress;
    iv_quantize_options_init(&o);
    o.format = cli_text(args, "format", o.format);
    o.group_size = cli_count(args, "group-size", 0);
    o.max_shard_bytes = cli_count(args, "max-shard-size", o.max_shard_bytes);
    o.overwrite = cli_has(args, "overwrite");
    cli_progress_start(&progress, args->operands[0]);
    o.progress = cli_progress_step, o.user = &progress;
    iv_status status = iv_quantize(path, args->operands[1], &o, info, err);
    cli_progress_end(&progress);
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

int cli_quantize(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    cli_bytes text = {0};
    iv_quantize_info info;
    comparison c = {0};
    if (args->operand_count < 2) return cli_fail(err, CLI_USAGE, "wanted MODEL and DIR, found MODEL alone");
    if (cli_has(args, "calibrate"))
        return cli_fail(err, CLI_USAGE, "--calibrate: GPTQ is not there: weights are rounded to nearest without it");
    if (cli_is_other_rank()) return CLI_SERVED; /* under mpirun the first process alone */
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "text") && cli_read_file(cli_text(args, "text", ""), true, &text, err) != CLI_OK)
        return CLI_FAILED; /* before anything is written */
    int code = write_copy(args, path, &info, err);
    if (code == CLI_OK && cli_count(args, "report-tokens", 256))
        code = compare(args, path, args->operands[1], text.data ? text.data : sample_text,
                       text.data ? text.count : sizeof sample_text - 1, &c, err);
    free(text.data);
    return code == CLI_OK ? report(args, &info, &c, err) : code;
}
