/* task.h: one HTTP request that the engine answers: its prompts, its children (one for each prompt and choice), what
 * their reports brought, and the response, whole or as a stream of events. A long body is read on another thread; there
 * templates are rendered, long texts tokenized and long answers written (aside.h).
 *
 * Invariants: a task is owned by its exchange: it ends with the reply, with the stream's end, or when the client
 * leaves, and then every open child is cancelled. A stream begins with the first report that is not a refusal, so
 * that what is refused gets an honest status. Only this file knows the engine's queues; formats only write. */
#ifndef IV_SERVE_API_TASK_H
#define IV_SERVE_API_TASK_H

#include "serve/api/job.h"
#include "serve/api/chat_text.h"
#include "base/json_out.h"
#include "serve/api/params.h"
#include "serve/server.h"

/* Tokens with what is known of each. */
typedef struct iv_token_list {
    int32_t *ids;
    float *logprobs, *sampling;
    size_t *text_at; /* where its text begins in the child's text, in characters */
    size_t *top_at;  /* where its entries begin in top */
    size_t count, capacity;
    iv_logprob *top;
    size_t top_count, top_capacity;
} iv_token_list;

typedef struct iv_task iv_task;

typedef struct iv_child {
    iv_task *task;
    size_t index, prompt; /* of task->children, of task->prompts */
    uint64_t id, seed;
    bool seed_unsigned;
    bool open; /* reports may still come */
    iv_buf text;
    size_t characters;            /* of text */
    size_t echo_characters;       /* of the prompt before it, if it is echoed */
    iv_token_list tokens, scored; /* scored: of the prompt */
    iv_finish finish;
    char *stop, *receipt; /* NULL: none */
    char digest[80];      /* "": none */
    size_t prompt_tokens, cached_tokens;
    double first, last; /* when tokens came; 0: none yet */
    iv_chat_text *chat; /* chat only */
    size_t sent_text, sent_tokens, sent_reasoning, sent_content, sent_calls;
    bool began;                          /* something of it was sent */
    bool reasoning_ended, message_began; /* responses: its items */
} iv_child;

/* One prompt: text, or ids, or both once text was tokenized here. */
typedef struct iv_api_prompt {
    iv_request request; /* everything but text, ids and seed of a choice */
    iv_text text;
    iv_ids ids;
    bool as_ids; /* the engine gets the ids */
    iv_constraint *compiled;
    bool seed_unsigned;
    char *rid; /* NULL: none */
} iv_api_prompt;

/* How one API reads a task's body and writes its answer. */
typedef struct iv_task_format {
    const char *id_prefix;
    unsigned body; /* its fields: one of params.h's masks */
    /* On any thread: the body's fields, which make the prompts; and then what else is to be done with their text_model.
     */
    iv_status (*read)(iv_task *t, iv_error *err);
    iv_status (*prepare)(iv_task *t, iv_error *err); /* NULL: nothing */
    bool wants_chat; /* the prompt is a rendered conversation, and children split their text */
    void (*whole)(iv_task *t, iv_json_out *o); /* on any thread */
    /* What is new of a child, as events; `done`: it has ended. May write nothing. */
    void (*chunk)(iv_task *t, iv_child *c, bool done, iv_buf *out);
    void (*close)(iv_task *t, iv_buf *out); /* the stream's last events */
} iv_task_format;

struct iv_task {
    iv_api_job job; /* first: being read, or its answer being written */
    iv_server *server;
    iv_http_request *http_request;
    iv_task *next, **link; /* in server->tasks */
    const iv_task_format *format;
    iv_api_params params;
    iv_buf text;          /* the body, and ... */
    size_t bytes;         /* of the body, as it came */
    json_t *body;         /* ... what is in it, until it has been read */
    json_t *conversation; /* a chat's messages, which make its only prompt */
    json_t *tools;        /* as the template gets them; answers are read by their schemas */
    char *id;             /* of the response */
    char *http_id;        /* the exchange's */
    int64_t created;
    double arrived;
    const char *prompt_name;               /* the field of the body that holds them */
    bool sampling_within, sampling_listed; /* what says how to sample is in sampling_params: one for all, or a list */
    iv_api_prompt *prompts;
    size_t prompt_count;
    iv_child *children;
    size_t child_count, done_count;
    iv_status status; /* of reading, and why */
    iv_error why;
    bool unread;     /* names and prompts are not known yet */
    json_t *aborts;  /* names that are to be aborted: whether one is its own is seen then; NULL: none */
    bool aborted;    /* before there were children */
    bool began;      /* the stream has */
    bool lost;       /* no memory for an event: the stream must end */
    bool held;       /* its client reads slowly: the engine holds its children */
    bool list;       /* the answer is a list (SGLang) */
    uint64_t events; /* sent so far (responses) */
    size_t dropped;  /* items of the input (responses) */
    iv_buf answer;   /* as it is written */
    bool answer_lost;
    char fingerprint[128];
    char *weights; /* the name of those that answer; NULL: their number */
    uint64_t weight_version;
};

