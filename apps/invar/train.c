/* train.c: invar train: options from flags, the run until it ends or a signal stops it, and its summary. */
#include "commands.h"
#include "answer.h"
#include "base/json_out.h"
#include "model.h"
#include "output.h"
#include "text.h"
#include "train/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ------------------------------------------------------------------------------------------- */

/* A flag and the member that it sets. Whole numbers are unsigned and have 64 bits, or are not negative. */
typedef struct setting {
    const char *flag;
    enum { SETS_TEXT, SETS_COUNT, SETS_REAL, SETS_SWITCH } kind;
    size_t at;
} setting;
#define KIND_OF(member) \
    _Generic(((iv_run_options *)0)->member, const char *: SETS_TEXT, double: SETS_REAL, bool: SETS_SWITCH, default: SETS_COUNT)
#define SETS(flag, member) flag, KIND_OF(member), offsetof(iv_run_options, member)

/* Of all commands with a layout. */
static const setting layout_settings[] = {{SETS("data", data)},
                                          {SETS("load-format", trainer.load_format)},
                                          {SETS("dummy-seed", trainer.dummy_seed)},
                                          {SETS("dtype", trainer.dtype)},
                                          {SETS("arithmetic", trainer.arithmetic)},
                                          {SETS("numerics", numerics)},
                                          {SETS("virtual-ranks", trainer.virtual_ranks)},
                                          {SETS("max-length", max_length)},
                                          {SETS("longer", longer)},
                                          {SETS("data-parallel-size", trainer.data_parallel)},
                                          {SETS("tensor-parallel-size", trainer.tensor_parallel)},
                                          {SETS("threads", trainer.threads)},
                                          {SETS("micro-batch", trainer.micro_batch)},
                                          {SETS("pass-tokens", trainer.pass_tokens)},
                                          {SETS("recompute", trainer.recompute)},
                                          {SETS("offload-optimizer", trainer.offload_optimizer)},
                                          {SETS("rank-transport", rank_transport)},
                                          {SETS("shard", shard)},
                                          {SETS("isa", trainer.isa)},
                                          {0}};

static const setting run_settings[] = {{SETS("output", output)},
                                       {SETS("steps", steps)},
                                       {SETS("epochs", epochs)},
                                       {SETS("batch-size", batch_size)},
                                       {SETS("seed", seed)},
                                       {SETS("eval-data", eval_data)},
                                       {SETS("eval-every", eval_every)},
                                       {SETS("save-every", save_every)},
                                       {SETS("keep", keep)},
                                       {SETS("resume", resume)},
                                       {SETS("quiet", quiet)},
                                       {SETS("no-shuffle", no_shuffle)},
                                       {SETS("drop-last", drop_last)},
                                       {SETS("lr", learning_rate)},
                                       {SETS("lr-scheduler", schedule)},
                                       {SETS("warmup", warmup)},
                                       {SETS("decay-steps", decay_steps)},
                                       {SETS("min-lr-ratio", min_lr_ratio)},
                                       {SETS("weight-decay", trainer.weight_decay)},
                                       {SETS("decay-all", trainer.decay_all)},
                                       {SETS("adam-beta1", trainer.beta1)},
                                       {SETS("adam-beta2", trainer.beta2)},
                                       {SETS("adam-eps", trainer.eps)},
                                       {SETS("max-grad-norm", max_grad_norm)},
                                       {SETS("lora", trainer.lora)},
                                       {SETS("lora-rank", trainer.lora_rank)},
                                       {SETS("lora-alpha", trainer.lora_alpha)},
                                       {SETS("lora-targets", trainer.lora_targets)},
                                       {SETS("lora-rslora", trainer.lora_rslora)},
                                       {SETS("lora-seed", trainer.lora_seed)},
                                       {0}};

