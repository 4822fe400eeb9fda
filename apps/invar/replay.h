/* replay.h: receipts from files, and what a second computation of one came to. */
#ifndef INVAR_CLI_REPLAY_H
#define INVAR_CLI_REPLAY_H

#include "input.h"
#include "base/json_out.h"

enum { CLI_RECEIPTS_MAX = 1 << 20, CLI_RECEIPT_NAME_BYTES = 128 };

typedef enum cli_verdict {
    CLI_REPLAY_PENDING,
    CLI_REPLAY_EQUAL,
    CLI_REPLAY_DIFFERS,
    CLI_REPLAY_OTHER_MAKER, /* the fingerprints differ: not computed */
    CLI_REPLAY_FAILED       /* the request ended in an error */
} cli_verdict;

typedef struct cli_replayed {
    char name[CLI_RECEIPT_NAME_BYTES]; /* "FILE:LINE" */
    size_t line;
    iv_receipt *receipt;
    cli_verdict verdict;
    char *why; /* of OTHER_MAKER and FAILED; owned */
    char digest[96];
    size_t compared;  /* tokens that came so far */
    bool has_first;   /* something differs, and this is the first of it: */
    size_t position;  /* among the generated tokens */
    int32_t token;    /* what came there; -1: nothing, the answer had ended */
    float logprob;    /* of it */
    uint64_t ulps;    /* between the log-probabilities; 0 when the tokens differ */
    size_t unequal;   /* positions whose token or log-probability differ */
    iv_finish finish; /* what came */
    char *stop;       /* the stop string that was met, NULL: none; owned */
} cli_replayed;

typedef struct cli_replays {
    cli_replayed *items;
    size_t count;
} cli_replays;

/* Reads receipts, one a line; lines of an eval's results carry theirs as the member "receipt", and its other lines are
 * passed over, as are empty ones. The first bad line is an error that names it; a file without any is one too. */
int cli_replays_read(const char *path, cli_replays *out, iv_error *err);
void cli_replays_free(cli_replays *replays);

/* The request that computes a receipt's answer again: no longer than the answer was. */
void cli_replay_request(const cli_replayed *item, iv_request *out);

/* Notes one event of that request. */
void cli_replay_note(cli_replayed *item, const iv_event *event);

/* One line for a person; textual may be NULL. */
void cli_replay_print(const cli_replayed *item, const iv_textual *textual, FILE *out);
void cli_replay_json(const cli_replayed *item, iv_json_out *json);

#endif
