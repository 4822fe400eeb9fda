/* model.c: finding models, engine options from flags, opening engines; the ranks of mpirun. */
#include "model.h"
#include "invar_model.h"
#include "lora.h"
#include "output.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static bool is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The directory of this program's file; empty if unknown. */
static void own_folder(char out[CLI_PATH_BYTES]) {
    ssize_t n = readlink("/proc/self/exe", out, CLI_PATH_BYTES - 1);
    out[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    else
        out[0] = 0;
}

/* OWNER/MODEL, the form of Hugging Face names? */
static bool is_hub_name(const char *name) {
    const char *slash = strchr(name, '/');
    return name[0] != '.' && slash && slash > name && slash[1] && !strchr(slash + 1, '/');
}

int cli_model_path(const char *name, char out[CLI_PATH_BYTES], iv_error *err) {
    struct stat st;
    if (!*name)
        return cli_fail(err, CLI_FAILED, "MODEL is empty: wanted a model directory, or a name such as tiny-math");
    iv_model_info info;
    if (stat(name, &st) == 0 && !S_ISDIR(st.st_mode) && iv_inspect(name, "auto", &info, err) != IV_OK)
        return CLI_FAILED;      /* it says what kind of file was found */
    if (stat(name, &st) == 0) { /* a directory, or a GGUF */
        if ((size_t)snprintf(out, CLI_PATH_BYTES, "%s", name) < CLI_PATH_BYTES) return CLI_OK;
        return cli_fail(err, CLI_FAILED, "%.80s...: path too long", name);
    }
    size_t bare = strlen(name); /* without trailing slashes */
    while (bare > 0 && name[bare - 1] == '/') bare--;
    if (memchr(name, '/', bare) || bare == 0)
        return cli_fail(err, CLI_FAILED, "%s: no such model directory%s", name,
                        is_hub_name(name) ? " (models are read from directories; nothing is downloaded)" : "");
    char own[CLI_PATH_BYTES];
    own_folder(own);
    const char *models = getenv("INVAR_MODELS");
    const struct {
        const char *base, *below;
    } roots[] = {{models, ""}, {own, "/../share/invar/models"}, {own, "/../models"}};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        if (!roots[i].base || !roots[i].base[0]) continue;
        int n = snprintf(out, CLI_PATH_BYTES, "%s%s/%.*s", roots[i].base, roots[i].below, (int)bare, name);
        if (n < CLI_PATH_BYTES && is_directory(out)) return CLI_OK;
    }
    return cli_fail(err, CLI_FAILED,
                    "%s: no such model directory, here or in %s%s%s/../share/invar/models or %s/../models", name,
                    models ? models : "", models ? ", " : "", own, own);
}

void cli_warn_of_index(const char *name) {
    static bool said;
    char shown[CLI_SHOWN_BYTES];
    if (said) return;
    said = true;
    fprintf(stderr, "invar: warning: %s: model.safetensors was read, model.safetensors.index.json next to it was not\n",
            cli_shown(name, shown));
}

void cli_warn_of_generation(const char *unapplied) {
    static bool said;
    if (said) return;
    said = true;
    for (const char *next = unapplied; *next;) {
        size_t length = strcspn(next, "\n");
        fprintf(stderr, "invar: warning: generation_config.json: %.*s is not applied\n", (int)length, next);
        next += length + (next[length] == '\n');
    }
}

/* Serves rank 0 until it closes its engine, then closes this one. CLI_SERVED on success. */
static int serve_rank(iv_engine *engine, iv_error *err) {
    iv_status status = iv_engine_serve_rank(engine, err);
    iv_engine_close(engine);
    return status == IV_OK ? CLI_SERVED : CLI_FAILED;
}

int cli_engine_open_with(iv_engine_options *o, const char *name, iv_engine **out, iv_error *err) {
    cli_progress progress;
    cli_progress_start(&progress, name);
    o->progress = cli_progress_step;
    o->user = &progress;
    iv_engine *engine;
    iv_status status = iv_engine_open(o, &engine, err);
    cli_progress_end(&progress);
    if (status != IV_OK) return CLI_FAILED;
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    if (info.rank != 0) return serve_rank(engine, err);
    if (info.index_unread) cli_warn_of_index(name);
    cli_warn_of_generation(info.generation_unapplied);
    *out = engine;
    return CLI_OK;
}

int cli_engine_open(const cli_args *args, iv_engine **out, iv_error *err) {
    return cli_engine_open_for(args, 1, 0, out, err);
}

