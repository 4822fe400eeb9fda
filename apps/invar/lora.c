/* lora.c: names and directories of adapters. */
#include "lora.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { ENABLED = 4 /* adapters, with --enable-lora alone */ };

static const char *flag_of(const cli_args *args) {
    const cli_flag *flag = cli_flag_find(args->syntax, "lora"); /* of several adapters it is lora-modules */
    return flag ? flag->name : NULL;
}

static int bad(const char *flag, const char *text, iv_error *err) {
    char shown[CLI_SHOWN_BYTES];
    return cli_fail(err, CLI_USAGE, "--%s: wanted NAME=DIR or DIR, found '%s'", flag, cli_shown(text, shown));
}

/* Unknown members are refused. */
static bool has_only(json_t *root, const char *const *known) {
    const char *key;
    json_t *v;
    json_object_foreach(root, key, v) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i]) return false;
    }
    return true;
}

static int of_json(const char *flag, const char *text, cli_lora *out, iv_error *err) {
    static const char *const known[] = {"name", "path", "base_model_name", NULL};
    json_t *root = json_loads(text, 0, NULL);
    const json_t *base = json_object_get(root, "base_model_name");
    const char *name = json_string_value(json_object_get(root, "name")),
               *path = json_string_value(json_object_get(root, "path"));
    bool good = name && *name && path && *path && strlen(name) < sizeof out->name && has_only(root, known) &&
                (!base || json_is_null(base) || json_is_string(base));
    int code = good ? CLI_OK : bad(flag, text, err);
    if (code == CLI_OK) {
        strcpy(out->name, name);
        out->path = strdup(path), out->base = json_is_string(base) ? strdup(json_string_value(base)) : NULL;
        if (!out->path || !out->base != !json_is_string(base)) code = cli_fail(err, CLI_FAILED, "out of memory");
    }
    json_decref(root);
    return code;
}

static int parse(const char *flag, const char *text, cli_lora *out, iv_error *err) {
    if (*text == '{') return of_json(flag, text, out, err);
    size_t n = strcspn(text, "=/"), end;
    const char *from = text;
    out->path = text, out->base = NULL;
    if (text[n] == '=') {
        out->path = text + n + 1;
    } else {
        for (end = strlen(text); end > 1 && text[end - 1] == '/';) end--;
        for (n = 0; n < end && text[end - n - 1] != '/';) n++;
        from = text + end - n;
    }
    if (n == 0 || n >= sizeof out->name || !*out->path) return bad(flag, text, err);
    memcpy(out->name, from, n), out->name[n] = 0;
    return CLI_OK;
}

bool cli_lora_nth(const cli_args *args, size_t n, cli_lora *out, int *code, iv_error *err) {
    const char *flag = flag_of(args);
    const cli_value *value = flag ? cli_nth(args, flag, n) : NULL;
    *code = CLI_OK;
    if (!value) return false;
    *code = parse(flag, value->text, out, err);
    return *code == CLI_OK;
}

void cli_lora_options(const cli_args *args, iv_engine_options *o) {
    const char *flag = flag_of(args);
    size_t count = 0;
    if (!flag) return;
    while (cli_nth(args, flag, count)) count++;
    o->max_loras = count;
    if (cli_flag_find(args->syntax, "max-loras")) {
        if (cli_has(args, "enable-lora") && count < ENABLED) o->max_loras = ENABLED;
        o->max_loras = cli_count(args, "max-loras", o->max_loras);
    }
    o->max_lora_rank = cli_count(args, "max-lora-rank", o->max_lora_rank);
}

int cli_lora_check(const cli_args *args, const iv_engine_options *o, iv_error *err) {
    cli_lora a, b;
    int code;
    const char *flag = flag_of(args);
    size_t count = 0;
    for (; cli_lora_nth(args, count, &a, &code, err); count++)
        for (size_t i = 0; i < count && cli_lora_nth(args, i, &b, &code, err); i++)
            if (strcmp(a.name, b.name) == 0)
                return cli_fail(err, CLI_USAGE, "--%s: wanted different names, found '%s' twice", flag, a.name);
    if (code != CLI_OK) return code;
    if (count > o->max_loras)
        return cli_fail(err, CLI_USAGE, "--max-loras: wanted %zu or more, as many as --%s names, found %zu", count,
                        flag, o->max_loras);
    return CLI_OK;
}

int cli_lora_load(const cli_args *args, iv_engine *engine, iv_error *err) {
    cli_lora lora;
    int code = CLI_OK;
    for (size_t i = 0; cli_lora_nth(args, i, &lora, &code, err); i++)
        if (iv_engine_load_adapter(engine, lora.name, lora.path, err) != IV_OK) return CLI_FAILED;
    return code;
}

const char *cli_lora_name(const cli_args *args) {
    static cli_lora only;
    iv_error unused;
    int code;
    const char *flag = flag_of(args);
    return flag && strcmp(flag, "lora") == 0 && cli_lora_nth(args, 0, &only, &code, &unused) ? only.name : NULL;
}

void cli_lora_fingerprint(const iv_engine *engine, const char *adapter, iv_engine_info *info) {
    iv_adapter_info a = {.size = sizeof a};
    for (size_t i = 0; adapter && iv_engine_adapter_at(engine, i, &a); i++)
        if (strcmp(a.name, adapter) == 0) info->fingerprint = a.fingerprint;
}