/* ---- task_prompt.c: calls neither of the others */
/* PREFIX and the id of the HTTP request; NULL: no memory. */
char *iv_task_response_id(const char *prefix, const char *request);
/* An array of `count` prompts, zeroed, each with the task's request, and the names that the client gave. name: the
 * field that holds them, a constant. */
iv_status iv_task_make_prompts(iv_task *t, const char *name, size_t count, iv_error *err);
/* How errors name a prompt: by its field and, of several, its place. */
enum { IV_PROMPT_NAME_BYTES = 48 };
const char *iv_task_prompt_name(const iv_task *t, size_t at, char out[IV_PROMPT_NAME_BYTES]);
/* Tokenizes a text prompt here, so that the answer can show its ids. */
iv_status iv_task_need_ids(iv_task *t, iv_api_prompt *p, iv_error *err);
/* Fails with IV_CONTEXT_LENGTH in OpenAI's text_model, which clients look for: prompt `at`, of so many tokens, is too
 * long.
 */
iv_status iv_task_too_long(const iv_task *t, size_t at, size_t tokens, iv_error *err);
/* A model's name in a body: none, or the served one; else IV_NOT_FOUND. */
iv_status iv_api_check_model(const iv_server *s, const char *name, iv_error *err);
/* Whether it is what a client calls so: by the id of a prompt (rid), of the exchange, or of the response. */
bool iv_task_is_named(const iv_task *t, const char *name);
/* Fills *err with an error of the engine about a prompt, which says where the body has what it names. Any thread. */
iv_status iv_task_place_error(const iv_task *t, size_t prompt, iv_status status, const char *message, iv_error *err);

/* prompts of which only the last tokens are read (truncate_prompt_tokens), as in vLLM: tokens that the
 * tokenizer puts around a text stay, and count. */
/* Whether the body asks for it; then p->truncate becomes how many tokens: -1 is what max_tokens leaves of the model's
 * length, or all but one where nobody says max_tokens. Wants the request with its limits. */
bool iv_api_truncates(const iv_api_params *p);
iv_status iv_api_truncate_settle(const iv_server *s, iv_api_params *p, iv_error *err);

/* Cuts a prompt that is longer; it has ids then. Its text, if it has one, becomes that of the tokens that are left,
 * without those around it. */
iv_status iv_task_truncate(iv_task *t, iv_api_prompt *p, iv_error *err);

/* ---- task.c */
void iv_task_take_event(const iv_bridge_event *event); /* its owner is a child */
/* Cancels what is open and forgets the task; the exchange is the caller's business. */
void iv_task_close(iv_task *t);
/* Answers with an error (a stream that began gets it as an event) and ends the task. */
void iv_task_fail(iv_task *t, const iv_error *err);
/* Holds what the engine does for it back, or lets it go on. */
void iv_task_hold(iv_task *t, bool hold);
/* All of the server's tasks; how many there were. */
size_t iv_task_fail_all(iv_server *s, const iv_error *err);
/* Ends what the engine still does for it; the client gets what there is. */
void iv_task_abort(iv_task *t);
/* Of all with this name, or of all (NULL); how many there were, as far as their bodies have been read. */
size_t iv_task_abort_named(iv_server *s, const char *name);

/* ---- task_begin.c: calls task.c */
/* Answers an exchange in this format. */
void iv_task_handle(iv_server *s, iv_http_request *q, const iv_task_format *format);
iv_task *iv_task_open(iv_server *s, iv_http_request *q,
                      const iv_task_format *format); /* looks at no body. NULL: answered */
/* Makes the children and gives them to the engine. Reports do the rest. */
iv_status iv_task_submit(iv_task *t, iv_error *err);
/* Renders t->conversation, in place of what the only prompt was before. On any thread. */
iv_status iv_task_render(iv_task *t, iv_error *err);

double iv_api_now(void); /* seconds of a steady clock */

/* "data: {...}\n\n" around what is written between the two. */
iv_json_out iv_sse_begin(iv_buf *out);
void iv_sse_end(iv_task *t, iv_json_out *o);

#endif
