/* receipt.c: writing a receipt: one line of JSON that says what a request was, who answered it and what came of it
 * (docs/formats/receipt.md). Invariant: what is written here, receipt_read.c reads back to the same bits. */
#include "engine/receipt.h"
#include "base/utf8.h"

#include <jansson.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Nine digits read back as the same float; jansson writes the shortest form of at most that many. */
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

/* The model's own end-of-sequence tokens, of both configurations, unless the request ignores them. */
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

/* Only where the request had one: so receipts without are as they were before there were constraints. */
static bool add_constraint(json_t *request, const iv_constraint *c) {
    static const char *const reasoning[] = {"none", "open", "optional"};
    if (!c) return true;
    json_t *object = json_pack("{s:i, s:s, s:s, s:s}", "version", IV_GRAMMAR_VERSION, "kind",
                               iv_constraint_name(c->kind), "text", c->text, "reasoning", reasoning[c->reasoning]);
    return json_object_set_new(request, "constraint", object) == 0;
}

/* The same. */
static bool add_show_ids(json_t *request, const iv_sequence *s) {
    return s->show_id_count == 0 ||
           json_object_set_new(request, "show_ids", id_array(s->show_ids, s->show_id_count)) == 0;
}

static bool add_min_tokens(json_t *request, const iv_sequence *s) {
    return s->min_tokens == 0 ||
           json_object_set_new(request, "min_tokens", json_integer((json_int_t)s->min_tokens)) == 0;
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
                     add_show_ids(request, s) && add_min_tokens(request, s)))
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

/* A path may be any bytes; JSON holds UTF-8. */
static json_t *path_string(const char *path) {
    size_t n = strlen(path);
    return iv_utf8_valid((const uint8_t *)path, n, NULL) ? json_string(path) : json_string("");
}

char *iv_receipt_write(const iv_engine *e, const iv_sequence *s, const iv_event *done) {
    iv_engine_info info;
    iv_engine_get_info(e, &info);
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
    json_t *neutral = json_pack("{s:I, s:s, s:I}", "threads", (json_int_t)info.threads, "isa", info.isa,
                                "tensor_parallel_size", (json_int_t)info.tensor_parallel_size);
    json_t *all = json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:o, s:o}",                                  //
                            "receipt", IV_RECEIPT_VERSION,                                               //
                            "invar", iv_version(),                                                       //
                            "fingerprint", info.fingerprint,                                             //
                            "maker", maker,                                                              //
                            "model", path_string(e->updated_from ? e->updated_from : e->text_model->model), //
                            "request", request_object(e, s),                                             //
                            "outcome", outcome_object(s, done),                                          //
                            "neutral", neutral);
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(FLOAT_DIGITS)) : NULL;
    json_decref(all);
    return text;
}
