/* params.h: the fields of a request's body, read with one table (params.c): every field is known, null or refused by
 * name.
 *
 * Invariant: values accepted by iv_api_params_read have the right type and are in range. Strings and arrays are
 * copies in the arena, so the body may be freed; json_t members borrow from the body. */
#ifndef IV_SERVE_API_PARAMS_H
#define IV_SERVE_API_PARAMS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "invar.h"
#include "serve/api/body_scan.h"

#include <jansson.h>

enum {
    IV_API_CHOICES_MAX = 128,  /* n */
    IV_API_CHILDREN_MAX = 1024 /* prompts times n */
};

/* Bodies of a field: a mask in the table. */
enum {
    IV_API_COMPLETIONS = 1 << 0,
    IV_API_CHAT = 1 << 1,
    IV_API_RESPONSES = 1 << 2,
    IV_API_STREAM_OPTIONS = 1 << 3,
    IV_API_GENERATE = 1 << 4, /* SGLang's /generate ... */
    IV_API_SAMPLING = 1 << 5, /* ... and its sampling_params */
    IV_API_TOKENIZE = 1 << 6,
    IV_API_DETOKENIZE = 1 << 7,
    IV_API_ABORT = 1 << 8,
    IV_API_WEIGHTS = 1 << 9,
    IV_API_REASONING = 1 << 10,               /* a response's "reasoning" ... */
    IV_API_RESPONSE_STREAM_OPTIONS = 1 << 11, /* ... and its "stream_options" */
    IV_API_CUSTOM = 1 << 12,                  /* "custom_params" of sampling_params */
    IV_API_SCORE = 1 << 13,
    IV_API_MESSAGES = 1 << 14,     /* Anthropic's ... */
    IV_API_COUNT = 1 << 15,        /* ... and its count_tokens, ... */
    IV_API_OUTPUT = 1 << 16,       /* ... and "output_config" */
    IV_API_INPUT_TOKENS = 1 << 17, /* /v1/responses/input_tokens */
    IV_API_DECISIONS = 1 << 18
};

typedef struct iv_api_params {
    iv_arena arena;
    iv_request request;                        /* without prompt; max_tokens is below */
    const char *text;                          /* of the object being read; NULL: unknown. Seeds above 63 bits ... */
    size_t bytes;                              /* ... are read from it, because JSON values cannot hold them */
    iv_body_lists lists;                       /* lists of ids read before the body was parsed */
    bool seed_unsigned;                        /* such a seed, reported in the same form */
    int64_t max_tokens, max_completion_tokens; /* -1: not given */
    int64_t n, best_of, min_tokens;
    int64_t top_logprobs, prompt_logprobs; /* -1: not given */
    int64_t logprob_start_len, priority;
    int64_t truncate;   /* tokens of a prompt that are read: -1: as many as fit; -2: all (iv_api_truncates) */
    bool want_logprobs; /* of generated tokens */
    bool echo, stream, include_usage, usage_always;
    bool return_token_ids, tokens_as_ids, return_receipt, sampling_logprobs, return_token_strings;
    bool separate_reasoning, one_tool_call, no_stop_trim, text_in_logprobs;
    bool routed_experts, kept_tokens; /* kept_tokens: those that the sampler kept */
    int64_t routed_experts_start;
    bool add_generation_prompt, continue_final, abort_all;
    bool reasoning_open; /* by the rendered prompt */
    bool forced_call;    /* by tool_choice */
    bool format_holds;   /* the constraint came from response_format or text.format */
    bool add_special;
    bool split_special;      /* special tokens spelled by a client are plain text */
    bool drop_items;         /* from a response's input, if it is too long */
    bool no_store;           /* of a response */
    const char *previous_id; /* of a response */
    const char *model, *weights, *weights_name;
    json_t *lora_path;      /* an adapter's name, or one or null for each prompt */
    const char *request_id; /* used in the answer's id, after its prefix */
    const char *tools_text; /* of a response: the tools as given, as JSON */
    json_t *prompt, *messages, *tools, *tool_choice, *template_kwargs, *input_ids, *sampling_params, *rid;
    json_t *return_logprob, *instructions, *logprobs;
    json_t *include, *truncation; /* of a response */
    json_t *reasoning, *effort;   /* effort: reasoning effort for the template */
    json_t *verbosity;            /* for the template, too */
    json_t *response_format, *text_options, *structured_outputs, *guided_json, *guided_regex, *guided_choice,
        *guided_grammar, *grammar;
    json_t *json_schema, *regex, *ebnf; /* of sampling_params */
    json_t *allowed_ids, *bad_words;
    bool item_first, softmax; /* of /v1/score, as are the next */
    json_t *query, *items, *label_ids, *questions;
    json_t *given_tools;                                        /* as sent, where `tools` was converted */
    json_t *system, *thinking;                                  /* of /v1/messages */
    json_t *output_config, *output_format, *context_management; /* of /v1/messages */
    iv_buf ignored;                                             /* what was skipped by name (iv_api_ignore) */
    json_t *custom_params;                                      /* of sampling_params */
    json_t *token_ids_logprob;                                  /* of /generate: ids, or a list for each prompt */
    json_t *logprob_start_lens, *top_logprobs_nums;             /* of /generate: a number, or one per prompt */
} iv_api_params;

