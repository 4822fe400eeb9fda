/* gguf_copy.c: the texts around a model, its weights, and the file. */
#include "engine/gguf_copy.h"
#include "base/file.h"
#include "format/generation_config.h"
#include "format/json.h"
#include "format/model_files.h"
#include "text/chat_template.h"

#include <string.h>
#include <sys/stat.h>

enum { TEXT_BYTES_MAX = 16 << 20 };

bool iv_gguf_is_asked(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

bool iv_gguf_format_of(const char *name, iv_weight_format *out) {
    static const struct {
        const char *name;
        iv_weight_format format;
    } all[] = {{"q8_0", IV_WEIGHT_Q8_0}, {"q4_0", IV_WEIGHT_Q4_0}, {"q4_1", IV_WEIGHT_Q4_1}, {"q5_0", IV_WEIGHT_Q5_0},
               {"q5_1", IV_WEIGHT_Q5_1}, {"bf16", IV_WEIGHT_BF16}, {"f16", IV_WEIGHT_F16},   {"f32", IV_WEIGHT_F32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(name, all[i].name) == 0) {
            *out = all[i].format;
            return true;
        }
    return false;
}

/* ---- texts ------------------------------------------------------------------------------------------------- */

typedef struct texts {
    iv_buf where, json; /* of tokenizer.json */
    iv_tokenizer_json tokens;
    bool has_tokens;
    json_t *config, *names; /* tokenizer_config.json; its special tokens */
    iv_buf jinja;
} texts;

static void texts_free(texts *t) {
    if (t->has_tokens) iv_tokenizer_json_free(&t->tokens);
    iv_buf_free(&t->where), iv_buf_free(&t->json), iv_buf_free(&t->jinja);
    json_decref(t->config), json_decref(t->names);
}

/* The id of a special token by its text, else the one given. */
static int64_t id_of(const texts *t, const char *name, int64_t otherwise) {
    const json_t *text = json_object_get(t->names, name);
    const char *s = json_string_value(text);
    const iv_token *found = s ? iv_token_map_find(&t->tokens.added_map, s, json_string_length(text)) : NULL;
    if (s && !found) found = iv_token_map_find(&t->tokens.vocab, s, json_string_length(text));
    return found ? found->id : otherwise;
}

/* chat_template.jinja, else that of tokenizer_config.json: a text, or the default of a list. */
static iv_status read_template(const char *model, texts *t, iv_gguf_specials *out, iv_error *err) {
    iv_buf where = {0};
    const json_t *field = json_object_get(t->config, "chat_template"), *entry;
    size_t i;
    if (iv_model_file_exists(model, "chat_template.jinja")) {
        iv_status status = iv_model_file_read(model, "chat_template.jinja", TEXT_BYTES_MAX, &where, &t->jinja, err);
        out->chat_template = t->jinja.data, out->template_bytes = t->jinja.len;
        iv_buf_free(&where);
        return status;
    }
    json_array_foreach(field, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) {
            field = json_object_get(entry, "template");
            break;
        }
    }
    out->chat_template = json_string_value(field), out->template_bytes = json_string_length(field);
    return IV_OK;
}

static void add_end(iv_gguf_specials *s, int64_t id) {
    bool known = id == s->eos || s->end_count == IV_EOS_IDS_MAX;
    for (size_t i = 0; i < s->end_count; i++) known |= s->ends[i] == id;
    if (!known) s->ends[s->end_count++] = id;
}

static iv_status read_specials(const char *model, texts *t, const iv_model_config *c, iv_gguf_specials *out,
                               iv_error *err) {
    iv_generation_config g;
    if (iv_model_file_exists(model, "tokenizer_config.json"))
        IV_TRY(iv_model_file_json(model, "tokenizer_config.json", TEXT_BYTES_MAX, &t->config, err));
    t->names = json_object();
    if (!t->names) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for its special tokens", model);
    IV_TRY(iv_special_tokens_read(model, t->config, t->names, err));
    IV_TRY(iv_generation_config_read(model, &g, err));
    *out = (iv_gguf_specials){.bos = id_of(t, "bos_token", c->bos_id),
                              .eos = id_of(t, "eos_token", c->eos_count ? c->eos_ids[0] : -1),
                              .unk = id_of(t, "unk_token", -1),
                              .pad = id_of(t, "pad_token", c->pad_id)};
    if (t->tokens.before_count) out->bos = t->tokens.before[0];
    for (size_t i = 0; i < c->eos_count; i++) add_end(out, c->eos_ids[i]);
    for (size_t i = 0; g.has_eos && i < g.eos_count; i++) add_end(out, g.eos_ids[i]);
    return read_template(model, t, out, err);
}

static iv_status read_texts(const char *model, const iv_model_config *c, texts *t, iv_gguf_specials *out,
                            iv_error *err) {
    if (!iv_model_file_exists(model, "tokenizer.json")) return IV_OK;
    IV_TRY(iv_model_file_read(model, "tokenizer.json", IV_TOKENIZER_FILE_BYTES_MAX, &t->where, &t->json, err));
    IV_TRY(iv_tokenizer_json_parse(t->where.data, t->json.data, t->json.len, &t->tokens, err));
    t->has_tokens = true;
    return read_specials(model, t, c, out, err);
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

static iv_status check_path(const iv_gguf_copy_options *o, iv_error *err) {
    struct stat there, source;
    if (stat(o->path, &there) != 0) return IV_OK;
    if (S_ISDIR(there.st_mode)) return iv_fail(err, IV_INVALID, "%s: wanted a file, found a directory", o->path);
    if (stat(o->model, &source) == 0 && source.st_dev == there.st_dev && source.st_ino == there.st_ino)
        return iv_fail(err, IV_INVALID, "%s: is the model itself", o->path);
    if (S_ISREG(there.st_mode) && !o->overwrite)
        return iv_fail(err, IV_INVALID, "%s: is there already (--overwrite replaces it)", o->path);
    return IV_OK;
}

/* Held in float32, as that rounds nothing: matrices keep the checkpoint's type. */
static iv_status load(const iv_gguf_copy_options *o, iv_model **out, iv_error *err) {
    iv_model_options m = {.has_dtype = true, .dtype = IV_F32, .positions = 1, .expand_as_saved = o->as_held};
    iv_pool *pool;
    IV_TRY(iv_pool_open(o->threads, &pool, err));
    iv_status status = iv_model_open(o->model, &m, pool, out, err);
    iv_pool_close(pool);
    return status;
}

iv_status iv_gguf_copy(const iv_gguf_copy_options *o, iv_gguf_exported *out, iv_error *err) {
    texts t = {0};
    iv_model *m = NULL;
    iv_gguf_export_options x = {
        .path = o->path, .format = o->format, .as_held = o->as_held, .progress = o->progress, .user = o->user};
    *out = (iv_gguf_exported){0};
    IV_TRY(check_path(o, err));
    iv_status status = load(o, &m, err);
    if (status == IV_OK) status = read_texts(o->model, &m->config, &t, &x.specials, err);
    if (status == IV_OK) {
        x.tokens = t.has_tokens ? &t.tokens : NULL, x.tokens_name = t.where.data;
        status = iv_gguf_export(m, &x, out, err);
    }
    iv_model_close(m);
    texts_free(&t);
    return status;
}
