/* serve.c: invar serve and invar batch: from flags to the options of src/serve. */
#include "commands.h"
#include "answer.h"
#include "config.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "serve/batch.h"
#include "serve/server.h"
#include "text.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 8000, PRINT_ERROR_MS = 1000 };

typedef struct view {
    cli_progress progress;
    bool loaded;
} view;

/* The bar ends when the model is loaded: from then on another thread writes log lines. */
static void show_progress(void *user, size_t done_bytes, size_t total_bytes) {
    view *v = user;
    if (v->loaded) return;
    cli_progress_step(&v->progress, done_bytes, total_bytes);
    v->loaded = done_bytes == total_bytes;
    if (v->loaded) cli_progress_end(&v->progress);
}

/* Standard error may be a full pipe without a reader; printing the last line must not block the exit. */
static bool can_print_error(void) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, PRINT_ERROR_MS) > 0;
}

/* A key from a flag or, to keep it out of process lists, from the environment or a file. */
static int read_key(const cli_args *args, const char *flag, const char *variable, const char **out, const char **file,
                    iv_error *err) {
    const char *set = getenv(variable);
    char file_flag[32];
    snprintf(file_flag, sizeof file_flag, "%s-file", flag);
    *file = cli_text(args, file_flag, NULL);
    if (*file && cli_has(args, flag))
        return cli_fail(err, CLI_USAGE, "--%s, --%s: wanted one of them", flag, file_flag);
    *out = *file ? NULL : cli_text(args, flag, set && *set ? set : NULL);
    if (!*out) return CLI_OK;
    for (const char *c = *out; *c; c++)
        if (*c <= 0x20 || *c > 0x7e)
            return cli_fail(err, CLI_USAGE, "--%s: wanted visible ASCII without spaces, found something else", flag);
    return **out ? CLI_OK : cli_fail(err, CLI_USAGE, "--%s: wanted a key, found nothing", flag);
}

/* An IPv6 address may be in brackets, as in a URL. */
static const char *read_host(const cli_args *args) {
    static char bare[INET6_ADDRSTRLEN];
    const char *host = cli_text(args, "host", "127.0.0.1");
    size_t n = strlen(host);
    if (host[0] != '[' || host[n - 1] != ']' || n - 2 >= sizeof bare) return host;
    memcpy(bare, host + 1, n - 2), bare[n - 2] = 0;
    return bare;
}

/* --served-model-name, of `serve` and `batch`. */
static int read_names(const cli_args *args, const char **out, iv_error *err) {
    iv_error why;
    *out = cli_text(args, "served-model-name", NULL);
    if (!*out || iv_server_names_check(*out, &why) == IV_OK) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "--served-model-name: %s", why.message);
}

/* --lora-modules, of `serve` and `batch`. They live as long as the program. */
static int read_adapters(const cli_args *args, const iv_engine_options *o, const iv_lora_module **out, size_t *count,
                         iv_error *err) {
    static cli_lora read[CLI_LORAS_MAX];
    static iv_lora_module modules[CLI_LORAS_MAX];
    int code = cli_lora_check(args, o, err);
    if (code != CLI_OK) return code;
    for (*count = 0; *count < CLI_LORAS_MAX && cli_lora_nth(args, *count, &read[*count], &code, err); ++*count)
        modules[*count] =
            (iv_lora_module){.name = read[*count].name, .path = read[*count].path, .base = read[*count].base};
    *out = modules;
    return code;
}

