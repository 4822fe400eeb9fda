/* test_help.c: help and shell completion, which are written from the same tables: every command has a page, every flag
 * a description and a default. */
#include "program.h"

/* ---- help ---------------------------------------------------------------------------------------------- */

static const char *const commands[] = {
    "generate", "chat",      "serve",    "batch",         "bench",           "eval",       "replay",
    "inspect",  "tokenize",  "render",   "logits",        "verify",          "completion", "help",
    "export",   "train-sft", "train-rl", "train-inspect", "train-gradients", "quantize"};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void help_for_everything(void **state) {
    (void)state;
    RUN("help");
    expect_ok();
    for (size_t i = 0; i < COMMANDS; i++) expect_out(commands[i]);
    expect_out("Exit codes");
    assert_null(strchr(came.out, '\033'));
    for (size_t i = 0; i < COMMANDS; i++) {
        static char page[OUTPUT_MAX];
        RUN("help", commands[i]);
        expect_ok();
        expect_out("Usage\n");
        expect_out("Examples\n");
        memcpy(page, came.out, came.out_bytes + 1);
        RUN(commands[i], "--help");
        expect_ok();
        assert_string_equal(came.out, page);
        RUN(commands[i], "-h");
        expect_ok();
        assert_string_equal(came.out, page);
    }
    RUN("help", "eval"); /* eval's own defaults */
    expect_out("same seed, same answer [42]\n");
    expect_out("most tokens to generate [512]\n");
    RUN("--version");
    expect_ok();
    assert_string_equal(came.out, "invar " INVAR_VERSION "\n");
    RUN("generate", "--temperature", "0", "--help", "--nonsense");
    expect_ok();
}

/* Other ways to ask for help: before the command, and with two words. */
static void help_in_other_places(void **state) {
    (void)state;
    static char page[OUTPUT_MAX];
    RUN("help", "bench-serve");
    expect_ok();
    memcpy(page, came.out, came.out_bytes + 1);
    RUN("help", "bench", "serve");
    expect_ok();
    assert_string_equal(came.out, page);
    RUN("--help", "bench", "serve", "http://127.0.0.1:1");
    expect_ok();
    assert_string_equal(came.out, page);
    RUN("--help", "bench-serve");
    expect_ok();
    assert_string_equal(came.out, page);
    RUN("help", "bench", "throughput");
    expect_ok();
    expect_out("invar bench: ");
    RUN("help", "train-sft");
    expect_ok();
    memcpy(page, came.out, came.out_bytes + 1);
    RUN("train", "sft", "--help");
    expect_ok();
    assert_string_equal(came.out, page);
    RUN("train", "--help"); /* a first word alone */
    expect_ok();
    expect_out("supervised fine-tuning\n");
    memcpy(page, came.out, came.out_bytes + 1);
    RUN("help", "train");
    expect_ok();
    assert_string_equal(came.out, page);
    RUN("train", "x");
    expect_error(2, "train: wanted one of: sft, rl, inspect, gradients, found 'x' (see invar help train)");
    RUN("-h", "nonsense");
    expect_ok();
    expect_out("Exit codes");
}

/* On each page a flag has one line of description, which ends with its default unless the flag takes no value. */
static void every_flag_has_a_default(void **state) {
    (void)state;
    size_t flags = 0;
    for (size_t i = 0; i < COMMANDS; i++) {
        RUN("help", commands[i]);
        expect_ok();
        for (char *rest = NULL, *line = strtok_r(came.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            char *dashes = strstr(line, "--");
            if (strncmp(line, "  ", 2) != 0 || !dashes || (dashes != line + 6 && line[2] != '-')) continue;
            flags++;
            char *name_end = dashes + strcspn(dashes, " ");
            bool value = name_end[0] == ' ' && name_end[1] != ' ';
            if (strlen(line) < 36 || line[34] != ' ' || line[35] != ' ')
                line = strtok_r(NULL, "\n", &rest); /* a long name has its description on the next line */
            if (!line || strlen(line) < 38 || (value && line[strlen(line) - 1] != ']'))
                fail_msg("help %s: %s: no default in: %s", commands[i], dashes, line ? line : "");
        }
    }
    assert_true(flags > 200);
}

/* ---- completion ---------------------------------------------------------------------------------------- */

/* Every command and flag is in each shell's script. */
static void completions_name_every_command(void **state) {
    (void)state;
    static const char *const shells[] = {"bash", "zsh", "fish"}, *const words[] = {"generate",       "verify",
                                                                                   "tokenize",       "temperature",
                                                                                   "max-new-tokens", "dr-grpo"};
    for (size_t i = 0; i < 3; i++) {
        RUN("completion", shells[i]);
        expect_ok();
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (!strstr(came.out, words[w])) fail_msg("%s: no %s", shells[i], words[w]);
    }
}

/* Bash must offer this completion for a line. */
static void bash_offers(const char *line, const char *offer) {
    char command[8192], script[1024];
    snprintf(script, sizeof script, "%s", in_folder("invar.bash"));
    RUN("completion", "bash");
    expect_ok();
    write_file("invar.bash", came.out, strlen(came.out));
    snprintf(command, sizeof command,
             "bash -c 'source \"$0\"; COMP_WORDS=(%s \"\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() "
             "{ :; }; _invar; "
             "printf \"%%s\\n\" \"${COMPREPLY[@]}\"' '%s' > %s",
             line, script, in_folder("offers"));
    assert_int_equal(system(command), 0);
    static char offers[OUTPUT_MAX];
    read_back("offers", offers);
    if (!strstr(offers, offer)) fail_msg("after \"%s\": no %s in: %s", line, offer, offers);
}

static void bash_completes(void **state) {
    (void)state;
    if (system("bash -c true >/dev/null 2>&1") != 0) {
        printf("SKIPPED: there is no bash\n");
        skip();
    }
    bash_offers("invar", "tokenize\n");
    bash_offers("invar generate m --isa", "avx2\n");
    bash_offers("invar completion", "zsh\n");
    bash_offers("invar help", "logits\n");
    bash_offers("invar generate m --dtype =", "float16\n");
    bash_offers("invar train-rl m --algorithm", "dr-grpo\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_for_everything),      cmocka_unit_test(help_in_other_places),
        cmocka_unit_test(every_flag_has_a_default), cmocka_unit_test(completions_name_every_command),
        cmocka_unit_test(bash_completes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
