/* serve.c: invar serve: flags to a server's options, its lines to standard error. */
#include "commands.h"
#include "engine_flags.h"
#include "model.h"
#include "output.h"
#include "rank.h"
#include "serve/server.h"
#include "text.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 8000 };

typedef struct view {
    cli_progress progress;
} view;

/* One line, whole, whatever a model or a file is named. */
static void say(void *user, const char *line) {
    view *v = user;
    cli_progress_end(&v->progress);
    flockfile(stderr);
    cli_print_safe(stderr, line, strlen(line), false);
    fputc('\n', stderr);
    funlockfile(stderr);
}

/* A key from a flag or, so that it need not show in a list of processes, from the environment. */
static int read_key(const cli_args *args, const char *flag, const char *variable, const char **out, iv_error *err) {
    const char *set = getenv(variable);
    *out = cli_text(args, flag, set && *set ? set : NULL);
    if (!*out) return CLI_OK;
    for (const char *c = *out; *c; c++)
        if (*c <= 0x20 || *c > 0x7e)
            return cli_fail(err, CLI_USAGE, "--%s: wanted visible ASCII without spaces, found something else", flag);
    return **out ? CLI_OK : cli_fail(err, CLI_USAGE, "--%s: wanted a key, found nothing", flag);
}

/* An IPv6 address may stand in brackets, as in a URL. */
static const char *read_host(const cli_args *args) {
    static char bare[INET6_ADDRSTRLEN];
    const char *host = cli_text(args, "host", "127.0.0.1");
    size_t n = strlen(host);
    if (host[0] != '[' || host[n - 1] != ']' || n - 2 >= sizeof bare) return host;
    memcpy(bare, host + 1, n - 2), bare[n - 2] = 0;
    return bare;
}

static int read_options(const cli_args *args, iv_server_options *o, iv_error *err) {
    const char *compat = cli_text(args, "metrics-compat", "");
    o->http.host = read_host(args);
    o->http.port = (uint16_t)cli_count(args, "port", PORT); /* at most 65535: the table says so */
    o->http.open_cache = cli_has(args, "allow-flush");
    o->http.allowed_origins = cli_text(args, "allowed-origins", NULL);
    o->proof_urls = cli_text(args, "proof-urls", NULL);
    o->tool_call_parser = cli_text(args, "tool-call-parser", NULL);
    o->served_model_name = cli_text(args, "served-model-name", NULL);
    if (o->served_model_name && !*o->served_model_name)
        return cli_fail(err, CLI_USAGE, "--served-model-name: wanted a name, found nothing");
    o->bridge.queued_requests_max = cli_count(args, "max-queued-requests", o->bridge.queued_requests_max);
    o->http.body_bytes_max = cli_count(args, "max-request-body", o->http.body_bytes_max);
    o->drain_ms = (uint32_t)cli_count(args, "drain-timeout", o->drain_ms / 1000) * 1000; /* at most a day */
    o->log_json = strcmp(cli_text(args, "log-format", "text"), "json") == 0;
    o->split_special_tokens = cli_has(args, "split-special-tokens");
    o->log_requests = !cli_has(args, "disable-log-requests");
    o->metrics = strcmp(compat, "vllm") == 0     ? IV_METRICS_VLLM
                 : strcmp(compat, "sglang") == 0 ? IV_METRICS_SGLANG
                                                 : IV_METRICS_OWN;
    cli_engine_options(args, &o->bridge.engine);
    int code = read_key(args, "api-key", "INVAR_API_KEY", &o->http.api_key, err);
    if (code == CLI_OK) code = read_key(args, "admin-api-key", "INVAR_ADMIN_API_KEY", &o->http.admin_key, err);
    return code;
}

int cli_serve(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_server_options o;
    view v;
    iv_server_options_init(&o);
    int code = read_options(args, &o, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code != CLI_OK) return code;
    /* mpirun sends its signals to all; rank 0 drains, and the others compute for it until it has. */
    if (cli_is_other_rank()) signal(SIGTERM, SIG_IGN), signal(SIGINT, SIG_IGN);
    cli_progress_start(&v.progress, args->operands[0]);
    o.bridge.engine.model = path;
    o.bridge.engine.progress = cli_progress_step, o.bridge.engine.user = &v.progress;
    o.say = say, o.user = &v;
    iv_status status = iv_server_run(&o, err);
    cli_progress_end(&v.progress);
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}
