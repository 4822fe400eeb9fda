/* The shells' completion scripts: those in completions/ are what the program writes today, and bash offers what it
 * should. */
#include "program.h"

static void completions_are_current(void **state) {
    (void)state;
    static const struct {
        const char *shell, *file;
    } scripts[] = {
        {"bash", "completions/invar.bash"}, {"zsh", "completions/_invar"}, {"fish", "completions/invar.fish"}};
    static char kept[OUTPUT_MAX];
    for (size_t i = 0; i < 3; i++) {
        RUN("completion", scripts[i].shell);
        expect_ok();
        FILE *file = fopen(source_path(scripts[i].file), "rb");
        assert_non_null(file);
        size_t n = fread(kept, 1, OUTPUT_MAX - 1, file);
        fclose(file);
        kept[n] = 0;
        if (strcmp(kept, came.out) != 0)
            fail_msg("%s is old: invar completion %s > %s", scripts[i].file, scripts[i].shell, scripts[i].file);
    }
}

/* What bash would offer for a line. */
static void bash_offers(const char *line, const char *offer) {
    char command[8192];
    snprintf(command, sizeof command,
             "bash -c 'source \"$0\"; COMP_WORDS=(%s \"\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() "
             "{ :; }; _invar; "
             "printf \"%%s\\n\" \"${COMPREPLY[@]}\"' '%s' > %s",
             line, source_path("completions/invar.bash"), in_folder("offers"));
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_are_current),
        cmocka_unit_test(bash_completes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
