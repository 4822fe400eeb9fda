/* export.c: invar export. */
#include "commands.h"
#include "base/json_out.h"
#include "invar_model.h"
#include "model.h"
#include "output.h"
#include "text.h"

static void write_json(FILE *file, const cli_args *args, const iv_export_info *info) {
    iv_json_out json = {.spaced = true, .file = file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_text(&json, "directory", args->operands[1]);
    iv_out_kv_uint(&json, "tensors", info->tensors);
    iv_out_kv_uint(&json, "files", info->files);
    iv_out_kv_uint(&json, "bytes", info->bytes);
    if (*info->weights_digest) iv_out_kv_text(&json, "weights_digest", info->weights_digest);
    iv_out_close(&json, '}');
    fputc('\n', file);
}

static int report(const cli_args *args, const iv_export_info *info, iv_error *err) {
    cli_buffer buffer;
    char bytes[24];
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(buffer.file, args, info);
    else {
        fprintf(buffer.file, "%s: %zu tensors in %zu %s, %s\n", args->operands[1], info->tensors, info->files,
                info->files == 1 ? "file" : "files", cli_human_bytes((double)info->bytes, bytes));
        if (*info->weights_digest) fprintf(buffer.file, "weights %s\n", info->weights_digest);
    }
    return cli_buffer_out(&buffer, err);
}

int cli_export(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if (args->operand_count < 2) return cli_fail(err, CLI_USAGE, "wanted MODEL and DIR, found MODEL alone");
    if (cli_has(args, "max-shard-size") && cli_is_gguf(args->operands[1]))
        return cli_fail(err, CLI_USAGE, "--max-shard-size: a GGUF is written as one file");
    if (cli_is_other_rank()) return CLI_SERVED; /* under mpirun the first process exports alone */
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    iv_export_options o;
    iv_export_info info;
    cli_progress progress;
    iv_export_options_init(&o);
    o.dtype = cli_text(args, "dtype", o.dtype);
    o.max_shard_bytes = cli_count(args, "max-shard-size", o.max_shard_bytes);
    o.overwrite = cli_has(args, "overwrite");
    o.threads = cli_count(args, "threads", o.threads);
    o.lora = cli_text(args, "lora", NULL);
    if (!o.lora != !cli_has(args, "merge"))
        return cli_fail(err, CLI_USAGE, "%s",
                        o.lora ? "--lora: wanted --merge too: a model's directory has no adapter next to it"
                               : "--merge: wanted --lora DIR too");
    cli_progress_start(&progress, args->operands[0]);
    o.progress = cli_progress_step, o.user = &progress;
    iv_status status = iv_export(path, args->operands[1], &o, &info, err);
    cli_progress_end(&progress);
    return status == IV_OK ? report(args, &info, err) : CLI_FAILED;
}
