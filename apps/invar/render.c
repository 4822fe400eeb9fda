/* render.c: invar render. */
#include "commands.h"
#include "input.h"
#include "model.h"
#include "output.h"
#include "serve/server.h"
#include "text.h"

#include <stdlib.h>

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
        iv_textual *t = NULL;
        iv_text chat = {0};
        code = cli_textual_open(args, &t, err);
        if (code == CLI_OK && (iv_server_chat_variables(variables.data, variables.count, NULL, &chat, err) != IV_OK ||
                               iv_render_chat(t, chat.data, chat.bytes, now, &text, err) != IV_OK))
            code = CLI_FAILED;
        iv_text_free(&chat);
        iv_textual_close(t);
    }
    if (code == CLI_OK) code = cli_out_text(text.data, text.bytes, err);
    iv_text_free(&text);
    free(variables.data);
    return code;
}
