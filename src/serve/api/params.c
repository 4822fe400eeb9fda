/* params.c: the reader of the fields in params_table.c. */
#include "serve/api/params.h"
#include "format/json.h"
#include "format/schema_words.h"
#include "serve/api/params_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void iv_api_params_init(iv_api_params *p, const iv_request *defaults) {
    *p = (iv_api_params){.request = *defaults,
                         .max_tokens = -1,
                         .max_completion_tokens = -1,
                         .n = 1,
                         .best_of = 1,
                         .top_logprobs = -1,
                         .prompt_logprobs = -1,
                         .logprob_start_len = -1,
                         .truncate = -2,
                         .separate_reasoning = true,
                         .add_generation_prompt = true,
                         .add_special = true};
}

void iv_api_params_free(iv_api_params *p) {
    iv_body_lists_free(&p->lists);
    iv_buf_free(&p->ignored);
    iv_arena_free(&p->arena);
}

enum { IGNORED_BYTES = 1000 /* then the list is cut */ };

void iv_api_ignore(iv_buf *ignored, const char *place, const char *what) {
    static const char more[] = ", ...";
    if (!ignored) return;
    if (ignored->len <= IGNORED_BYTES)
        iv_buf_printf(ignored, "%s%s (%.60s)", ignored->len ? ", " : "", place, what);
    else if (strcmp(ignored->data + ignored->len - (sizeof more - 1), more) != 0)
        iv_buf_puts(ignored, more);
}

typedef struct labels {
    iv_buf *ignored;
    const char *place;
} labels;

static bool see_label(void *user, const char *where, const char *what) {
    const labels *l = user;
    char place[400], named[80];
    snprintf(named, sizeof named, " (%.60s)", what);
    if (l->ignored->len && strstr(l->ignored->data, named)) return true;
    snprintf(place, sizeof place, "%.180s%s", l->place, where);
    bool full = l->ignored->len > IGNORED_BYTES;
    iv_api_ignore(l->ignored, place, what);
    return !full;
}

void iv_api_ignore_labels(iv_buf *ignored, const char *place, const json_t *schema) {
    labels l = {ignored, place};
    if (ignored) iv_schema_labels(schema, see_label, &l);
}

/* ---- one value ---------------------------------------------------------------------------------------- */

/* name prefixes the error. */
static iv_status wrong(const char *name, const char *wanted, const json_t *v, iv_error *err) {
    char text[IV_JSON_SHOWN_BYTES];
    return iv_fail(err, IV_INVALID, "%s: wanted %s, found %s", name, wanted, iv_json_shown(v, text));
}

iv_status iv_api_read_int(const char *name, const json_t *v, double min, double max, int64_t *out, iv_error *err) {
    char wanted[80];
    double real = json_is_real(v) ? json_real_value(v) : 0.5;
    bool whole = json_is_integer(v) || (fabs(real) < 9e15 && real == floor(real));
    int64_t n = json_is_integer(v) ? json_integer_value(v) : whole ? (int64_t)real : 0;
    if (whole && (double)n >= min && (double)n <= max) {
        *out = n;
        return IV_OK;
    }
    snprintf(wanted, sizeof wanted, "an integer from %.0f to %.0f", min, max);
    return wrong(name, wanted, v, err);
}

static iv_status read_float(const char *name, const json_t *v, double min, double max, float *out, iv_error *err) {
    char wanted[80];
    double x = json_number_value(v);
    if (json_is_number(v) && x >= min && x <= max) {
        *out = (float)x;
        return IV_OK;
    }
    snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
    return wrong(name, wanted, v, err);
}

static const char *keep(iv_api_params *p, const json_t *string) {
    return iv_arena_strndup(&p->arena, json_string_value(string), json_string_length(string));
}

static iv_status no_memory(const char *name, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
}

static iv_status read_stop(iv_api_params *p, const char *name, const json_t *v, iv_error *err) {
    size_t count = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_string(v) && !json_is_array(v)) return wrong(name, "a string or a list of strings", v, err);
    if (count > IV_STOPS_MAX)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %d strings, found %zu", name, IV_STOPS_MAX, count);
    const char **stop = IV_ARENA_NEW(&p->arena, count + 1, const char *);
    for (size_t i = 0; stop && i < count; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) return wrong(name, "strings", s, err);
        if (memchr(json_string_value(s), 0, json_string_length(s))) return wrong(name, "strings without NUL", s, err);
        if (!(stop[i] = keep(p, s))) return no_memory(name, err);
    }
    if (!stop) return no_memory(name, err);
    p->request.stop = stop, p->request.stop_count = count;
    return IV_OK;
}

