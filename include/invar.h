/* invar.h: the only public header of libinvar.
 *
 * An engine holds one model. Requests are submitted to it, steps are run, events are read:
 *
 *     iv_engine_options o;
 *     iv_engine_options_init(&o);
 *     o.model = "models/tiny-math";
 *     iv_engine *engine;
 *     iv_error err;
 *     if (iv_engine_open(&o, &engine, &err) != IV_OK) return complain(err.message);
 *     iv_request r;
 *     iv_request_init(engine, &r);
 *     r.text = "2 + 2 =", r.text_bytes = 7;
 *     uint64_t id;
 *     iv_engine_submit(engine, &r, &id, &err);
 *     for (bool busy = true; busy;) {
 *         iv_engine_step(engine, &busy, &err);
 *         for (iv_event e; iv_engine_next_event(engine, &e);) use(&e);
 *     }
 *     iv_engine_close(engine);
 *
 * C ABI, opaque types, errors as values, no global state: several engines may live in one process. One engine is
 * used by one thread at a time; it runs its own worker threads. Strings are UTF-8. The library never prints,
 * never exits, and keeps no pointer into a request after iv_engine_submit returns. */
#ifndef INVAR_H
#define INVAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IV_API __attribute__((visibility("default")))

/* ---- status -------------------------------------------------------------------------------------------- */

/* What a call came to. Everything but IV_OK fills the caller's iv_error. */
typedef enum iv_status {
    IV_OK = 0,
    IV_INVALID,     /* an argument or a request field is wrong */
    IV_NOT_FOUND,   /* a file or a named thing does not exist */
    IV_IO,          /* the operating system failed a read or write */
    IV_FORMAT,      /* a file's content breaks its format */
    IV_UNSUPPORTED, /* well formed, but not something invar does */
    IV_LIMIT,       /* a named maximum would be exceeded */
    IV_NO_MEMORY,
    IV_BUSY,          /* full for now: try again later */
    IV_TEMPLATE,      /* a chat template raised an error */
    IV_CONTEXT_LENGTH /* a prompt leaves no room for an answer in max_model_len */
} iv_status;

/* One line for a person: names the file, tensor or field, what was wanted and what was found.
 * Owned by the caller; never allocated. */
typedef struct iv_error {
    iv_status status;
    char message[1000];
} iv_error;

/* The name of a status, for logs ("invalid", "format", ...). Static string. */
IV_API const char *iv_status_name(iv_status status);

/* "0.1.0". Static string. */
IV_API const char *iv_version(void);

/* Text or ids that the library allocated; free with iv_text_free or iv_ids_free (zeroed ones too). */
typedef struct iv_text {
    char *data; /* NUL-terminated; may hold NUL inside */
    size_t bytes;
} iv_text;
typedef struct iv_ids {
    int32_t *data;
    size_t count, capacity;
} iv_ids;
IV_API void iv_text_free(iv_text *text);
IV_API void iv_ids_free(iv_ids *ids);

/* ---- engine -------------------------------------------------------------------------------------------- */

typedef struct iv_engine iv_engine;