static const setting rl_settings[] = {{SETS("algorithm", algorithm)},
                                      {SETS("reward", reward)},
                                      {SETS("reward-format", reward_format)},
                                      {SETS("reward-timeout", reward_timeout)},
                                      {SETS("group-size", group_size)},
                                      {SETS("inner-steps", inner_steps)},
                                      {SETS("kl-beta", kl_beta)},
                                      {SETS("kl", kl)},
                                      {SETS("eps-low", eps_low)},
                                      {SETS("eps-high", eps_high)},
                                      {SETS("correction", correction)},
                                      {SETS("correction-cap", correction_cap)},
                                      {SETS("overlong-buffer", overlong_buffer)},
                                      {SETS("dynamic-sampling", dynamic_sampling)},
                                      {SETS("max-new-tokens", max_new_tokens)},
                                      {SETS("temperature", temperature)},
                                      {SETS("top-p", top_p)},
                                      {SETS("top-k", top_k)},
                                      {SETS("min-p", min_p)},
                                      {SETS("on-mismatch", on_mismatch)},
                                      {SETS("rollout-numerics", rollout_numerics)},
                                      {SETS("rollout-mantissa-bits", rollout_mantissa_bits)},
                                      {SETS("rollout-sync-every", rollout_sync_every)},
                                      {SETS("rollout-tp", rollout_tp)},
                                      {SETS("rollout-max-num-seqs", rollout_seqs)},
                                      {SETS("rollout-max-num-batched-tokens", rollout_batched_tokens)},
                                      {SETS("sample-all-ids", sample_all_ids)},
                                      {SETS("speculative", speculative)},
                                      {0}};

/* Members whose flags were not given keep their defaults. A real number is read as a double: cli_value keeps a float,
 * which would be another number. */
static void read_settings(const cli_args *args, const setting *table, iv_run_options *o) {
    for (const setting *s = table; s->flag; s++) {
        const cli_value *value = cli_find(args, s->flag);
        void *to = (char *)o + s->at;
        if (!value) continue;
        switch (s->kind) {
        case SETS_TEXT: memcpy(to, &value->text, sizeof value->text); break;
        case SETS_COUNT: memcpy(to, &value->count, sizeof value->count); break;
        case SETS_REAL: memcpy(to, &(double){strtod(value->text, NULL)}, sizeof(double)); break;
        case SETS_SWITCH: memcpy(to, &(bool){true}, sizeof(bool)); break;
        }
    }
}

/* A number that rounds to 1 as a float is checked here again, as a double. */
static int check_below_one(const cli_args *args, const char *name, double x, iv_error *err) {
    if (x < 1.0) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "--%s: wanted a number from 0 to below 1, found '%s'", name,
                    cli_text(args, name, ""));
}

/* "100" or a ratio of the steps, "0.1". */
static int check_steps(const char *name, const char *text, iv_error *err) {
    char found[CLI_SHOWN_BYTES], *end;
    size_t digits = strspn(text, "0123456789");
    bool whole = digits > 0 && text[digits] == 0;
    if (whole) return CLI_OK;
    if (text[digits] == '.' && strspn(text, "0123456789.") == strlen(text)) {
        double ratio = strtod(text, &end);
        if (*end == 0 && end != text && ratio <= 1.0) return CLI_OK;
    }
    return cli_fail(err, CLI_USAGE, "--%s: wanted a number of steps or a ratio from 0.0 to 1.0, found '%s'", name,
                    cli_shown(text, found));
}

static void read_layout(const cli_args *args, iv_run_options *o) {
    read_settings(args, layout_settings, o);
    o->trainer.device = cli_device(args);
}