static int server_options(const cli_args *args, iv_server_options *o, iv_error *err) {
    const char *compat = cli_text(args, "metrics-compat", "");
    o->http.host = read_host(args);
    o->http.port = (uint16_t)cli_count(args, "port", PORT); /* at most 65535 by the flag table */
    o->http.open_cache = cli_has(args, "allow-flush");
    o->http.allowed_origins = cli_text(args, "allowed-origins", NULL);
    o->http.allowed_hosts = cli_text(args, "allowed-hosts", NULL);
    o->proof_urls = cli_text(args, "proof-urls", NULL);
    o->tool_call_parser = cli_text(args, "tool-call-parser", NULL);
    o->reasoning_parser = cli_text(args, "reasoning-parser", NULL);
    if (read_names(args, &o->served_model_name, err) != CLI_OK) return CLI_USAGE;
    o->bridge.queued_requests_max = cli_count(args, "max-queued-requests", o->bridge.queued_requests_max);
    o->http.client_connections_max = cli_count(args, "max-connections-per-client", 0);
    o->http.body_bytes_max = cli_count(args, "max-request-body", o->http.body_bytes_max);
    o->http.unread_bytes_max = cli_count(args, "max-unread-bytes", o->http.unread_bytes_max);
    o->drain_ms = (uint32_t)cli_count(args, "drain-timeout", o->drain_ms / 1000) * 1000; /* at most a day */
    o->log_file = cli_text(args, "log-file", NULL);
    if (o->log_file && !*o->log_file) return cli_fail(err, CLI_USAGE, "--log-file: wanted a path, found nothing");
    o->log_json = strcmp(cli_text(args, "log-format", "text"), "json") == 0;
    o->response_directory = cli_text(args, "response-dir", NULL);
    o->stored_responses_max = cli_count(args, "max-stored-responses", o->stored_responses_max);
    o->stored_bytes_max = cli_count(args, "max-stored-bytes", o->stored_bytes_max);
    o->split_special_tokens = cli_has(args, "split-special-tokens");
    o->log_requests = !cli_has(args, "disable-log-requests");
    o->log_level = cli_text(args, "log-level", "info");
    o->metrics = strcmp(compat, "vllm") == 0     ? IV_METRICS_VLLM
                 : strcmp(compat, "sglang") == 0 ? IV_METRICS_SGLANG
                                                 : IV_METRICS_OWN;
    cli_engine_options(args, &o->bridge.engine);
    o->bridge.process = strcmp(cli_text(args, "engine-process", "on"), "on") == 0 && !cli_has_other_ranks();
    o->bridge.engine_restarts = cli_count(args, "engine-restarts", o->bridge.engine_restarts);
    o->bridge.engine_timeout_ms = (uint32_t)cli_count(args, "engine-timeout", 0);
    o->update_dir = cli_text(args, "update-dir", NULL);
    o->weights_python = cli_text(args, "weights-python", NULL);
    o->update_timeout_ms = (uint32_t)cli_count(args, "update-timeout", o->update_timeout_ms / 1000) * 1000; /* a day */
    if (read_adapters(args, &o->bridge.engine, &o->adapters, &o->adapter_count, err) != CLI_OK) return CLI_USAGE;
    int code = read_key(args, "api-key", "INVAR_API_KEY", &o->http.api_key, &o->http.api_key_file, err);
    if (code == CLI_OK)
        code = read_key(args, "admin-api-key", "INVAR_ADMIN_API_KEY", &o->http.admin_key, &o->http.admin_key_file, err);
    return code;
}

/* ---- --config ------------------------------------------------------------------------------------------ */

static const char *const key_rivals[][2] = {
    {"api-key", "api-key-file"}, {"admin-api-key", "admin-api-key-file"}, {NULL, NULL}};

/* Flags whose change takes effect on SIGHUP; the server applies them (iv_server_options.reload). */
static const char *const reloadable[] = {"api-key",
                                         "admin-api-key",
                                         "api-key-file",
                                         "admin-api-key-file",
                                         "allow-flush",
                                         "allowed-hosts",
                                         "allowed-origins",
                                         "disable-log-requests",
                                         "drain-timeout",
                                         "log-level",
                                         "max-connections-per-client",
                                         "max-queued-requests",
                                         "max-request-body",
                                         "max-unread-bytes"};

/* Command line and file, as started and as they are in effect. Large, and alive as long as the server. */
static struct {
    const cli_args *words; /* the command line alone */
    cli_args started, current, next;
    cli_config *config, *current_config, *next_config;
} sources;

static bool is_reloadable(const char *name) {
    for (size_t i = 0; i < sizeof reloadable / sizeof *reloadable; i++)
        if (strcmp(reloadable[i], name) == 0) return true;
    return false;
}

static bool same_value(const cli_args *a, const cli_args *b, const char *name) {
    for (size_t i = 0;; i++) {
        const cli_value *x = cli_nth(a, name, i), *y = cli_nth(b, name, i);
        if (!x || !y) return x == y;
        if (x->text && strcmp(x->text, y->text) != 0) return false;
    }
}

static void list_name(char *list, size_t room, const char *name) {
    size_t n = strlen(list);
    snprintf(list + n, room - n, "%s%s", n ? ", " : "", name);
}

static int read_config(const cli_args *words, cli_args *out, cli_config **config, iv_error *err) {
    *out = *words, *config = NULL;
    if (!cli_has(words, "config")) return CLI_OK;
    int code = cli_config_read(out, key_rivals, config, err);
    if (code == CLI_OK && out->operand_count == 0)
        code = cli_fail(err, CLI_USAGE, "wanted MODEL, or `model` in %.300s, found nothing",
                        cli_text(words, "config", ""));
    return code;
}