typedef struct iv_engine_options {
    const char *model;       /* a Hugging Face model directory */
    const char *load_format; /* "auto": the directory's weight files; "dummy": seeded random weights, no files */
    uint64_t dummy_seed;     /* of dummy weights, 0 by default */
    const char *dtype;       /* "auto" (the checkpoint's), "bfloat16", "float16", "float32" */
    const char *device;      /* "cpu", "cuda", or "auto": cuda where a GPU can do it; never changes a bit */
    bool enforce_eager;      /* cuda: launch kernels one by one, capture no graphs; never changes a bit */
    const char *arithmetic;  /* "fma32" or "tc16": how dot products are summed; part of the fingerprint. "auto": what
                              * the device is fast in, fma32 on a CPU, tc16 on a GPU (fma32 for float32) */
    const char *isa;         /* "auto", "scalar", "avx2", "avx512": never changes a bit */
    size_t threads;          /* 0: one for each CPU; never changes a bit */
    size_t max_model_len;    /* longest sequence in tokens; 0: the model's, or what KV memory holds if less */
    size_t max_num_seqs;     /* sequences run together; 0: 16 on a CPU, 256 on GPUs */
    size_t max_num_batched_tokens; /* tokens in one step: longer prompts are read in chunks; 0: 512, 8192 on GPUs */
    const char *numerics;          /* "invar", or a baseline (NUMERICS.md, 14): "bio", "vanilla", "vanilla-blas" */
    size_t tensor_parallel_size;   /* ranks that share the model, up to 8 (on cuda a GPU each); 0: the processes of
                                    * mpirun,   or 1 */
    const char *rank_transport;    /* cuda under mpirun: "nccl", "host" (through this machine's memory), or "auto": nccl
                                    * where every rank finds it; never changes a bit */
    size_t rank_timeout_ms;        /* how long a rank waits for another inside a step before the job ends; NCCL
                                    * waits ten times as long for all ranks to connect */
    size_t kv_bytes;               /* KV cache memory over all ranks; 0: kv_fraction */
    double kv_fraction;            /* of the memory that is free once weights are loaded, at most 1. 0: enough for
                                    * max_num_seqs sequences of max_model_len, but at most a quarter of the free memory
                                    * (on GPUs nine tenths), and enough for one in any case */
    bool prefix_caching;           /* keep finished sequences' pages for requests that begin alike */
    const char *speculative;       /* "off" or "ngram": drafts looked up in the sequence; never changes a bit */
    size_t speculative_tokens;     /* most tokens of a draft, 1 to 16 */
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* while weights load; may be NULL */
    void *user;
} iv_engine_options;

/* auto (type, weights, arithmetic), cpu, invar, all CPUs, one rank (or those of mpirun), prefix caching, no
 * speculation. */
IV_API void iv_engine_options_init(iv_engine_options *options);

IV_API iv_status iv_engine_open(const iv_engine_options *options, iv_engine **out, iv_error *err);
IV_API void iv_engine_close(iv_engine *engine); /* NULL is fine; ends all requests */

/* Facts of an open engine. Strings live as long as the engine. */
typedef struct iv_engine_info {
    const char
        *fingerprint; /* of all that may change a bit: numerics, arithmetic, dtype, weights, tokenizer, template */
    const char *model_type, *dtype, *arithmetic, *isa, *numerics;
    const char *device;         /* "cpu", or "cuda" */
    const char *gpu;            /* its name, "" on a CPU */
    const char *rank_transport; /* how GPUs get each other's bytes: "peer" (within a process), "nccl" (which under
                                 * vanilla-blas adds too), "host"; "" for one rank or on a CPU */
    /* What the fingerprint is made of, SHA-256 in hexadecimal each; "" for what the model does not have. */
    const char *weights_digest, *configuration_digest, *tokenizer_digest, *template_digest;
    int numerics_version;
    size_t tensor_parallel_size, rank; /* rank: of this process, 0 but under mpirun */
    size_t threads, vocab_size, max_model_len, kv_tokens, weight_bytes, kv_bytes_per_token;
    size_t max_num_seqs, max_num_batched_tokens;
    double load_seconds;
    bool index_unread; /* the model's directory has model.safetensors.index.json too: model.safetensors was read, as by
                        * transformers, and the index was not */
    const char *generation_unapplied; /* what generation_config.json asks for and no answer follows: lines of a key and
                                       * its value; "": nothing */
} iv_engine_info;
IV_API void iv_engine_get_info(const iv_engine *engine, iv_engine_info *info);

/* What the engine has done since it was opened. */
typedef struct iv_engine_stats {
    uint64_t steps, tokens_computed, tokens_generated;
    uint64_t prompt_tokens, cached_tokens; /* of admitted prompts; cached: found in the prefix cache */
    uint64_t preemptions, drafted_tokens, accepted_tokens;
    double step_seconds, forward_seconds, sample_seconds; /* forward and sampling are parts of a step */
    size_t running, waiting;
    size_t kv_pages, kv_pages_free, kv_pages_cached; /* cached: held by the prefix cache alone, free on demand */
    size_t held;                                     /* of those waiting: by iv_engine_hold */
} iv_engine_stats;
IV_API void iv_engine_get_stats(const iv_engine *engine, iv_engine_stats *stats);

