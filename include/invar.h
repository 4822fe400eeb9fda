/* invar.h: the engine. Statuses and errors are in invar_status.h; a model's files (sizes, copies, fewer bits) are in
 * invar_model.h, the trainer is in invar_train.h, single ops are in invar_ops.h.
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
 * C ABI, opaque types, errors as values, no global state: a process may have several engines. One engine is used by one
 * thread at a time; it runs its own worker threads. Strings are UTF-8. The library never prints, never exits, and keeps
 * no pointer into a request after iv_engine_submit returns.
 *
 * Structs that the caller fills (iv_engine_options, iv_request) begin with their size, which their _init function sets.
 * Later versions append members. A binary built with an older header gets the defaults for members that it lacks. One
 * built with a newer header may not set members that the library lacks (IV_UNSUPPORTED). */
#ifndef INVAR_H
#define INVAR_H

#include "invar_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- engine -------------------------------------------------------------------------------------------- */

typedef struct iv_engine iv_engine;

typedef struct iv_engine_options {
    size_t size;             /* sizeof(iv_engine_options), set by iv_engine_options_init */
    const char *model;       /* a Hugging Face model directory */
    const char *load_format; /* "auto": the directory's weight files; "dummy": seeded random weights, no files */
    uint64_t dummy_seed;     /* of dummy weights, 0 by default */
    const char *dtype;       /* "auto" (the checkpoint's), "bfloat16", "float16", "float32" */
    const char *device;      /* "cpu", "cuda", or "auto": cuda if a GPU can run it; never changes a bit */
    bool enforce_eager;      /* cuda: launch kernels one by one, capture no graphs; never changes a bit */
    const char *arithmetic;  /* "fma32" or "tc16": how dot products are summed; part of the fingerprint. "auto": the
                              * device's fast one, fma32 on a CPU, tc16 on a GPU (fma32 for float32). "i8", "i8x2":
                              * linear layers as int8 weights and inputs, of one or two terms (NUMERICS.md, 20),
                              * held as int8 whatever `weights` says; the rest is "auto"'s, or that of "i8+fma32" and
                              * "i8x2+tc16" */
    const char *isa;         /* "auto", "scalar", "avx2", "avx512": never changes a bit */
    size_t threads;          /* 0: one per CPU; never changes a bit */
    size_t max_model_len;    /* longest sequence in tokens; 0: the model's, or as many as fit KV memory if fewer */
    size_t max_num_seqs;     /* sequences run together; 0: 16 on a CPU, 256 on GPUs; fewer where the states of linear
                              * attention would take more than a quarter of the memory behind the weights */
    size_t max_num_batched_tokens; /* tokens in one step: longer prompts are read in chunks; 0: 512, 8192 on GPUs */
    const char *numerics;          /* "invar", or a baseline (NUMERICS.md, 14): "bio", "vanilla", "vanilla-blas" */
    size_t tensor_parallel_size;   /* ranks, up to 8 (on cuda a GPU each); 0: the processes of mpirun, or 1 */
    const char *rank_transport;    /* cuda under mpirun: "nccl", "host" (through this machine's memory), or "auto": nccl
                                    * if every rank finds it; never changes a bit */
    size_t rank_timeout_ms;        /* timeout of a rank that waits for another in a step; the job then ends. Ten
                                    * times as long while NCCL connects the ranks */
    size_t kv_bytes;               /* KV cache memory over all ranks; 0: see kv_fraction */
    double kv_fraction;            /* of the memory that is free after loading, at most 1. 0: enough for max_num_seqs
                                    * sequences of max_model_len, but at most a quarter of the free memory (on GPUs
                                    * nine tenths), and always enough for one sequence */
    bool prefix_caching;           /* keep finished sequences' pages for requests with the same prefix */
    const char *speculative;       /* "off" or "ngram": drafts looked up in the sequence; never changes a bit */
    size_t speculative_tokens;     /* tokens of a draft, 1 to 16 */
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* while weights load; may be NULL */
    void *user;
    bool trainable; /* the weights will be replaced by trained ones: with dtype float32, matrices of a 16-bit checkpoint
                     * are held as float32; never changes a bit */
    bool single_process;   /* under mpirun: an engine of this process alone, whose ranks are threads */
    size_t step_target_ms; /* while sequences decode, prompts are read in chunks with which a step takes about this
                            * time, so that streams do not stall; never changes a bit. 0: no target, which gives the
                            * most tokens per second; IV_STEP_TARGET_STREAMS: 50 on GPUs, no target on a CPU */
    bool sample_all_ids;   /* also draw ids that have no token and end nothing (a padded vocabulary). Without it their
                            * probability is 0 (NUMERICS.md, 10.2); log-probabilities of the model are the same. Part of
                            * the fingerprint of a model that has such ids */
    const char *weights;   /* "packed": quantized matrices stay as the file stores them, where their form allows it, are
                            * widened in each product, and cannot be written tensor by tensor; refused by trainable
                            * engines, and by baseline numerics on GPUs. "expanded": they are held in dtype. "auto"
                            * (NULL is the same): packed on a CPU that does not train, and on GPUs that have no room
                            * for more; else expanded, which is faster on a GPU. Never changes a bit */
    size_t state_cache_bytes; /* models with linear attention: memory over all ranks for states at block borders, from
                               * which a cached prefix can be continued; never changes a bit. 0: at most a sixteenth of
                               * the free memory */
    size_t max_loras;     /* adapters that may be loaded at once (iv_engine_load_adapter); 0: none. For a CPU's engine
                           * with numerics "invar". Memory for so many of max_lora_rank on all layers is left free of
                           * the KV cache, unless kv_bytes gives its size */
    size_t max_lora_rank; /* of any module of them, 1 to 4096; 64 by default */
    size_t expert_parallel_size; /* ranks that divide the experts of a mixture. Experts are whole on a rank, and all
                                  * ranks divide them, so this is checked alone and never changes a bit: 0: not checked;
                                  * IV_EXPERT_PARALLEL: the model has experts; else they are divided by so many ranks */
} iv_engine_options;

