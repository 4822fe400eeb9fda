/* fuzz_flags.c: any command line is a usage error, or gives values within the ranges of their flags. Written out again,
 * they parse to the same values. The input is split at NUL into words; the first names the command. */
#include "../apps/invar/flags.c"
#include "../apps/invar/syntax.c"
#include "../apps/invar/engine_syntax.c"
#include "../apps/invar/serve_syntax.c"
#include "../apps/invar/text.c"
#include "../apps/invar/quantize_syntax.c"
#include "../apps/invar/train_syntax.c"

enum { WORDS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool good) {
    if (!good) abort();
}

static void check_value(const cli_value *v) {
    const cli_flag *f = v->flag;
    size_t at, n;
    int32_t ids[16];
    iv_error err;
    check((v->text == NULL) == (f->kind == CLI_SWITCH));
    switch (f->kind) {
    case CLI_TEXT: check(iv_utf8_valid((const uint8_t *)v->text, strlen(v->text), &at)); break;
    case CLI_COUNT: check(v->count >= f->least && v->count <= f->greatest); break;
    case CLI_REAL: check(in_range(f, v->real)); break;
    case CLI_BYTES: check(v->count >= f->least && v->count <= f->greatest); break;
    case CLI_MEMORY: check(v->count > 0 || (v->real > 0 && v->real < 1)); break;
    case CLI_BIAS: check(in_range(f, v->real) && v->count <= INT32_MAX); break;
    case CLI_CHOICE: check(strstr(f->choices, v->text) != NULL && v->text[0]); break;
    case CLI_IDS:
        check(cli_parse_ids(v->text, NULL, &n, &err) == CLI_OK && n > 0);
        if (n > sizeof ids / sizeof *ids) break;
        check(cli_parse_ids(v->text, ids, &n, &err) == CLI_OK);
        for (size_t i = 0; i < n; i++) check(ids[i] >= 0);
        break;
    case CLI_FILE:
    case CLI_SWITCH: break;
    }
}

/* Writes the parsed values as --name=value words and parses these. */
static void check_again(const cli_args *first) {
    static cli_args second;
    char *words[WORDS_MAX + 4];
    int count = 0;
    iv_error err;
    for (size_t i = 0; i < first->value_count; i++) {
        const cli_value *v = &first->values[i];
        size_t room = strlen(v->flag->name) + (v->text ? strlen(v->text) : 0) + 4;
        words[count] = malloc(room);
        check(words[count] != NULL);
        snprintf(words[count++], room, "--%s%s%s", v->flag->name, v->text ? "=" : "", v->text ? v->text : "");
    }
    int owned = count;
    char dashes[] = "--";
    words[count++] = dashes;
    for (size_t i = 0; i < first->operand_count; i++) words[count++] = (char *)(uintptr_t)first->operands[i];
    check(cli_parse(first->syntax, count, words, &second, &err) == CLI_OK);
    check(second.value_count == first->value_count && second.operand_count == first->operand_count);
    for (size_t i = 0; i < first->value_count; i++) {
        const cli_value *a = &first->values[i], *b = &second.values[i];
        check(a->flag == b->flag && a->count == b->count && a->real == b->real);
    }
    for (int i = 0; i < owned; i++) free(words[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static cli_args args;
    char *words[WORDS_MAX], *text = malloc(n + 1);
    int count = 0;
    check(text != NULL);
    if (n) memcpy(text, data, n);
    text[n] = 0;
    for (size_t at = 0; at <= n && count < WORDS_MAX; at += strlen(text + at) + 1) words[count++] = text + at;
    const cli_syntax *syntax = cli_syntax_find(words[0]);
    if (!syntax) {
        const char *nearest = cli_syntax_nearest(words[0]);
        check(!nearest || cli_syntax_find(nearest));
        syntax = &cli_generate_syntax;
    }
    iv_error err = {.message = ""};
    int code = cli_parse(syntax, count - 1, words + 1, &args, &err);
    check(code == CLI_OK || (code == CLI_USAGE && err.message[0]));
    if (code == CLI_OK && !args.help) {
        check(args.operand_count <= CLI_OPERANDS_MAX && args.value_count < WORDS_MAX);
        for (size_t i = 0; i < args.value_count; i++) check_value(&args.values[i]);
        check_again(&args);
    }
    free(text);
    return 0;
}
