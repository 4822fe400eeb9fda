/* tokenize.c: invar tokenize and invar render. */
#include "commands.h"
#include "input.h"
#include "base/json_out.h"
#include "model.h"
#include "output.h"
#include "serve/server.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

static int show_ids(const iv_text_model *t, const iv_ids *ids, bool as_json, iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    if (as_json) {
        iv_json_out json = {.spaced = true, .file = buffer.file};
        iv_out_kv_open(&json, NULL, '{');
        iv_out_kv_open(&json, "ids", '[');
        for (size_t i = 0; i < ids->count; i++) iv_out_kv_int(&json, NULL, ids->data[i]);
        iv_out_close(&json, ']');
        iv_out_close(&json, '}');
        fputc('\n', buffer.file);
    } else
        for (size_t i = 0; i < ids->count; i++) {
            size_t n = 0;
            const char *token = iv_token_string(t, ids->data[i], &n);
            fprintf(buffer.file, "%8d  ", (int)ids->data[i]);
            if (token) cli_print_safe(buffer.file, token, n, false);
            fputc('\n', buffer.file);
        }
    return cli_buffer_out(&buffer, err);
}

static int show_text(const iv_text *text, bool as_json, iv_error *err) {
    if (!as_json) {
        int code = cli_out_text(text->data, text->bytes, err);
        return code == CLI_OK ? cli_out("\n", 1, err) : code;
    }
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    iv_json_out json = {.spaced = true, .file = buffer.file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_string(&json, "text", text->data, text->bytes);
    iv_out_close(&json, '}');
    fputc('\n', buffer.file);
    return cli_buffer_out(&buffer, err);
}

static int text_of_ids(const cli_args *args, const iv_text_model *t, iv_error *err) {
    int32_t *ids;
    size_t count;
    int code = cli_read_ids(cli_text(args, "ids", ""), &ids, &count, err);
    if (code != CLI_OK) return code;
    iv_text text = {0};
    code = iv_detokenize(t, ids, count, !cli_has(args, "no-special"), &text, err) == IV_OK ? CLI_OK : CLI_FAILED;
    for (size_t i = 0; code == CLI_OK && i < count; i++)
        if (!iv_token_string(t, ids[i], NULL))
            code = cli_fail(err, CLI_FAILED, "--ids: wanted ids of this vocabulary, found %d", (int)ids[i]);
    if (code == CLI_OK) code = show_text(&text, cli_has(args, "json"), err);
    iv_text_free(&text);
    free(ids);
    return code;
}

static int ids_of_text(const cli_args *args, const iv_text_model *t, iv_error *err) {
    cli_bytes file = {0};
    const char *text = cli_text(args, "text", NULL);
    size_t bytes = text ? strlen(text) : 0;
    if (!text) {
        int code = cli_read_file(cli_text(args, "text-file", "-"), true, &file, err);
        if (code != CLI_OK) return code;
        text = file.data;
        bytes = file.count;
    }
    iv_ids ids = {0};
    iv_special_mode special = cli_has(args, "split-special-tokens") ? IV_SPECIAL_TEXT : IV_SPECIAL_TOKENS;
    iv_status status = iv_tokenize_as(t, text, bytes, !cli_has(args, "no-special"), special, &ids, err);
    int code = status == IV_OK ? CLI_OK : CLI_FAILED;
    if (code == CLI_OK) code = show_ids(t, &ids, cli_has(args, "json"), err);
    iv_ids_free(&ids);
    free(file.data);
    return code;
}

int cli_tokenize(const cli_args *args, iv_error *err) {
    if (cli_has(args, "text") + cli_has(args, "text-file") + cli_has(args, "ids") > 1)
        return cli_fail(err, CLI_USAGE, "wanted one of --text, --text-file and --ids, found more");
    iv_text_model *t;
    int code = cli_text_model_open(args, &t, err);
    if (code != CLI_OK) return code;
    code = cli_has(args, "ids") ? text_of_ids(args, t, err) : ids_of_text(args, t, err);
    iv_text_model_close(t);
    return code;
}

/* ---- render -------------------------------------------------------------------------------------------- */

int cli_render(const cli_args *args, iv_error *err) {
    const char *path = cli_text(args, "template", NULL), *input = cli_text(args, "input", NULL);
    const char *now = cli_text(args, "strftime-now", NULL);
    if ((path != NULL) == (args->operand_count > 0))
        return cli_fail(err, CLI_USAGE, "wanted MODEL or --template FILE, found %s", path ? "both" : "neither");
    if (!input) return cli_fail(err, CLI_USAGE, "wanted --input FILE, a JSON object of the template's variables");
    cli_bytes variables;
    int code = cli_read_file(input, true, &variables, err);
    if (code != CLI_OK) return code;
    iv_text text = {0};
    if (path) {
        if (iv_render_template(path, variables.data, variables.count, now, &text, err) != IV_OK) code = CLI_FAILED;
    } else {
        iv_text_model *t = NULL;
        iv_text chat = {0};
        code = cli_text_model_open(args, &t, err);
        if (code == CLI_OK && (iv_server_chat_variables(variables.data, variables.count, NULL, &chat, err) != IV_OK ||
                               iv_render_chat(t, chat.data, chat.bytes, now, &text, err) != IV_OK))
            code = CLI_FAILED;
        iv_text_free(&chat);
        iv_text_model_close(t);
    }
    if (code == CLI_OK) code = cli_out_text(text.data, text.bytes, err);
    iv_text_free(&text);
    free(variables.data);
    return code;
}
