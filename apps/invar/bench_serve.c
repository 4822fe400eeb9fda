/* bench_serve.c: invar bench serve: requests at random times, the latencies their clients measured, and a check that
 * each answer equals that of the same request run alone. Given a MODEL, a child process serves it; a pipe carries its
 * port, or the reason why it failed. */
#include "commands.h"
#include "answer.h"
#include "invar_model.h"
#include "model.h"
#include "output.h"
#include "serve/load.h"
#include "serve/server.h"
#include "stats.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a server of our own ------------------------------------------------------------------------------- */

/* A server of MODEL in a child process, for as long as it is needed. */
typedef struct own_server {
    pid_t pid; /* 0: none */
    uint16_t port;
} own_server;

enum { SAID_BYTES = 1100 };

typedef struct child {
    int pipe;
} child;

static void write_all(const child *c, const char *text) {
    for (size_t at = 0, n = strlen(text); at < n;) {
        ssize_t wrote = write(c->pipe, text + at, n - at);
        if (wrote < 0 && errno != EINTR) return;
        if (wrote > 0) at += (size_t)wrote;
    }
}

static void ready(void *user, uint16_t port) {
    char line[32];
    snprintf(line, sizeof line, "port %u\n", (unsigned)port);
    write_all(user, line);
}

static void drop_line(void *user, const char *line) { (void)user, (void)line; }

/* The child process; never returns. */
static void serve(const cli_args *args, char *model, int fd, pid_t parent) {
    child c = {.pipe = fd};
    iv_server_options o;
    iv_error err = {0};
    char line[SAID_BYTES];
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(CLI_FAILED); /* the parent exited before PR_SET_PDEATHSIG took effect */
    iv_server_options_init(&o);
    o.http.port = 0;
    o.log_requests = false, o.status_every_ms = 0;
    o.bridge.queued_requests_max = IV_QUEUED_REQUESTS_MAX;
    cli_engine_options(args, &o.bridge.engine);
    o.bridge.engine.model = model;
    o.ready = ready, o.log_line = drop_line, o.user = &c;
    iv_status status = iv_server_run(&o, &err);
    if (status != IV_OK) {
        snprintf(line, sizeof line, "%s\n", err.message);
        write_all(&c, line);
    }
    _exit(status == IV_OK ? CLI_OK : CLI_FAILED);
}

/* The first line from the pipe, without its end; false if there is none. */
static bool read_first_line(int fd, char out[SAID_BYTES]) {
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

/* The child does not print this warning; it reports errors in the files itself. */
static void warn_of_index(const cli_args *args, const char *model) {
    iv_engine_options o;
    iv_model_info info;
    iv_error ignored;
    iv_engine_options_init(&o);
    cli_engine_options(args, &o);
    if (strcmp(o.load_format, "dummy") == 0 || iv_inspect(model, o.dtype, &info, &ignored) != IV_OK) return;
    if (info.index_unread) cli_warn_of_index(args->operands[0]);
}

/* Stops the server, if there is one, and waits. CLI_FAILED if it had failed. */
static int stop_server(own_server *server, iv_error *err) {
    int status = 0;
    if (server->pid == 0) return CLI_OK;
    kill(server->pid, SIGTERM);
    while (waitpid(server->pid, &status, 0) < 0 && errno == EINTR) continue;
    server->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == CLI_OK) return CLI_OK;
    if (WIFSIGNALED(status)) return cli_fail(err, CLI_FAILED, "the server was killed by signal %d", WTERMSIG(status));
    return cli_fail(err, CLI_FAILED, "the server failed");
}

/* Serves MODEL with the engine flags on a free port of 127.0.0.1; returns when it listens. Must run before any thread.
 */
