/* receipt.c: a receipt is one line of JSON with a request, the identity of the engine that answered it, and the outcome
 * (docs/formats/receipt.md). Here it is written, read and compared with an engine. Invariants: reading restores every
 * bit that was written; a receipt that was read never changes. */
#include "engine/receipt.h"
#include "engine/adapters.h"
#include "chat/forms.h"
#include "base/arena.h"
#include "base/utf8.h"
#include "engine/sized.h"
#include "format/json.h"
#include "numerics/floats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IV_RECEIPT_VERSION = 1,
    IV_RECEIPT_BYTES_MAX = 64 << 20,
    IV_RECEIPT_TOKENS_MAX = 1 << 24, /* of a prompt, and of an answer */
    IV_RECEIPT_WORD_BYTES_MAX = 95   /* a name such as "fma32", a version, a fingerprint */
};

struct iv_receipt {
    json_t *json; /* strings point into it */
    iv_arena arena;
    iv_receipt_info info;
    iv_request request;
};

/* ---- writing ------------------------------------------------------------------------------------------- */

/* Nine digits read back as the same float; jansson writes the shortest form within that limit. */
enum { FLOAT_DIGITS = 9 };

static json_t *id_array(const int32_t *ids, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_integer(ids[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* The end-of-sequence tokens of both configurations, unless the request ignores them. */
static json_t *eos_array(const iv_engine *e, const iv_sequence *s) {
    int32_t ids[2 * IV_EOS_IDS_MAX];
    size_t count = 0;
    const iv_model_config *c = &e->model->config;
    for (size_t i = 0; !s->ignore_eos && i < c->eos_count; i++) ids[count++] = (int32_t)c->eos_ids[i];
    for (size_t i = 0; !s->ignore_eos && e->generation.has_eos && i < e->generation.eos_count; i++) {
        int32_t id = (int32_t)e->generation.eos_ids[i];
        bool known = false;
        for (size_t k = 0; k < count; k++) known |= ids[k] == id;
        if (!known) ids[count++] = id;
    }
    return id_array(ids, count);
}

static json_t *bias_array(const iv_sequence *s) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < s->sampling.bias_count; i++) {
        json_t *pair = json_pack("[i, f]", (int)s->bias[i].id, (double)s->bias[i].bias);
        if (json_array_append_new(array, pair) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *stop_array(const iv_sequence *s) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < s->stop_count; i++)
        if (json_array_append_new(array, json_string(s->stop[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* As a string: JSON readers that keep numbers as doubles would round a seed above 2^53. */
static json_t *seed_string(uint64_t seed) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    return json_string(digits);
}

/* "none", "open", "optional"; for another form than <think> its name follows: "open:seed_oss". */
static void spell_reasoning(iv_reasoning reasoning, char out[40]) {
    static const char *const names[] = {"none", "open", "optional"};
    iv_reasoning_form form = iv_reasoning_form_in(reasoning);
    snprintf(out, 40, "%s%s%s", names[iv_reasoning_without_form(reasoning)], form ? ":" : "",
             form ? iv_reasoning_form_name(form) : "");
}

/* Fields of later versions are written only if the request uses them, so that other receipts stay the same. */
static bool add_constraint(json_t *request, const iv_constraint *c) {
    char reasoning[40];
    if (!c) return true;
    spell_reasoning(c->reasoning, reasoning);
    json_t *object = json_pack("{s:i, s:s, s:s, s:s}", "version", IV_GRAMMAR_VERSION, "kind",
                               iv_constraint_name(c->kind), "text", c->text, "reasoning", reasoning);
    return json_object_set_new(request, "constraint", object) == 0;
}

static bool add_show_ids(json_t *request, const iv_sequence *s) {
    return s->show_id_count == 0 ||
           json_object_set_new(request, "show_ids", id_array(s->show_ids, s->show_id_count)) == 0;
}

static bool add_min_tokens(json_t *request, const iv_sequence *s) {
    return s->min_tokens == 0 ||
           json_object_set_new(request, "min_tokens", json_integer((json_int_t)s->min_tokens)) == 0;
}

static bool add_adapter(json_t *request, const iv_sequence *s) {
    return !s->adapter || json_object_set_new(request, "adapter", json_string(s->adapter->digest)) == 0;
}

static json_t *request_object(const iv_engine *e, const iv_sequence *s) {
    const iv_sampling *p = &s->sampling;
    json_t *request =
        json_pack("{s:o, s:I, s:f, s:f, s:f, s:i, s:f, s:f, s:f, s:o, s:o, s:i, s:o, s:o, s:o, s:b, s:b}", //
                  "prompt_ids", id_array(s->tokens.data, s->prompt_tokens),                                //
                  "max_tokens", (json_int_t)(s->tokens_max - s->prompt_tokens),                            //
                  "temperature", (double)p->temperature,                                                   //
                  "top_p", (double)p->top_p,                                                               //
                  "min_p", (double)p->min_p,                                                               //
                  "top_k", (int)p->top_k,                                                                  //
                  "repetition_penalty", (double)p->repetition_penalty,                                     //
                  "presence_penalty", (double)p->presence_penalty,                                         //
                  "frequency_penalty", (double)p->frequency_penalty,                                       //
                  "logit_bias", bias_array(s),                                                             //
                  "seed", seed_string(p->seed),                                                            //
                  "logprobs", s->logprobs,                                                                 //
                  "stop", stop_array(s),                                                                   //
                  "stop_ids", id_array(s->stop_ids, s->stop_id_count),                                     //
                  "eos_ids", eos_array(e, s),                                                              //
                  "ignore_eos", (int)s->ignore_eos,                                                        //
                  "keep_special", (int)s->keep_special);
    if (!request || (add_constraint(request, s->mask ? iv_mask_constraint(s->mask) : NULL) &&
                     add_show_ids(request, s) && add_min_tokens(request, s) && add_adapter(request, s)))
        return request;
    json_decref(request);
    return NULL;
}

static json_t *outcome_object(const iv_sequence *s, const iv_event *done) {
    iv_buf bits = {0};
    bool ok = iv_buf_reserve(&bits, 8 * done->id_count);
    for (size_t i = 0; ok && i < done->id_count; i++) ok = iv_buf_printf(&bits, "%08" PRIx32, s->receipt_bits[i]);
    json_t *object = NULL;
    if (ok)
        object = json_pack("{s:s, s:s?, s:o, s:s, s:s}", "finish", iv_finish_name(done->finish), "stop", done->stop,
                           "ids", id_array(done->ids, done->id_count), "logprob_bits", bits.data ? bits.data : "",
                           "digest", done->digest);
    iv_buf_free(&bits);
    return object;
}

/* A path that is not UTF-8 cannot be a JSON string. */
static json_t *path_string(const char *path) {
    size_t n = strlen(path);
    return iv_utf8_valid((const uint8_t *)path, n, NULL) ? json_string(path) : json_string("");
}

char *iv_receipt_write(const iv_engine *e, const iv_sequence *s, const iv_event *done) {
    iv_engine_info info;
    char adapted[IV_ADAPTED_FINGERPRINT_BYTES];
    iv_engine_get_info(e, &info);
    if (s->adapter) {
        iv_adapters_fingerprint(info.fingerprint, s->adapter->digest, adapted);
        info.fingerprint = adapted;
    }
    json_t *maker = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", //
                              "numerics_version", info.numerics_version,       //
                              "numerics", info.numerics,                       //
                              "arithmetic", info.arithmetic,                   //
                              "dtype", info.dtype,                             //
                              "model_type", info.model_type,                   //
                              "weights", info.weights_digest,                  //
                              "configuration", info.configuration_digest,      //
                              "tokenizer", info.tokenizer_digest,              //
                              "chat_template", info.template_digest);
    const char *ids = info.sampled_ids_digest;
    if (*ids && json_object_set_new(maker, "sampled_ids", json_string(ids)) != 0) json_decref(maker), maker = NULL;
    json_t *neutral = json_pack("{s:I, s:s, s:I}", "threads", (json_int_t)info.threads, "isa", info.isa,
                                "tensor_parallel_size", (json_int_t)info.tensor_parallel_size);
    json_t *all = json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:o, s:o}",                                     //
                            "receipt", IV_RECEIPT_VERSION,                                                  //
                            "invar", iv_version(),                                                          //
                            "fingerprint", info.fingerprint,                                                //
                            "maker", maker,                                                                 //
                            "model", path_string(e->updated_from ? e->updated_from : e->text_model->model), //
                            "request", request_object(e, s),                                                //
                            "outcome", outcome_object(s, done),                                             //
                            "neutral", neutral);
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(FLOAT_DIGITS)) : NULL;
    json_decref(all);
    return text;
}

/* ---- reading: required fields -------------------------------------------------------------------------- */

static iv_status missing(const iv_json_object *o, const char *key, iv_error *err) {
    return iv_fail(err, IV_FORMAT, "%s: %s%s: missing", o->file, o->path, key);
}

static iv_status need_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                          iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_int(o, key, min, max, out, &found, err));
    return found ? IV_OK : missing(o, key, err);
}

