/* bench_server.c: a child that serves, and a pipe on which it says its port, or why there is none. */
#include "bench_server.h"
#include "engine_flags.h"
#include "model.h"
#include "serve/server.h"
#include "text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAID_BYTES = 1100 };

typedef struct child {
    int pipe;
} child;

static void tell(const child *c, const char *text) {
    for (size_t at = 0, n = strlen(text); at < n;) {
        ssize_t wrote = write(c->pipe, text + at, n - at);
        if (wrote < 0 && errno != EINTR) return;
        if (wrote > 0) at += (size_t)wrote;
    }
}

static void ready(void *user, uint16_t port) {
    char line[32];
    snprintf(line, sizeof line, "port %u\n", (unsigned)port);
    tell(user, line);
}

static void log_line(void *user, const char *line) { (void)user, (void)line; }

/* What the child does: it never returns. */
static void serve(const cli_args *args, char *model, int fd, pid_t parent) {
    child c = {.pipe = fd};
    iv_server_options o;
    iv_error err = {0};
    char line[SAID_BYTES];
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(CLI_FAILED); /* it ended before it could be noticed */
    iv_server_options_init(&o);
    o.http.port = 0;
    o.log_requests = false, o.status_every_ms = 0;
    o.bridge.queued_requests_max = IV_QUEUED_REQUESTS_MAX;
    cli_engine_options(args, &o.bridge.engine);
    o.bridge.engine.model = model;
    o.ready = ready, o.log_line = log_line, o.user = &c;
    iv_status status = iv_server_run(&o, &err);
    if (status != IV_OK) {
        snprintf(line, sizeof line, "%s\n", err.message);
        tell(&c, line);
    }
    _exit(status == IV_OK ? CLI_OK : CLI_FAILED);
}

/* The first line from the pipe, without its end; false: none came. */
static bool hear(int fd, char out[SAID_BYTES]) {
    size_t n = 0;
    while (n + 1 < SAID_BYTES) {
        ssize_t got = read(fd, out + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || out[n] == '\n') break;
        n++;
    }
    out[n] = 0;
    return n > 0;
}

/* The child says nothing of it. What is wrong with the files it will say itself. */
static void look_for_index(const cli_args *args, const char *model) {
    iv_engine_options o;
    iv_model_info info;
    iv_error ignored;
    iv_engine_options_init(&o);
    cli_engine_options(args, &o);
    if (strcmp(o.load_format, "dummy") == 0 || iv_inspect(model, o.dtype, &info, &ignored) != IV_OK) return;
    if (info.index_unread) cli_warn_of_index(args->operands[0]);
}

int cli_own_server_start(const cli_args *args, cli_own_server *out, iv_error *err) {
    char model[CLI_PATH_BYTES], said[SAID_BYTES];
    int ends[2];
    unsigned port;
    pid_t parent = getpid();
    *out = (cli_own_server){0};
    int code = cli_model_path(args->operands[0], model, err);
    if (code != CLI_OK) return code;
    look_for_index(args, model);
    if (pipe(ends) != 0) return cli_fail(err, CLI_FAILED, "a server: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        serve(args, model, ends[1], parent);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return cli_fail(err, CLI_FAILED, "a server: %s", strerror(errno));
    }
    out->pid = pid;
    bool heard = hear(ends[0], said);
    close(ends[0]);
    if (heard && sscanf(said, "port %u", &port) == 1) {
        out->port = (uint16_t)port;
        return CLI_OK;
    }
    iv_error ignored;
    cli_own_server_stop(out, &ignored);
    return cli_fail(err, CLI_FAILED, "%s", heard ? said : "a server: it ended before it listened");
}

int cli_own_server_stop(cli_own_server *server, iv_error *err) {
    int status = 0;
    if (server->pid == 0) return CLI_OK;
    kill(server->pid, SIGTERM);
    while (waitpid(server->pid, &status, 0) < 0 && errno == EINTR) continue;
    server->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == CLI_OK) return CLI_OK;
    if (WIFSIGNALED(status)) return cli_fail(err, CLI_FAILED, "the server was ended by signal %d", WTERMSIG(status));
    return cli_fail(err, CLI_FAILED, "the server failed");
}