/* Puts another checkpoint's weights into an open engine: its files are read, checked and hashed as iv_engine_open
 * would, beside the old weights (memory for both is needed); only then are they swapped, all ranks at once, and cached
 * prefixes forgotten. After any error the old weights are there, untouched. From config.json come the numbers that are
 * part of the model (norms' epsilon, rotary settings, end-of-sequence ids); what sizes memory or says which tensors
 * there are must be what it was, or IV_INVALID names it. Tokenizer, chat template, generation defaults and dtype stay.
 * Fingerprint and digests of iv_engine_get_info are new afterwards, in the same strings. IV_BUSY while requests wait or
 * run. IV_UNSUPPORTED under mpirun. On GPUs the new weights wait in this process's memory and are then copied over the
 * old ones; should a GPU be lost in that, no further step runs. */
IV_API iv_status iv_engine_update_weights(iv_engine *engine, const char *dir, iv_error *err);

/* Under mpirun: a process whose info.rank is not 0 submits nothing and calls this once; it computes its share of every
 * step until rank 0 closes its engine (IV_OK) or another rank is lost. */
IV_API iv_status iv_engine_serve_rank(iv_engine *engine, iv_error *err);

/* ---- requests ------------------------------------------------------------------------------------------ */

typedef struct iv_logit_bias {
    int32_t id;
    float bias; /* added to the logit before temperature */
} iv_logit_bias;

/* What an answer may be (docs/STRUCTURED.md). Tokens that cannot continue it are never drawn (NUMERICS.md, 10.2). */
typedef enum iv_constraint_kind {
    IV_CONSTRAINT_NONE,
    IV_CONSTRAINT_JSON_OBJECT, /* any JSON object; no text */
    IV_CONSTRAINT_JSON_SCHEMA, /* text: the schema, JSON */
    IV_CONSTRAINT_REGEX,       /* text: the expression that the whole answer matches */
    IV_CONSTRAINT_CHOICE,      /* text: a JSON array of strings, one of which the answer is */
    IV_CONSTRAINT_TOOL_CALL,   /* text: a JSON array of {"name", "parameters": schema}: the answer calls one of them in
                                * Hermes' form; or {"form": an iv_tool_form's name, "tools": that array} */
    IV_CONSTRAINT_TOOL_CALLS,  /* the same, one or more calls (one in Llama's form) */
    IV_CONSTRAINT_TOOL_CALL_OR_JSON,  /* text: {"form", "tools", "schema"}: such a call, or JSON that satisfies the
                                       * schema */
    IV_CONSTRAINT_TOOL_CALLS_OR_JSON, /* the same, one or more calls, or JSON */
    IV_CONSTRAINT_GRAMMAR             /* text: rules, of which `root` is the answer, as llama.cpp writes them */
} iv_constraint_kind;

/* A compiled constraint. Counted; retain and release may be called from any thread. */
typedef struct iv_constraint iv_constraint;

/* "none", "json_object", "json_schema", "regex", "choice", "tool_call", "tool_calls", "tool_call_or_json",
 * "tool_calls_or_json", "grammar". Static string. */
IV_API const char *iv_constraint_name(iv_constraint_kind kind);

/* How a model writes its calls of tools (docs/CLI.md, "Tool calls"). */
typedef enum iv_tool_form {
    IV_TOOL_FORM_HERMES,          /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    IV_TOOL_FORM_LLAMA3_JSON,     /* {"name": ..., "parameters": {...}} */
    IV_TOOL_FORM_MISTRAL,         /* [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] */
    IV_TOOL_FORM_MISTRAL_NAME,    /* [TOOL_CALLS]NAME{...} */
    IV_TOOL_FORM_MISTRAL_ARGS,    /* [TOOL_CALLS]NAME[ARGS]{...} */
    IV_TOOL_FORM_MISTRAL_CALL_ID, /* [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...} */
    IV_TOOL_FORM_QWEN3_CODER,     /* <tool_call><function=NAME><parameter=KEY>...</parameter></function></tool_call> */
    IV_TOOL_FORM_NONE             /* calls are not looked for */
} iv_tool_form;