#define IV_STEP_TARGET_STREAMS SIZE_MAX
#define IV_EXPERT_PARALLEL SIZE_MAX

/* auto (type, weights, arithmetic), cpu, invar, all CPUs, one rank (or those of mpirun), prefix caching, no
 * speculation. */
IV_API void iv_engine_options_init_sized(iv_engine_options *options, size_t size);
static inline void iv_engine_options_init(iv_engine_options *options) {
    iv_engine_options_init_sized(options, sizeof *options);
}

IV_API iv_status iv_engine_open(const iv_engine_options *options, iv_engine **out, iv_error *err);
IV_API void iv_engine_close(iv_engine *engine); /* NULL is fine; ends all requests */

/* Facts of an open engine. Strings live as long as the engine. */
typedef struct iv_engine_info {
    const char *fingerprint; /* of everything that may change a bit: numerics, arithmetic, dtype, weights, tokenizer,
                              * template */
    const char *model_type, *dtype, *arithmetic, *isa, *numerics;
    const char *device;         /* "cpu", or "cuda" */
    const char *gpu;            /* its name, "" on a CPU */
    const char *rank_transport; /* between GPUs: "peer" (within a process), "nccl" (which also adds under
                                 * vanilla-blas), "host"; "" for one rank or on a CPU */
    /* The inputs of the fingerprint, SHA-256 in hexadecimal; "" for one that the model lacks. */
    const char *weights_digest, *configuration_digest, *tokenizer_digest, *template_digest;
    int numerics_version;
    size_t tensor_parallel_size, rank; /* rank: of this process; 0 without mpirun */
    /* kv_tokens: that the KV cache has room for, and kv_bytes_per_token, as long as no window frees any */
    size_t threads, vocab_size, max_model_len, kv_tokens, weight_bytes, kv_bytes_per_token;
    size_t max_num_seqs, max_num_batched_tokens;
    double load_seconds;
    bool index_unread; /* the directory has model.safetensors.index.json too; only model.safetensors was read, as
                        * transformers does */
    const char *generation_unapplied; /* settings of generation_config.json that have no effect here: lines of a key and
                                       * its value; "": none */
    const char *sampled_ids_digest;   /* SHA-256 in hexadecimal over a bit for each id, 1: it may be drawn; "": all ids
                                       * may. Part of the fingerprint */
} iv_engine_info;
IV_API void iv_engine_get_info(const iv_engine *engine, iv_engine_info *info);
/* Whether the id may be drawn: iv_engine_options.sample_all_ids. False outside the vocabulary. */
IV_API bool iv_engine_draws(const iv_engine *engine, int32_t id);

/* Counters since the engine was opened. */
typedef struct iv_engine_stats {
    uint64_t steps, tokens_computed, tokens_generated;
    uint64_t prompt_tokens, cached_tokens; /* of admitted prompts; cached: from the prefix cache */
    uint64_t preemptions, drafted_tokens, accepted_tokens;
    double step_seconds, forward_seconds, sample_seconds; /* forward and sampling are parts of a step */
    size_t running, waiting;
    /* Of 64 positions in the layers of one KV group: layers with the same window (docs/ARCHITECTURE.md). */
    size_t kv_pages, kv_pages_free, kv_pages_cached; /* cached: held by the prefix cache alone, free on demand */
    size_t held;                                     /* of those waiting: by iv_engine_hold */
} iv_engine_stats;
IV_API void iv_engine_get_stats(const iv_engine *engine, iv_engine_stats *stats);