static int start_server(const cli_args *args, own_server *out, iv_error *err) {
    char model[CLI_PATH_BYTES], said[SAID_BYTES];
    int ends[2];
    unsigned port;
    pid_t parent = getpid();
    *out = (own_server){0};
    int code = cli_model_path(args->operands[0], model, err);
    if (code != CLI_OK) return code;
    warn_of_index(args, model);
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
    bool heard = read_first_line(ends[0], said);
    close(ends[0]);
    if (heard && sscanf(said, "port %u", &port) == 1) {
        out->port = (uint16_t)port;
        return CLI_OK;
    }
    iv_error ignored;
    stop_server(out, &ignored);
    return cli_fail(err, CLI_FAILED, "%s", heard ? said : "a server: exited before it listened");
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

enum { TIMEOUT_S = 600, KINDS = 4 };

typedef struct plan {
    size_t count, input, output, prefix, checked;
    double rate, ratio; /* rate: INFINITY for all at once */
    float temperature;
    uint64_t seed;
    size_t vocabulary, longest; /* of the server */
    int32_t *ids;               /* of all prompts, or ... */
    char *text;                 /* ... their texts */
    bool chat, other;           /* other: not an invar server */
    char model[256];            /* its name on another server */
    iv_load_request *requests;  /* [count] */
} plan;

typedef struct outcome {
    iv_load_result *load, *quiet; /* [count], [checked] */
    double seconds, quiet_seconds;
    cli_sample samples[KINDS]; /* seconds: to the first token, per later token, between tokens, whole answer */
    size_t completed, input, output, cached, compared, differing;
    size_t first_failed, first_differing;
    char fingerprint[128];
} outcome;

static const struct {
    const char *name, *key;
} kinds[KINDS] = {{"TTFT", "ttft"}, {"TPOT", "tpot"}, {"ITL", "itl"}, {"E2E", "e2el"}};

/* ---- what to ask --------------------------------------------------------------------------------------- */

static int read_rate(const cli_args *args, double *out, iv_error *err) {
    const char *text = cli_text(args, "request-rate", "inf");
    char *end, found[CLI_SHOWN_BYTES];
    *out = INFINITY;
    if (strcmp(text, "inf") == 0) return CLI_OK;
    *out = strspn(text, "0123456789.eE+-") == strlen(text) ? strtod(text, &end) : 0;
    if (*out > 0 && *out <= 1e6 && *end == 0) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "--request-rate: wanted inf, or a number above 0 and at most 1e6, found '%s'",
                    cli_shown(text, found));
}

static int read_plan(const cli_args *args, plan *p, iv_error *err) {
    const cli_value *ratio = cli_find(args, "random-range-ratio"), *heat = cli_find(args, "temperature");
    p->count = cli_count(args, "num-prompts", 100);
    p->input = cli_count(args, "random-input-len", 512);
    p->output = cli_count(args, "random-output-len", 64);
    p->prefix = cli_count(args, "random-prefix-len", 0);
    p->checked = cli_count(args, "check-prompts", p->count);
    if (p->checked > p->count) p->checked = p->count;
    p->ratio = ratio ? (double)ratio->real : 0;
    p->temperature = heat ? heat->real : 0;
    p->seed = cli_count(args, "seed", 0);
    p->chat = cli_has(args, "chat");
    return read_rate(args, &p->rate, err);
}

/* A length around the middle; at least 1. */
static size_t draw_length(size_t middle, double ratio, uint64_t *state) {
    double low = floor((double)middle * (1 - ratio)), high = ceil((double)middle * (1 + ratio));
    double length = low + floor(cli_random_unit(state) * (high - low + 1) * (1 - 0x1p-52));
    return length < 1 ? 1 : (size_t)(length > high ? high : length);
}

/* Words that are one token, with their space, in nearly every tokenizer: as many tokens as words, roughly. */
static void write_words(char *at, size_t count, uint64_t *state) {
    static const char words[][6] = {" time", " year", " work", " life", " hand", " part", " case", " week",
                                    " fact", " home", " room", " area", " book", " word", " side", " line"};
    for (size_t i = 0; i < count; i++, at += 5) memcpy(at, words[cli_random(state) % 16], 5);
}