int cli_engine_open_for(const cli_args *args, size_t sequences, size_t tokens, iv_engine **out, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = path;
    cli_engine_options(args, &o);
    if (sequences > 1 && strcmp(o.load_format, "dummy") == 0) { /* no files to inspect */
        if (!cli_has(args, "max-num-seqs")) o.max_num_seqs = sequences;
        if (!o.max_model_len) o.max_model_len = tokens;
    } else if (sequences > 1) {
        iv_model_info info;
        if (iv_inspect(path, o.dtype, &info, err) != IV_OK) return CLI_FAILED;
        if (!cli_has(args, "max-num-seqs")) o.max_num_seqs = sequences;
        if (!o.max_model_len && tokens < (uint64_t)info.max_positions) o.max_model_len = tokens;
    }
    int code = cli_engine_open_with(&o, args->operands[0], out, err);
    if (code == CLI_OK) code = cli_lora_load(args, *out, err);
    return code;
}

int cli_text_model_open(const cli_args *args, iv_text_model **out, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    return iv_text_model_open(path, out, err) == IV_OK ? CLI_OK : CLI_FAILED;
}

/* ---- engine flags -------------------------------------------------------------------------------------- */

const char *cli_device(const cli_args *args) {
    const char *set = getenv("INVAR_DEVICE");
    return cli_text(args, "device", set && *set ? set : "auto");
}

int cli_device_check(const cli_args *args, iv_error *err) {
    const cli_flag *flag = cli_flag_find(args->syntax, "device");
    const char *set = getenv("INVAR_DEVICE");
    cli_value value;
    iv_error ignored;
    char found[CLI_SHOWN_BYTES];
    if (!flag || !set || !*set || cli_has(args, "device")) return CLI_OK;
    if (cli_parse_value(flag, set, &value, &ignored) == CLI_OK) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "$INVAR_DEVICE: wanted one of: %s, found '%s'", flag->choices,
                    cli_shown(set, found));
}

void cli_engine_options(const cli_args *args, iv_engine_options *o) {
    o->load_format = cli_text(args, "load-format", o->load_format);
    o->dummy_seed = cli_count(args, "dummy-seed", o->dummy_seed);
    o->device = cli_device(args);
    o->enforce_eager = cli_has(args, "enforce-eager");
    o->dtype = cli_text(args, "dtype", o->dtype);
    o->weights = cli_text(args, "weights", o->weights);
    o->arithmetic = cli_text(args, "arithmetic", o->arithmetic);
    o->numerics = cli_text(args, "numerics", o->numerics);
    o->isa = cli_text(args, "isa", o->isa);
    o->threads = cli_count(args, "threads", o->threads);
    o->tensor_parallel_size = cli_count(args, "tensor-parallel-size", o->tensor_parallel_size);
    if (cli_has(args, "enable-expert-parallel")) o->expert_parallel_size = IV_EXPERT_PARALLEL;
    o->expert_parallel_size = cli_count(args, "expert-parallel-size", o->expert_parallel_size);
    o->rank_transport = cli_text(args, "rank-transport", o->rank_transport);
    o->rank_timeout_ms = cli_count(args, "rank-timeout", o->rank_timeout_ms);
    o->max_model_len = cli_count(args, "max-model-len", o->max_model_len);
    o->max_num_seqs = cli_count(args, "max-num-seqs", o->max_num_seqs);
    o->max_num_batched_tokens = cli_count(args, "max-num-batched-tokens", o->max_num_batched_tokens);
    o->step_target_ms = cli_count(args, "step-target", o->step_target_ms);
    const cli_value *memory = cli_find(args, "kv-cache-memory");
    if (memory) o->kv_bytes = memory->count, o->kv_fraction = (double)memory->real;
    o->state_cache_bytes = cli_count(args, "state-cache-memory", 0);
    o->prefix_caching = !cli_has(args, "no-enable-prefix-caching");
    o->sample_all_ids = cli_has(args, "sample-all-ids");
    cli_lora_options(args, o);
    o->speculative = cli_text(args, "speculative", o->speculative);
    o->speculative_tokens = cli_count(args, "num-speculative-tokens", o->speculative_tokens);
}

/* ---- the ranks of mpirun ------------------------------------------------------------------------------- */

static bool is_above(long least, const char *name) {
    const char *text = getenv(name);
    return text && strtol(text, NULL, 10) > least;
}

bool cli_is_other_rank(void) { return is_above(0, "OMPI_COMM_WORLD_RANK") || is_above(0, "PMI_RANK"); }

bool cli_has_other_ranks(void) { return is_above(1, "OMPI_COMM_WORLD_SIZE") || is_above(1, "PMI_SIZE"); }

void cli_wait_for_rank_0(void) { nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); }
