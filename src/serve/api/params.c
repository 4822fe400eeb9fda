/* params.c: the table of every field of every body, and its reader. */
#include "serve/api/params.h"
#include "format/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef enum kind {
    INT,
    FLOAT,
    TEMPERATURE, /* a FLOAT; tiny values become 0 */
    BOOL,
    NOT_BOOL, /* the inverse of the member */
    STRING,
    JSON,
    SEED,
    STOP,
    STOP_IDS,
    BIAS,
    TOP_K,  /* -1 also means off */
    ACCEPT, /* accepted without effect on the answer */
    ONLY,   /* one of the values in `only`, which are in effect anyway */
    ONE_OF, /* one of the values in `only`, stored */
    EACH_OF /* a list of values in `only`, stored */
} kind;

typedef struct field {
    unsigned bodies;
    const char *name;
    kind kind;
    size_t at; /* of the member */
    double min, max;
    const char *only; /* JSON values between bars; for JSON: the allowed types */
} field;

#define AT(member) offsetof(iv_api_params, member)
#define OPENAI (IV_API_COMPLETIONS | IV_API_CHAT)
#define CHATS (IV_API_CHAT | IV_API_RESPONSES)
#define EVERY (OPENAI | IV_API_SAMPLING)
#define EFFORTS "|\"none\"|\"minimal\"|\"low\"|\"medium\"|\"high\"|\"xhigh\"|\"max\"|"
#define LOGPROBS "message.output_text.logprobs"
/* Reasoning is returned in plain text, not encrypted; the other values are about unsupported tools. */
#define INCLUDES                                                                                                  \
    "|\"" LOGPROBS "\"|\"reasoning.encrypted_content\"|\"file_search_call.results\"|\"web_search_call.results\"|" \
    "\"web_search_call.action.sources\"|\"message.input_image.image_url\"|"                                       \
    "\"computer_call_output.output.image_url\"|\"code_interpreter_call.outputs\"|"
#define SUMMARIES "|\"auto\"|\"concise\"|\"detailed\"|" /* the complete reasoning is returned */

