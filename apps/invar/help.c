/* help.c: invar help and invar completion, both written from the tables in syntax.c. Invariant: no command, flag or
 * choice is spelled out here, so neither can fall behind. */
#include "commands.h"
#include "output.h"
#include "text.h"

#include <string.h>

static void print_general(FILE *out, cli_style s) {
    fprintf(out, "%sinvar%s %s: an LLM engine whose answers do not change\n\n", s.bold, s.plain, iv_version());
    fprintf(out, "%sUsage%s\n  invar COMMAND [arguments]\n", s.bold, s.plain);
    const char *group = "";
    for (const cli_syntax *const *c = cli_syntaxes; *c; c++) {
        if (strcmp(group, (*c)->group) != 0) fprintf(out, "\n%s%s%s\n", s.bold, (*c)->group, s.plain);
        group = (*c)->group;
        fprintf(out, "  %-15s %s\n", (*c)->name, (*c)->summary);
    }
    fprintf(out,
            "\n%sMODEL%s is a Hugging Face model directory, or a GGUF file. A bare name such as tiny-math is also\n"
            "searched in $INVAR_MODELS and next to the program.\n"
            "\n%sExamples%s\n"
            "  invar generate tiny-math --chat -p 'What is 17 * 6?' --temperature 0\n"
            "  invar chat tiny-math\n"
            "  invar help generate\n"
            "\n%sExit codes%s\n"
            "  0  success\n"
            "  1  the work failed: a model, a file, a template, a request; or answers differ\n"
            "  2  the command line is wrong\n"
            "  128 + n  ended by signal n\n"
            "\n--version prints the version. NO_COLOR=1 keeps terminals plain.\n",
            s.bold, s.plain, s.bold, s.plain, s.bold, s.plain);
}

static const char *unset_of(const cli_syntax *c, const cli_flag *f) {
    for (const cli_unset *u = c->unset; u && u->flag; u++)
        if (strcmp(u->flag, f->name) == 0) return u->unset;
    return f->unset;
}

static void print_flag(FILE *out, const cli_syntax *syntax, const cli_flag *f) {
    enum { COLUMN = 36 };
    int n = f->letter ? fprintf(out, "  -%c, --%s", f->letter, f->name) : fprintf(out, "      --%s", f->name);
    for (const char *a = f->alias ? f->alias : ""; *a; a += strcspn(a, " "), a += *a == ' ')
        n += fprintf(out, ", --%.*s", (int)strcspn(a, " "), a);
    if (f->kind == CLI_CHOICE) {
        n += fprintf(out, " ");
        for (const char *c = f->choices; *c; c++, n++) fputc(*c == ' ' ? '|' : *c, out);
    } else if (f->metavar)
        n += fprintf(out, " %s", f->metavar);
    if (n + 2 > COLUMN) n = fprintf(out, "\n") - 1;
    fprintf(out, "%*s%s", COLUMN - n, "", f->help);
    const char *unset = unset_of(syntax, f);
    if (unset) fprintf(out, " [%s]", unset);
    fputc('\n', out);
}

static void print_command(FILE *out, cli_style s, const cli_syntax *c) {
    fprintf(out, "%sinvar %s%s: %s\n\n", s.bold, c->name, s.plain, c->summary);
    fprintf(out, "%sUsage%s\n  invar %s %s\n\n%s\n", s.bold, s.plain, c->name, c->usage, c->text);
    for (const cli_section *const *section = c->sections; *section; section++) {
        fprintf(out, "\n%s%s%s\n", s.bold, (*section)->title, s.plain);
        for (const cli_flag *f = (*section)->flags; f->name; f++) print_flag(out, c, f);
    }
    if (c->sections[0]) fputs("\nDefaults are in brackets; a flag without a value is off by default.\n", out);
    fprintf(out, "\n%sExamples%s\n", s.bold, s.plain);
    for (const cli_example *e = c->examples; e->line; e++)
        fprintf(out, "  %s%s%s\n  %s\n", s.dim, e->what, s.plain, e->line);
}

int cli_help_show(const cli_syntax *syntax, iv_error *err) {
    cli_buffer buffer;
    cli_style style = cli_style_of(1);
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (syntax)
        print_command(buffer.file, style, syntax);
    else
        print_general(buffer.file, style);
    return cli_buffer_out(&buffer, err);
}

static bool is_pair(const cli_syntax *syntax, const char *first) {
    size_t n = strlen(first);
    return n > 0 && strncmp(syntax->name, first, n) == 0 && syntax->name[n] == '-';
}