static iv_status read_stop_ids(iv_api_params *p, const char *name, const json_t *v, iv_error *err) {
    size_t count = json_array_size(v);
    if (!json_is_array(v)) return wrong(name, "a list of token ids", v, err);
    if (count > IV_STOP_IDS_MAX)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %d ids, found %zu", name, IV_STOP_IDS_MAX, count);
    int32_t *ids = IV_ARENA_NEW(&p->arena, count + 1, int32_t);
    if (!ids) return no_memory(name, err);
    for (size_t i = 0; i < count; i++) {
        int64_t id = 0;
        IV_TRY(iv_api_read_int(name, json_array_get(v, i), 0, INT32_MAX, &id, err));
        ids[i] = (int32_t)id;
    }
    p->request.stop_ids = ids, p->request.stop_id_count = count;
    return IV_OK;
}

/* Ids have one spelling, so that no two keys name one token. */
static bool spells_id(const char *key, size_t n, int32_t *id) {
    uint64_t value;
    if (!iv_json_unsigned(key, n, &value) || value > INT32_MAX || (key[0] == '0' && n > 1)) return false;
    *id = (int32_t)value;
    return true;
}

/* {"token id": bias} */
static iv_status read_bias(iv_api_params *p, const char *name, json_t *v, iv_error *err) {
    const char *key;
    json_t *value;
    size_t count = 0;
    if (!json_is_object(v)) return wrong(name, "an object of token ids and numbers", v, err);
    if (json_object_size(v) > IV_LOGIT_BIAS_MAX)
        return iv_fail(err, IV_INVALID, "%s: wanted at most %d entries, found %zu", name, IV_LOGIT_BIAS_MAX,
                       json_object_size(v));
    iv_logit_bias *bias = IV_ARENA_NEW(&p->arena, json_object_size(v) + 1, iv_logit_bias);
    if (!bias) return no_memory(name, err);
    json_object_foreach(v, key, value) {
        if (!spells_id(key, strlen(key), &bias[count].id))
            return iv_fail(err, IV_INVALID, "%s: wanted token ids as keys, found \"%.40s\"", name, key);
        IV_TRY(read_float(name, value, -100, 100, &bias[count].bias, err));
        count++;
    }
    p->request.logit_bias = bias, p->request.logit_bias_count = count;
    return IV_OK;
}

/* 64 bits, signed or unsigned. Larger values are reals in jansson, which lose digits; their text is read instead. */
static iv_status read_seed(iv_api_params *p, const char *key, const char *name, const json_t *v, iv_error *err) {
    const char *text;
    size_t n;
    p->seed_unsigned = json_is_real(v) && p->text && iv_json_member_text(p->text, p->bytes, key, &text, &n) &&
                       iv_json_unsigned(text, n, &p->request.seed);
    if (json_is_integer(v)) p->request.seed = (uint64_t)json_integer_value(v);
    p->request.has_seed = json_is_integer(v) || p->seed_unsigned;
    return p->request.has_seed ? IV_OK : wrong(name, "an integer of 64 bits", v, err);
}

static iv_status read_only(const iv_api_field *f, const char *name, const json_t *v, iv_error *err) {
    char bars[IV_JSON_SHOWN_BYTES + 4], text[IV_JSON_SHOWN_BYTES], wanted[320];
    snprintf(bars, sizeof bars, "|%s|", iv_json_shown(v, text));
    if (strstr(f->only, bars)) return IV_OK;
    size_t n = strlen(f->only);
    snprintf(wanted, sizeof wanted, "%.*s (nothing else is supported)", (int)(n - 2), f->only + 1);
    for (char *c = wanted; (c = strchr(c, '|')) != NULL;) *c = ' ';
    return wrong(name, wanted, v, err);
}

static iv_status read_json(const iv_api_field *f, const char *name, json_t *v, json_t **out, iv_error *err) {
    char bars[32], wanted[80];
    snprintf(bars, sizeof bars, "|%s|", iv_json_type_name(v));
    *out = v;
    if (strstr(f->only, bars)) return IV_OK;
    snprintf(wanted, sizeof wanted, "%.*s", (int)(strlen(f->only) - 2), f->only + 1);
    for (char *c = wanted; (c = strchr(c, '|')) != NULL;) *c = '/';
    return wrong(name, wanted, v, err);
}