static int read_run(const cli_args *args, iv_run_options *o, iv_error *err) {
    read_layout(args, o);
    read_settings(args, run_settings, o);
    if (!o->data) return cli_fail(err, CLI_USAGE, "wanted --data FILE, the examples");
    if (!o->output) return cli_fail(err, CLI_USAGE, "wanted --output DIR, for checkpoints, metrics and curves");
    if (o->eval_every && !o->eval_data) return cli_fail(err, CLI_USAGE, "--eval-every: wanted --eval-data FILE too");
    if (cli_has(args, "steps") && cli_has(args, "epochs"))
        return cli_fail(err, CLI_USAGE, "wanted --steps or --epochs, found both");
    if (strcmp(o->schedule, "constant") == 0 && strcmp(o->warmup, "0") != 0)
        return cli_fail(err, CLI_USAGE,
                        "--warmup: wanted another --lr-scheduler, such as constant_with_warmup, found "
                        "constant");
    int code = check_steps("warmup", o->warmup, err);
    if (code == CLI_OK) code = check_steps("decay-steps", o->decay_steps, err);
    if (code == CLI_OK) code = check_below_one(args, "adam-beta1", o->trainer.beta1, err);
    return code == CLI_OK ? check_below_one(args, "adam-beta2", o->trainer.beta2, err) : code;
}

static int read_rl(const cli_args *args, iv_run_options *o, iv_error *err) {
    read_settings(args, rl_settings, o);
    if (o->temperature != 1 && (cli_has(args, "top-p") || cli_has(args, "top-k") || cli_has(args, "min-p")))
        return cli_fail(err, CLI_USAGE, "--temperature: wanted 1 with --top-p, --top-k or --min-p, found %g",
                        o->temperature);
    if (!*o->reward) return cli_fail(err, CLI_USAGE, "--reward: wanted a rule or a command, found ''");
    return check_below_one(args, "eps-low", o->eps_low, err);
}

/* ---- the summary --------------------------------------------------------------------------------------- */

static double tokens_per_second(const iv_run_summary *s) { return s->seconds > 0 ? (double)s->tokens / s->seconds : 0; }

static void write_json(FILE *file, const cli_args *args, const iv_run_options *o, const iv_run_summary *s) {
    iv_json_out json = {.spaced = true, .file = file};
    char curves[CLI_PATH_BYTES];
    snprintf(curves, sizeof curves, "%s/curves.html", o->output);
    bool rl = o->kind == IV_RUN_RL, moved = s->steps > s->first_step;
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    iv_out_kv_text(&json, "kind", rl ? "rl" : "sft");
    iv_out_kv_uint(&json, "first_step", s->first_step);
    iv_out_kv_uint(&json, "steps", s->steps);
    iv_out_kv_bool(&json, "stopped", s->stopped);
    if (moved) iv_out_kv_double(&json, "loss", s->loss);
    if (moved && rl) iv_out_kv_double(&json, "reward", s->reward);
    if (s->evaluated && rl) iv_out_kv_double(&json, "eval_reward", s->eval_reward);
    if (s->evaluated && !rl) iv_out_kv_double(&json, "eval_loss", s->eval_loss);
    iv_out_kv_double(&json, "seconds", s->seconds);
    iv_out_kv_uint(&json, "tokens", s->tokens);
    iv_out_kv_double(&json, "tokens_per_s", tokens_per_second(s));
    iv_out_kv_text(&json, "device", s->device);
    iv_out_kv_text(&json, "weights", s->weights_hash);
    iv_out_kv_text(&json, "identity", s->identity);
    iv_out_kv_text(&json, "checkpoint", *s->checkpoint ? s->checkpoint : NULL);
    iv_out_kv_text(&json, "curves", curves);
    if (rl) {
        iv_out_kv_uint(&json, "steps_without_advantage", s->idle_steps);
        iv_out_kv_uint(&json, "tokens_compared", s->compared);
        iv_out_kv_uint(&json, "tokens_different", s->different);
        iv_out_kv_double(&json, "largest_difference", s->largest_difference);
        iv_out_kv_uint(&json, "lent_bytes", s->lent_bytes);
    }
    iv_out_close(&json, '}');
    fputc('\n', file);
}