/* "hermes", "llama3_json", "mistral", "mistral_name", "mistral_args", "mistral_call_id", "qwen3_coder", "none". Static
 * string.
 */
IV_API const char *iv_tool_form_name(iv_tool_form form);

/* Whether a tool's name can be written without quotes: ASCII letters, digits, '_', '-' and '.', one at least. */
IV_API bool iv_tool_name_is_bare(const char *name, size_t bytes);

/* What comes before the constrained part of the answer of a reasoning model. */
typedef enum iv_reasoning {
    IV_REASONING_NONE,    /* nothing: the constraint holds from the first token */
    IV_REASONING_OPEN,    /* the prompt has opened <think>: free text up to </think> */
    IV_REASONING_OPTIONAL /* the answer may begin with <think>, free text and </think> */
} iv_reasoning;

/* A smaller temperature is 0: greedy. */
#define IV_TEMPERATURE_MIN 1e-4f

/* Most entries of a request: stop strings, stop ids, biases, alternatives of a token. */
enum { IV_STOPS_MAX = 16, IV_STOP_IDS_MAX = 64, IV_LOGIT_BIAS_MAX = 4096, IV_LOGPROBS_MAX = 20 };

/* Everything is copied at submission. Ranges: temperature 0 (greedy) to 100; top_p in (0, 1]; min_p in [0, 1];
 * top_k 0 (off) or more; repetition_penalty above 0; presence and frequency penalties -2 to 2. */
typedef struct iv_request {
    uint64_t id;      /* the caller's own number, not one that waits or runs; 0: the engine gives one */
    int32_t priority; /* smaller goes first; among equals the older */
    const char *text; /* the prompt as text ... */
    size_t text_bytes;
    bool add_special;   /* let the tokenizer add its BOS (off for rendered chat templates) */
    const int32_t *ids; /* ... or as tokens; give one of the two */
    size_t id_count;
    size_t max_tokens; /* most tokens to generate; 0: up to max_model_len */
    size_t min_tokens; /* none of so many first ones ends the answer: those that would are never drawn, stop strings not
                        * looked for. A constraint behind which nothing may follow ends it all the same */
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    const iv_logit_bias *logit_bias;
    size_t logit_bias_count;
    bool has_seed;
    uint64_t seed;          /* without has_seed one is drawn, and reported by the events */
    int logprobs;           /* -1: none; 0: of the chosen token; n: and of the n likeliest, at most 20 */
    bool sampling_logprobs; /* token events carry sampling_logprob */
    int prompt_logprobs;    /* -1: none; 0: of each token of the prompt; n: and of the n likeliest there, at most 20.
                             * What that takes is computed even if it is cached */
    size_t prompt_logprobs_start; /* from this position on; the first token, position 0, has none */
    bool score_only; /* generate nothing: IV_FINISH_LENGTH follows the prompt's events. max_tokens is 0 then, the prompt
                      * may be max_model_len long, and no receipt is kept */
    const char *const *stop; /* generation ends before any of these; at most 16 of at most 256 bytes */
    size_t stop_count;
    const int32_t *stop_ids;
    size_t stop_id_count;
    iv_constraint_kind constraint;
    const char *constraint_text; /* as the kind wants it; at most 4 MiB */
    iv_reasoning reasoning;      /* beside a constraint */
    iv_constraint *compiled; /* the same constraint from iv_engine_compile, or NULL: compiled when it is submitted */
    bool ignore_eos;
    bool keep_special;       /* special tokens appear in the text */
    const int32_t *show_ids; /* those that do in any case, at most 8: a call of a tool may begin with one */
    size_t show_id_count;
    bool keep_logits;  /* token events carry the whole row of logits */
    bool keep_receipt; /* the last event carries a receipt */
} iv_request;

/* Defaults: no prompt, add_special, temperature 1, everything else off; then what the model's
 * generation_config.json suggests (do_sample false: temperature 0). */
