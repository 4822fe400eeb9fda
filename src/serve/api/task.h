/* task.h: an HTTP request answered by the engine: its prompts, its children (one per prompt and choice), their
 * output so far, and the response, whole or as a stream of events. Long bodies are read by a job, as are templates
 * rendered, long texts tokenized and long answers written (job.h).
 *
 * Invariants: a task belongs to its HTTP request. It ends with the reply, with the end of the stream, or when the
 * client leaves; then every open child is cancelled. A stream begins with the first event that is not a refusal, so
 * that a refusal gets its HTTP status. Only task.c and task_begin.c submit, cancel and hold; formats only write. */
#ifndef IV_SERVE_API_TASK_H
#define IV_SERVE_API_TASK_H

#include "base/json_out.h"
#include "chat/chat_text.h"
#include "serve/api/job.h"
#include "serve/api/params.h"
#include "serve/state/state.h"

/* Tokens with their data. */
typedef struct iv_token_list {
    int32_t *ids;
    float *logprobs, *sampling;
    size_t *text_at; /* start of its text in the child's text, in characters */
    size_t *top_at;  /* start of its entries in top */
    size_t count, capacity;
    iv_logprob *top;
    size_t top_count, top_capacity;
} iv_token_list;

typedef struct iv_task iv_task;

enum { IV_ANSWER_FINGERPRINT_BYTES = 160 }; /* the engine's, and an adapter's part */

typedef struct iv_child {
    iv_task *task;
    size_t index, prompt; /* index in task->children, in task->prompts */
    uint64_t id, seed;
    bool seed_unsigned;
    bool open; /* further events are expected */
    iv_buf text;
    size_t characters;                /* of text */
    size_t echo_characters;           /* of the echoed prompt before it */
    iv_token_list tokens, scored;     /* scored: tokens of the prompt */
    iv_buf reported, scored_reported; /* floats: log-probabilities of the request's report_ids, token by token */
    iv_ids kept, kept_ends;           /* tokens that the sampler kept, and where each token's end */
    iv_buf experts;                   /* int32 [rows][layers][per token], from routed_experts_start on */
    iv_finish finish;
    char *stop, *receipt;                  /* NULL: none */
    char digest[80];                       /* "": none */
    char adapter[IV_ADAPTER_DIGEST_BYTES]; /* digest of the one that answers; "": the base alone */
    char fingerprint[IV_ANSWER_FINGERPRINT_BYTES];
    size_t prompt_tokens, cached_tokens;
    double first, last; /* times of the first and last token; 0: none yet */
    iv_chat_text *chat; /* chat only */
    size_t sent_text, sent_tokens, sent_reasoning, sent_content, sent_calls;
    bool held;  /* text of the last token is still to come */
    bool began; /* some output was sent */
    /* Of APIs whose answers are parts in series: those that ended; where in the content the open text began. */
    size_t parts, messages, message_from; /* messages: texts among the parts */
    bool reasoning_ended, message_began;  /* message_began: a text is open */
} iv_child;

/* One prompt: text, or ids, or both after the text was tokenized here. */
typedef struct iv_api_prompt {
    iv_request request; /* without text, ids, and the seed of a choice */
    iv_text text;
    iv_ids ids;
    bool as_ids; /* submit the ids */
    iv_constraint *compiled;
    bool seed_unsigned;
    char *rid; /* NULL: none */
} iv_api_prompt;

/* An API's format: reads the body and writes the answer. */
typedef struct iv_task_format {
    const char *id_prefix;
    const char *error_event; /* name of an error's event in a stream; NULL: it has none */
    unsigned body;           /* its fields: one of params.h's masks */
    /* On any thread. Reads the body's fields and makes the prompts; then prepares the prompts' text. */
    iv_status (*read)(iv_task *t, iv_error *err);
    iv_status (*prepare)(iv_task *t, iv_error *err); /* NULL: nothing */
    bool in_turn;    /* the first prompt runs alone, so that the others find its prefix in the cache */
    bool slow;       /* prepare runs templates: not on the loop's thread */
    bool wants_chat; /* the prompt is a rendered conversation, and children split their text */
    void (*whole)(iv_task *t, iv_json_out *o); /* on any thread */
    /* Writes a child's new output as events; `done`: it has ended. May write nothing. */
    void (*chunk)(iv_task *t, iv_child *c, bool done, iv_buf *out);
    void (*close)(iv_task *t, iv_buf *out); /* the stream's last events */
} iv_task_format;

struct iv_task {
    iv_api_job job; /* first: reads the body or writes the answer */
    iv_server *server;
    iv_http_request *http_request;
    iv_task *next, **link; /* in server->tasks */
    const iv_task_format *format;
    iv_api_params params;
    iv_buf text;          /* the body ... */
    size_t bytes;         /* of the body, as received */
    json_t *body;         /* ... and its values, until it has been read */
    json_t *conversation; /* a chat's messages, which become the only prompt */
    json_t *questions;    /* of decisions, checked; kept for the answer */
    json_t *tools;        /* in the template's form; answers are parsed by their schemas */
    char *id;             /* of the response */
    char *http_id;        /* id of the HTTP request */
    int64_t created;
    double arrived;
    const char *prompt_name;               /* field of the body with the prompts */
    bool sampling_within, sampling_listed; /* sampling fields are in sampling_params: one for all, or a list */
    iv_api_prompt *prompts;
    size_t prompt_count;
    iv_child *children;
    size_t child_count, done_count;
    size_t started; /* children; the others follow the first one (in_turn), by */
    iv_status (*start_others)(iv_task *t, iv_error *err);
    iv_status status; /* of reading the body */
    iv_error why;
    bool unread;        /* rid and prompts are not known yet */
    json_t *aborts;     /* names to be aborted, checked once `unread` is cleared; NULL: none */
    bool aborted;       /* before it had children */
    bool began;         /* the stream has begun */
    bool lost;          /* no memory for an event: the stream must end */
    bool held;          /* the client reads slowly: the engine holds its children */
    bool list;          /* the answer is a list (SGLang) */
    uint64_t events;    /* sent so far (responses) */
    size_t dropped;     /* dropped items of the input (responses) */
    char *stored_input; /* of a response to be stored: its conversation as JSON; NULL: it is not */
    iv_buf answer;      /* being written */
    bool answer_lost;
    char fingerprint[IV_ANSWER_FINGERPRINT_BYTES];
    char *weights; /* name of the weights; NULL: their number */
    uint64_t weight_version;
};

