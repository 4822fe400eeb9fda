/* logits.c: invar logits. */
#include "commands.h"
#include "input.h"
#include "model.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

static int write_text(const char *text, iv_engine *engine, const char *path, iv_error *err) {
    iv_ids ids = {0};
    iv_status status = iv_tokenize(iv_engine_textual(engine), text, strlen(text), true, &ids, err);
    if (status == IV_OK) status = iv_engine_write_logits(engine, ids.data, ids.count, path, err);
    iv_ids_free(&ids);
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

static int write_ids(const char *list, iv_engine *engine, const char *path, iv_error *err) {
    int32_t *ids;
    size_t count;
    int code = cli_read_ids(list, &ids, &count, err);
    if (code == CLI_OK && iv_engine_write_logits(engine, ids, count, path, err) != IV_OK) code = CLI_FAILED;
    free(ids);
    return code;
}

int cli_logits(const cli_args *args, iv_error *err) {
    const char *path = cli_text(args, "out", NULL), *list = cli_text(args, "ids", NULL),
               *text = cli_text(args, "text", NULL);
    if (!list == !text) return cli_fail(err, CLI_USAGE, "wanted --ids or --text, found %s", list ? "both" : "neither");
    if (!path) return cli_fail(err, CLI_USAGE, "wanted --out FILE, the safetensors file to write");
    iv_engine *engine;
    int code = cli_engine_open(args, &engine, err);
    if (code != CLI_OK) return code;
    code = text ? write_text(text, engine, path, err) : write_ids(list, engine, path, err);
    iv_engine_close(engine);
    return code;
}