static const field fields[] = {
    /* sampling */
    {EVERY | IV_API_RESPONSES | IV_API_MESSAGES, "temperature", TEMPERATURE, AT(request.temperature), 0, 100, NULL},
    {EVERY | IV_API_RESPONSES | IV_API_MESSAGES, "top_p", FLOAT, AT(request.top_p), 0, 1, NULL},
    {EVERY | IV_API_RESPONSES | IV_API_MESSAGES, "top_k", TOP_K, AT(request.top_k), -1, INT32_MAX, NULL},
    {EVERY | IV_API_RESPONSES, "min_p", FLOAT, AT(request.min_p), 0, 1, NULL},
    {EVERY | IV_API_RESPONSES, "repetition_penalty", FLOAT, AT(request.repetition_penalty), 0, 100, NULL},
    {EVERY | IV_API_RESPONSES, "presence_penalty", FLOAT, AT(request.presence_penalty), -2, 2, NULL},
    {EVERY | IV_API_RESPONSES, "frequency_penalty", FLOAT, AT(request.frequency_penalty), -2, 2, NULL},
    {EVERY | IV_API_RESPONSES, "logit_bias", BIAS, 0, 0, 0, NULL},
    {OPENAI | IV_API_RESPONSES, "seed", SEED, 0, 0, 0, NULL},
    {IV_API_SAMPLING, "sampling_seed", SEED, 0, 0, 0, NULL},
    {EVERY | IV_API_RESPONSES, "stop", STOP, 0, 0, 0, NULL},
    {EVERY | IV_API_RESPONSES, "stop_token_ids", STOP_IDS, 0, 0, 0, NULL},
    {EVERY | IV_API_RESPONSES, "ignore_eos", BOOL, AT(request.ignore_eos), 0, 0, NULL},
    {EVERY | IV_API_RESPONSES, "skip_special_tokens", NOT_BOOL, AT(request.keep_special), 0, 0, NULL},
    /* only slow tokenizers add spaces: docs/formats/tokenizer.md */
    {EVERY, "spaces_between_special_tokens", ONLY, 0, 0, 0, "|true|false|"},
    {EVERY, "n", INT, AT(n), 1, IV_API_CHOICES_MAX, NULL},
    {IV_API_COMPLETIONS, "max_tokens", INT, AT(max_tokens), 0, INT32_MAX, NULL},
    {IV_API_COMPLETIONS, "max_completion_tokens", INT, AT(max_completion_tokens), 0, INT32_MAX, NULL},
    {IV_API_MESSAGES, "max_tokens", INT, AT(max_tokens), 1, INT32_MAX, NULL},
    {IV_API_MESSAGES, "stop_sequences", STOP, 0, 0, 0, NULL},
    {IV_API_MESSAGES | IV_API_COUNT, "system", JSON, AT(system), 0, 0, "|string|array|"},
    {IV_API_MESSAGES | IV_API_COUNT, "thinking", JSON, AT(thinking), 0, 0, "|object|"},
    {IV_API_MESSAGES | IV_API_COUNT, "output_config", JSON, AT(output_config), 0, 0, "|object|"},
    {IV_API_MESSAGES | IV_API_COUNT, "output_format", JSON, AT(output_format), 0, 0, "|object|"}, /* its older name */
    {IV_API_MESSAGES | IV_API_COUNT, "context_management", JSON, AT(context_management), 0, 0, "|object|"},
    {IV_API_MESSAGES | IV_API_COUNT, "cache_control", ACCEPT, 0, 0, 0, NULL},
    {IV_API_MESSAGES | IV_API_COUNT, "speed", ONLY, 0, 0, 0, "|\"standard\"|\"fast\"|"},
    {IV_API_MESSAGES, "inference_geo", ACCEPT, 0, 0, 0, NULL},
    {IV_API_MESSAGES, "diagnostics", ACCEPT, 0, 0, 0, NULL},
    {IV_API_MESSAGES, "container", ONLY, 0, 0, 0, "|null|"},
    {IV_API_MESSAGES, "mcp_servers", ONLY, 0, 0, 0, "|[]|"},
    {IV_API_MESSAGES, "metadata", ACCEPT, 0, 0, 0, NULL},
    {IV_API_MESSAGES, "service_tier", ACCEPT, 0, 0, 0, NULL},
    {IV_API_MESSAGES, "seed", SEED, 0, 0, 0, NULL},
    {IV_API_CHAT, "max_tokens", INT, AT(max_tokens), 1, INT32_MAX, NULL},
    {IV_API_CHAT, "max_completion_tokens", INT, AT(max_completion_tokens), 1, INT32_MAX, NULL},
    {IV_API_RESPONSES, "max_output_tokens", INT, AT(max_tokens), 1, INT32_MAX, NULL},
    {IV_API_SAMPLING, "max_new_tokens", INT, AT(max_tokens), 0, INT32_MAX, NULL},
    {OPENAI, "min_tokens", INT, AT(min_tokens), 0, INT32_MAX, NULL},
    {IV_API_SAMPLING, "min_new_tokens", INT, AT(min_tokens), 0, INT32_MAX, NULL},
    {OPENAI, "best_of", INT, AT(best_of), 1, IV_API_CHOICES_MAX, NULL},
    {OPENAI, "use_beam_search", ONLY, 0, 0, 0, "|false|"},
    {OPENAI, "length_penalty", ONLY, 0, 0, 0, "|1|1.0|"},
    {OPENAI, "include_stop_str_in_output", BOOL, AT(no_stop_trim), 0, 0, NULL},
    {OPENAI, "allowed_token_ids", ONLY, 0, 0, 0, "|null|"},
    {OPENAI, "bad_words", ONLY, 0, 0, 0, "|[]|"},
    {OPENAI, "truncate_prompt_tokens", INT, AT(truncate), -1, INT32_MAX, NULL},
    {OPENAI, "response_format", JSON, AT(response_format), 0, 0, "|object|"},
    {OPENAI | IV_API_RESPONSES, "structured_outputs", JSON, AT(structured_outputs), 0, 0, "|object|"},
    {OPENAI, "guided_json", JSON, AT(guided_json), 0, 0, "|object|string|"},
    {OPENAI, "guided_regex", JSON, AT(guided_regex), 0, 0, "|string|"},
    {OPENAI, "guided_choice", JSON, AT(guided_choice), 0, 0, "|array|"},
    {OPENAI, "guided_grammar", JSON, AT(guided_grammar), 0, 0, "|string|"},
    {OPENAI, "grammar", JSON, AT(grammar), 0, 0, "|string|"},
    {IV_API_SAMPLING, "json_schema", JSON, AT(json_schema), 0, 0, "|string|object|"},
    {EVERY, "regex", JSON, AT(regex), 0, 0, "|string|"},
    {EVERY, "ebnf", JSON, AT(ebnf), 0, 0, "|string|"},
    {IV_API_SAMPLING, "structural_tag", ONLY, 0, 0, 0, "|null|"},
    {IV_API_SAMPLING, "stop_regex", ONLY, 0, 0, 0, "|null|[]|"},
    {IV_API_SAMPLING, "custom_params", JSON, AT(custom_params), 0, 0, "|object|"},
    {IV_API_CUSTOM, "return_top_p_token_ids", BOOL, AT(kept_tokens), 0, 0, NULL},
    {EVERY, "no_stop_trim", BOOL, AT(no_stop_trim), 0, 0, NULL},
    /* output */
    {OPENAI | IV_API_GENERATE | IV_API_RESPONSES | IV_API_MESSAGES, "stream", BOOL, AT(stream), 0, 0, NULL},
    {IV_API_COMPLETIONS, "echo", BOOL, AT(echo), 0, 0, NULL},
    {IV_API_CHAT, "echo", ONLY, 0, 0, 0, "|false|"},
    {OPENAI, "logprobs", JSON, AT(logprobs), 0, 0, "|integer|true|false|"},
    {CHATS, "top_logprobs", INT, AT(top_logprobs), 0, IV_LOGPROBS_MAX, NULL},
    {OPENAI, "prompt_logprobs", INT, AT(prompt_logprobs), 0, IV_LOGPROBS_MAX, NULL},
    {OPENAI | IV_API_GENERATE, "return_sampling_logprobs", BOOL, AT(sampling_logprobs), 0, 0, NULL},
    {OPENAI | IV_API_GENERATE, "return_receipt", BOOL, AT(return_receipt), 0, 0, NULL},
    {OPENAI, "return_token_ids", BOOL, AT(return_token_ids), 0, 0, NULL},
    {OPENAI, "return_tokens_as_token_ids", BOOL, AT(tokens_as_ids), 0, 0, NULL},
    {IV_API_STREAM_OPTIONS, "include_usage", BOOL, AT(include_usage), 0, 0, NULL},
    {IV_API_STREAM_OPTIONS, "continuous_usage_stats", BOOL, AT(usage_always), 0, 0, NULL},
    {IV_API_STREAM_OPTIONS | IV_API_RESPONSE_STREAM_OPTIONS, "include_obfuscation", ONLY, 0, 0, 0, "|false|"},
    {IV_API_RESPONSE_STREAM_OPTIONS, "reasoning_summary_delivery", ACCEPT, 0, 0, 0, NULL}, /* the reasoning is whole */
    {IV_API_CHAT, "separate_reasoning", BOOL, AT(separate_reasoning), 0, 0, NULL},
    {IV_API_CHAT, "include_reasoning", ONLY, 0, 0, 0, "|true|"},
    {IV_API_CHAT, "stream_reasoning", ONLY, 0, 0, 0, "|true|"},
    {IV_API_CHAT | IV_API_TOKENIZE, "verbosity", ONE_OF, AT(verbosity), 0, 0, IV_API_VERBOSITIES},
    {IV_API_GENERATE, "return_logprob", JSON, AT(return_logprob), 0, 0, "|true|false|array|"},
    {IV_API_GENERATE, "logprob_start_len", JSON, AT(logprob_start_lens), 0, 0, "|integer|real|array|"},
    {IV_API_GENERATE, "top_logprobs_num", JSON, AT(top_logprobs_nums), 0, 0, "|integer|real|array|"},
    {IV_API_GENERATE, "return_text_in_logprobs", BOOL, AT(text_in_logprobs), 0, 0, NULL},
    {IV_API_GENERATE, "token_ids_logprob", JSON, AT(token_ids_logprob), 0, 0, "|array|"},
    {OPENAI | IV_API_GENERATE, "return_hidden_states", ONLY, 0, 0, 0, "|false|"},
    {OPENAI, "return_routed_experts", ONLY, 0, 0, 0, "|false|"},
    {IV_API_GENERATE, "return_routed_experts", BOOL, AT(routed_experts), 0, 0, NULL},
    {IV_API_GENERATE, "routed_experts_start_len", INT, AT(routed_experts_start), 0, INT32_MAX, NULL},
    {OPENAI | IV_API_GENERATE, "return_prompt_token_ids", ONLY, 0, 0, 0, "|false|"},
    {IV_API_GENERATE, "return_bytes", ONLY, 0, 0, 0, "|false|"},
    {IV_API_GENERATE, "return_entropy", ONLY, 0, 0, 0, "|false|"},
    {IV_API_TOKENIZE, "return_token_strs", BOOL, AT(return_token_strings), 0, 0, NULL},
    /* prompts */
    {IV_API_SCORE, "query", JSON, AT(query), 0, 0, "|string|array|"},
    {IV_API_SCORE, "items", JSON, AT(items), 0, 0, "|string|array|"},
    {IV_API_SCORE, "label_token_ids", JSON, AT(label_ids), 0, 0, "|array|"},
    {IV_API_SCORE, "apply_softmax", BOOL, AT(softmax), 0, 0, NULL},
    {IV_API_SCORE, "item_first", BOOL, AT(item_first), 0, 0, NULL},
    {OPENAI | IV_API_RESPONSES | IV_API_TOKENIZE | IV_API_DETOKENIZE | IV_API_SCORE | IV_API_MESSAGES | IV_API_COUNT,
     "model", STRING, AT(model), 0, 0, NULL},
    {IV_API_COMPLETIONS, "prompt", JSON, AT(prompt), 0, 0, "|string|array|"},
    {IV_API_TOKENIZE, "prompt", JSON, AT(prompt), 0, 0, "|string|"},
    {IV_API_RESPONSES, "input", JSON, AT(prompt), 0, 0, "|string|array|"},
    {IV_API_RESPONSES, "instructions", JSON, AT(instructions), 0, 0, "|string|"},
    {IV_API_GENERATE, "text", JSON, AT(prompt), 0, 0, "|string|array|"},
    {IV_API_GENERATE, "input_ids", JSON, AT(input_ids), 0, 0, "|array|"},
    {IV_API_DETOKENIZE, "tokens", JSON, AT(input_ids), 0, 0, "|array|"},
    {IV_API_GENERATE, "sampling_params", JSON, AT(sampling_params), 0, 0, "|object|array|"},
    {OPENAI | IV_API_GENERATE, "rid", JSON, AT(rid), 0, 0, "|string|array|"},
    {OPENAI, "request_id", STRING, AT(request_id), 0, 0, NULL},
    {IV_API_COMPLETIONS, "suffix", ONLY, 0, 0, 0, "|null|\"\"|"},
    {OPENAI | IV_API_TOKENIZE, "add_special_tokens", BOOL, AT(add_special), 0, 0, NULL},
    {OPENAI | IV_API_RESPONSES | IV_API_GENERATE | IV_API_TOKENIZE, "split_special_tokens", BOOL, AT(split_special), 0,
     0, NULL},
    {IV_API_CHAT | IV_API_TOKENIZE | IV_API_MESSAGES | IV_API_COUNT, "messages", JSON, AT(messages), 0, 0, "|array|"},
    {IV_API_CHAT | IV_API_TOKENIZE, "tools", JSON, AT(tools), 0, 0, "|array|"},
    {IV_API_RESPONSES | IV_API_MESSAGES | IV_API_COUNT, "tools", JSON, AT(tools), 0, 0, "|array|"},
    {IV_API_MESSAGES | IV_API_COUNT, "tool_choice", JSON, AT(tool_choice), 0, 0, "|object|"},
    {CHATS, "tool_choice", JSON, AT(tool_choice), 0, 0, "|string|object|"},
    {CHATS, "parallel_tool_calls", NOT_BOOL, AT(one_tool_call), 0, 0, NULL},
    {CHATS | IV_API_TOKENIZE, "chat_template_kwargs", JSON, AT(template_kwargs), 0, 0, "|object|"},
    {IV_API_CHAT | IV_API_TOKENIZE, "add_generation_prompt", BOOL, AT(add_generation_prompt), 0, 0, NULL},
    {IV_API_CHAT | IV_API_TOKENIZE, "continue_final_message", BOOL, AT(continue_final), 0, 0, NULL},
    {IV_API_CHAT | IV_API_TOKENIZE, "reasoning_effort", ONE_OF, AT(effort), 0, 0, EFFORTS},
    {IV_API_RESPONSES, "reasoning", JSON, AT(reasoning), 0, 0, "|object|"},
    {IV_API_REASONING, "effort", ONE_OF, AT(effort), 0, 0, EFFORTS},
    {IV_API_REASONING, "context", ONLY, 0, 0, 0, "|\"auto\"|"},
    {IV_API_REASONING, "summary", ONLY, 0, 0, 0, SUMMARIES},
    {IV_API_REASONING, "generate_summary", ONLY, 0, 0, 0, SUMMARIES},
    {IV_API_OUTPUT, "effort", ONE_OF, AT(effort), 0, 0, EFFORTS},
    {IV_API_OUTPUT, "format", JSON, AT(output_format), 0, 0, "|object|"},
    {IV_API_CHAT, "chat_template", ONLY, 0, 0, 0, "|null|"},
    {IV_API_CHAT, "documents", ONLY, 0, 0, 0, "|[]|"},
    {IV_API_CHAT, "functions", ONLY, 0, 0, 0, "|[]|"},
    {IV_API_CHAT, "function_call", ONLY, 0, 0, 0, "|\"none\"|"},
    {IV_API_CHAT, "modalities", ONLY, 0, 0, 0, "|[\"text\"]|"},
    {IV_API_CHAT, "audio", ONLY, 0, 0, 0, "|null|"},
    {IV_API_CHAT, "prediction", ACCEPT, 0, 0, 0, NULL}, /* a hint for speed */
    {IV_API_CHAT, "web_search_options", ONLY, 0, 0, 0, "|null|"},
    {IV_API_RESPONSES, "previous_response_id", STRING, AT(previous_id), 0, 0, NULL},
    {IV_API_RESPONSES, "client_metadata", ACCEPT, 0, 0, 0, NULL},
    {IV_API_RESPONSES, "conversation", ONLY, 0, 0, 0, "|null|"},
    {IV_API_RESPONSES, "prompt", ONLY, 0, 0, 0, "|null|"},
    {IV_API_RESPONSES, "background", ONLY, 0, 0, 0, "|false|"},
    {IV_API_RESPONSES, "truncation", ONE_OF, AT(truncation), 0, 0, "|\"disabled\"|\"auto\"|"},
    {IV_API_RESPONSES, "include", EACH_OF, AT(include), 0, 0, INCLUDES},
    {IV_API_RESPONSES, "text", JSON, AT(text_options), 0, 0, "|object|"},
    {OPENAI | IV_API_RESPONSES, "stream_options", JSON, AT(sampling_params), 0, 0, "|object|"},
    {OPENAI | IV_API_RESPONSES, "priority", INT, AT(priority), INT32_MIN, INT32_MAX, NULL},
    {IV_API_GENERATE, "priority", INT, AT(priority), INT32_MIN, INT32_MAX, NULL},
    {IV_API_GENERATE, "image_data", ONLY, 0, 0, 0, "|null|[]|"},
    {IV_API_GENERATE, "input_embeds", ONLY, 0, 0, 0, "|null|"},
    {IV_API_GENERATE, "session_params", ONLY, 0, 0, 0, "|null|"},
    {IV_API_GENERATE, "custom_logit_processor", ONLY, 0, 0, 0, "|null|"},
    {OPENAI | IV_API_GENERATE, "lora_path", ONLY, 0, 0, 0, "|null|"},
    {IV_API_GENERATE, "log_metrics", ONLY, 0, 0, 0, "|true|"},
    /* sglang-router writes the defaults of all fields that it knows */
    {IV_API_GENERATE, "background", ONLY, 0, 0, 0, "|false|"},
    {IV_API_GENERATE, "no_logs", ONLY, 0, 0, 0, "|true|false|"},
    /* labels */
    {OPENAI | IV_API_RESPONSES, "user", ACCEPT, 0, 0, 0, NULL},
    {OPENAI | IV_API_RESPONSES, "metadata", ACCEPT, 0, 0, 0, NULL},
    {OPENAI | IV_API_RESPONSES, "service_tier", ACCEPT, 0, 0, 0, NULL},
    {IV_API_CHAT, "store", ONLY, 0, 0, 0, "|true|false|"}, /* nothing is stored */
    {IV_API_RESPONSES, "store", NOT_BOOL, AT(no_store), 0, 0, NULL},
    {CHATS, "safety_identifier", ACCEPT, 0, 0, 0, NULL},
    {CHATS, "prompt_cache_key", ACCEPT, 0, 0, 0, NULL},
    {CHATS, "prompt_cache_retention", ACCEPT, 0, 0, 0, NULL},
    {CHATS, "prompt_cache_options", ACCEPT, 0, 0, 0, NULL},
    {OPENAI | IV_API_GENERATE, "session_id", ACCEPT, 0, 0, 0, NULL},
    {OPENAI | IV_API_GENERATE, "custom_labels", ACCEPT, 0, 0, 0, NULL},
    {IV_API_RESPONSES, "max_tool_calls", ACCEPT, 0, 0, 0, NULL}, /* of OpenAI's own tools */
    /* administration */
    {IV_API_ABORT, "rid", JSON, AT(rid), 0, 0, "|string|array|"},
    {IV_API_ABORT, "abort_all", BOOL, AT(abort_all), 0, 0, NULL},
    {IV_API_WEIGHTS, "model_path", STRING, AT(weights), 0, 0, NULL},
    {IV_API_WEIGHTS, "weight_dir", STRING, AT(weights), 0, 0, NULL},
    {IV_API_WEIGHTS, "weight_version", STRING, AT(weights_name), 0, 0, NULL},
    {IV_API_WEIGHTS, "load_format", ONLY, 0, 0, 0, "|\"auto\"|\"safetensors\"|"},
    {IV_API_WEIGHTS, "abort_all_requests", BOOL, AT(abort_all), 0, 0, NULL},
    {IV_API_WEIGHTS, "flush_cache", ONLY, 0, 0, 0, "|true|"},
};

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

