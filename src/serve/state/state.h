/* state.h: the options of a server, and the struct that its handlers share. */
#ifndef IV_SERVE_STATE_STATE_H
#define IV_SERVE_STATE_STATE_H

#include "base/jobs.h"
#include "serve/engine/bridge.h"
#include "serve/http/http.h"
#include "serve/state/log.h"

#include <sys/types.h>

typedef enum iv_metrics_names { IV_METRICS_OWN, IV_METRICS_VLLM, IV_METRICS_SGLANG } iv_metrics_names;

typedef struct iv_server_reload iv_server_reload;

typedef struct iv_server_options {
    iv_http_options http;
    iv_bridge_options bridge;
    const char *served_model_name; /* names that requests may use, separated by commas (iv_server_names_check); answers
                                      have the first. NULL: the model's directory name */
    const char *tool_call_parser;  /* form of tool calls: auto (NULL: by the chat template), or a name (chat/forms.h) */
    const char *reasoning_parser;  /* the same of the reasoning */
    const char *proof_urls;        /* servers that the page compares with: comma-separated origins; NULL: none */
    iv_metrics_names metrics;
    const char *response_directory; /* of stored responses (/v1/responses); NULL: none are stored */
    size_t stored_responses_max;    /* 10000 */
    uint64_t stored_bytes_max;      /* 1 GiB */
    bool log_json, log_requests;
    const char *log_level;     /* least important lines: info, warning or error; NULL: info */
    bool split_special_tokens; /* special tokens spelled by clients are plain text, unless a request says otherwise */
    const char *log_file;      /* appended to; NULL: standard error. Reopened on SIGHUP */
    uint32_t drain_ms;         /* SIGTERM: time for accepted requests; 30 s */
    const iv_lora_module *adapters; /* loaded before the server listens */
    size_t adapter_count;
    pid_t launcher; /* its SIGTERM (mpirun's) is followed by SIGKILL within a second: open requests are failed first. 0:
                       none */
    const char *update_dir;     /* where weights that arrive over HTTP are collected; NULL: chosen (weights/folder.h) */
    uint32_t update_timeout_ms; /* of a trainer's group: 600 s */
    const char *weights_python; /* the Python of weights/sidecar.h; NULL: chosen */
    uint32_t status_every_ms;   /* interval of status lines; 0: none */
    void (*ready)(void *user, uint16_t port); /* called when listening; may be NULL */
    void (*log_line)(
        void *user,
        const char *line); /* receives the log's lines, without their ends; NULL: they are written to the log file */
    /* On SIGHUP: reads the configuration again. On an error nothing changes. NULL: there is none. */
    iv_status (*reload)(void *user, iv_server_reload *out, iv_error *err);
    void (*reloaded)(void *user); /* it has taken effect */
    void *user;
} iv_server_options;

/* A configuration that was read again. Of the options these take effect: keys and their files, open_cache, allowed
 * hosts and origins, and limits of `http` (iv_http_reload), bridge.queued_requests_max, drain_ms, log_level,
 * log_requests. Strings are copied. */
struct iv_server_reload {
    iv_server_options options;
    char applied[1024], ignored[1024]; /* names of what has changed, and of what changed but needs a new start */
};

/* ---- the server: the `user` of handlers --------------------------------------------------------------- */

typedef struct iv_metrics iv_metrics;

/* Client-chosen names of loaded weights (weight_version of an update, as in SGLang). Weights without a name are
 * called by their number. */
/* Answers from earlier weights may still be pending: this many names are kept. */
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
    iv_log_writer *log_writer; /* NULL: options.log_line receives the lines */
    iv_http *http;
    iv_bridge *bridge;
    iv_metrics *metrics;
    iv_jobs *jobs;           /* worker pool for long jobs; NULL: they run on this thread */
    const char *model_name;  /* in answers */
    const char *model_names; /* all, separated by commas; NULL: only model_name */
    iv_tool_form tool_form;  /* set by iv_api_tools_open, like the next four */
    iv_reasoning_form reasoning_form;
    int32_t tool_ids[IV_FORM_IDS_MAX];        /* special tokens of both, kept in texts: those of the reasoning first */
    size_t tool_id_count, reasoning_id_count; /* all; of the reasoning */
    bool draining;
    size_t freed_bytes;                  /* freed bodies whose memory is not yet returned to the system */
    struct iv_task *tasks;               /* list of tasks (api/task.h) */
    struct iv_admin_command *commands;   /* list of pending commands (api/commands.c) */
    iv_weight_names weight_names;        /* of updates with a name */
    struct iv_token_texts *token_texts;  /* cache (api/token_text.h); NULL: none */
    struct iv_updates *updates;          /* of weights (api/updates.h); NULL: from disk only */
    char *weights_snapshot;              /* of /weights_checker; NULL: none */
    struct iv_response_store *responses; /* NULL: none are stored */
} iv_server;

/* Sets both names. room: of IV_MODEL_NAME_BYTES, as long as the server. */
void iv_server_take_names(iv_server *s, const char *list, const char *model, char *own);
/* The name at *at of the list, and its length; *at moves behind it. NULL: no more. */
const char *iv_server_next_name(const iv_server *s, size_t *at, size_t *bytes);

/* ---- model_names.c ------------------------------------------------------------------------------------ */

enum { IV_MODEL_NAME_BYTES = 256 };
/* The default model name: the last component of the path, or of the directory behind "." or "..". */
void iv_server_default_name(const char *path, char *out, size_t capacity);
/* Checks a list of names: at least one, each of 1 to 255 bytes, none twice. */
iv_status iv_server_names_check(const char *list, iv_error *err);

#endif
