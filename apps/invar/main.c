/* main.c: dispatch to a command, error messages, exit codes. */
#include "commands.h"
#include "model.h"
#include "output.h"
#include "serve/server.h"
#include "text.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const cli_syntax *syntax;
    int (*run)(const cli_args *args, iv_error *err);
} commands[] = {
    {&cli_generate_syntax, cli_generate},
    {&cli_chat_syntax, cli_chat},
    {&cli_bench_syntax, cli_bench},
    {&cli_inspect_syntax, cli_inspect},
    {&cli_tokenize_syntax, cli_tokenize},
    {&cli_render_syntax, cli_render},
    {&cli_logits_syntax, cli_logits},
    {&cli_export_syntax, cli_export},
    {&cli_quantize_syntax, cli_quantize},
    {&cli_verify_syntax, cli_verify},
    {&cli_help_syntax, cli_help},
    {&cli_eval_syntax, cli_eval},
    {&cli_replay_syntax, cli_replay},
    {&cli_completion_syntax, cli_completion},
    {&cli_serve_syntax, cli_serve},
    {&cli_batch_syntax, cli_batch},
    {&cli_bench_serve_syntax, cli_bench_serve},
    {&cli_bench_latency_syntax, cli_bench_latency},
    {&cli_train_sft_syntax, cli_train_sft},
    {&cli_train_rl_syntax, cli_train_rl},
    {&cli_train_inspect_syntax, cli_train_inspect},
    {&cli_train_gradients_syntax, cli_train_gradients},
};

/* Commands in two words: "bench serve" is the command "bench-serve". */
static const struct {
    const char *first, *second;
    const cli_syntax *syntax;
} pairs[] = {{"bench", "serve", &cli_bench_serve_syntax},
             {"bench", "latency", &cli_bench_latency_syntax},
             {"bench", "throughput", &cli_bench_syntax},
             {"train", "sft", &cli_train_sft_syntax},
             {"train", "rl", &cli_train_rl_syntax},
             {"train", "inspect", &cli_train_inspect_syntax},
             {"train", "gradients", &cli_train_gradients_syntax}};

static const cli_syntax *find_pair(int count, char *const *words) {
    for (size_t i = 0; count > 1 && i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(words[0], pairs[i].first) == 0 && strcmp(words[1], pairs[i].second) == 0) return pairs[i].syntax;
    return NULL;
}

/* A first word alone, such as "train": its help, or an error that lists the second ones. */
static int run_first_word(int count, char *const *words, iv_error *err) {
    char list[256] = "", shown[CLI_SHOWN_BYTES];
    if (count > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0))
        return cli_help_show_pairs(words[0], err);
    for (size_t i = 0, n = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(pairs[i].first, words[0]) == 0)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", pairs[i].second);
    return cli_fail(err, CLI_USAGE, "%s: wanted one of: %s, found %s%s%s (see invar help %s)", words[0], list,
                    count > 1 ? "'" : "nothing", count > 1 ? cli_shown(words[1], shown) : "", count > 1 ? "'" : "",
                    words[0]);
}

static int run_command(const cli_syntax *syntax, int count, char *const *words, iv_error *err) {
    static cli_args args; /* large; there is only one command line */
    int code = cli_parse(syntax, count, words, &args, err);
    if (code == CLI_OK && args.help) return cli_help_show(syntax, err);
    if (code == CLI_OK) code = cli_device_check(&args, err);
    for (size_t i = 0; code == CLI_OK && i < sizeof commands / sizeof *commands; i++)
        if (commands[i].syntax == syntax) {
            code = commands[i].run(&args, err);
            break;
        }
    if (code == CLI_USAGE) {
        iv_error bare = *err;
        cli_fail(err, code, "%s: %.800s (see invar help %s)", syntax->name, bare.message, syntax->name);
    }
    return code;
}

static int run(int count, char *const *words, iv_error *err) {
    if (count == 0) return cli_fail(err, CLI_USAGE, "wanted a command (see invar help)");
    const char *word = words[0];
    const cli_syntax *pair = find_pair(count - 1, words + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) /* help of the command that follows, if any */
        return cli_help_show(pair || count < 2 ? pair : cli_syntax_find(words[1]), err);
    if (strcmp(word, "help") == 0 && pair && count == 3) return cli_help_show(pair, err);
    if (strcmp(word, "--version") == 0) {
        char line[64];
        snprintf(line, sizeof line, "invar %s\n", iv_version());
        return cli_out(line, strlen(line), err);
    }
    pair = find_pair(count, words);
    if (pair) return run_command(pair, count - 2, words + 2, err);
    const cli_syntax *syntax = cli_syntax_find(word);
    if (syntax) return run_command(syntax, count - 1, words + 1, err);
    if (cli_help_has_pairs(word)) return run_first_word(count, words, err);
    char shown[CLI_SHOWN_BYTES];
    const char *nearest = cli_syntax_nearest(word), *what = word[0] == '-' ? "flag" : "command";
    cli_shown(word, shown);
    if (nearest)
        return cli_fail(err, CLI_USAGE, "unknown %s '%s': did you mean %s? (see invar help)", what, shown, nearest);
    return cli_fail(err, CLI_USAGE, "unknown %s '%s' (see invar help)", what, shown);
}

/* If a standard descriptor was closed at start, the next opened file or socket would take its number and receive
 * terminal output. Standard input and output fail on use, as closed descriptors do; messages are dropped. */
static bool open_standard_files(void) {
    static const int flags[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags[fd]) != fd) return false;
    return true;
}

int main(int argc, char **argv) {
    if (!open_standard_files()) return CLI_FAILED;
    /* A closed reader is an error (EPIPE), not a signal. */
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], IV_SERVER_ENGINE_WORD) == 0) iv_server_run_engine();
    iv_error err = {0};
    bool other = cli_is_other_rank();
    if (other && !freopen("/dev/null", "w", stdout)) return CLI_FAILED;
    int code = run(argc - 1, argv + (argc > 0), &err);
    if (code == CLI_SERVED) return CLI_OK;
    if (other && code == CLI_FAILED) cli_wait_for_rank_0();
    if (code == CLI_FAILED || (code == CLI_USAGE && !other)) cli_print_error(&err);
    if (code > 128) {
        /* Exit by the signal itself, so that a shell loop around this program ends too. */
        signal(code - 128, SIG_DFL);
        raise(code - 128);
    }
    return code;
}
