/* sampling.h: the sampling and stopping flags as a request, and a request as text. */
#ifndef INVAR_CLI_SAMPLING_H
#define INVAR_CLI_SAMPLING_H

#include "flags.h"
#include "base/json_out.h"

enum { CLI_STOPS_MAX = 16, CLI_STOP_IDS_MAX = 64, CLI_BIASES_MAX = 512 };

/* A request and the memory it points to. Strings point into argv. */
typedef struct cli_sampling {
    iv_request request;   /* no prompt yet; points into this struct and into argv: do not copy */
    iv_request suggested; /* the defaults from generation_config.json, before any flag */
    const char *stops[CLI_STOPS_MAX];
    int32_t stop_ids[CLI_STOP_IDS_MAX];
    iv_logit_bias biases[CLI_BIASES_MAX];
} cli_sampling;

/* The defaults of generation_config.json (unless --no-generation-config), then the flags. */
void cli_sampling_init(cli_sampling *s, const iv_engine *engine, const cli_args *args);

/* The effective parameters: "temperature 0.6 (generation_config.json), seed ..." */
void cli_sampling_print(const cli_sampling *s, FILE *file);
void cli_sampling_json(const cli_sampling *s, iv_json_out *json, const char *key);

#endif