static void write_text(FILE *file, const iv_run_options *o, const iv_run_summary *s) {
    bool rl = o->kind == IV_RUN_RL;
    if (s->steps == s->first_step)
        fprintf(file, "steps %llu, all done before\n", (unsigned long long)s->steps);
    else {
        fprintf(file, "steps %llu", (unsigned long long)s->steps);
        if (s->first_step) fprintf(file, ", from %llu on", (unsigned long long)s->first_step);
        fprintf(file, "%s\n", s->stopped ? ", stopped: --resume continues" : "");
        fprintf(file, rl ? "reward %.4g\n" : "loss %.6g\n", rl ? s->reward : s->loss);
        if (s->evaluated)
            fprintf(file, rl ? "held-out reward %.4g\n" : "held-out loss %.6g\n", rl ? s->eval_reward : s->eval_loss);
        fprintf(file, "speed %.1f tokens/s (%llu tokens in %.2f s)\n", tokens_per_second(s),
                (unsigned long long)s->tokens, s->seconds);
    }
    fprintf(file, "weights %s\nidentity %s\n", s->weights_hash, s->identity);
    if (*s->checkpoint) fprintf(file, "checkpoint %s\n", s->checkpoint);
    fprintf(file, "curves %s/curves.html\n", o->output);
    if (!rl) return;
    if (s->idle_steps)
        fprintf(file,
                "no advantage in %llu of %llu steps: all rewards of each group were equal, which teaches nothing\n",
                (unsigned long long)s->idle_steps, (unsigned long long)(s->steps - s->first_step));
    if (s->different) fprintf(file, "largest difference of a log-probability %g\n", s->largest_difference);
    fprintf(file, "tokens compared %llu, different %llu\n", (unsigned long long)s->compared,
            (unsigned long long)s->different);
}

static int report(const cli_args *args, const iv_run_options *o, const iv_run_summary *s, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(buffer.file, args, o, s);
    else
        write_text(buffer.file, o, s);
    return cli_buffer_out(&buffer, err);
}

/* ---- sft, rl ------------------------------------------------------------------------------------------- */

/* Experts are whole on a rank whatever is asked. */
static int check_experts(const cli_args *args, const char *path, iv_error *err) {
    iv_model_info info;
    if (!cli_has(args, "enable-expert-parallel")) return CLI_OK;
    if (iv_inspect(path, "auto", &info, err) != IV_OK) return CLI_FAILED;
    if (info.experts) return CLI_OK;
    return cli_fail(err, CLI_FAILED,
                    "enable_expert_parallel: model_type %s: wanted a mixture of experts, found dense layers alone",
                    info.model_type);
}

static int run(const cli_args *args, iv_run_options *o, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_run_summary summary;
    cli_interrupt interrupt;
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    if (check_experts(args, path, err) != CLI_OK) return CLI_FAILED;
    o->trainer.model = path;
    o->progress = o->quiet || cli_is_other_rank() ? NULL : stderr;
    o->stop = cli_interrupt_flag();
    cli_interrupt_watch(&interrupt);
    iv_status status = iv_run_train(o, &summary, err);
    int caught = cli_interrupt_caught();
    cli_interrupt_unwatch(&interrupt);
    if (status != IV_OK) return CLI_FAILED;
    int code = report(args, o, &summary, err);
    return code == CLI_OK && caught && summary.stopped ? 128 + caught : code;
}

int cli_train_sft(const cli_args *args, iv_error *err) {
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_SFT);
    int code = read_run(args, &o, err);
    return code == CLI_OK ? run(args, &o, err) : code;
}

int cli_train_rl(const cli_args *args, iv_error *err) {
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_RL);
    int code = read_run(args, &o, err);
    if (code == CLI_OK) code = read_rl(args, &o, err);
    return code == CLI_OK ? run(args, &o, err) : code;
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static int report_gradients(const cli_args *args, const iv_gradients_summary *s, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    const char *path = cli_text(args, "out", "");
    if (cli_has(args, "json")) {
        iv_json_out json = {.spaced = true, .file = buffer.file};
        iv_out_kv_open(&json, NULL, '{');
        iv_out_kv_text(&json, "model", args->operands[0]);
        iv_out_kv_text(&json, "file", path);
        iv_out_kv_uint(&json, "sequences", s->sequences);
        iv_out_kv_uint(&json, "tokens", s->tokens);
        iv_out_kv_double(&json, "loss", s->loss);
        iv_out_kv_double(&json, "gradient_norm", s->norm);
        iv_out_close(&json, '}');
        fputc('\n', buffer.file);
    } else
        fprintf(buffer.file, "%s: gradient of %llu sequences, %llu tokens\nloss %.9g\nnorm %.9g\n", path,
                (unsigned long long)s->sequences, (unsigned long long)s->tokens, s->loss, s->norm);
    return cli_buffer_out(&buffer, err);
}