/* SIGHUP. */
static iv_status reload(void *user, iv_server_reload *out, iv_error *err) {
    const cli_syntax *syntax = sources.words->syntax;
    (void)user;
    iv_server_options_init(&out->options);
    cli_config_free(sources.next_config); /* of one that was refused */
    int code = read_config(sources.words, &sources.next, &sources.next_config, err);
    if (code == CLI_OK) code = server_options(&sources.next, &out->options, err);
    if (code != CLI_OK) return err->status == IV_OK ? IV_INVALID : err->status;
    for (const cli_section *const *s = syntax->sections; *s; s++)
        for (const cli_flag *f = (*s)->flags; f->name; f++) {
            bool may = is_reloadable(f->name);
            if (!same_value(may ? &sources.current : &sources.started, &sources.next, f->name))
                list_name(may ? out->applied : out->ignored, sizeof out->applied, f->name);
        }
    if (strcmp(sources.started.operands[0], sources.next.operands[0]) != 0)
        list_name(out->ignored, sizeof out->ignored, "model");
    return IV_OK;
}

static void reloaded(void *user) {
    (void)user;
    if (sources.current_config != sources.config) cli_config_free(sources.current_config);
    sources.current = sources.next, sources.current_config = sources.next_config, sources.next_config = NULL;
}

int cli_serve(const cli_args *words, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_server_options o;
    view v = {.loaded = false};
    iv_server_options_init(&o);
    const cli_args *args = &sources.started;
    sources.words = words;
    int code = read_config(words, &sources.started, &sources.config, err);
    if (code == CLI_OK) code = cli_device_check(args, err);
    if (code == CLI_OK) code = server_options(args, &o, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code != CLI_OK) return code;
    sources.current = sources.started, sources.current_config = sources.config;
    if (cli_has(words, "config")) o.reload = reload, o.reloaded = reloaded;
    signal(SIGHUP, SIG_IGN); /* until the server handles it */
    signal(SIGUSR1, SIG_IGN), signal(SIGUSR2, SIG_IGN);
    if (cli_has_other_ranks()) o.launcher = getppid();
    /* mpirun forwards signals to all ranks; rank 0 drains while the others keep computing for it. */
    if (cli_is_other_rank()) signal(SIGTERM, SIG_IGN), signal(SIGINT, SIG_IGN);
    cli_progress_start(&v.progress, args->operands[0]);
    o.bridge.engine.model = path;
    o.bridge.engine.progress = show_progress, o.bridge.engine.user = &v;
    iv_status status = iv_server_run(&o, err);
    cli_progress_end(&v.progress);
    if (status != IV_OK && !can_print_error()) err->message[0] = 0;
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

/* ---- batch --------------------------------------------------------------------------------------------- */

static void show_lines(void *user, size_t done, size_t total) { cli_progress_count(user, done, total, "lines"); }

static bool interrupted(void *user) {
    (void)user;
    return cli_interrupt_caught() != 0;
}

static void print_counts(const iv_batch_counts *c) {
    fprintf(stderr, "batch: %zu lines: %zu answered before, %zu answered now, %zu refused%s\n", c->lines, c->kept,
            c->answered, c->refused, c->stopped ? "; interrupted; repeat the command to resume" : "");
}

static int batch_options(const cli_args *args, iv_batch_options *o, iv_error *err) {
    o->input = cli_text(args, "input", NULL);
    o->output = cli_text(args, "output", NULL);
    o->tool_call_parser = cli_text(args, "tool-call-parser", NULL);
    o->reasoning_parser = cli_text(args, "reasoning-parser", NULL);
    if (read_names(args, &o->served_model_name, err) != CLI_OK) return CLI_USAGE;
    if (!o->input) return cli_fail(err, CLI_USAGE, "--input: wanted a file of requests, found nothing");
    if (!o->output) return cli_fail(err, CLI_USAGE, "--output: wanted a file for the answers, found nothing");
    iv_engine_options_init(&o->bridge.engine);
    cli_engine_options(args, &o->bridge.engine);
    return read_adapters(args, &o->bridge.engine, &o->adapters, &o->adapter_count, err);
}

int cli_batch(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_batch_options o = {0};
    iv_batch_counts counts;
    cli_interrupt before;
    cli_progress progress;
    int code = batch_options(args, &o, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code != CLI_OK) return code;
    cli_progress_start(&progress, args->operands[0]);
    o.bridge.engine.model = path;
    o.bridge.engine.progress = cli_progress_step, o.bridge.engine.user = &progress;
    o.progress = show_lines, o.stop = interrupted, o.user = &progress;
    cli_interrupt_watch(&before);
    iv_status status = iv_batch_run(&o, &counts, err);
    int caught = cli_interrupt_caught();
    cli_interrupt_unwatch(&before);
    cli_progress_end(&progress);
    if (counts.index_unread) cli_warn_of_index(args->operands[0]);
    if (counts.other_rank) return status == IV_OK ? CLI_SERVED : CLI_FAILED;
    if (status != IV_OK) return caught ? 128 + caught : CLI_FAILED; /* possibly while reading standard input */
    if (!cli_is_other_rank()) print_counts(&counts);
    return counts.stopped ? 128 + caught : CLI_OK;
}