static iv_status need_float(const iv_json_object *o, const char *key, double min, double max, float *out,
                            iv_error *err) {
    bool found;
    double value = 0;
    IV_TRY(iv_json_object_real(o, key, min, max, &value, &found, err));
    *out = (float)value;
    return found ? IV_OK : missing(o, key, err);
}

static iv_status need_bool(const iv_json_object *o, const char *key, bool *out, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_bool(o, key, out, &found, err));
    return found ? IV_OK : missing(o, key, err);
}

static iv_status need_string(const iv_json_object *o, const char *key, const char **out, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_string(o, key, out, &found, err));
    return found ? IV_OK : missing(o, key, err);
}

/* A short name of printable ASCII. */
static iv_status need_word(const iv_json_object *o, const char *key, const char **out, iv_error *err) {
    IV_TRY(need_string(o, key, out, err));
    size_t n = strlen(*out);
    bool good = n > 0 && n <= IV_RECEIPT_WORD_BYTES_MAX;
    for (size_t i = 0; good && i < n; i++) good = (*out)[i] > ' ' && (*out)[i] < 0x7f;
    if (good) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted 1 to %d visible ASCII characters, found '%.100s'", o->file,
                   o->path, key, IV_RECEIPT_WORD_BYTES_MAX, *out);
}

