/* help.c: invar help, made from the tables in syntax.c. */
#include "commands.h"
#include "output.h"
#include "syntax.h"
#include "text.h"

#include <string.h>

static void print_general(FILE *out, cli_style s) {
    fprintf(out, "%sinvar%s %s: an LLM engine whose answers do not change\n\n", s.bold, s.plain, iv_version());
    fprintf(out, "%sUsage%s\n  invar COMMAND [arguments]\n", s.bold, s.plain);
    const char *group = "";
    for (const cli_syntax *const *c = cli_syntaxes; *c; c++) {
        if (strcmp(group, (*c)->group) != 0) fprintf(out, "\n%s%s%s\n", s.bold, (*c)->group, s.plain);
        group = (*c)->group;
        fprintf(out, "  %-14s %s\n", (*c)->name, (*c)->summary);
    }
    fprintf(out,
            "\n%sMODEL%s is a Hugging Face model directory. A bare name such as tiny-math is also looked for in\n"
            "$INVAR_MODELS and beside the program.\n"
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
    if (f->alias) n += fprintf(out, ", --%s", f->alias);
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
    fprintf(out, "\n%sExamples%s\n", s.bold, s.plain);
    for (const cli_example *e = c->examples; e->line; e++)
        fprintf(out, "  %s%s%s\n  %s\n", s.dim, e->what, s.plain, e->line);
}

int cli_help_show(const cli_syntax *syntax, iv_error *err) {
    cli_page page;
    cli_style style = cli_style_of(1);
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    if (syntax)
        print_command(page.file, style, syntax);
    else
        print_general(page.file, style);
    return cli_page_out(&page, err);
}

int cli_help(const cli_args *args, iv_error *err) {
    if (args->operand_count == 0) return cli_help_show(NULL, err);
    const cli_syntax *syntax = cli_syntax_find(args->operands[0]);
    if (syntax) return cli_help_show(syntax, err);
    const char *nearest = cli_syntax_nearest(args->operands[0]);
    char shown[CLI_SHOWN_BYTES];
    return cli_fail(err, CLI_USAGE, "no command '%s'%s%s%s", cli_shown(args->operands[0], shown),
                    nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}