/* Replaces the weights of an open engine by another checkpoint's. Its files are read, checked and hashed as by
 * iv_engine_open, which needs memory for both; then all ranks swap at once and the prefix cache is emptied. After any
 * error the old weights are in use, unchanged. config.json may change numbers that are part of the model (norms'
 * epsilon, rotary settings, end-of-sequence ids). It may not change sizes or the set of tensors: IV_INVALID names the
 * field. Tokenizer, chat template, generation defaults and dtype stay. iv_engine_get_info then has a new fingerprint
 * and digests in the same strings. IV_BUSY while requests wait or run. IV_UNSUPPORTED under mpirun. For GPUs the new
 * weights are staged in this process's memory and copied over the old ones; if a GPU is lost during the copy, no
 * further step runs. */
IV_API iv_status iv_engine_update_weights(iv_engine *engine, const char *dir, iv_error *err);
/* The same for weights whose digest is known (as in iv_engine_info.weights_digest): with another digest they are
 * refused before the swap, IV_INVALID. */
IV_API iv_status iv_engine_update_weights_checked(iv_engine *engine, const char *dir, const char *weights_digest,
                                                  iv_error *err);

/* SHA-256 of each tensor as it is held now, read back and converted to the checkpoint's type: {"NAME": "HEX", ...}, one
 * member for each tensor that the model uses. *digest: as iv_engine_info.weights_digest, from these; they differ if
 * memory was changed. IV_BUSY while requests run. IV_UNSUPPORTED under mpirun. */
IV_API iv_status iv_engine_check_weights(iv_engine *engine, iv_text *json, char digest[65], iv_error *err);

/* Under mpirun: a process whose info.rank is not 0 submits nothing and calls this once. It computes its shard of every
 * step until rank 0 closes its engine (IV_OK) or another rank is lost. */
IV_API iv_status iv_engine_serve_rank(iv_engine *engine, iv_error *err);

/* ---- adapters ------------------------------------------------------------------------------------------ */

/* Loads an adapter as PEFT saves it (docs/LORA.md), under a name that requests give. Requests may run meanwhile: they
 * keep their bits. The name: 1 to 255 bytes of UTF-8 without control characters. IV_INVALID: the name is taken, or the
 * engine has no room for adapters. IV_BUSY: max_loras are loaded, or ones that were unloaded are in use still. Other
 * errors name the file and the tensor. Under mpirun every process reads the directory. */
IV_API iv_status iv_engine_load_adapter(iv_engine *engine, const char *name, const char *dir, iv_error *err);
/* The same under a name that may be taken: requests from now on have the new adapter, those before end with the one
 * that they began with. After an error the name has what it had. */
IV_API iv_status iv_engine_replace_adapter(iv_engine *engine, const char *name, const char *dir, iv_error *err);
/* Its name is free at once; requests that use it go on and end as they would. IV_NOT_FOUND: there is none. */
IV_API iv_status iv_engine_unload_adapter(iv_engine *engine, const char *name, iv_error *err);

typedef struct iv_adapter_info {
    size_t size; /* sizeof(iv_adapter_info), set by the caller */
    const char *name, *path;
    const char *digest;          /* SHA-256 in hexadecimal, of its values and scales (docs/formats/adapter.md) */
    const char *fingerprint;     /* of answers with it: the engine's, "+lora-" and the digest's first 16 digits */
    size_t rank, modules, bytes; /* rank: the largest of a module; bytes: in memory, of all ranks of this process */
    size_t requests;             /* that use it now */
} iv_adapter_info;
/* The index-th adapter in the order of loading. False: there are no more. Strings live until the adapter is unloaded
 * or the weights are replaced. */
IV_API bool iv_engine_adapter_at(const iv_engine *engine, size_t index, iv_adapter_info *out);

/* ---- requests ------------------------------------------------------------------------------------------ */

typedef struct iv_logit_bias {
    int32_t id;
    float bias; /* added to the logit before temperature */
} iv_logit_bias;