static bool is_hex(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f'))) return false;
    return true;
}

/* SHA-256 in lower-case hexadecimal; optional: or "". */
static iv_status need_sha256(const iv_json_object *o, const char *key, bool optional, const char **out, iv_error *err) {
    IV_TRY(need_string(o, key, out, err));
    size_t n = strlen(*out);
    if ((n == 0 && optional) || (n == 64 && is_hex(*out, n))) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted 64 lower-case hexadecimal digits, found '%.80s'", o->file, o->path,
                   key, *out);
}

static iv_status need_object(const iv_json_object *o, const char *key, const char *path, iv_json_object *out,
                             iv_error *err) {
    if (!iv_json_object_has(o, key)) return missing(o, key, err);
    return iv_json_object_of(o->file, path, json_object_get(o->json, key), out, err);
}

static iv_status need_array(const iv_json_object *o, const char *key, size_t most, json_t **out, iv_error *err) {
    *out = json_object_get(o->json, key);
    if (!*out) return missing(o, key, err);
    if (!json_is_array(*out))
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted an array, found %s", o->file, o->path, key,
                       iv_json_type_name(*out));
    if (json_array_size(*out) > most)
        return iv_fail(err, IV_LIMIT, "%s: %s%s: %zu entries, at most %zu are read", o->file, o->path, key,
                       json_array_size(*out), most);
    return IV_OK;
}

/* Appends an array of token ids to out[*count...], which has room. */
static iv_status take_ids(const iv_json_object *o, const char *key, size_t most, int32_t *out, size_t *count,
                          iv_error *err) {
    json_t *array;
    IV_TRY(need_array(o, key, most, &array, err));
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) >= IV_VOCAB_MAX)
            return iv_fail(err, IV_FORMAT, "%s: %s%s[%zu]: wanted a token id below %d", o->file, o->path, key, i,
                           IV_VOCAB_MAX);
        out[(*count)++] = (int32_t)json_integer_value(item);
    }
    return IV_OK;
}

/* The same into memory of the arena. */
static iv_status need_ids(iv_receipt *r, const iv_json_object *o, const char *key, const int32_t **out, size_t *count,
                          iv_error *err) {
    json_t *array;
    IV_TRY(need_array(o, key, IV_RECEIPT_TOKENS_MAX, &array, err));
    int32_t *ids = IV_ARENA_NEW(&r->arena, json_array_size(array) + 1, int32_t);
    if (!ids) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for token ids", o->file);
    *out = ids, *count = 0;
    return take_ids(o, key, IV_RECEIPT_TOKENS_MAX, ids, count, err);
}