static int make_texts(plan *p, iv_error *err) {
    uint64_t state = p->seed;
    size_t most = p->prefix + (size_t)ceil((double)p->input * (1 + p->ratio)), bytes;
    bool fits = !__builtin_mul_overflow(most, (size_t)5, &bytes) && !__builtin_add_overflow(bytes, (size_t)1, &bytes) &&
                !__builtin_mul_overflow(bytes, p->count, &bytes);
    p->text = fits ? malloc(bytes) : NULL;
    if (!p->text) return cli_fail(err, CLI_FAILED, "out of memory");
    char *at = p->text;
    for (size_t i = 0; i < p->count; i++) {
        iv_load_request *r = &p->requests[i];
        size_t words = r->id_count;
        r->text = at, r->id_count = 0, r->ids = NULL;
        if (i)
            memcpy(at, p->text, 5 * p->prefix);
        else
            write_words(at, p->prefix, &state);
        write_words(at + 5 * p->prefix, words - p->prefix, &state);
        at[5 * words] = 0, at += 5 * words + 1;
    }
    return CLI_OK;
}

static int make_requests(plan *p, iv_error *err) {
    uint64_t state = p->seed;
    size_t most_input = (size_t)ceil((double)p->input * (1 + p->ratio)), total, bytes;
    size_t most_output = (size_t)ceil((double)p->output * (1 + p->ratio));
    if (p->prefix + most_input + most_output > p->longest)
        return cli_fail(err, CLI_FAILED,
                        "--random-input-len: prompts and answers of %zu tokens, and the server has %zu",
                        p->prefix + most_input + most_output, p->longest);
    p->requests = calloc(p->count, sizeof *p->requests);
    bool fits = !__builtin_mul_overflow(p->count, p->prefix + most_input, &total) &&
                !__builtin_mul_overflow(total, sizeof *p->ids, &bytes);
    p->ids = fits && p->requests ? malloc(bytes) : NULL;
    if (!p->ids) return cli_fail(err, CLI_FAILED, "out of memory");
    int32_t *at = p->ids;
    double when = 0;
    for (size_t i = 0; i < p->count; i++) {
        iv_load_request *r = &p->requests[i];
        size_t input = draw_length(p->input, p->ratio, &state);
        r->ids = at, r->id_count = p->prefix + input;
        for (size_t k = 0; k < p->prefix; k++) at[k] = i ? p->ids[k] : (int32_t)(cli_random(&state) % p->vocabulary);
        at += p->prefix;
        for (size_t k = 0; k < input; k++) *at++ = (int32_t)(cli_random(&state) % p->vocabulary);
        r->max_tokens = draw_length(p->output, p->ratio, &state);
        r->temperature = p->temperature;
        r->seed = cli_random(&state) >> 11; /* exact in every JSON reader */
        r->at = when;
        if (isfinite(p->rate)) when -= log(cli_random_unit(&state)) / p->rate;
    }
    return CLI_OK;
}

/* ---- the server ---------------------------------------------------------------------------------------- */

static int engine_flag_without_model(const cli_args *args, iv_error *err) {
    for (size_t i = 0; i < args->value_count; i++)
        for (const cli_flag *f = cli_engine_section.flags; f->name; f++)
            if (args->values[i].flag == f)
                return cli_fail(err, CLI_USAGE, "--%s: needs a MODEL: a running server has its own flags", f->name);
    return CLI_OK;
}

/* The named model of a server other than invar, or its first one. */
static int ask_other(const iv_load_options *o, const char *named, plan *p, outcome *r, iv_error *err) {
    json_t *models = NULL;
    if (iv_load_get(o, "/v1/models", &models, err) != IV_OK) return CLI_FAILED;
    const json_t *first = json_array_get(json_object_get(models, "data"), 0);
    const char *id = named ? named : json_string_value(json_object_get(first, "id"));
    json_int_t longest = json_integer_value(json_object_get(first, "max_model_len"));
    int code = CLI_OK;
    if (!id || strlen(id) >= sizeof p->model)
        code = cli_fail(err, CLI_FAILED, "%s, port %u: /v1/models: wanted data[0].id, found none", o->host,
                        (unsigned)o->port);
    else
        snprintf(p->model, sizeof p->model, "%s", id);
    p->other = true, p->checked = 0, p->vocabulary = INT32_MAX;
    p->longest = !named && longest > 0 ? (size_t)longest : SIZE_MAX;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%.127s", p->model);
    if (code == CLI_OK)
        fprintf(stderr,
                "invar: %s is not an invar server: digests are not checked, and prompts are words, about one per "
                "token\n",
                o->host);
    json_decref(models);
    return code;
}

