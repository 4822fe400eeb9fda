/* text_model.c: opening tokenizer and chat template without weights, and the text calls of invar.h. */
#include "engine/text_model.h"
#include "engine/sized.h"
#include "base/file.h"
#include "base/utf8.h"
#include "format/foreign.h"
#include "format/json.h"
#include "format/model_files.h"
#include "text/jinja/template.h"
#include "text/chat_template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TEMPLATE_FILE_BYTES_MAX = 1 << 20, CONFIG_BYTES_MAX = 16 << 20 };

void iv_text_free(iv_text *text) {
    free(text->data);
    *text = (iv_text){0};
}

/* Hands a buffer's memory to the caller; an empty one becomes "". */
static iv_status give(iv_buf *buf, iv_text *out, iv_error *err) {
    if (!iv_buf_reserve(buf, 0)) return iv_fail(err, IV_NO_MEMORY, "no memory for text");
    *out = (iv_text){.data = buf->data, .bytes = buf->len};
    *buf = (iv_buf){0};
    return IV_OK;
}

/* Tokenizer and template are optional, so a missing directory needs a separate error. */
static iv_status need_directory(const char *model, iv_error *err) {
    struct stat st;
    if (stat(model, &st) != 0)
        return iv_fail(err, errno == ENOENT || errno == ENOTDIR ? IV_NOT_FOUND : IV_IO, "%s: cannot open: %s", model,
                       strerror(errno));
    if (!S_ISDIR(st.st_mode) && !iv_model_is_gguf(model))
        return iv_fail(err, IV_INVALID, "%s: wanted a model directory or a GGUF file, found another file", model);
    return IV_OK;
}

static iv_status find_eos(iv_text_model *t, const json_t *config, iv_error *err) {
    json_t *tokens = json_object();
    if (!tokens) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its special tokens", t->model);
    iv_status status = iv_special_tokens_read(t->model, config, tokens, err);
    const json_t *token = json_object_get(tokens, "eos_token");
    const char *text = json_string_value(token);
    if (text && !iv_tokenizer_find(t->tokenizer, text, json_string_length(token), &t->eos_id)) t->eos_id = -1;
    json_decref(tokens);
    return status;
}

static iv_status read_eos(iv_text_model *t, iv_error *err) {
    static const char name[] = "tokenizer_config.json";
    json_t *config = NULL;
    if (!t->tokenizer) return IV_OK;
    if (iv_model_file_exists(t->model, name))
        IV_TRY(iv_model_file_json(t->model, name, CONFIG_BYTES_MAX, &config, err));
    iv_status status = find_eos(t, config, err);
    json_decref(config);
    return status;
}

iv_status iv_text_model_open(const char *model, iv_text_model **out, iv_error *err) {
    IV_TRY(need_directory(model, err));
    iv_text_model *t = calloc(1, sizeof *t);
    if (!t || !(t->model = strdup(model))) {
        free(t);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", model);
    }
    iv_constraints_open(&t->constraints);
    iv_status status = IV_OK;
    if (iv_model_file_exists(model, "tokenizer.json")) status = iv_tokenizer_open(model, &t->tokenizer, err);
    if (status == IV_OK) {
        status = iv_chat_template_open(model, &t->chat, err);
        if (status == IV_NOT_FOUND) t->no_chat = *err, status = IV_OK;
    }
    t->eos_id = -1;
    if (status == IV_OK) status = read_eos(t, err);
    if (status == IV_OK)
        *out = t;
    else
        iv_text_model_close(t);
    return status;
}

void iv_text_model_close(iv_text_model *t) {
    if (!t) return;
    iv_constraints_close(&t->constraints);
    iv_tokenizer_close(t->tokenizer);
    iv_chat_template_close(t->chat);
    free(t->model);
    free(t);
}

/* IV_NOT_FOUND if the model has no tokenizer. */
static iv_status need_tokenizer(const iv_text_model *t, iv_error *err) {
    if (t->tokenizer) return IV_OK;
    return iv_fail(err, IV_NOT_FOUND, "%s: has no tokenizer.json%s; give token ids instead of text", t->model,
                   iv_foreign_tokenizer(t->model));
}

iv_status iv_text_model_compile(iv_text_model *t, size_t vocab_size, const iv_request *given, bool quick,
                                iv_constraint **out, iv_error *err) {
    iv_request r = {.constraint = IV_CONSTRAINT_NONE};
    *out = NULL;
    IV_TRY(iv_sized_read("request", given, offsetof(iv_request, max_tokens), &r, sizeof r, err));
    if (r.constraint == IV_CONSTRAINT_NONE) return iv_fail(err, IV_INVALID, "constraint: wanted one, found none");
    if (!t->tokenizer)
        return iv_fail(err, IV_INVALID, "constraint: wanted a model with a tokenizer.json, found none in %s", t->model);
    return iv_constraint_take(&t->constraints, t->tokenizer, vocab_size, &r, quick, out, err);
}

iv_status iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool add_special, iv_ids *out,
                      iv_error *err) {
    return iv_tokenize_as(t, text, bytes, add_special, IV_SPECIAL_TOKENS, out, err);
}