/* Refuses members that are not in the list, so that a field this program does not know is not silently dropped. */
static iv_status only(const iv_json_object *o, const char *const *names, iv_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(o->json, key, value) {
        const char *const *name = names;
        while (*name && strcmp(*name, key) != 0) name++;
        if (!*name) return iv_fail(err, IV_FORMAT, "%s: %s%.100s: not a field of a receipt", o->file, o->path, key);
    }
    return IV_OK;
}

/* ---- the parts ----------------------------------------------------------------------------------------- */

static iv_status read_maker(iv_receipt *r, const iv_json_object *all, iv_error *err) {
    static const char *const names[] = {
        "numerics_version", "numerics",  "arithmetic",    "dtype",       "model_type", "weights",
        "configuration",    "tokenizer", "chat_template", "sampled_ids", NULL};
    iv_json_object o;
    iv_engine_info *m = &r->info.maker;
    int64_t version = 0;
    m->sampled_ids_digest = "";
    IV_TRY(need_object(all, "maker", "maker.", &o, err));
    IV_TRY(only(&o, names, err));
    IV_TRY(need_int(&o, "numerics_version", 1, INT32_MAX, &version, err));
    m->numerics_version = (int)version;
    IV_TRY(need_word(&o, "numerics", &m->numerics, err));
    IV_TRY(need_word(&o, "arithmetic", &m->arithmetic, err));
    IV_TRY(need_word(&o, "dtype", &m->dtype, err));
    IV_TRY(need_word(&o, "model_type", &m->model_type, err));
    IV_TRY(need_sha256(&o, "weights", false, &m->weights_digest, err));
    IV_TRY(need_sha256(&o, "configuration", false, &m->configuration_digest, err));
    IV_TRY(need_sha256(&o, "tokenizer", true, &m->tokenizer_digest, err));
    IV_TRY(need_sha256(&o, "chat_template", true, &m->template_digest, err));
    if (!iv_json_object_has(&o, "sampled_ids")) return IV_OK;
    return need_sha256(&o, "sampled_ids", false, &m->sampled_ids_digest, err);
}

static iv_status read_neutral(iv_receipt *r, const iv_json_object *all, iv_error *err) {
    static const char *const names[] = {"threads", "isa", "tensor_parallel_size", NULL};
    iv_json_object o;
    int64_t threads = 0, ranks = 0;
    IV_TRY(need_object(all, "neutral", "neutral.", &o, err));
    IV_TRY(only(&o, names, err));
    IV_TRY(need_int(&o, "threads", 1, 1 << 20, &threads, err));
    IV_TRY(need_word(&o, "isa", &r->info.maker.isa, err));
    IV_TRY(need_int(&o, "tensor_parallel_size", 1, 1 << 20, &ranks, err));
    r->info.maker.threads = (size_t)threads, r->info.maker.tensor_parallel_size = (size_t)ranks;
    return IV_OK;
}

static iv_status read_seed(const iv_json_object *o, uint64_t *seed, iv_error *err) {
    const char *text;
    IV_TRY(need_string(o, "seed", &text, err));
    bool good = *text != 0;
    *seed = 0;
    for (const char *c = text; good && *c; c++)
        good = *c >= '0' && *c <= '9' && !__builtin_mul_overflow(*seed, (uint64_t)10, seed) &&
               !__builtin_add_overflow(*seed, (uint64_t)(*c - '0'), seed);
    if (good) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %sseed: wanted a string of digits below 2^64, found '%.40s'", o->file, o->path,
                   text);
}

static iv_status read_stops(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    json_t *array;
    IV_TRY(need_array(o, "stop", IV_STOPS_MAX, &array, err));
    size_t count = json_array_size(array);
    const char **stops = IV_ARENA_NEW(&r->arena, count + 1, const char *);
    if (!stops) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for stop strings", o->file);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        size_t n = json_is_string(item) ? json_string_length(item) : 0;
        if (n == 0 || n > IV_STOP_BYTES_MAX || strlen(json_string_value(item)) != n)
            return iv_fail(err, IV_FORMAT, "%s: %sstop[%zu]: wanted a string of 1 to %d bytes without NUL", o->file,
                           o->path, i, IV_STOP_BYTES_MAX);
        stops[i] = json_string_value(item);
    }
    r->request.stop = stops, r->request.stop_count = count;
    return IV_OK;
}