/* The form of an answer (docs/STRUCTURED.md). Tokens that cannot continue it are never drawn (NUMERICS.md, 10.2). */
typedef enum iv_constraint_kind {
    IV_CONSTRAINT_NONE,
    IV_CONSTRAINT_JSON_OBJECT, /* any JSON object; no text */
    IV_CONSTRAINT_JSON_SCHEMA, /* text: the schema, JSON */
    IV_CONSTRAINT_REGEX,       /* text: an expression that the whole answer matches */
    IV_CONSTRAINT_CHOICE,      /* text: a JSON array of strings, one of which the answer is */
    IV_CONSTRAINT_TOOL_CALL,   /* text: a JSON array of {"name", "parameters": schema}: the answer calls one of them in
                                * Hermes' form; or {"form": an iv_tool_form's name, "tools": that array}; with
                                * "text": true, any text that may contain such a call */
    IV_CONSTRAINT_TOOL_CALLS,  /* the same, one or more calls (one in Llama's form) */
    IV_CONSTRAINT_TOOL_CALL_OR_JSON,  /* text: {"form", "tools", "schema"}: such a call, or JSON that satisfies the
                                       * schema */
    IV_CONSTRAINT_TOOL_CALLS_OR_JSON, /* the same, one or more calls, or JSON */
    IV_CONSTRAINT_GRAMMAR,            /* text: a grammar in llama.cpp's notation whose rule `root` is the answer */
    IV_CONSTRAINT_TOKENS /* text: {"allowed": [ids], "bad": [[ids], ...]}, one or both: only these ids are drawn, also
                          * to end the answer; and no token that would complete one of these sequences */
} iv_constraint_kind;

/* A compiled constraint, with a reference count. Any thread may retain and release it. */
typedef struct iv_constraint iv_constraint;

/* "none", "json_object", "json_schema", "regex", "choice", "tool_call", "tool_calls", "tool_call_or_json",
 * "tool_calls_or_json", "grammar". Static string. */
IV_API const char *iv_constraint_name(iv_constraint_kind kind);

/* How a model writes tool calls (docs/SERVER.md, "Tool calls"). */
typedef enum iv_tool_form {
    IV_TOOL_FORM_HERMES,          /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    IV_TOOL_FORM_LLAMA3_JSON,     /* {"name": ..., "parameters": {...}} */
    IV_TOOL_FORM_MISTRAL,         /* [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] */
    IV_TOOL_FORM_MISTRAL_NAME,    /* [TOOL_CALLS]NAME{...} */
    IV_TOOL_FORM_MISTRAL_ARGS,    /* [TOOL_CALLS]NAME[ARGS]{...} */
    IV_TOOL_FORM_MISTRAL_CALL_ID, /* [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...} */
    IV_TOOL_FORM_QWEN3_CODER,     /* <tool_call><function=NAME><parameter=KEY>...</parameter></function></tool_call> */
    IV_TOOL_FORM_HARMONY,      /* <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> */
    IV_TOOL_FORM_GLM,          /* <tool_call>NAME<arg_key>KEY</arg_key><arg_value>...</arg_value></tool_call> */
    IV_TOOL_FORM_SEED_OSS,     /* as Qwen3-Coder's, in <seed:tool_call> */
    IV_TOOL_FORM_MINIMAX_M2,   /* <minimax:tool_call><invoke name="NAME"><parameter name="KEY">... */
    IV_TOOL_FORM_GRANITE,      /* <|tool_call|>[{"name": ..., "arguments": {...}}, ...] */
    IV_TOOL_FORM_PHI4_MINI,    /* functools[{"name": ..., "arguments": {...}}, ...] */
    IV_TOOL_FORM_HUNYUAN,      /* <tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls> */
    IV_TOOL_FORM_DEEPSEEK_V3,  /* marks around function, NAME and {...} in a block of code */
    IV_TOOL_FORM_DEEPSEEK_V31, /* marks around NAME and {...} */
    IV_TOOL_FORM_KIMI_K2,      /* marks around functions.NAME:INDEX and {...} */
    IV_TOOL_FORM_PYTHONIC,     /* [NAME(KEY=VALUE, ...), ...] */
    IV_TOOL_FORM_LLAMA4_PYTHONIC, /* the same, perhaps in <|python_start|> and <|python_end|> */
    IV_TOOL_FORM_OLMO3,           /* <function_calls>, NAME(KEY=VALUE, ...) one to a line, </function_calls> */
    IV_TOOL_FORM_NONE             /* answers are not searched for calls */
} iv_tool_form;

/* The name of the form, as of vLLM's --tool-call-parser where it has one: "hermes", "llama3_json", "mistral",
 * "mistral_name", "mistral_args", "mistral_call_id", "qwen3_coder", "openai", "glm45", ..., "none". Static string. */
IV_API const char *iv_tool_form_name(iv_tool_form form);

/* Whether a tool's name can be written without quotes: one or more ASCII letters, digits, '_', '-' and '.'. */
IV_API bool iv_tool_name_is_bare(const char *name, size_t bytes);