static iv_status read_field(iv_api_params *p, const iv_api_field *f, const char *name, json_t *v, iv_error *err) {
    void *at = (char *)p + f->at;
    int64_t n = 0;
    switch (f->kind) {
    case IV_FIELD_INT: return iv_api_read_int(name, v, f->min, f->max, at, err);
    case IV_FIELD_FLOAT: return read_float(name, v, f->min, f->max, at, err);
    case IV_FIELD_TEMPERATURE:
        IV_TRY(read_float(name, v, f->min, f->max, at, err));
        if (*(float *)at < IV_TEMPERATURE_MIN) *(float *)at = 0.0f;
        return IV_OK;
    case IV_FIELD_BOOL:
    case IV_FIELD_NOT_BOOL:
        if (!json_is_boolean(v)) return wrong(name, "true or false", v, err);
        *(bool *)at = json_is_true(v) == (f->kind == IV_FIELD_BOOL);
        return IV_OK;
    case IV_FIELD_STRING:
        if (!json_is_string(v) || memchr(json_string_value(v), 0, json_string_length(v)))
            return wrong(name, "a string without NUL", v, err);
        return (*(const char **)at = keep(p, v)) ? IV_OK : no_memory(name, err);
    case IV_FIELD_JSON: return read_json(f, name, v, at, err);
    case IV_FIELD_SEED: return read_seed(p, f->name, name, v, err);
    case IV_FIELD_STOP: return read_stop(p, name, v, err);
    case IV_FIELD_STOP_IDS: return read_stop_ids(p, name, v, err);
    case IV_FIELD_BIAS: return read_bias(p, name, v, err);
    case IV_FIELD_TOP_K:
        IV_TRY(iv_api_read_int(name, v, f->min, f->max, &n, err));
        *(int32_t *)at = n < 0 ? 0 : (int32_t)n;
        return IV_OK;
    case IV_FIELD_ACCEPT: return IV_OK;
    case IV_FIELD_ONLY: return read_only(f, name, v, err);
    case IV_FIELD_EACH_OF:
        if (!json_is_array(v)) return wrong(name, "a list", v, err);
        *(json_t **)at = v;
        for (size_t i = 0; i < json_array_size(v); i++) IV_TRY(read_only(f, name, json_array_get(v, i), err));
        return IV_OK;
    case IV_FIELD_ONE_OF: *(json_t **)at = v; return read_only(f, name, v, err);
    }
    return IV_OK;
}

/* ---- an object ---------------------------------------------------------------------------------------- */

static const iv_api_field *find_field(unsigned body, const char *name) {
    for (size_t i = 0; i < iv_api_field_count; i++)
        if (iv_api_fields[i].bodies & body && strcmp(iv_api_fields[i].name, name) == 0) return &iv_api_fields[i];
    return NULL;
}

bool iv_api_params_has(unsigned body, const char *name) { return find_field(body, name) != NULL; }

const char *iv_api_params_ids(unsigned body) {
    return body == IV_API_COMPLETIONS  ? "prompt"
           : body == IV_API_GENERATE   ? "input_ids"
           : body == IV_API_DETOKENIZE ? "tokens"
                                       : NULL;
}

iv_status iv_api_params_check(unsigned body, const char *prefix, const char *name, iv_error *err) {
    if (find_field(body, name)) return IV_OK;
    const char *like = iv_api_field_like(body, name);
    return iv_fail(err, IV_INVALID, "%s%.100s: this field is not known here%s%s%s", prefix, name,
                   like ? "; did you mean \"" : "", like ? like : "", like ? "\"?" : "");
}

iv_status iv_api_params_read(iv_api_params *p, unsigned body, const char *prefix, json_t *object, iv_error *err) {
    char name[160];
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found %s", *prefix ? prefix : "body",
                       iv_json_type_name(object));
    json_object_foreach(object, key, value) {
        const iv_api_field *f = find_field(body, key);
        if (json_is_null(value))
            continue; /* null is treated as absent for any name: clients send fields they do not set */
        snprintf(name, sizeof name, "%s%.100s", prefix, key);
        if (!f) return iv_api_params_check(body, prefix, key, err);
        IV_TRY(read_field(p, f, name, value, err));
    }
    return IV_OK;
}