void iv_api_ignore(iv_buf *ignored, const char *place, const char *what) {
    enum { SHOWN_BYTES = 1000 };
    if (!ignored || ignored->len > SHOWN_BYTES) return;
    iv_buf_printf(ignored, "%s%s (%.60s)%s", ignored->len ? ", " : "", place, what,
                  ignored->len > SHOWN_BYTES - 120 ? ", ..." : "");
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

static iv_status read_only(const field *f, const char *name, const json_t *v, iv_error *err) {
    char bars[IV_JSON_SHOWN_BYTES + 4], text[IV_JSON_SHOWN_BYTES], wanted[320];
    snprintf(bars, sizeof bars, "|%s|", iv_json_shown(v, text));
    if (strstr(f->only, bars)) return IV_OK;
    size_t n = strlen(f->only);
    snprintf(wanted, sizeof wanted, "%.*s (nothing else is supported)", (int)(n - 2), f->only + 1);
    for (char *c = wanted; (c = strchr(c, '|')) != NULL;) *c = ' ';
    return wrong(name, wanted, v, err);
}

static iv_status read_json(const field *f, const char *name, json_t *v, json_t **out, iv_error *err) {
    char bars[32], wanted[80];
    snprintf(bars, sizeof bars, "|%s|", iv_json_type_name(v));
    *out = v;
    if (strstr(f->only, bars)) return IV_OK;
    snprintf(wanted, sizeof wanted, "%.*s", (int)(strlen(f->only) - 2), f->only + 1);
    for (char *c = wanted; (c = strchr(c, '|')) != NULL;) *c = '/';
    return wrong(name, wanted, v, err);
}

static iv_status read_field(iv_api_params *p, const field *f, const char *name, json_t *v, iv_error *err) {
    void *at = (char *)p + f->at;
    int64_t n = 0;
    switch (f->kind) {
    case INT: return iv_api_read_int(name, v, f->min, f->max, at, err);
    case FLOAT: return read_float(name, v, f->min, f->max, at, err);
    case TEMPERATURE:
        IV_TRY(read_float(name, v, f->min, f->max, at, err));
        if (*(float *)at < IV_TEMPERATURE_MIN) *(float *)at = 0.0f;
        return IV_OK;
    case BOOL:
    case NOT_BOOL:
        if (!json_is_boolean(v)) return wrong(name, "true or false", v, err);
        *(bool *)at = json_is_true(v) == (f->kind == BOOL);
        return IV_OK;
    case STRING:
        if (!json_is_string(v) || memchr(json_string_value(v), 0, json_string_length(v)))
            return wrong(name, "a string without NUL", v, err);
        return (*(const char **)at = keep(p, v)) ? IV_OK : no_memory(name, err);
    case JSON: return read_json(f, name, v, at, err);
    case SEED: return read_seed(p, f->name, name, v, err);
    case STOP: return read_stop(p, name, v, err);
    case STOP_IDS: return read_stop_ids(p, name, v, err);
    case BIAS: return read_bias(p, name, v, err);
    case TOP_K:
        IV_TRY(iv_api_read_int(name, v, f->min, f->max, &n, err));
        *(int32_t *)at = n < 0 ? 0 : (int32_t)n;
        return IV_OK;
    case ACCEPT: return IV_OK;
    case ONLY: return read_only(f, name, v, err);
    case EACH_OF:
        if (!json_is_array(v)) return wrong(name, "a list", v, err);
        *(json_t **)at = v;
        for (size_t i = 0; i < json_array_size(v); i++) IV_TRY(read_only(f, name, json_array_get(v, i), err));
        return IV_OK;
    case ONE_OF: *(json_t **)at = v; return read_only(f, name, v, err);
    }
    return IV_OK;
}

/* ---- an object ---------------------------------------------------------------------------------------- */

static const field *find_field(unsigned body, const char *name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].bodies & body && strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

bool iv_api_params_has(unsigned body, const char *name) { return find_field(body, name) != NULL; }

const char *iv_api_params_ids(unsigned body) {
    return body == IV_API_COMPLETIONS  ? "prompt"
           : body == IV_API_GENERATE   ? "input_ids"
           : body == IV_API_DETOKENIZE ? "tokens"
                                       : NULL;
}

iv_status iv_api_params_read(iv_api_params *p, unsigned body, const char *prefix, json_t *object, iv_error *err) {
    char name[160];
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return iv_fail(err, IV_INVALID, "%s: wanted a JSON object, found %s", *prefix ? prefix : "body",
                       iv_json_type_name(object));
    json_object_foreach(object, key, value) {
        const field *f = find_field(body, key);
        if (json_is_null(value))
            continue; /* null is treated as absent for any name: clients send fields they do not set */
        snprintf(name, sizeof name, "%s%.100s", prefix, key);
        if (!f) return iv_fail(err, IV_INVALID, "%s: this field is not known here", name);
        IV_TRY(read_field(p, f, name, value, err));
    }
    return IV_OK;
}

/* For responses, log-probabilities are requested by `include`. */
static iv_status finish_response(iv_api_params *p, iv_error *err) {
    const json_t *item;
    size_t i;
    json_array_foreach(p->include, i, item) p->want_logprobs |= strcmp(json_string_value(item), LOGPROBS) == 0;
    if (p->top_logprobs > 0 && !p->want_logprobs)
        return iv_fail(err, IV_INVALID,
                       "top_logprobs: wanted only with \"" LOGPROBS "\" in \"include\", found %d without it",
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
