/* server.h: the server that http, bridge and api make together: `invar serve`. */
#ifndef IV_SERVE_SERVER_H
#define IV_SERVE_SERVER_H

#include "serve/bridge.h"
#include "serve/http.h"
#include "serve/log.h"
#include "base/jobs.h"

#include <sys/types.h>

typedef enum iv_metrics_names { IV_METRICS_OWN, IV_METRICS_VLLM, IV_METRICS_SGLANG } iv_metrics_names;

typedef struct iv_server_options {
    iv_http_options http;
    iv_bridge_options bridge;
    const char *served_model_name; /* what /v1/models says; NULL: the model's directory name */
    const char *tool_call_parser;  /* the form of calls of tools: auto (NULL), hermes, llama3_json, mistral, none */
    const char *proof_urls;        /* servers that the page compares with: origins with commas; NULL: none */
    iv_metrics_names metrics;
    bool log_json, log_requests;
    bool split_special_tokens; /* special tokens that clients spell are text, unless a request says otherwise */
    const char *log_file;      /* appended to; NULL: standard error. Opened again on SIGHUP */
    uint32_t drain_ms;         /* SIGTERM: how long accepted requests may take; 30 s */
    pid_t launcher;            /* its SIGTERM (mpirun's) is followed by SIGKILL within a second: what is open is failed
                                * first. 0: there is none */
    uint32_t status_every_ms;  /* a line about what runs; 0: none */
    void (*ready)(void *user, uint16_t port); /* listening; may be NULL */
    void (*log_line)(void *user,
                     const char *line); /* takes the log's lines, without their end; NULL: they are written */
    void *user;
} iv_server_options;

void iv_server_options_init(iv_server_options *o);
/* Runs until SIGTERM or SIGINT drained it (IV_OK), or the engine is lost. */
iv_status iv_server_run(const iv_server_options *o, iv_error *err);

enum { IV_MODEL_NAME_BYTES = 256 };
/* What a model is called when nobody says: the last part of its path, or of the place that "." or ".." is. */
void iv_server_default_name(const char *path, char *out, size_t room);

/* The variables of a chat template, a JSON object, with their `messages` as the server gives them to templates. split:
 * all strings are marked by it (iv_mark_special); NULL: none. */
iv_status iv_server_chat_variables(const char *json, size_t bytes, const iv_textual *split, iv_text *out,
                                   iv_error *err);

/* ---- between the files of this folder: what a handler's `user` is */
typedef struct iv_metrics iv_metrics;

/* What clients call the weights that they have loaded (weight_version of an update, as in SGLang); weights without a
 * name are called by their number. */
/* Answers may still be under way from weights before the last ones: so many are remembered. */
enum { IV_WEIGHT_NAMES = 8, IV_WEIGHT_NUMBER_BYTES = 24 };

/* Zero-initialise. */
typedef struct iv_weight_names {
    struct {
        uint64_t number; /* iv_bridge_stats.weight_version */
        char *name;
    } kept[IV_WEIGHT_NAMES];
    size_t next;
} iv_weight_names;

typedef struct iv_server {
    const iv_server_options *o;
    iv_log_sink log;
    iv_log_writer *log_writer; /* NULL: options.log_line takes the lines */
    iv_http *http;
    iv_bridge *bridge;
    iv_metrics *metrics;
    iv_jobs *jobs; /* what may take long; NULL: at once, on this thread */
    const char *model_name;
    iv_tool_form tool_form; /* api/tools.c: this and the next two */
    int32_t tool_ids[4];    /* special tokens in it, which its texts show */
    size_t tool_id_count;
    bool draining;
    size_t freed_bytes;                 /* of bodies that have ended, whose memory the system has not got back */
    struct iv_task *tasks;              /* api/task.c: those that wait for the engine; NULL at first */
    struct iv_admin_command *commands;  /* api/admin.c: those whose report has not come; NULL at first */
    iv_weight_names weight_names;       /* of updates that gave one */
    struct iv_token_texts *token_texts; /* api/token_text.c; NULL: each is found anew */
} iv_server;

/* api/routes.c: every route of the server. */
extern const iv_http_route iv_server_routes[];
extern const size_t iv_server_route_count;
/* api/task.c: a report of a request or an order that a handler's task owns. */
void iv_server_take_event(iv_server *s, const iv_bridge_event *event);

#endif