/* How a model writes its reasoning (docs/SERVER.md, "Reasoning"). */
typedef enum iv_reasoning_form {
    IV_REASONING_FORM_THINK,    /* <think> ... </think> */
    IV_REASONING_FORM_HARMONY,  /* messages of the channel analysis, before those of commentary and final */
    IV_REASONING_FORM_SEED_OSS, /* <seed:think> ... </seed:think> */
    IV_REASONING_FORM_GRANITE,  /* Here is my thought process: ... Here is my response: */
    IV_REASONING_FORM_MISTRAL,  /* [THINK] ... [/THINK] */
    IV_REASONING_FORM_HUNYUAN,  /* <think> ... </think>, then the content in <answer> ... </answer> */
    IV_REASONING_FORM_ERNIE45,  /* <think> ... </think>, then the content in <response> ... </response> */
    IV_REASONING_FORM_NONE      /* answers are not searched for reasoning */
} iv_reasoning_form;

/* The name of the form, as of vLLM's --reasoning-parser: "qwen3", "openai_gptoss", "seed_oss", "granite", "mistral",
 * "hunyuan_a13b", "ernie45", "none". Static string. */
IV_API const char *iv_reasoning_form_name(iv_reasoning_form form);

/* The part of a reasoning model's answer before the constrained part. For another form than THINK, OPEN and OPTIONAL
 * have IV_REASONING_FORM_STEP times that iv_reasoning_form added (iv_reasoning_after does). In Harmony's form a
 * constraint that is no tool call holds inside of the message of the channel final. */
typedef enum iv_reasoning {
    IV_REASONING_NONE,     /* nothing: the constraint holds from the first token */
    IV_REASONING_OPEN,     /* the prompt has opened the reasoning: free text up to its end */
    IV_REASONING_OPTIONAL, /* the answer may begin with reasoning */
    IV_REASONING_FORM_STEP = 4
} iv_reasoning;

/* A smaller temperature is 0: greedy. */
#define IV_TEMPERATURE_MIN 1e-4f

/* Most entries of a request: stop strings, stop ids, biases, alternatives of a token. */
enum {
    IV_STOPS_MAX = 16,
    IV_STOP_IDS_MAX = 64,
    IV_LOGIT_BIAS_MAX = 4096,
    IV_LOGPROBS_MAX = 20,
    IV_REPORT_IDS_MAX = 1024
};

/* Submission copies everything. Ranges: temperature 0 (greedy) to 100; top_p in (0, 1]; min_p in [0, 1];
 * top_k 0 (off) or more; repetition_penalty above 0; presence and frequency penalties -2 to 2. */
typedef struct iv_request {
    size_t size;      /* sizeof(iv_request), set by iv_request_init */
    uint64_t id;      /* the caller's number, unused by waiting and running requests; 0: the engine chooses one */
    int32_t priority; /* smaller goes first; among equals the older */
    const char *text; /* the prompt as text ... */
    size_t text_bytes;
    bool add_special;   /* the tokenizer adds its BOS (off for rendered chat templates) */
    const int32_t *ids; /* ... or as tokens; give one of the two */
    size_t id_count;
    size_t max_tokens; /* most tokens to generate; 0: up to max_model_len */
    size_t min_tokens; /* before this many tokens nothing ends the answer: tokens that end it are masked, and stop
                        * strings have no effect. A constraint that allows no further token ends it all the same */
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    const iv_logit_bias *logit_bias;
    size_t logit_bias_count;
    bool has_seed;
    uint64_t seed;                /* without has_seed a random one, which the events report */
    int logprobs;                 /* -1: none; 0: of the chosen token; n: and of the top n, at most 20 */
    bool sampling_logprobs;       /* token events carry sampling_logprob */
    int prompt_logprobs;          /* -1: none; 0: of each prompt token; n: and of the top n at its position, at most 20.
                                   * Cached tokens are computed again for this */
    size_t prompt_logprobs_start; /* from this position on; position 0 has none */
    bool score_only; /* generate nothing: IV_FINISH_LENGTH follows the prompt's events. max_tokens must be 0, the prompt
                      * may have max_model_len tokens, and there is no receipt */
    const char *const *stop; /* generation ends before any of these, each of at most 256 bytes */
    size_t stop_count;
    const int32_t *stop_ids;
    size_t stop_id_count;
    iv_constraint_kind constraint;
    const char *constraint_text; /* see the kind; at most 4 MiB */
    iv_reasoning reasoning;      /* with a constraint */
    iv_constraint *compiled;     /* the same constraint from iv_engine_compile, or NULL: submission compiles it */
    bool ignore_eos;
    bool keep_special;       /* special tokens appear in the text; */
    const int32_t *show_ids; /* these always do, at most IV_FORM_IDS_MAX: a tool call may begin with one */
    size_t show_id_count;
    bool keep_logits;  /* token events carry the whole row of logits */
    bool keep_receipt; /* the last event carries a receipt */
    /* The answer's first tokens and their log-probabilities, which another engine generated for this request before it
     * ended. They are computed like a prompt, have no events, and count as generated everywhere else: digest, stop
     * strings, penalties, constraint, limits. Each log-probability is computed again; if one differs in a bit, the
     * request ends with IV_FINISH_ERROR before any other token. IV_INVALID: one of them ends the answer. Needs has_seed
     * if the temperature is above 0. */
    const int32_t *given_ids;
    const float *given_logprobs;
    size_t given_count;
    /* What iv_engine_event_details gives. report_ids: tokens whose log-probabilities are wanted at every position that
     * has a log-probability, at most IV_REPORT_IDS_MAX. report_kept: the tokens that top-k, top-p and min-p kept, for
     * every generated token; needs one of them. report_experts: the experts of every token in every layer of a mixture;
     * cached tokens are computed again for this. None of them changes a bit. */
    const int32_t *report_ids;
    size_t report_id_count;
    bool report_kept, report_experts;
    const char *adapter; /* the name of a loaded adapter, or "sha256:" and its digest; NULL or "": the base alone */
} iv_request;