static bool is_invar(const iv_load_options *o) {
    json_t *version = NULL;
    iv_error ignored;
    bool yes = iv_load_get(o, "/version", &version, &ignored) == IV_OK && json_object_get(version, "fingerprint");
    json_decref(version);
    return yes;
}

static int ask_server(const iv_load_options *o, const char *named, plan *p, outcome *r, iv_error *err) {
    json_t *tokenizer = NULL, *version = NULL;
    if (!is_invar(o)) return ask_other(o, named, p, r, err);
    iv_status status = iv_load_get(o, "/tokenizer_info", &tokenizer, err);
    if (status == IV_OK) status = iv_load_get(o, "/version", &version, err);
    json_int_t vocabulary = json_integer_value(json_object_get(tokenizer, "vocab_size"));
    json_int_t longest = json_integer_value(json_object_get(tokenizer, "model_max_length"));
    const char *fingerprint = json_string_value(json_object_get(version, "fingerprint"));
    int code = status == IV_OK ? CLI_OK : CLI_FAILED;
    if (status == IV_OK && (vocabulary < 1 || vocabulary > INT32_MAX || longest < 1 || !fingerprint))
        code =
            cli_fail(err, CLI_FAILED, "%s, port %u: wanted an invar server, found another", o->host, (unsigned)o->port);
    p->vocabulary = (size_t)vocabulary, p->longest = (size_t)longest;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", fingerprint ? fingerprint : "");
    json_decref(tokenizer), json_decref(version);
    return code;
}

static bool interrupted(void *user) {
    (void)user;
    return cli_interrupt_caught() != 0;
}

typedef struct bar {
    cli_progress progress;
    const char *what;
} bar;

static void show(void *user, size_t done, size_t total) {
    bar *b = user;
    cli_progress_count(&b->progress, done, total, b->what);
}