bool cli_help_has_pairs(const char *first) {
    for (const cli_syntax *const *c = cli_syntaxes; *c; c++)
        if (is_pair(*c, first)) return true;
    return false;
}

int cli_help_show_pairs(const char *first, iv_error *err) {
    cli_buffer buffer;
    cli_style s = cli_style_of(1);
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    fprintf(buffer.file, "%sUsage%s\n  invar %s COMMAND [arguments]\n\n%sCommands%s\n", s.bold, s.plain, first, s.bold,
            s.plain);
    for (const cli_syntax *const *c = cli_syntaxes; *c; c++)
        if (is_pair(*c, first)) fprintf(buffer.file, "  %-14s %s\n", (*c)->name + strlen(first) + 1, (*c)->summary);
    fprintf(buffer.file, "\ninvar help %s COMMAND lists the flags.\n", first);
    return cli_buffer_out(&buffer, err);
}

int cli_help(const cli_args *args, iv_error *err) {
    if (args->operand_count == 0) return cli_help_show(NULL, err);
    const cli_syntax *syntax = cli_syntax_find(args->operands[0]);
    if (syntax) return cli_help_show(syntax, err);
    if (cli_help_has_pairs(args->operands[0])) return cli_help_show_pairs(args->operands[0], err);
    const char *nearest = cli_syntax_nearest(args->operands[0]);
    char shown[CLI_SHOWN_BYTES];
    return cli_fail(err, CLI_USAGE, "no command '%s'%s%s%s", cli_shown(args->operands[0], shown),
                    nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

typedef void (*flag_visitor)(FILE *out, const cli_syntax *syntax, const cli_flag *flag);

static void each_flag(FILE *out, const cli_syntax *syntax, flag_visitor visit) {
    for (const cli_section *const *s = syntax->sections; *s; s++)
        for (const cli_flag *f = (*s)->flags; f->name; f++) visit(out, syntax, f);
}

/* Text inside single quotes, escaped for a shell. In zsh the characters in `escape` are special too. */
static void quoted(FILE *out, const char *text, const char *escape) {
    for (const char *c = text; *c; c++) {
        if (*c == '\'') {
            fputs("'\\''", out);
            continue;
        }
        if (strchr(escape, *c)) fputc('\\', out);
        fputc(*c, out);
    }
}

/* The words allowed as a command's operand. False: a directory. */
static bool write_operands(FILE *out, const cli_syntax *syntax, const char *before, const char *after) {
    if (!syntax->operand_choices && !syntax->operand_command) return false;
    fputs(before, out);
    if (syntax->operand_choices) fputs(syntax->operand_choices, out);
    for (const cli_syntax *const *s = cli_syntaxes; syntax->operand_command && *s; s++)
        fprintf(out, "%s%s", s == cli_syntaxes ? "" : " ", (*s)->name);
    fputs(after, out);
    return true;
}

/* ---- bash ---------------------------------------------------------------------------------------------- */

static void bash_name(FILE *out, const cli_syntax *syntax, const cli_flag *f) {
    (void)syntax;
    if (f->letter) fprintf(out, " -%c", f->letter);
    fprintf(out, " --%s", f->name);
}

static void bash_value(FILE *out, const cli_syntax *syntax, const cli_flag *f) {
    if (f->kind == CLI_SWITCH) return;
    fprintf(out, "        %s:--%s", syntax->name, f->name);
    if (f->letter) fprintf(out, " | %s:-%c", syntax->name, f->letter);
    if (f->kind == CLI_FILE)
        fputs(") _invar_files; return ;;\n", out);
    else
        fprintf(out, ") _invar_words '%s'; return ;;\n", f->choices ? f->choices : "");
}

static void bash(FILE *out) {
    fputs("# bash completion for invar; made by: invar completion bash\n"
          "_invar_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$word\"); }\n"
          "_invar_files() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); }\n"
          "_invar_folders() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$word\"); }\n"
          "_invar() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} "
          "command=${COMP_WORDS[1]}\n"
          "    COMPREPLY=()\n"
          "    # Readline takes --flag=value as three words.\n"
          "    if [ \"$word\" = = ]; then word=; fi\n"
          "    if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        _invar_words '",
          out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) fprintf(out, "%s ", (*s)->name);
    fputs("--help --version'\n        return\n    fi\n    case $command:$before in\n", out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) each_flag(out, *s, bash_value);
    fputs("    esac\n    case $command:$word in\n", out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) {
        fprintf(out, "        %s:-*) _invar_words '--help", (*s)->name);
        each_flag(out, *s, bash_name);
        fputs("' ;;\n", out);
        char before[64];
        snprintf(before, sizeof before, "        %s:*) _invar_words '", (*s)->name);
        write_operands(out, *s, before, "' ;;\n");
    }
    fputs("        *) _invar_folders ;;\n    esac\n}\ncomplete -F _invar invar\n", out);
}

/* ---- zsh ----------------------------------------------------------------------------------------------- */

static void zsh_action(FILE *out, const cli_flag *f) {
    if (f->kind == CLI_SWITCH) return;
    fputc(':', out);
    quoted(out, f->metavar, ":[]\\");
    if (f->choices)
        fprintf(out, ":(%s)", f->choices);
    else
        fputs(f->kind == CLI_FILE ? ":_files" : ": ", out);
}

static void zsh_spec(FILE *out, const cli_flag *f, const char *dashes, const char *name) {
    fprintf(out, "            '%s%s%s%s[", f->most ? "*" : "", dashes, name,
            f->kind == CLI_SWITCH || name[1] == 0 ? "" : "=");
    quoted(out, f->help, ":[]\\");
    fputc(']', out);
    zsh_action(out, f);
    fputs("' \\\n", out);
}

static void zsh_flag(FILE *out, const cli_syntax *syntax, const cli_flag *f) {
    (void)syntax;
    char letter[2] = {f->letter, 0};
    if (f->letter) zsh_spec(out, f, "-", letter);
    zsh_spec(out, f, "--", f->name);
}

static void zsh(FILE *out) {
    fputs("#compdef invar\n# zsh completion for invar; made by: invar completion zsh\n"
          "_invar() {\n    local -a commands\n    commands=(\n",
          out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) {
        fprintf(out, "        '%s:", (*s)->name);
        quoted(out, (*s)->summary, ":\\");
        fputs("'\n", out);
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n",
          out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) {
        fprintf(out, "    %s)\n        _arguments -s \\\n            '--help[show help]' \\\n", (*s)->name);
        each_flag(out, *s, zsh_flag);
        fprintf(out, "            '1:%s:", (*s)->operand ? (*s)->operand : "");
        if (!write_operands(out, *s, "(", ")'\n")) fputs("_files -/'\n", out);
        fputs("        ;;\n", out);
    }
    fputs("    esac\n}\n_invar \"$@\"\n", out);
}

/* ---- fish ---------------------------------------------------------------------------------------------- */

static void fish_description(FILE *out, const char *text) {
    fputs(" -d '", out);
    for (const char *c = text; *c; c++) {
        if (*c == '\'' || *c == '\\') fputc('\\', out);
        fputc(*c, out);
    }
    fputs("'\n", out);
}

static void fish_flag(FILE *out, const cli_syntax *syntax, const cli_flag *f) {
    fprintf(out, "complete -c invar -n '__fish_seen_subcommand_from %s' -l %s", syntax->name, f->name);
    if (f->letter) fprintf(out, " -s %c", f->letter);
    if (f->kind == CLI_FILE)
        fputs(" -r -F", out);
    else if (f->choices)
        fprintf(out, " -x -a '%s'", f->choices);
    else if (f->kind != CLI_SWITCH)
        fputs(" -x", out);
    fish_description(out, f->help);
}

static void fish(FILE *out) {
    fputs("# fish completion for invar; made by: invar completion fish\ncomplete -c invar -f\n", out);
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) {
        fprintf(out, "complete -c invar -n __fish_use_subcommand -a %s", (*s)->name);
        fish_description(out, (*s)->summary);
        fprintf(out, "complete -c invar -n '__fish_seen_subcommand_from %s' -a '", (*s)->name);
        if (!write_operands(out, *s, "", "'\n")) fputs("(__fish_complete_directories)'\n", out);
        each_flag(out, *s, fish_flag);
    }
    fputs("complete -c invar -l help -s h -d 'show help'\n"
          "complete -c invar -n __fish_use_subcommand -l version -d 'show the version'\n",
          out);
}

int cli_completion(const cli_args *args, iv_error *err) {
    static const struct {
        const char *name;
        void (*write)(FILE *out);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(args->operands[0], shells[i].name) != 0) continue;
        cli_buffer buffer;
        if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
        shells[i].write(buffer.file);
        return cli_buffer_out(&buffer, err);
    }
    char shown[CLI_SHOWN_BYTES];
    return cli_fail(err, CLI_USAGE, "wanted one of: %s, found '%s'", cli_completion_syntax.operand_choices,
                    cli_shown(args->operands[0], shown));
}