/* Defaults: no prompt, add_special, temperature 1, everything else off; then the values of the model's
 * generation_config.json (do_sample false: temperature 0). */
IV_API void iv_request_init_sized(const iv_engine *engine, iv_request *request, size_t size);
static inline void iv_request_init(const iv_engine *engine, iv_request *request) {
    iv_request_init_sized(engine, request, sizeof *request);
}

/* Queues a request; *id is never 0. IV_CONTEXT_LENGTH: the prompt leaves no room for an answer in max_model_len (with
 * score_only: is longer than that). IV_INVALID: an empty prompt, one with tokens outside the vocabulary, an id in use,
 * a field out of range. IV_BUSY: the queue is full. */
IV_API iv_status iv_engine_submit(iv_engine *engine, const iv_request *request, uint64_t *id, iv_error *err);

/* Compiles the constraint of a request (kind, text, reasoning; other members are not read), for iv_request.compiled.
 * Any thread may call it, also during a step. quick: IV_BUSY if it takes more than a few milliseconds. The caller
 * releases *out before the engine is closed. Errors as of iv_engine_submit. */
IV_API iv_status iv_engine_compile(iv_engine *engine, const iv_request *request, bool quick, iv_constraint **out,
                                   iv_error *err);
IV_API iv_constraint *iv_constraint_retain(iv_constraint *constraint); /* one reference more; NULL is fine */
IV_API void iv_constraint_release(iv_constraint *constraint);          /* NULL is fine */

/* Ends a waiting or running request at the next step. Its IV_EVENT_DONE has IV_FINISH_CANCELLED and the text that was
 * held back for stop strings. IV_NOT_FOUND if it neither waits nor runs. */
IV_API iv_status iv_engine_cancel(iv_engine *engine, uint64_t id, iv_error *err);

/* Frees a running request's pages, as a full cache would: it waits, is computed again and continues with the same bits.
 * IV_NOT_FOUND if it is not running. */
IV_API iv_status iv_engine_preempt(iv_engine *engine, uint64_t id, iv_error *err);

/* Holds a request, or releases it. A held request is in no step, owns no pages, and continues later with the
 * same bits. For callers whose own reader is slow. IV_NOT_FOUND if it neither waits nor runs. */
IV_API iv_status iv_engine_hold(iv_engine *engine, uint64_t id, bool hold, iv_error *err);

/* Empties the prefix cache, except for pages of running requests. */
IV_API void iv_engine_reset_prefix_cache(iv_engine *engine);

/* Runs one step. *busy: requests remain. An error is the engine's, not a request's. IV_BUSY: nothing was done, because
 * the ring of events is full (it has room for sixteen full steps), or an event has logits that this step would
 * overwrite. A caller that takes all events after each step never sees it. */
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
    IV_FINISH_ERROR /* see iv_event.error */
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
    const char *text; /* new text, which continues the prompt; whole UTF-8 characters. DONE: text that was held back,
                       * if the request was cancelled, failed, or ended after its last token by its constraint */
    size_t text_bytes;
    /* TOKEN, PROMPT */
    int32_t token;
    size_t position;       /* of the token in prompt and answer; of the prompt's first token 0 */
    float logprob;         /* of a generated token always computed: it is part of the digest */
    const iv_logprob *top; /* the top `logprobs` or `prompt_logprobs`: larger first, then smaller id */
    size_t top_count;
    /* TOKEN */
    float sampling_logprob; /* under the distribution that the token was drawn from: after bias, penalties, temperature
                             * and filters (NUMERICS.md, 10.7); 0 at temperature 0 or if not requested */
    const float *logits;    /* [vocab_size], the model's, if the request keeps logits; else NULL */
    /* DONE */
    iv_finish finish;
    const char *error;      /* NULL unless IV_FINISH_ERROR */
    iv_status error_status; /* with it: IV_NOT_FINITE; IV_LIMIT: a constraint takes too much time or memory;
                             * IV_UNSUPPORTED or IV_INVALID: no token continues the constraint */
    const char *stop;       /* the stop string that was met, or NULL */
    const int32_t *ids;     /* all generated tokens */
    size_t id_count, prompt_tokens;
    const char *digest;     /* "sha256:..." over the ids and logprob bits of all generated tokens */
    double prefill_seconds; /* wall time from admission to the first token */
    double decode_seconds;  /* from the first token to the end */
    size_t cached_tokens;   /* of the prompt, from the prefix cache at first admission */
    size_t preemptions;
    size_t drafted_tokens, accepted_tokens; /* by speculation */
    const char *receipt; /* one line of JSON (docs/formats/receipt.md), if the request keeps one and memory sufficed */
} iv_event;