/* The load, then the same requests one at a time. 128 + n after a signal. */
static int drive(const iv_load_options *given, const plan *p, outcome *r, iv_error *err) {
    iv_load_options o = *given;
    bar b = {.what = "requests"};
    iv_status status;
    o.progress = show, o.stop = interrupted, o.user = &b;
    r->load = calloc(p->count, sizeof *r->load), r->quiet = calloc(p->checked ? p->checked : 1, sizeof *r->quiet);
    iv_load_request *again = calloc(p->count, sizeof *again);
    if (!r->load || !r->quiet || !again) {
        free(again);
        return cli_fail(err, CLI_FAILED, "out of memory");
    }
    cli_progress_start(&b.progress, "load");
    status = iv_load_run(&o, p->requests, p->count, r->load, &r->seconds, err);
    cli_progress_end(&b.progress);
    for (size_t i = 0; i < p->count; i++) again[i] = p->requests[i], again[i].at = 0;
    o.concurrency = 1;
    b.what = "requests again, one at a time";
    cli_progress_start(&b.progress, "check");
    if (status == IV_OK && !interrupted(NULL))
        status = iv_load_run(&o, again, p->checked, r->quiet, &r->quiet_seconds, err);
    cli_progress_end(&b.progress);
    free(again);
    if (interrupted(NULL)) return 128 + cli_interrupt_caught();
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

/* ---- what came ----------------------------------------------------------------------------------------- */

static bool add_times(outcome *r, const iv_load_result *one) {
    bool ok = cli_sample_add(&r->samples[0], one->first) && cli_sample_add(&r->samples[3], one->end);
    if (one->generated > 1)
        ok = ok && cli_sample_add(&r->samples[1], (one->end - one->first) / (double)(one->generated - 1));
    for (size_t i = 0; ok && i < one->gap_count; i++) ok = cli_sample_add(&r->samples[2], one->gaps[i]);
    return ok;
}

static int judge(const plan *p, outcome *r, iv_error *err) {
    bool ok = true;
    r->first_failed = r->first_differing = SIZE_MAX;
    for (size_t i = 0; i < p->count; i++) {
        const iv_load_result *one = &r->load[i];
        if (one->done) {
            r->completed++;
            r->input += one->prompt_tokens, r->output += one->generated, r->cached += one->cached_tokens;
            ok = ok && add_times(r, one);
        } else if (r->first_failed == SIZE_MAX) {
            r->first_failed = i;
        }
        if (i >= p->checked || !one->done || !r->quiet[i].done) continue;
        r->compared++;
        if (strcmp(one->digest, r->quiet[i].digest) == 0) continue;
        if (r->differing++ == 0) r->first_differing = i;
    }
    for (size_t k = 0; k < KINDS; k++) cli_sample_sort(&r->samples[k]);
    return ok ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

/* The exit code, with one line about the failure. */
static int verdict(const plan *p, const outcome *r, iv_error *err) {
    if (r->differing)
        return cli_fail(err, CLI_FAILED,
                        "%zu of %zu answers differ from those of a quiet run; the first: request %zu, %s "
                        "under load, %s alone",
                        r->differing, r->compared, r->first_differing + 1, r->load[r->first_differing].digest,
                        r->quiet[r->first_differing].digest);
    if (r->first_failed != SIZE_MAX)
        return cli_fail(err, CLI_FAILED, "%zu of %zu requests failed; the first: request %zu: %s",
                        p->count - r->completed, p->count, r->first_failed + 1, r->load[r->first_failed].error);
    for (size_t i = 0; i < p->checked; i++)
        if (!r->quiet[i].done)
            return cli_fail(err, CLI_FAILED, "the quiet run failed at request %zu: %s", i + 1, r->quiet[i].error);
    return CLI_OK;
}

static double rate(size_t count, const outcome *r) { return r->seconds > 0 ? (double)count / r->seconds : 0; }

static void write_text(const cli_args *args, const plan *p, const outcome *r, FILE *out) {
    fprintf(out, "%s: %zu requests, %zu failed, in %.3f s (%s)\n", args->operands[0], p->count, p->count - r->completed,
            r->seconds, r->fingerprint);
    fprintf(out, "tokens %zu in (%zu from the cache), %zu out\n", r->input, r->cached, r->output);
    fprintf(out, "requests %10.3f /s\noutput   %10.1f tokens/s\ntotal    %10.1f tokens/s\n\n", rate(r->completed, r),
            rate(r->output, r), rate(r->input + r->output, r));
    fprintf(out, "ms           mean     median        p90        p99\n");
    for (size_t k = 0; k < KINDS; k++) {
        const cli_sample *s = &r->samples[k];
        fprintf(out, "%-6s %10.3f %10.3f %10.3f %10.3f\n", kinds[k].name, 1e3 * cli_sample_mean(s),
                1e3 * cli_sample_percentile(s, 50), 1e3 * cli_sample_percentile(s, 90),
                1e3 * cli_sample_percentile(s, 99));
    }
    cli_sample_histogram(&r->samples[0], "until the first token (TTFT)", out);
    cli_sample_histogram(&r->samples[2], "between tokens (ITL)", out);
    if (p->checked)
        fprintf(out, "\nchecked  %zu of %zu digests are those of a quiet run (%.3f s)\n", r->compared - r->differing,
                p->checked, r->quiet_seconds);
    else
        fprintf(out, "\nchecked  nothing%s\n", p->other ? ": not an invar server" : "");
}

static void write_json(const cli_args *args, const plan *p, const outcome *r, FILE *out) {
    static const double percents[] = {50, 90, 99};
    static const char *const names[] = {"median", "p90", "p99"};
    char key[32];
    iv_json_out json = {.spaced = true, .file = out};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "target", args->operands[0]);
    iv_out_kv_text(&json, "fingerprint", r->fingerprint);
    iv_out_kv_uint(&json, "num_prompts", p->count);
    iv_out_kv_uint(&json, "completed", r->completed);
    iv_out_kv_uint(&json, "failed", p->count - r->completed);
    iv_out_kv_double(&json, "duration", r->seconds);
    iv_out_kv_uint(&json, "total_input_tokens", r->input);
    iv_out_kv_uint(&json, "cached_input_tokens", r->cached);
    iv_out_kv_uint(&json, "total_output_tokens", r->output);
    iv_out_kv_double(&json, "request_throughput", rate(r->completed, r));
    iv_out_kv_double(&json, "output_throughput", rate(r->output, r));
    iv_out_kv_double(&json, "total_token_throughput", rate(r->input + r->output, r));
    for (size_t k = 0; k < KINDS; k++) {
        snprintf(key, sizeof key, "mean_%s_ms", kinds[k].key);
        iv_out_kv_double(&json, key, 1e3 * cli_sample_mean(&r->samples[k]));
        for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
            snprintf(key, sizeof key, "%s_%s_ms", names[i], kinds[k].key);
            iv_out_kv_double(&json, key, 1e3 * cli_sample_percentile(&r->samples[k], percents[i]));
        }
    }
    iv_out_kv_uint(&json, "checked", r->compared);
    iv_out_kv_uint(&json, "differing", r->differing);
    iv_out_close(&json, '}');
    fputc('\n', out);
}