/* stop_ids and eos_ids become one list. */
static iv_status read_stop_ids(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    int32_t *ids = IV_ARENA_NEW(&r->arena, IV_STOP_IDS_MAX + 2 * IV_EOS_IDS_MAX, int32_t);
    if (!ids) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for stop ids", o->file);
    r->request.stop_ids = ids;
    IV_TRY(take_ids(o, "stop_ids", IV_STOP_IDS_MAX, ids, &r->request.stop_id_count, err));
    return take_ids(o, "eos_ids", 2 * IV_EOS_IDS_MAX, ids, &r->request.stop_id_count, err);
}

static iv_status read_show_ids(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    if (!iv_json_object_has(o, "show_ids")) return IV_OK;
    int32_t *ids = IV_ARENA_NEW(&r->arena, IV_SHOW_IDS_MAX, int32_t);
    if (!ids) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for token ids", o->file);
    r->request.show_ids = ids;
    return take_ids(o, "show_ids", IV_SHOW_IDS_MAX, ids, &r->request.show_id_count, err);
}

static iv_status read_bias(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    json_t *array;
    IV_TRY(need_array(o, "logit_bias", IV_LOGIT_BIAS_MAX, &array, err));
    size_t count = json_array_size(array);
    iv_logit_bias *bias = IV_ARENA_NEW(&r->arena, count + 1, iv_logit_bias);
    if (!bias) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for logit biases", o->file);
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(array, i), *id = json_array_get(pair, 0), *add = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= IV_VOCAB_MAX || !json_is_number(add) || !(fabs(json_number_value(add)) <= 100))
            return iv_fail(err, IV_FORMAT, "%s: %slogit_bias[%zu]: wanted [token id, number from -100 to 100]", o->file,
                           o->path, i);
        bias[i] = (iv_logit_bias){.id = (int32_t)json_integer_value(id), .bias = (float)json_number_value(add)};
    }
    r->request.logit_bias = bias, r->request.logit_bias_count = count;
    return IV_OK;
}

static iv_status read_sampling(iv_request *q, const iv_json_object *o, iv_error *err) {
    int64_t top_k = 0, logprobs = 0;
    IV_TRY(need_float(o, "temperature", 0, 100, &q->temperature, err));
    IV_TRY(need_float(o, "top_p", 0, 1, &q->top_p, err));
    IV_TRY(need_float(o, "min_p", 0, 1, &q->min_p, err));
    IV_TRY(need_int(o, "top_k", 0, INT32_MAX, &top_k, err));
    IV_TRY(need_float(o, "repetition_penalty", 0, 100, &q->repetition_penalty, err));
    IV_TRY(need_float(o, "presence_penalty", -2, 2, &q->presence_penalty, err));
    IV_TRY(need_float(o, "frequency_penalty", -2, 2, &q->frequency_penalty, err));
    IV_TRY(need_int(o, "logprobs", -1, IV_LOGPROBS_MAX, &logprobs, err));
    q->top_k = (int32_t)top_k, q->logprobs = (int)logprobs;
    return IV_OK;
}

static iv_status read_constraint(iv_request *q, const iv_json_object *all, iv_error *err) {
    static const char *const names[] = {"version", "kind", "text", "reasoning", NULL};
    iv_json_object o;
    int64_t version = 0;
    const char *kind, *before;
    char spelled[40];
    if (!iv_json_object_has(all, "constraint")) return IV_OK;
    IV_TRY(need_object(all, "constraint", "request.constraint.", &o, err));
    IV_TRY(only(&o, names, err));
    IV_TRY(need_int(&o, "version", 1, INT32_MAX, &version, err));
    if (version != IV_GRAMMAR_VERSION)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %sversion: this program knows constraints of version %d, found %" PRId64, o.file, o.path,
                       IV_GRAMMAR_VERSION, version);
    IV_TRY(need_word(&o, "kind", &kind, err));
    IV_TRY(need_string(&o, "text", &q->constraint_text, err));
    IV_TRY(need_word(&o, "reasoning", &before, err));
    for (int k = IV_CONSTRAINT_JSON_OBJECT; k <= IV_CONSTRAINT_TOKENS; k++)
        if (strcmp(kind, iv_constraint_name((iv_constraint_kind)k)) == 0) q->constraint = (iv_constraint_kind)k;
    if (q->constraint == IV_CONSTRAINT_NONE)
        return iv_fail(err, IV_FORMAT, "%s: %skind: '%s' is no kind of constraint", o.file, o.path, kind);
    for (unsigned k = 0; k < IV_REASONING_FORM_NONE * IV_REASONING_FORM_STEP; k++) {
        q->reasoning = (iv_reasoning)k;
        if (!iv_reasoning_is_valid(q->reasoning)) continue;
        spell_reasoning(q->reasoning, spelled);
        if (strcmp(before, spelled) == 0) return IV_OK;
    }
    q->reasoning = IV_REASONING_NONE;
    return iv_fail(err, IV_FORMAT, "%s: %sreasoning: wanted none, open or optional, found '%s'", o.file, o.path,
                   before);
}