/* ---- task_prompt.c: calls neither task.c nor task_begin.c --------------------------------------------- */
/* PREFIX plus the id of the HTTP request; NULL: no memory. */
char *iv_task_response_id(const char *prefix, const char *request);
/* Makes an array of `count` zeroed prompts with the task's request and the client's names. name: the field with the
 * prompts, a constant. */
iv_status iv_task_make_prompts(iv_task *t, const char *name, size_t count, iv_error *err);
/* A prompt's name in errors: its field and, of several, its index. */
enum { IV_PROMPT_NAME_BYTES = 48 };
const char *iv_task_prompt_name(const iv_task *t, size_t at, char out[IV_PROMPT_NAME_BYTES]);
/* Tokenizes a text prompt here, so that the answer can include its ids. */
iv_status iv_task_need_ids(iv_task *t, iv_api_prompt *p, iv_error *err);
/* Fails with IV_CONTEXT_LENGTH and OpenAI's message, which clients recognize: prompt `at` has too many tokens. */
iv_status iv_task_too_long(const iv_task *t, size_t at, size_t tokens, iv_error *err);
/* ---- models.c: calls none of these ---- */
/* A body's model name: absent or the base's: *adapter is NULL; else an adapter's, which points into `name`.
 * IV_NOT_FOUND says what there is. Any thread, like all of these. */
iv_status iv_api_find_model(const iv_server *s, const char *name, const char **adapter, iv_error *err);
/* Sets the request's adapter by a body's model and lora_path. */
iv_status iv_api_use_model(const iv_server *s, iv_api_params *p, iv_error *err);
/* Sets that of each prompt, if lora_path is a list. */
iv_status iv_task_use_adapters(iv_task *t, iv_error *err);
/* The name in answers. */
const char *iv_task_model(const iv_task *t);
bool iv_api_is_base(const iv_server *s, const char *name);

/* ---- task_prompt.c ---- */
/* Whether `name` is the id of a prompt (rid), of the HTTP request, or of the response. */
bool iv_task_is_named(const iv_task *t, const char *name);
/* Fills *err with the engine's error about a prompt, naming the field of the body. Any thread. */
iv_status iv_task_place_error(const iv_task *t, size_t prompt, iv_status status, const char *message, iv_error *err);

/* truncate_prompt_tokens: only the last tokens of a prompt are read, as in vLLM; tokens that the tokenizer adds
 * around a text are kept and counted. */
/* Whether the body sets it; resolve turns -1 into the model's length minus max_tokens, or minus one without
 * max_tokens. Needs the request's limits. */
bool iv_api_truncates(const iv_api_params *p);
iv_status iv_api_truncate_resolve(const iv_server *s, iv_api_params *p, iv_error *err);

/* Truncates a prompt that is longer; it has ids afterwards. Its text, if any, becomes that of the remaining tokens. */
iv_status iv_task_truncate(iv_task *t, iv_api_prompt *p, iv_error *err);

/* ---- task.c */
void iv_task_take_event(const iv_bridge_event *event); /* of a child */
/* Cancels open children and frees the task; the HTTP request is left to the caller. */
void iv_task_close(iv_task *t);
/* Answers with an error (in a stream: as an event) and ends the task. */
void iv_task_fail(iv_task *t, const iv_error *err);
/* Holds or releases its children in the engine. */
void iv_task_hold(iv_task *t, bool hold);
/* Fails all tasks; returns their number. */
size_t iv_task_fail_all(iv_server *s, const iv_error *err);
/* Cancels its open children; the client gets the output so far. */
void iv_task_abort(iv_task *t);
/* Aborts all tasks of this name, or all (NULL); returns their number, without those still being read. */
size_t iv_task_abort_named(iv_server *s, const char *name);

/* ---- task_begin.c: calls task.c ----------------------------------------------------------------------- */
/* Answers an HTTP request in this format. */
void iv_task_handle(iv_server *s, iv_http_request *q, const iv_task_format *format);
iv_task *iv_task_open(iv_server *s, iv_http_request *q,
                      const iv_task_format *format); /* does not read the body. NULL: an error was answered */
/* Makes the children and submits them; events do the rest. */
iv_status iv_task_submit(iv_task *t, iv_error *err);
/* Tokenizes a rendered prompt, whose marks show which special tokens are plain text. */
iv_status iv_task_split_rendered(iv_task *t, iv_api_prompt *p, iv_error *err);
/* Renders t->conversation into the only prompt, replacing it. On any thread. */
iv_status iv_task_render(iv_task *t, iv_error *err);

/* "data: {...}\n\n" around an event. */
iv_json_out iv_sse_begin(iv_buf *out);
void iv_sse_end(iv_task *t, iv_json_out *o);

#endif