IV_API void iv_request_init(const iv_engine *engine, iv_request *request);

/* Queues a request; *id is never 0. IV_CONTEXT_LENGTH: the prompt leaves no room for an answer in max_model_len (with
 * score_only: is longer than that). IV_INVALID: an empty prompt, one with tokens outside the vocabulary, an id in use,
 * a field out of range. IV_BUSY: the queue is full. */
IV_API iv_status iv_engine_submit(iv_engine *engine, const iv_request *request, uint64_t *id, iv_error *err);

/* Compiles the constraint of a request (kind, text, reasoning; nothing else is looked at), for iv_request.compiled.
 * From any thread, also while another one steps. quick: IV_BUSY where it takes more than a few milliseconds. The caller
 * releases *out before the engine is closed. Errors as of iv_engine_submit. */
IV_API iv_status iv_engine_compile(iv_engine *engine, const iv_request *request, bool quick, iv_constraint **out,
                                   iv_error *err);
IV_API iv_constraint *iv_constraint_retain(iv_constraint *constraint); /* one user more; NULL is fine */
IV_API void iv_constraint_release(iv_constraint *constraint);          /* NULL is fine */

/* Ends a request, waiting or running, at the next step; its IV_EVENT_DONE says IV_FINISH_CANCELLED and carries the text
 * that was held back for stop strings. IV_NOT_FOUND if it neither waits nor runs. */
IV_API iv_status iv_engine_cancel(iv_engine *engine, uint64_t id, iv_error *err);

/* Takes a running request's pages away, as a full cache would: it waits, is computed again and goes on with the same
 * bits. IV_NOT_FOUND if it is not running. */
IV_API iv_status iv_engine_preempt(iv_engine *engine, uint64_t id, iv_error *err);

/* Holds a request back, or lets it go on: a held one takes part in no step and keeps no pages of its own, and later
 * goes on with the same bits. For a caller whose own reader is slow. IV_NOT_FOUND if it neither waits nor runs. */
IV_API iv_status iv_engine_hold(iv_engine *engine, uint64_t id, bool hold, iv_error *err);

/* Forgets all cached prefixes that no running request holds. */
IV_API void iv_engine_reset_prefix_cache(iv_engine *engine);

/* Runs one step. *busy: requests remain. An error here is the engine's, not a request's. IV_BUSY: too many events wait
 * to be taken (there is room for those of sixteen full steps), or some carry logits that this step would overwrite;
 * nothing was done. Who takes all events after each step never sees it. */
IV_API iv_status iv_engine_step(iv_engine *engine, bool *busy, iv_error *err);

/* ---- events -------------------------------------------------------------------------------------------- */

typedef enum iv_event_kind {
    IV_EVENT_TOKEN, /* one more token; text may be empty while a character or a stop string is incomplete */
    IV_EVENT_DONE,  /* the last event of a request */
    IV_EVENT_PROMPT /* a token of the prompt, in order and before the first IV_EVENT_TOKEN, if prompt_logprobs >= 0 */
} iv_event_kind;

typedef enum iv_finish {
    IV_FINISH_NONE,
    IV_FINISH_STOP,   /* end-of-sequence token, stop id or stop string */
    IV_FINISH_LENGTH, /* max_tokens or max_model_len */
    IV_FINISH_CANCELLED,
    IV_FINISH_ERROR /* iv_event.error says what */
} iv_finish;

/* "stop", "length", "cancelled", "error"; NULL for IV_FINISH_NONE. Static strings. */
IV_API const char *iv_finish_name(iv_finish finish);

typedef struct iv_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the model's own distribution before temperature and filters */
} iv_logprob;