/* As iv_request.adapter names one by its digest. */
static iv_status read_adapter(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    static const char mark[] = "sha256:";
    const char *digest;
    if (!iv_json_object_has(o, "adapter")) return IV_OK;
    IV_TRY(need_sha256(o, "adapter", false, &digest, err));
    char *name = iv_arena_alloc(&r->arena, sizeof mark + strlen(digest), 1);
    if (!name) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
    memcpy(name, mark, sizeof mark - 1), strcpy(name + sizeof mark - 1, digest);
    r->request.adapter = name;
    return IV_OK;
}

static iv_status read_request(iv_receipt *r, const iv_json_object *all, iv_error *err) {
    static const char *const names[] = {"prompt_ids",
                                        "max_tokens",
                                        "min_tokens",
                                        "temperature",
                                        "top_p",
                                        "min_p",
                                        "top_k",
                                        "repetition_penalty",
                                        "stop",
                                        "stop_ids",
                                        "eos_ids",
                                        "seed",
                                        "logprobs",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "ignore_eos",
                                        "keep_special",
                                        "show_ids",
                                        "constraint",
                                        "adapter",
                                        NULL};
    iv_json_object o;
    iv_request *q = &r->request;
    int64_t most = 0, least = 0;
    bool ignored = false;
    IV_TRY(need_object(all, "request", "request.", &o, err));
    IV_TRY(only(&o, names, err));
    IV_TRY(need_ids(r, &o, "prompt_ids", &q->ids, &q->id_count, err));
    if (q->id_count == 0) return iv_fail(err, IV_FORMAT, "%s: request.prompt_ids: wanted a token, found none", o.file);
    IV_TRY(need_int(&o, "max_tokens", 1, IV_RECEIPT_TOKENS_MAX, &most, err));
    if (iv_json_object_has(&o, "min_tokens")) IV_TRY(need_int(&o, "min_tokens", 1, most, &least, err));
    q->max_tokens = (size_t)most, q->min_tokens = (size_t)least, q->prompt_logprobs = -1;
    IV_TRY(read_sampling(q, &o, err));
    IV_TRY(read_seed(&o, &q->seed, err));
    q->has_seed = true;
    IV_TRY(read_bias(r, &o, err));
    IV_TRY(read_stops(r, &o, err));
    IV_TRY(read_stop_ids(r, &o, err));
    IV_TRY(read_show_ids(r, &o, err));
    IV_TRY(need_bool(&o, "ignore_eos", &ignored, err));
    IV_TRY(read_constraint(q, &o, err));
    IV_TRY(read_adapter(r, &o, err));
    q->ignore_eos = true; /* the model's end-of-sequence ids are in stop_ids */
    return need_bool(&o, "keep_special", &q->keep_special, err);
}

/* Eight hexadecimal digits a token. */
static iv_status read_logprobs(iv_receipt *r, const iv_json_object *o, iv_error *err) {
    const char *text;
    size_t count = r->info.id_count;
    IV_TRY(need_string(o, "logprob_bits", &text, err));
    if (strlen(text) != 8 * count || !is_hex(text, 8 * count))
        return iv_fail(err, IV_FORMAT, "%s: %slogprob_bits: wanted %zu lower-case hexadecimal digits, 8 for each token",
                       o->file, o->path, 8 * count);
    float *out = IV_ARENA_NEW(&r->arena, count + 1, float);
    if (!out) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for log-probabilities", o->file);
    for (size_t i = 0; i < count; i++) {
        char digits[9] = {0};
        memcpy(digits, text + 8 * i, 8);
        out[i] = iv_float((uint32_t)strtoul(digits, NULL, 16));
        if (!isfinite(out[i]) || out[i] > 0)
            return iv_fail(err, IV_FORMAT, "%s: %slogprob_bits: token %zu: %s is no log-probability", o->file, o->path,
                           i, digits);
    }
    r->info.logprobs = out;
    return IV_OK;
}