/* Takes the oldest event. False if there is none. */
IV_API bool iv_engine_next_event(iv_engine *engine, iv_event *event);

/* More about the event that iv_engine_next_event gave last, if its request asks for it; else NULL and 0. Pointers live
 * until the next call on the engine. */
typedef struct iv_event_details {
    size_t size;           /* sizeof(iv_event_details), set by the caller */
    const float *reported; /* TOKEN, PROMPT: log-probabilities of the request's report_ids, before this token */
    size_t reported_count;
    const int32_t *kept; /* TOKEN: ids, larger logit first; at temperature 0 the token alone */
    size_t kept_count;
    const uint16_t *experts; /* DONE: [expert_rows][expert_layers][experts_per_token], ids ascending; 0 in layers
                              * without experts. Rows: every token of prompt and answer but the last */
    size_t expert_rows, expert_layers, experts_per_token;
} iv_event_details;
IV_API void iv_engine_event_details(const iv_engine *engine, iv_event_details *out);

/* ---- receipts ------------------------------------------------------------------------------------------ */

/* A finished request, the identity of its engine, and its outcome: enough to compute it again anywhere. Immutable. */
typedef struct iv_receipt iv_receipt;

/* Parses one line of JSON (docs/formats/receipt.md); errors begin with `name`. IV_FORMAT: a field is missing, unknown,
 * of a wrong type or out of range, or the digest does not match the outcome. */
IV_API iv_status iv_receipt_read(const char *name, const char *json, size_t bytes, iv_receipt **out, iv_error *err);
IV_API void iv_receipt_close(iv_receipt *receipt); /* NULL is fine */

/* Strings and arrays live as long as the receipt. */
typedef struct iv_receipt_info {
    iv_engine_info maker;      /* names, digests, threads, tensor_parallel_size; the sizes are 0 */
    const char *invar_version; /* of the program that wrote it */
    const char *model;         /* its directory, as given */
    iv_finish finish;
    const char *stop;      /* the stop string that was met, or NULL */
    const int32_t *ids;    /* generated tokens */
    const float *logprobs; /* of each of them */
    size_t id_count;
    const char *digest;
} iv_receipt_info;
IV_API void iv_receipt_get_info(const iv_receipt *receipt, iv_receipt_info *info);

/* The request as it ran: prompt as ids, every parameter, the seed. stop_ids include the model's end-of-sequence ids of
 * that time, and ignore_eos is set, so that a changed configuration cannot change the end. Initializes *request. */
IV_API void iv_receipt_get_request_sized(const iv_receipt *receipt, iv_request *request, size_t size);
static inline void iv_receipt_get_request(const iv_receipt *receipt, iv_request *request) {
    iv_receipt_get_request_sized(receipt, request, sizeof *request);
}

/* IV_OK if the engine computes the same bits as the one that wrote the receipt. Else IV_INVALID, and the message lists
 * each part of the fingerprint that differs, with both values. */
IV_API iv_status iv_receipt_match(const iv_receipt *receipt, const iv_engine *engine, iv_error *err);

/* ---- text, templates, logits --------------------------------------------------------------------------- */

/* A model's tokenizer and chat template, without its weights. Any number of threads. */
typedef struct iv_text_model iv_text_model;
IV_API iv_status iv_text_model_open(const char *model, iv_text_model **out, iv_error *err);
IV_API void iv_text_model_close(iv_text_model *t); /* NULL is fine */
IV_API const iv_text_model *iv_engine_text_model(const iv_engine *engine);

IV_API iv_status iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool add_special, iv_ids *out,
                             iv_error *err);
/* How the text of a special token in a text is tokenized. */
typedef enum iv_special_mode {
    IV_SPECIAL_TOKENS, /* as the special token, as iv_tokenize does */
    IV_SPECIAL_TEXT,   /* as text, like transformers' split_special_tokens */
    IV_SPECIAL_MARKED  /* as text if iv_mark_special has marked it, else as the special token */
} iv_special_mode;
IV_API iv_status iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool add_special,
                                iv_special_mode special, iv_ids *out, iv_error *err);