iv_status iv_mark_special(const iv_text_model *t, const char *text, size_t bytes, iv_text *out, iv_error *err) {
    iv_buf buf = {0};
    IV_TRY(need_tokenizer(t, err));
    iv_status status = iv_tokenizer_mark(t->tokenizer, text, bytes, &buf, err);
    if (status == IV_OK) status = give(&buf, out, err);
    iv_buf_free(&buf);
    return status;
}

void iv_unmark_special(iv_text *text) {
    text->bytes = iv_tokenizer_unmark(text->data, text->bytes);
    if (text->data) text->data[text->bytes] = 0;
}

iv_status iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool add_special,
                         iv_special_mode special, iv_ids *out, iv_error *err) {
    iv_ids ids = {0};
    IV_TRY(need_tokenizer(t, err));
    unsigned flags = (special == IV_SPECIAL_TEXT ? 0u : IV_ENCODE_PARSE_SPECIAL) |
                     (special == IV_SPECIAL_MARKED ? IV_ENCODE_MARKED : 0u) |
                     (add_special ? IV_ENCODE_ADD_SPECIAL : 0u);
    iv_status status = iv_tokenizer_encode(t->tokenizer, text, bytes, flags, &ids, err);
    if (status == IV_OK)
        *out = ids;
    else
        iv_ids_free(&ids);
    return status;
}

iv_status iv_detokenize(const iv_text_model *t, const int32_t *ids, size_t count, bool keep_special, iv_text *out,
                        iv_error *err) {
    iv_buf buf = {0};
    IV_TRY(need_tokenizer(t, err));
    iv_status status = iv_tokenizer_decode(t->tokenizer, ids, count, !keep_special, &buf, err);
    if (status == IV_OK) status = give(&buf, out, err);
    iv_buf_free(&buf);
    return status;
}

const char *iv_token_string(const iv_text_model *t, int32_t id, size_t *bytes) {
    return t->tokenizer ? iv_tokenizer_token(t->tokenizer, id, bytes) : NULL;
}

static iv_status parse_variables(const char *json, size_t bytes, json_t **out, iv_error *err) {
    IV_TRY(iv_json_parse("template variables", json, bytes, out, err));
    if (json_is_object(*out)) return IV_OK;
    const char *found = iv_json_type_name(*out);
    json_decref(*out);
    return iv_fail(err, IV_INVALID, "template variables: wanted a JSON object, found %s", found);
}

/* The messages as every door reads them (text/chat_messages.h). */
static iv_status read_messages(const iv_template *t, json_t *variables, iv_error *err) {
    const json_t *given = json_object_get(variables, "messages");
    if (!given || (json_is_array(given) && json_array_size(given) == 0)) return IV_OK;
    json_t *list = json_array();
    iv_status status = list ? iv_chat_fit_read(t, "messages", false, given, list, err)
                            : iv_fail(err, IV_NO_MEMORY, "messages: no memory");
    if (status == IV_OK && json_object_set(variables, "messages", list) != 0)
        status = iv_fail(err, IV_NO_MEMORY, "messages: no memory");
    json_decref(list);
    return status;
}

iv_status iv_render_chat(const iv_text_model *t, const char *variables_json, size_t bytes, const char *strftime_now,
                         iv_text *out, iv_error *err) {
    if (!t->chat) {
        *err = t->no_chat;
        return err->status;
    }
    json_t *variables;
    iv_buf buf = {0};
    IV_TRY(parse_variables(variables_json, bytes, &variables, err));
    iv_status status = read_messages(iv_chat_template_chosen(t->chat, variables), variables, err);
    if (status == IV_OK) status = iv_chat_template_fit(t->chat, variables, "messages", err);
    if (status == IV_OK) status = iv_chat_template_render(t->chat, variables, strftime_now, &buf, err);
    if (status == IV_OK) status = give(&buf, out, err);
    iv_buf_free(&buf);
    json_decref(variables);
    return status;
}

iv_status iv_render_template(const char *path, const char *variables_json, size_t bytes, const char *strftime_now,
                             iv_text *out, iv_error *err) {
    json_t *variables;
    iv_buf source = {0}, buf = {0};
    iv_template *template = NULL;
    IV_TRY(parse_variables(variables_json, bytes, &variables, err));
    iv_status status = iv_file_read_any(path, TEMPLATE_FILE_BYTES_MAX, &source, err);
    if (status == IV_OK) {
        const char *text = source.data ? source.data : "";
        size_t mark = iv_utf8_mark(text, source.len);
        status = iv_template_parse(path, text + mark, source.len - mark, IV_JINJA_PLAIN, &template, err);
    }
    if (status == IV_OK) status = read_messages(template, variables, err);
    if (status == IV_OK) status = iv_chat_fit(template, NULL, variables, "messages", err);
    if (status == IV_OK) status = iv_template_render(template, variables, strftime_now, &buf, err);
    if (status == IV_OK) status = give(&buf, out, err);
    iv_template_close(template);
    iv_buf_free(&buf);
    iv_buf_free(&source);
    json_decref(variables);
    return status;
}
