/* params.h: the fields of a request's body, read by one table (params.c): every field is known, null or refused by
 * name.
 *
 * Invariant: what iv_api_params_read accepted is of the right type and in range; strings and arrays are copies in
 * the arena, so that the body may go; json_t members borrow from the body. */
#ifndef IV_SERVE_API_PARAMS_H
#define IV_SERVE_API_PARAMS_H

#include "base/arena.h"
#include "base/status.h"
#include "serve/api/json_scan.h"

#include <jansson.h>

enum {
    IV_API_CHOICES_MAX = 128,  /* n */
    IV_API_CHILDREN_MAX = 1024 /* prompts times n */
};

/* Which body a field belongs to: a mask in the table. */
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
    IV_API_REASONING = 1 << 10,              /* a response's "reasoning" ... */
    IV_API_RESPONSE_STREAM_OPTIONS = 1 << 11 /* ... and its "stream_options" */
};

typedef struct iv_api_params {
    iv_arena arena;
    iv_request request;                        /* without prompt; max_tokens below */
    const char *text;                          /* of the object that is read, NULL: unknown. Seeds above 63 bits ... */
    size_t bytes;                              /* ... are read there: JSON values have no room for them */
    iv_body_lists lists;                       /* of ids that were read before the body was parsed */
    bool seed_unsigned;                        /* it was such a one, and is told so */
    int64_t max_tokens, max_completion_tokens; /* -1: not given */
    int64_t n, best_of, min_tokens;
    int64_t top_logprobs, prompt_logprobs; /* -1: not given */
    int64_t logprob_start_len, priority;
    int64_t truncate; /* how many tokens of a prompt are read: -1: as many as there is room for; -2: all (truncate.h) */
    bool want_logprobs; /* of generated tokens */
    bool echo, stream, include_usage, usage_always;
    bool return_token_ids, tokens_as_ids, return_receipt, sampling_logprobs, return_token_strings;
    bool separate_reasoning, one_tool_call, no_stop_trim, text_in_logprobs;
    bool add_generation_prompt, continue_final, abort_all;
    bool reasoning_open; /* by the rendered prompt */
    bool format_holds;   /* the constraint is that of response_format, or of text.format */
    bool add_special;
    bool split_special; /* special tokens that a client spells are text */
    bool drop_items;    /* of a response's input, where it is too long */
    const char *model, *weights, *weights_name;
    const char *request_id; /* in the answer's id, behind its prefix */
    const char *tools_text; /* of a response: the tools as JSON, as they were given */
    json_t *prompt, *messages, *tools, *tool_choice, *template_kwargs, *input_ids, *sampling_params, *rid;
    json_t *return_logprob, *instructions, *logprobs;
    json_t *include, *truncation; /* of a response */
    json_t *reasoning, *effort;   /* effort: how much the model is to think, for the template */
    json_t *response_format, *text_options, *structured_outputs, *guided_json, *guided_regex, *guided_choice,
        *guided_grammar, *grammar;
    json_t *json_schema, *regex, *ebnf;             /* of sampling_params */
    json_t *logprob_start_lens, *top_logprobs_nums; /* of /generate: a number, or one for each prompt */
} iv_api_params;

/* Everything absent; `defaults` is what the request's sampling fields start from. */
void iv_api_params_init(iv_api_params *p, const iv_request *defaults);
void iv_api_params_free(iv_api_params *p);

/* Reads an object's members. `body`: one of the masks above. `prefix`: of names in errors, "" or "stream_options.". */
iv_status iv_api_params_read(iv_api_params *p, unsigned body, const char *prefix, json_t *object, iv_error *err);

/* What OpenAI's two bodies have in common after reading: logprobs, max_tokens and prompt_logprobs into the request. */
iv_status iv_api_params_settle(iv_api_params *p, unsigned body, iv_error *err);

/* A whole number, 2.0 too. */
iv_status iv_api_read_int(const char *name, const json_t *v, double min, double max, int64_t *out, iv_error *err);
/* Whether a body, or one of several, has a field of this name. */
bool iv_api_params_has(unsigned body, const char *name);
/* The field of a body that holds token ids; NULL: none. */
const char *iv_api_params_ids(unsigned body);

/* A message that is continued has no prompt for another one: off unless the body asks for both, which is refused. */
iv_status iv_api_params_continue(iv_api_params *p, const json_t *body, iv_error *err);

/* Draws a seed if none was given: 53 bits, so that every reader of JSON can hold it. */
iv_status iv_api_params_seed(iv_request *r, iv_error *err);

/* A list of token ids into ids (freed by the caller). at: which element of the body's field it is, or IV_BODY_WHOLE. */
iv_status iv_api_read_ids(iv_api_params *p, size_t at, const char *name, json_t *list, iv_ids *out, iv_error *err);

#endif