/* Marks the special tokens in a string for a chat template's variables, so that in the rendered text only the
 * template's own are tokens. The mark is U+FDD0, which is removed from the text first. A token of one character cannot
 * be marked. iv_unmark_special removes all marks. */
IV_API iv_status iv_mark_special(const iv_text_model *t, const char *text, size_t bytes, iv_text *out, iv_error *err);
IV_API void iv_unmark_special(iv_text *text);
IV_API iv_status iv_detokenize(const iv_text_model *t, const int32_t *ids, size_t count, bool keep_special,
                               iv_text *out, iv_error *err);
/* As iv_engine_compile without an engine: checks a constraint for a model of this many tokens. The caller releases *out
 * before the text model is closed. */
IV_API iv_status iv_text_model_compile(iv_text_model *t, size_t vocab_size, const iv_request *request, bool quick,
                                       iv_constraint **out, iv_error *err);
/* The token's string in the vocabulary. Lives as long as t; NULL outside the vocabulary. */
IV_API const char *iv_token_string(const iv_text_model *t, int32_t id, size_t *bytes);

/* iv_request.reasoning for a prompt that iv_render_chat has rendered: OPEN if it ends with the mark that opens the
 * reasoning, NONE if it ends with the one that closes it, else OPTIONAL for a model whose vocabulary has both as
 * tokens, else NONE. Harmony: by the last message's channel if it is open, else OPTIONAL. */
IV_API iv_reasoning iv_reasoning_after(const iv_text_model *t, iv_reasoning_form form, const char *prompt,
                                       size_t bytes);

/* The form in which the chat template renders a call. If it renders none, the form whose tokens the vocabulary has;
 * else Hermes'. */
IV_API iv_tool_form iv_tool_form_of(const iv_text_model *t);
/* The form whose marks the chat template has, else the vocabulary; else THINK. */
IV_API iv_reasoning_form iv_reasoning_form_of(const iv_text_model *t);

/* The special tokens that these forms write, at most 16, for iv_request.show_ids: without them the text of an answer
 * cannot be divided. Returns their count. */
enum { IV_FORM_IDS_MAX = 16 };
IV_API size_t iv_form_ids(const iv_text_model *t, iv_reasoning_form reasoning, iv_tool_form calls,
                          int32_t out[IV_FORM_IDS_MAX]);

/* Divides the text of an answer: {"reasoning": text, "content": text, "tool_calls": [{"name", "arguments": text of an
 * object}]}. after: of its prompt (iv_reasoning_after). tools: a JSON array of functions as in a chat's body; NULL: no
 * calls are searched. */
IV_API iv_status iv_answer_parts(iv_reasoning_form form, iv_reasoning after, iv_tool_form calls, const char *tools,
                                 const char *text, size_t bytes, iv_text *json, iv_error *err);

/* Renders the model's chat template. variables_json: an object whose members are the template's variables
 * ("messages", "tools", "add_generation_prompt", ...). Messages are read as the server and the trainer read them: parts
 * of text, arguments of calls as JSON text, reasoning under any of its names, null content, the role "developer"
 * (docs/formats/chat_template.md). A message that cannot be read is IV_INVALID or IV_UNSUPPORTED "messages[N]...".
 * strftime_now: what strftime_now() returns, NULL: the clock. */
IV_API iv_status iv_render_chat(const iv_text_model *t, const char *variables_json, size_t bytes,
                                const char *strftime_now, iv_text *out, iv_error *err);
/* The same for a template given as a file. */
IV_API iv_status iv_render_template(const char *path, const char *variables_json, size_t bytes,
                                    const char *strftime_now, iv_text *out, iv_error *err);

/* fp32 logits after each of count tokens, out[count][vocab_size]. Not while requests run (IV_BUSY). */
IV_API iv_status iv_engine_logits(iv_engine *engine, const int32_t *ids, size_t count, float *out, iv_error *err);
/* The same with an adapter, as iv_request.adapter. */
IV_API iv_status iv_engine_logits_with(iv_engine *engine, const char *adapter, const int32_t *ids, size_t count,
                                       float *out, iv_error *err);
/* Writes them as a safetensors file: "logits" F32 [count, vocab_size] and "input_ids" I32 [count]. */
IV_API iv_status iv_engine_write_logits(iv_engine *engine, const int32_t *ids, size_t count, const char *path,
                                        iv_error *err);
IV_API iv_status iv_engine_write_logits_with(iv_engine *engine, const char *adapter, const int32_t *ids, size_t count,
                                             const char *path, iv_error *err);

#ifdef __cplusplus
}
#endif
#endif
