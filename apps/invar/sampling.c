/* sampling.c: one table of parameters, used to read flags, to report values, and to report where a value comes from. */
#include "sampling.h"
#include "lora.h"
#include "text.h"

#include <stddef.h>
#include <string.h>

typedef struct parameter {
    const char *flag, *json;
    size_t offset; /* into iv_request: a float, or an int32_t if whole */
    bool whole;
    float neutral; /* the value without effect */
} parameter;

static const parameter parameters[] = {
    {"temperature", "temperature", offsetof(iv_request, temperature), false, 1},
    {"top-p", "top_p", offsetof(iv_request, top_p), false, 1},
    {"top-k", "top_k", offsetof(iv_request, top_k), true, 0},
    {"min-p", "min_p", offsetof(iv_request, min_p), false, 0},
    {"repetition-penalty", "repetition_penalty", offsetof(iv_request, repetition_penalty), false, 1},
    {"presence-penalty", "presence_penalty", offsetof(iv_request, presence_penalty), false, 0},
    {"frequency-penalty", "frequency_penalty", offsetof(iv_request, frequency_penalty), false, 0},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static float get(const iv_request *request, const parameter *p) {
    const char *at = (const char *)request + p->offset;
    int32_t whole;
    float real;
    if (p->whole) return memcpy(&whole, at, sizeof whole), (float)whole;
    return memcpy(&real, at, sizeof real), real;
}

static void set(iv_request *request, const parameter *p, float real, int32_t whole) {
    char *at = (char *)request + p->offset;
    if (p->whole)
        memcpy(at, &whole, sizeof whole);
    else
        memcpy(at, &real, sizeof real);
}

void cli_sampling_init(cli_sampling *s, const iv_engine *engine, const cli_args *args) {
    iv_request *r = &s->request;
    iv_request_init(engine, r);
    if (cli_has(args, "no-generation-config")) {
        for (size_t i = 0; i < PARAMETERS; i++)
            set(r, &parameters[i], parameters[i].neutral, (int32_t)parameters[i].neutral);
        r->max_tokens = 0;
    }
    s->suggested = *r;
    for (size_t i = 0; i < PARAMETERS; i++) {
        const cli_value *value = cli_find(args, parameters[i].flag);
        if (value) set(r, &parameters[i], value->real, (int32_t)value->count);
    }
    if (r->temperature < IV_TEMPERATURE_MIN) r->temperature = 0.0f; /* as the engine does: reports show what is used */
    r->max_tokens = cli_count(args, "max-tokens", r->max_tokens);
    r->min_tokens = cli_count(args, "min-tokens", 0);
    r->adapter = cli_lora_name(args);
    r->has_seed = cli_has(args, "seed");
    r->seed = cli_count(args, "seed", 0);
    r->ignore_eos = cli_has(args, "ignore-eos");
    const cli_value *value;
    size_t n;
    for (n = 0; n < CLI_STOPS_MAX && (value = cli_nth(args, "stop", n)); n++) s->stops[n] = value->text;
    r->stop = s->stops;
    r->stop_count = n;
    for (n = 0; n < CLI_STOP_IDS_MAX && (value = cli_nth(args, "stop-id", n)); n++)
        s->stop_ids[n] = (int32_t)value->count;
    r->stop_ids = s->stop_ids;
    r->stop_id_count = n;
    for (n = 0; n < CLI_BIASES_MAX && (value = cli_nth(args, "logit-bias", n)); n++)
        s->biases[n] = (iv_logit_bias){.id = (int32_t)value->count, .bias = value->real};
    r->logit_bias = s->biases;
    r->logit_bias_count = n;
}

/* Whether a value comes from generation_config.json: it equals the default and is not neutral. */
static const char *origin(const cli_sampling *s, const parameter *p) {
    float value = get(&s->request, p);
    return value != p->neutral && value == get(&s->suggested, p) ? " (generation_config.json)" : "";
}

void cli_sampling_print(const cli_sampling *s, FILE *file) {
    const iv_request *r = &s->request;
    for (size_t i = 0; i < PARAMETERS; i++) {
        const parameter *p = &parameters[i];
        char digits[32];
        float value = get(r, p);
        if (i > 0 && value == p->neutral) continue;
        fprintf(file, "%s%s %s%s", i > 0 ? ", " : "", p->flag, iv_float_digits(value, digits), origin(s, p));
    }
    if (r->max_tokens) fprintf(file, ", max-tokens %zu", r->max_tokens);
    if (r->min_tokens) fprintf(file, ", min-tokens %zu", r->min_tokens);
    for (size_t i = 0; i < r->stop_count; i++) {
        char shown[CLI_SHOWN_BYTES];
        fputs(", stop '", file);
        cli_shown(r->stop[i], shown);
        cli_print_safe(file, shown, strlen(shown), false);
        fputc('\'', file);
    }
    for (size_t i = 0; i < r->stop_id_count; i++) fprintf(file, ", stop-id %d", (int)r->stop_ids[i]);
    if (r->logit_bias_count) fprintf(file, ", %zu logit biases", r->logit_bias_count);
    if (r->ignore_eos) fputs(", ignore-eos", file);
}

void cli_sampling_json(const cli_sampling *s, iv_json_out *json, const char *key) {
    const iv_request *r = &s->request;
    iv_out_kv_open(json, key, '{');
    for (size_t i = 0; i < PARAMETERS; i++) {
        const parameter *p = &parameters[i];
        if (p->whole)
            iv_out_kv_int(json, p->json, (int64_t)get(r, p));
        else
            iv_out_kv_shortest(json, p->json, get(r, p));
    }
    iv_out_kv_uint(json, "max_tokens", r->max_tokens);
    iv_out_kv_uint(json, "min_tokens", r->min_tokens);
    iv_out_kv_open(json, "stop", '[');
    for (size_t i = 0; i < r->stop_count; i++) iv_out_kv_text(json, NULL, r->stop[i]);
    iv_out_close(json, ']');
    iv_out_kv_open(json, "stop_ids", '[');
    for (size_t i = 0; i < r->stop_id_count; i++) iv_out_kv_int(json, NULL, r->stop_ids[i]);
    iv_out_close(json, ']');
    iv_out_kv_open(json, "logit_bias", '{');
    for (size_t i = 0; i < r->logit_bias_count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", (int)r->logit_bias[i].id);
        iv_out_kv_shortest(json, id, r->logit_bias[i].bias);
    }
    iv_out_close(json, '}');
    iv_out_kv_bool(json, "ignore_eos", r->ignore_eos);
    iv_out_kv_open(json, "from_generation_config", '[');
    for (size_t i = 0; i < PARAMETERS; i++)
        if (*origin(s, &parameters[i])) iv_out_kv_text(json, NULL, parameters[i].json);
    iv_out_close(json, ']');
    iv_out_close(json, '}');
}