/* For responses, log-probabilities are requested by `include`. */
static iv_status finish_response(iv_api_params *p, iv_error *err) {
    const json_t *item;
    size_t i;
    json_array_foreach(p->include, i, item) p->want_logprobs |= strcmp(json_string_value(item), IV_API_LOGPROBS) == 0;
    if (p->top_logprobs > 0 && !p->want_logprobs)
        return iv_fail(err, IV_INVALID,
                       "top_logprobs: wanted only with \"" IV_API_LOGPROBS "\" in \"include\", found %d without it",
                       (int)p->top_logprobs);
    if (p->want_logprobs) p->request.logprobs = p->top_logprobs > 0 ? (int)p->top_logprobs : 0;
    if (p->truncation) p->drop_items = strcmp(json_string_value(p->truncation), "auto") == 0;
    return p->reasoning ? iv_api_params_read(p, IV_API_REASONING, "reasoning.", p->reasoning, err) : IV_OK;
}

iv_status iv_api_params_finish(iv_api_params *p, unsigned body, iv_error *err) {
    json_t *options = p->sampling_params;                                        /* stream_options */
    if (p->max_completion_tokens >= 0) p->max_tokens = p->max_completion_tokens; /* the newer name takes precedence */
    unsigned options_of = body == IV_API_RESPONSES ? IV_API_RESPONSE_STREAM_OPTIONS : IV_API_STREAM_OPTIONS;
    if (options) IV_TRY(iv_api_params_read(p, options_of, "stream_options.", options, err));
    if (options && !p->stream)
        return iv_fail(err, IV_INVALID, "stream_options: wanted only with \"stream\": true, found without it");
    if (p->best_of != 1 && p->best_of != p->n)
        return iv_fail(err, IV_INVALID, "best_of: wanted 1, or as many as n, %lld, found %lld", (long long)p->n,
                       (long long)p->best_of);
    if (body == IV_API_RESPONSES) IV_TRY(finish_response(p, err));
    if (body == IV_API_CHAT) {
        if (json_is_integer(p->logprobs)) return wrong("logprobs", "true or false", p->logprobs, err);
        p->want_logprobs = json_is_true(p->logprobs);
        if (p->top_logprobs > 0 && !p->want_logprobs)
            return iv_fail(err, IV_INVALID, "top_logprobs: wanted only with \"logprobs\": true, found %d without it",
                           (int)p->top_logprobs);
        if (p->want_logprobs) p->request.logprobs = p->top_logprobs > 0 ? (int)p->top_logprobs : 0;
    } else if (p->logprobs && !json_is_false(p->logprobs)) {
        int64_t n = 0;
        IV_TRY(iv_api_read_int("logprobs", p->logprobs, 0, IV_LOGPROBS_MAX, &n, err));
        p->want_logprobs = true, p->request.logprobs = (int)n;
    }
    p->request.priority = (int32_t)p->priority;
    p->request.keep_receipt = p->return_receipt;
    p->request.add_special = p->add_special;
    return IV_OK;
}

iv_status iv_api_params_continue(iv_api_params *p, const json_t *body, iv_error *err) {
    if (!p->continue_final) return IV_OK;
    if (json_is_true(json_object_get(body, "add_generation_prompt")))
        return iv_fail(err, IV_INVALID, "continue_final_message: wanted no \"add_generation_prompt\": true with it");
    p->add_generation_prompt = false;
    return IV_OK;
}

iv_status iv_api_params_seed(iv_request *r, iv_error *err) {
    if (r->has_seed) return IV_OK;
    if (getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed)
        return iv_fail(err, IV_IO, "seed: the system gave no random bytes");
    r->seed &= ((uint64_t)1 << 53) - 1;
    r->has_seed = true;
    return IV_OK;
}

iv_status iv_api_read_ids(iv_api_params *p, size_t at, const char *name, json_t *list, iv_ids *out, iv_error *err) {
    size_t count = json_array_size(list);
    if (iv_body_lists_take(&p->lists, at, out)) return IV_OK;
    if (!json_is_array(list)) return wrong(name, "a list of token ids", list, err);
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    if (!ids) return no_memory(name, err);
    for (size_t i = 0; i < count; i++) {
        int64_t id = 0;
        iv_status status = iv_api_read_int(name, json_array_get(list, i), 0, INT32_MAX, &id, err);
        if (status != IV_OK) {
            free(ids);
            return status;
        }
        ids[i] = (int32_t)id;
    }
    *out = (iv_ids){.data = ids, .count = count, .capacity = count + 1};
    return IV_OK;
}