#define IV_API_VERBOSITIES "|\"low\"|\"medium\"|\"high\"|" /* JSON values between bars */

/* Sets all fields to absent; `defaults`: initial sampling fields of the request. */
void iv_api_params_init(iv_api_params *p, const iv_request *defaults);
void iv_api_params_free(iv_api_params *p);

/* Adds "PLACE (WHAT)" to the list of what an answer does without: tools that the server cannot run, texts that only
 * another server can read. The answer and a header name them. NULL: not listed. */
void iv_api_ignore(iv_buf *ignored, const char *place, const char *what);
/* Adds the keywords of a schema that assert nothing (iv_schema_labels), each once, with its first place behind `place`:
 * "response_format#/properties/a (x-order)". */
void iv_api_ignore_labels(iv_buf *ignored, const char *place, const json_t *schema);

/* Reads an object's members. `body`: one of the masks above. `prefix`: of names in errors, "" or "stream_options.". */
iv_status iv_api_params_read(iv_api_params *p, unsigned body, const char *prefix, json_t *object, iv_error *err);

/* After reading OpenAI's bodies: moves logprobs, max_tokens and prompt_logprobs into the request. */
iv_status iv_api_params_finish(iv_api_params *p, unsigned body, iv_error *err);

/* Reads an integer; 2.0 is one, too. */
iv_status iv_api_read_int(const char *name, const json_t *v, double min, double max, int64_t *out, iv_error *err);
/* Refuses a field that none of the bodies has, with the nearest name. `prefix`: see iv_api_params_read. */
iv_status iv_api_params_check(unsigned body, const char *prefix, const char *name, iv_error *err);
/* Whether one of the bodies has a field of this name. */
bool iv_api_params_has(unsigned body, const char *name);
/* The field of a body with token ids; NULL: none. */
const char *iv_api_params_ids(unsigned body);

/* A continued message excludes a generation prompt, which is switched off, or refused if requested. */
iv_status iv_api_params_continue(iv_api_params *p, const json_t *body, iv_error *err);

/* Draws a random seed if none was given: 53 bits, which every JSON reader can hold. */
iv_status iv_api_params_seed(iv_request *r, iv_error *err);

/* Reads a list of token ids into *out (freed by the caller). at: index of the element of the body's field, or
 * IV_BODY_WHOLE. */
iv_status iv_api_read_ids(iv_api_params *p, size_t at, const char *name, json_t *list, iv_ids *out, iv_error *err);

#endif