static iv_status read_finish(const iv_json_object *o, iv_finish *out, iv_error *err) {
    const char *text;
    IV_TRY(need_word(o, "finish", &text, err));
    for (int f = IV_FINISH_STOP; f <= IV_FINISH_ERROR; f++)
        if (strcmp(text, iv_finish_name((iv_finish)f)) == 0) {
            *out = (iv_finish)f;
            return IV_OK;
        }
    return iv_fail(err, IV_FORMAT, "%s: outcome.finish: wanted stop, length, cancelled or error, found '%s'", o->file,
                   text);
}

/* NUMERICS.md, 10.8. */
static void digest_token(iv_digest *d, int32_t id, float logprob) {
    uint32_t words[2] = {(uint32_t)id, iv_bits(logprob)};
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    iv_digest_add(d, raw, sizeof raw);
}

static iv_status check_digest(const iv_receipt *r, const char *file, iv_error *err) {
    uint8_t raw[32];
    char hex[65];
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", file);
    for (size_t i = 0; i < r->info.id_count; i++) digest_token(d, r->info.ids[i], r->info.logprobs[i]);
    iv_digest_finish(d, raw);
    iv_digest_hex(raw, hex);
    if (strncmp(r->info.digest, "sha256:", 7) == 0 && strcmp(r->info.digest + 7, hex) == 0) return IV_OK;
    return iv_fail(
        err, IV_FORMAT,
        "%s: outcome.digest: the tokens and log-probabilities give sha256:%s, found %s: the receipt is damaged", file,
        hex, r->info.digest);
}

static iv_status read_outcome(iv_receipt *r, const iv_json_object *all, iv_error *err) {
    static const char *const names[] = {"finish", "stop", "ids", "logprob_bits", "digest", NULL};
    iv_json_object o;
    bool found;
    iv_receipt_info *i = &r->info;
    IV_TRY(need_object(all, "outcome", "outcome.", &o, err));
    IV_TRY(only(&o, names, err));
    IV_TRY(read_finish(&o, &i->finish, err));
    IV_TRY(iv_json_object_string(&o, "stop", &i->stop, &found, err));
    IV_TRY(need_ids(r, &o, "ids", &i->ids, &i->id_count, err));
    bool whole = i->finish == IV_FINISH_STOP || i->finish == IV_FINISH_LENGTH;
    if (i->id_count > r->request.max_tokens || (whole && i->id_count == 0))
        return iv_fail(err, IV_FORMAT, "%s: outcome.ids: wanted %d to %zu tokens, found %zu", o.file, whole ? 1 : 0,
                       r->request.max_tokens, i->id_count);
    IV_TRY(read_logprobs(r, &o, err));
    IV_TRY(need_word(&o, "digest", &i->digest, err));
    return check_digest(r, o.file, err);
}