/* Pointers live until the next call on the engine. */
typedef struct iv_event {
    uint64_t request;
    iv_event_kind kind;
    uint64_t seed;
    const char *text; /* new text, which goes on where the prompt ended; whole UTF-8 characters. DONE: what was held
                         back, if cancelled, an error, or ended by a constraint that was found to be over later */
    size_t text_bytes;
    /* TOKEN, PROMPT */
    int32_t token;
    size_t position;       /* of the token in prompt and answer; of the prompt's first token 0 */
    float logprob;         /* of a generated token always computed: it is part of the digest */
    const iv_logprob *top; /* the request's `logprobs` or `prompt_logprobs` likeliest: larger first, then smaller id */
    size_t top_count;
    /* TOKEN */
    float sampling_logprob; /* under the distribution that the token was drawn from: after bias, penalties, temperature
                             * and filters (NUMERICS.md, 10.7); temperature 0: 0. Not wanted: 0 */
    const float *logits;    /* [vocab_size] as the model gave them, if the request keeps logits; else NULL */
    /* DONE */
    iv_finish finish;
    const char *error; /* NULL unless IV_FINISH_ERROR */
    iv_status
        error_status;   /* with it: IV_FORMAT where the model's numbers are not finite, IV_LIMIT where a constraint
                         * takes too much time or memory, IV_UNSUPPORTED or IV_INVALID where no token continues it */
    const char *stop;   /* the stop string that was met, or NULL */
    const int32_t *ids; /* all generated tokens */
    size_t id_count, prompt_tokens;
    const char *digest;     /* "sha256:..." over the ids and logprob bits of all generated tokens */
    double prefill_seconds; /* from admission to the first token, as a clock on the wall has it */
    double decode_seconds;  /* from the first token to the end */
    size_t cached_tokens;   /* of the prompt, found in the prefix cache when it was first admitted */
    size_t preemptions;
    size_t drafted_tokens, accepted_tokens; /* by speculation */
    const char *receipt; /* JSON, one line (docs/formats/receipt.md), if the request keeps one and memory sufficed */
} iv_event;

/* Takes the oldest event. False when there is none. */
IV_API bool iv_engine_next_event(iv_engine *engine, iv_event *event);

/* ---- receipts ------------------------------------------------------------------------------------------ */

/* What a finished request was, what made it and what came of it: enough to compute it again anywhere. Immutable. */
typedef struct iv_receipt iv_receipt;

/* Parses one line of JSON (docs/formats/receipt.md); `name` heads errors. Refused as IV_FORMAT: a field that is
 * missing, unknown, of another type or out of range, and an outcome that its own digest does not match. */
IV_API iv_status iv_receipt_read(const char *name, const char *json, size_t bytes, iv_receipt **out, iv_error *err);
IV_API void iv_receipt_close(iv_receipt *receipt); /* NULL is fine */

/* Strings and arrays live as long as the receipt. */
typedef struct iv_receipt_info {
    iv_engine_info maker;      /* names, digests, threads, tensor_parallel_size; the sizes are 0 */
    const char *invar_version; /* of the program that wrote it */
    const char *model;         /* the directory, as it was given */
    iv_finish finish;
    const char *stop;      /* the stop string that was met, or NULL */
    const int32_t *ids;    /* generated tokens */
    const float *logprobs; /* of each of them */
    size_t id_count;
    const char *digest;
} iv_receipt_info;
IV_API void iv_receipt_get_info(const iv_receipt *receipt, iv_receipt_info *info);

/* The request as it was carried out: prompt as ids, every parameter, the seed. The model's end-of-sequence tokens of
 * that time are among stop_ids, and ignore_eos is set: a changed configuration cannot move the end. */
IV_API void iv_receipt_get_request(const iv_receipt *receipt, iv_request *request);

/* IV_OK if the engine makes the same bits as the receipt's maker. Else IV_INVALID, and the message lists each part of
 * the fingerprint that differs, with both values. */
IV_API iv_status iv_receipt_match(const iv_receipt *receipt, const iv_engine *engine, iv_error *err);

/* ---- text, templates, logits --------------------------------------------------------------------------- */

/* A model's tokenizer and chat template, without its weights. Immutable: any number of threads. */
typedef struct iv_text_model iv_text_model;
IV_API iv_status iv_text_model_open(const char *model, iv_text_model **out, iv_error *err);
IV_API void iv_text_model_close(iv_text_model *t); /* NULL is fine */
IV_API const iv_text_model *iv_engine_text_model(const iv_engine *engine);

IV_API iv_status iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool add_special, iv_ids *out,
                             iv_error *err);