static int report(const cli_args *args, const plan *p, const outcome *r, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (cli_has(args, "json"))
        write_json(args, p, r, buffer.file);
    else
        write_text(args, p, r, buffer.file);
    return cli_buffer_out(&buffer, err);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static int run(const cli_args *args, const iv_load_options *o, plan *p, outcome *r, iv_error *err) {
    iv_load_options asked = *o;
    int code = ask_server(o, cli_text(args, "model", NULL), p, r, err);
    if (code == CLI_OK) code = make_requests(p, err);
    if (code == CLI_OK && (p->other || p->chat)) code = make_texts(p, err);
    asked.chat = p->chat, asked.other = p->other, asked.model = p->other ? p->model : NULL;
    if (code == CLI_OK) code = drive(&asked, p, r, err);
    if (code == CLI_OK) code = judge(p, r, err);
    if (code == CLI_OK) code = report(args, p, r, err);
    return code == CLI_OK ? verdict(p, r, err) : code;
}

static void free_all(plan *p, outcome *r) {
    iv_load_results_free(r->load, p->count), iv_load_results_free(r->quiet, p->checked);
    free(r->load), free(r->quiet), free(p->ids), free(p->text), free(p->requests);
    for (size_t k = 0; k < KINDS; k++) cli_sample_free(&r->samples[k]);
}

/* HOST:PORT without a scheme, and not a model directory? */
static int scheme_is_missing(const char *target, iv_error *err) {
    const char *colon = strchr(target, ':');
    struct stat st;
    char shown[CLI_SHOWN_BYTES];
    if (!colon || colon[1] < '0' || colon[1] > '9' || stat(target, &st) == 0) return CLI_OK;
    cli_shown(target, shown);
    return cli_fail(err, CLI_USAGE, "wanted a URL or a MODEL, found '%s': did you mean http://%s?", shown, shown);
}

int cli_bench_serve(const cli_args *args, iv_error *err) {
    const char *target = args->operands[0], *key = getenv("INVAR_API_KEY");
    bool running = iv_load_is_url(target);
    plan p = {0};
    outcome r = {0};
    iv_load_url url = {.host = "127.0.0.1"};
    own_server server = {0};
    cli_interrupt before;
    iv_error closing = {0};
    int code = read_plan(args, &p, err);
    if (code == CLI_OK && cli_has_other_ranks())
        code = cli_fail(err, CLI_USAGE, "runs one client only: do not use mpirun (--tp sets the server's ranks)");
    if (code == CLI_OK && !running) code = scheme_is_missing(target, err);
    if (code == CLI_OK && running) code = engine_flag_without_model(args, err);
    if (code == CLI_OK && running && iv_load_url_parse(target, &url, err) != IV_OK) code = CLI_USAGE;
    if (code != CLI_OK) return code;
    cli_interrupt_watch(&before);
    if (!running) code = start_server(args, &server, err);
    iv_load_options o = {.host = url.host, .path = url.path, .timeout_s = TIMEOUT_S};
    o.port = running ? url.port : server.port;
    o.api_key = running ? cli_text(args, "api-key", key && *key ? key : NULL) : NULL;
    o.concurrency = cli_count(args, "max-concurrency", 0);
    if (code == CLI_OK) code = run(args, &o, &p, &r, err);
    int stopped = stop_server(&server, &closing);
    int caught = cli_interrupt_caught();
    cli_interrupt_unwatch(&before);
    free_all(&p, &r);
    if (caught) return 128 + caught;
    if (code == CLI_OK && stopped != CLI_OK) *err = closing, code = stopped;
    return code;
}