static iv_status read_all(iv_receipt *r, const char *name, iv_error *err) {
    static const char *const names[] = {"receipt", "invar",   "fingerprint", "maker", "model",
                                        "request", "outcome", "neutral",     NULL};
    iv_json_object o;
    int64_t version = 0;
    IV_TRY(iv_json_object_of(name, "", r->json, &o, err));
    if (!iv_json_object_has(&o, "receipt"))
        return iv_fail(err, IV_FORMAT, "%s: not a receipt: it has no field \"receipt\"", name);
    IV_TRY(need_int(&o, "receipt", 1, INT32_MAX, &version, err));
    if (version != IV_RECEIPT_VERSION)
        return iv_fail(err, IV_UNSUPPORTED, "%s: receipt: this program reads version %d, found %" PRId64, name,
                       IV_RECEIPT_VERSION, version);
    IV_TRY(only(&o, names, err));
    IV_TRY(need_word(&o, "invar", &r->info.invar_version, err));
    IV_TRY(need_word(&o, "fingerprint", &r->info.maker.fingerprint, err));
    IV_TRY(need_string(&o, "model", &r->info.model, err));
    IV_TRY(read_maker(r, &o, err));
    IV_TRY(read_neutral(r, &o, err));
    IV_TRY(read_request(r, &o, err));
    return read_outcome(r, &o, err);
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

enum { DIGEST_SHOWN = 16 };

/* Adds "name THEIRS, here OURS" to the list unless they are equal. Digests are shortened. */
static bool note(iv_buf *list, const char *name, const char *theirs, const char *ours) {
    if (strcmp(theirs, ours) == 0) return true;
    int shown = strlen(theirs) == 64 || strlen(ours) == 64 ? DIGEST_SHOWN : IV_RECEIPT_WORD_BYTES_MAX;
    return iv_buf_printf(list, "%s%s %.*s, here %.*s", list->len ? "; " : "", name, shown, *theirs ? theirs : "none",
                         shown, *ours ? ours : "none");
}

iv_status iv_receipt_match(const iv_receipt *r, const iv_engine *e, iv_error *err) {
    iv_engine_info ours;
    iv_engine_get_info(e, &ours);
    const iv_engine_info *theirs = &r->info.maker;
    char version[2][16], ranks[2][24];
    snprintf(version[0], sizeof version[0], "%d", theirs->numerics_version);
    snprintf(version[1], sizeof version[1], "%d", ours.numerics_version);
    snprintf(ranks[0], sizeof ranks[0], "%zu", theirs->tensor_parallel_size);
    snprintf(ranks[1], sizeof ranks[1], "%zu", ours.tensor_parallel_size);
    iv_buf list = {0};
    bool ok = note(&list, "model type", theirs->model_type, ours.model_type) &&
              note(&list, "configuration", theirs->configuration_digest, ours.configuration_digest) &&
              note(&list, "weights", theirs->weights_digest, ours.weights_digest);
    bool other_model = list.len > 0;
    ok = ok && note(&list, "tokenizer", theirs->tokenizer_digest, ours.tokenizer_digest) &&
         note(&list, "chat template", theirs->template_digest, ours.template_digest) &&
         note(&list, "sampled ids", theirs->sampled_ids_digest, ours.sampled_ids_digest) &&
         note(&list, "numerics version", version[0], version[1]) &&
         note(&list, "numerics", theirs->numerics, ours.numerics) &&
         note(&list, "arithmetic", theirs->arithmetic, ours.arithmetic) &&
         note(&list, "dtype", theirs->dtype, ours.dtype);
    char adapted[IV_ADAPTED_FINGERPRINT_BYTES];
    iv_loaded_adapter *adapter;
    iv_error unused;
    if (r->request.adapter) {
        const char *digest = r->request.adapter + strlen("sha256:");
        bool here = iv_adapters_find(e, r->request.adapter, &adapter, &unused) == IV_OK;
        ok = ok && note(&list, "adapter", digest, here ? digest : "");
        iv_adapters_fingerprint(ours.fingerprint, digest, adapted);
        ours.fingerprint = adapted;
    }
    /* The baselines' bits depend on the number of ranks; invar's do not. */
    if (strcmp(ours.numerics, "invar") != 0) ok = ok && note(&list, "ranks", ranks[0], ranks[1]);
    if (ok && list.len == 0) ok = note(&list, "fingerprint", theirs->fingerprint, ours.fingerprint);
    iv_status status = IV_OK;
    if (!ok)
        status = iv_fail(err, IV_NO_MEMORY, "receipt: no memory to compare it");
    else if (other_model)
        status = iv_fail(err, IV_INVALID, "a receipt from another model: %s", list.data);
    else if (list.len)
        status = iv_fail(err, IV_INVALID, "the fingerprints differ: %s", list.data);
    iv_buf_free(&list);
    return status;
}

/* ---- the calls of invar.h ------------------------------------------------------------------------------ */

iv_status iv_receipt_read(const char *name, const char *json, size_t bytes, iv_receipt **out, iv_error *err) {
    if (bytes > IV_RECEIPT_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu bytes, a receipt has at most %d", name, bytes, IV_RECEIPT_BYTES_MAX);
    iv_receipt *r = calloc(1, sizeof *r);
    if (!r) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    iv_status status = iv_json_parse(name, json, bytes, &r->json, err);
    if (status == IV_OK) status = read_all(r, name, err);
    r->request.size = sizeof r->request;
    if (status == IV_OK)
        *out = r;
    else
        iv_receipt_close(r);
    return status;
}

void iv_receipt_close(iv_receipt *r) {
    if (!r) return;
    json_decref(r->json);
    iv_arena_free(&r->arena);
    free(r);
}

void iv_receipt_get_info(const iv_receipt *r, iv_receipt_info *info) { *info = r->info; }

void iv_receipt_get_request_sized(const iv_receipt *r, iv_request *request, size_t size) {
    iv_sized_init(request, size, &r->request, sizeof r->request);
}