/* How spellings of special tokens in a text are read. */
typedef enum iv_special_mode {
    IV_SPECIAL_TOKENS, /* as those tokens: what iv_tokenize does */
    IV_SPECIAL_TEXT,   /* as text, as transformers' split_special_tokens */
    IV_SPECIAL_MARKED  /* as text where iv_mark_special has marked them, else as tokens */
} iv_special_mode;
IV_API iv_status iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool add_special,
                                iv_special_mode special, iv_ids *out, iv_error *err);
/* A string for a chat template's variables: spellings of special tokens in it get marks (U+FDD0, which is taken out of
 * the text first), so that in what is rendered only the template's own are tokens. A token of one character cannot be
 * marked. iv_unmark_special takes all marks out. */
IV_API iv_status iv_mark_special(const iv_text_model *t, const char *text, size_t bytes, iv_text *out, iv_error *err);
IV_API void iv_unmark_special(iv_text *text);
IV_API iv_status iv_detokenize(const iv_text_model *t, const int32_t *ids, size_t count, bool keep_special, iv_text *out,
                               iv_error *err);
/* The token's own string as the vocabulary spells it. Lives as long as t; NULL outside the vocabulary. */
IV_API const char *iv_token_string(const iv_text_model *t, int32_t id, size_t *bytes);

/* What iv_request.reasoning is for a prompt that iv_render_chat has rendered: OPEN where it ends with <think>, NONE
 * where it ends with </think>, else OPTIONAL for a model whose vocabulary has <think> and </think> as tokens. */
IV_API iv_reasoning iv_reasoning_after(const iv_text_model *t, const char *prompt, size_t bytes);

/* The form in which the chat template writes a call back; where it shows none, that whose tokens the vocabulary has:
 * <tool_call>, [TOOL_CALLS] (with [ARGS] or without), <|python_tag|>; else Hermes'. */
IV_API iv_tool_form iv_tool_form_of(const iv_text_model *t);

/* Renders the model's chat template. variables_json: an object whose members are the template's variables
 * ("messages", "tools", "add_generation_prompt", ...). strftime_now: what strftime_now() returns, NULL: the clock. */
IV_API iv_status iv_render_chat(const iv_text_model *t, const char *variables_json, size_t bytes, const char *strftime_now,
                                iv_text *out, iv_error *err);
/* The same for a template given as a file. */
IV_API iv_status iv_render_template(const char *path, const char *variables_json, size_t bytes,
                                    const char *strftime_now, iv_text *out, iv_error *err);

/* fp32 logits after each of count tokens, out[count][vocab_size]. Not while requests run (IV_BUSY). */
IV_API iv_status iv_engine_logits(iv_engine *engine, const int32_t *ids, size_t count, float *out, iv_error *err);
/* Writes them as a safetensors file: "logits" F32 [count, vocab_size] and "input_ids" I32 [count]. */
IV_API iv_status iv_engine_write_logits(iv_engine *engine, const int32_t *ids, size_t count, const char *path,
                                        iv_error *err);

/* ---- what a model would need --------------------------------------------------------------------------- */

/* From headers alone: no weights are read. Sizes in bytes. Of a directory that has a config.json and no weights: what
 * it would need with those; its files, tensors and shards are then 0, stored_dtype is "". */
typedef struct iv_model_info {
    char model_type[32], dtype[16], stored_dtype[16]; /* stored_dtype: of most of the weights on disk */
    uint64_t parameters, file_bytes, weight_bytes, kv_bytes_per_token, memory_available;
    int64_t layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, vocab_size, max_positions;
    int64_t experts, experts_per_token, sliding_window; /* 0: none */
    bool tied_embeddings;
    bool index_unread;               /* as iv_engine_info */
    char generation_unapplied[1024]; /* as iv_engine_info */
    size_t tensors, shards;
    uint64_t tokens_that_fit; /* of KV cache in the memory available, beside the weights */
} iv_model_info;
IV_API iv_status iv_inspect(const char *model, const char *dtype, iv_model_info *info, iv_error *err);

#ifdef __cplusplus
}
#endif
#endif
