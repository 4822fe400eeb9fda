/* calibration.c: JSON lines to token ids. */
#include "calibration.h"
#include "input.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const iv_text_model *t;
    const char *path;
    size_t line, longest;
} reader;

static int line_error(const reader *at, iv_error *err, const char *what) {
    return cli_fail(err, CLI_FAILED, "%.300s:%zu: %s", at->path, at->line, what);
}

/* The first of the names that is there. */
static const json_t *member(const json_t *object, const char *const *names) {
    for (; *names; names++) {
        const json_t *value = json_object_get(object, *names);
        if (value && !json_is_null(value)) return value;
    }
    return NULL;
}

static int read_ids(const reader *at, const json_t *list, iv_ids *out, iv_error *err) {
    size_t n = json_array_size(list);
    out->data = malloc((n + 1) * sizeof *out->data);
    if (!out->data) return line_error(at, err, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return line_error(at, err, "ids: wanted whole numbers, token ids");
        out->data[out->count++] = (int32_t)value;
    }
    return CLI_OK;
}

static int tokenize(const reader *at, const char *text, size_t bytes, bool add_special, iv_ids *out, iv_error *err) {
    if (iv_tokenize(at->t, text, bytes, add_special, out, err) == IV_OK) return CLI_OK;
    iv_error why = *err;
    return cli_fail(err, CLI_FAILED, "%.300s:%zu: %.600s", at->path, at->line, why.message);
}

/* Messages, and those of a completion behind them; NULL: none. */
static int read_messages(const reader *at, const json_t *object, const json_t *messages, const json_t *more,
                         iv_ids *out, iv_error *err) {
    json_t *variables = json_object(), *all = json_deep_copy(messages), *tools = json_object_get(object, "tools");
    iv_text text = {0};
    if (all && more) json_array_extend(all, (json_t *)more);
    json_object_set_new(variables, "messages", all);
    if (tools && !json_is_null(tools)) json_object_set(variables, "tools", tools);
    char *packed = json_dumps(variables, JSON_COMPACT);
    json_decref(variables);
    if (!packed) return line_error(at, err, "out of memory");
    int code = CLI_OK;
    if (iv_render_chat(at->t, packed, strlen(packed), "26 Jul 2024", &text, err) != IV_OK) {
        iv_error why = *err;
        code = cli_fail(err, CLI_FAILED, "%.300s:%zu: %.600s", at->path, at->line, why.message);
    }
    free(packed);
    if (code == CLI_OK) code = tokenize(at, text.data, text.bytes, false, out, err);
    iv_text_free(&text);
    return code;
}

static int read_texts(const reader *at, const json_t *first, const json_t *more, iv_ids *out, iv_error *err) {
    size_t a = json_string_length(first), b = more ? json_string_length(more) : 0;
    char *both = malloc(a + b + 1);
    if (!both) return line_error(at, err, "out of memory");
    memcpy(both, json_string_value(first), a);
    if (b) memcpy(both + a, json_string_value(more), b);
    int code = tokenize(at, both, a + b, true, out, err);
    free(both);
    return code;
}

static int read_line(const reader *at, const json_t *object, iv_ids *out, iv_error *err) {
    static const char *const texts[] = {"text", NULL}, *const chats[] = {"messages", NULL},
                             *const lists[] = {"ids", NULL}, *const prompts[] = {"prompt", "question", "problem", NULL},
                             *const completions[] = {"completion", "answer", NULL};
    const json_t *ids = member(object, lists), *text = member(object, texts), *chat = member(object, chats);
    const json_t *prompt = member(object, prompts), *completion = member(object, completions);
    if (json_is_array(ids)) return read_ids(at, ids, out, err);
    if (json_is_string(text)) return read_texts(at, text, NULL, out, err);
    if (json_is_array(chat)) return read_messages(at, object, chat, NULL, out, err);
    if (json_is_array(prompt) && (!completion || json_is_array(completion)))
        return read_messages(at, object, prompt, completion, out, err);
    if (json_is_string(prompt) && (!completion || json_is_string(completion)))
        return read_texts(at, prompt, completion, out, err);
    return line_error(at, err,
                      "wanted text, ids, messages, or prompt with or without completion (texts, or lists of messages)");
}

static int add_line(const reader *at, const char *line, size_t n, cli_calibration *out, iv_error *err) {
    json_error_t why;
    iv_ids ids = {0};
    if (out->count % 64 == 0) {
        iv_ids *more = realloc(out->texts, (out->count + 64) * sizeof *more);
        if (!more) return line_error(at, err, "out of memory");
        out->texts = more;
    }
    json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!object)
        return cli_fail(err, CLI_FAILED, "%.300s:%zu:%d: not valid JSON: %s", at->path, at->line, why.column, why.text);
    int code = json_is_object(object) ? read_line(at, object, &ids, err) : line_error(at, err, "wanted a JSON object");
    json_decref(object);
    if (code == CLI_OK && ids.count == 0) code = line_error(at, err, "wanted a text with a token, found none");
    if (code != CLI_OK) {
        iv_ids_free(&ids);
        return code;
    }
    if (ids.count > at->longest) ids.count = at->longest, out->cut++;
    out->tokens += ids.count;
    out->texts[out->count++] = ids;
    return CLI_OK;
}

int cli_calibration_read(const iv_text_model *t, const char *path, size_t lines, size_t longest, cli_calibration *out,
                         iv_error *err) {
    cli_bytes file;
    *out = (cli_calibration){0};
    int code = cli_read_file(path, true, &file, err);
    if (code != CLI_OK) return code;
    cli_lines l = {.text = file};
    while (code == CLI_OK && out->count < lines && cli_next_line(&l))
        code = add_line(&(reader){t, path, l.number, longest}, l.line, l.line_bytes, out, err);
    free(file.data);
    if (code == CLI_OK && out->count == 0) code = cli_fail(err, CLI_FAILED, "%.300s: wanted a text, found none", path);
    if (code != CLI_OK) cli_calibration_free(out);
    return code;
}

void cli_calibration_free(cli_calibration *c) {
    for (size_t i = 0; i < c->count; i++) iv_ids_free(&c->texts[i]);
    free(c->texts);
    *c = (cli_calibration){0};
}