int cli_train_gradients(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_gradients_summary summary;
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_SFT);
    read_layout(args, &o);
    const char *out = cli_text(args, "out", NULL);
    if (!o.data) return cli_fail(err, CLI_USAGE, "wanted --data FILE, the batch");
    if (!out) return cli_fail(err, CLI_USAGE, "wanted --out FILE, the safetensors file to write");
    if (cli_is_other_rank()) return CLI_SERVED; /* under mpirun the first process computes alone */
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    if (cli_check_writable(out, err) != CLI_OK || check_experts(args, path, err) != CLI_OK) return CLI_FAILED;
    o.trainer.model = path;
    return iv_run_gradients(&o, out, &summary, err) == IV_OK ? report_gradients(args, &summary, err) : CLI_FAILED;
}

/* ---- inspect ------------------------------------------------------------------------------------------- */

static void print_line(FILE *file, const char *key, const char *value) {
    fprintf(file, "  %-18s ", key);
    cli_print_safe(file, value, strlen(value), false);
    fputc('\n', file);
}

/* A number, text or truth value; digits as few as give the same number. */
static void print_value(FILE *file, const char *key, const json_t *value) {
    char number[40];
    if (json_is_string(value)) {
        print_line(file, key, json_string_value(value));
    } else if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        print_line(file, key, number);
    } else if (json_is_real(value)) {
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(number, sizeof number, "%.*g", digits, json_real_value(value));
            if (strtod(number, NULL) == json_real_value(value)) break;
        }
        print_line(file, key, number);
    } else if (json_is_boolean(value)) {
        print_line(file, key, json_is_true(value) ? "yes" : "no");
    }
}

/* The checkpoint's own values, then each object or list below a heading. */
static void print_checkpoint(FILE *file, json_t *root) {
    cli_style style = cli_style_of(1);
    const char *path = json_string_value(json_object_get(root, "checkpoint")), *name, *member;
    json_t *value, *inner;
    size_t index;
    fputs(style.bold, file);
    cli_print_safe(file, path ? path : "", path ? strlen(path) : 0, false);
    fprintf(file, "%s\n", style.plain);
    json_object_foreach(root, name, value) {
        if (strcmp(name, "checkpoint") != 0) print_value(file, name, value);
    }
    json_object_foreach(root, name, value) {
        if (json_object_size(value) == 0 && json_array_size(value) == 0) continue;
        fprintf(file, "\n%s%s%s\n", style.bold, name, style.plain);
        json_object_foreach(value, member, inner) print_value(file, member, inner);
        json_array_foreach(value, index, inner) print_value(file, "", inner);
    }
}

int cli_train_inspect(const cli_args *args, iv_error *err) {
    char *text;
    cli_buffer buffer;
    if (cli_is_other_rank()) return CLI_SERVED;
    if (iv_run_inspect(args->operands[0], cli_has(args, "verify"), &text, err) != IV_OK) return CLI_FAILED;
    json_t *root = json_loads(text, 0, NULL);
    int code = root ? cli_buffer_open(&buffer, err) : cli_fail(err, CLI_FAILED, "out of memory");
    if (code == CLI_OK) {
        if (cli_has(args, "json"))
            fprintf(buffer.file, "%s\n", text);
        else
            print_checkpoint(buffer.file, root);
        code = cli_buffer_out(&buffer, err);
    }
    json_decref(root);
    iv_run_text_free(text);
    return code;
}
