/* journal.h: what the server remembers of each request that its engine process computes: the request, and the
 * tokens that were passed on. From it the request continues in another process, which repeats the last token: that
 * record must be the same, byte for byte, as must be the digest in the end. */
#ifndef IV_SERVE_ENGINE_JOURNAL_H
#define IV_SERVE_ENGINE_JOURNAL_H

#include "base/buf.h"
#include "serve/engine/bridge.h"

enum { IV_JOURNAL_BUCKETS = 4096 }; /* a power of two */

/* A request, or a command. */
typedef struct iv_journal_entry {
    struct iv_journal_entry *previous, *next; /* in order of arrival */
    struct iv_journal_entry *bucket_next;
    uint64_t id;
    void *owner;
    iv_request *request; /* a deep copy, with a seed; NULL: a command */
    iv_command command;
    iv_adapter_entry *adapter; /* that it began with; NULL: none */
    size_t bytes;              /* of its prompt */
    bool held;                 /* requested state */
    bool sent;                 /* to the present process */
    bool silent;               /* without an event so far */
    bool repeats;              /* the next event repeats the last token */
    bool continued;
    bool advanced;   /* had an event from the present process, besides a repeated one */
    unsigned deaths; /* processes that ended while they computed it, without such an event */
    iv_ids ids;      /* of the answer, passed on */
    float *logprobs; /* [ids.capacity] */
    size_t logprobs_capacity;
    size_t prompt_next;   /* position after the last reported one of the prompt; 0: none */
    size_t next_position; /* of the answer's next token; 0: unknown */
    iv_buf last;          /* payload of the last token's record */
    char text[];          /* of a command */
} iv_journal_entry;

/* Zero-initialise. */
typedef struct iv_journal {
    iv_journal_entry *first, *last, *buckets[IV_JOURNAL_BUCKETS];
    size_t requests, commands;
    size_t silent_bytes; /* prompts of requests without an event */
    uint64_t next_id;
} iv_journal;

/* New entries at the end, with the next id; NULL: no memory. A request without a seed gets a random one. */
iv_journal_entry *iv_journal_add_request(iv_journal *j, const iv_request *r, void *owner);
iv_journal_entry *iv_journal_add_command(iv_journal *j, iv_command command, const char *text, void *owner);
iv_journal_entry *iv_journal_find(const iv_journal *j, uint64_t id);
void iv_journal_remove(iv_journal *j, iv_journal_entry *e); /* frees it */

/* Notes a TOKEN or PROMPT event, with its record's payload. *repeated: it was passed on before. IV_IO: it is not what
 * was passed on before, or does not follow it. */
iv_status iv_journal_note(iv_journal *j, iv_journal_entry *e, const iv_event *v, const char *raw, size_t raw_bytes,
                          bool *repeated, iv_error *err);
/* Checks a continued request's last event: all tokens, and the digest over those that were passed on. */
iv_status iv_journal_check_end(const iv_journal_entry *e, const iv_event *v, iv_error *err);

/* The process has ended. */
void iv_journal_interrupt(iv_journal_entry *e);
/* The request to submit: with all tokens but the last as given, and without prompt events that were passed on. Points
 * into the entry. */
iv_request iv_journal_request(const iv_journal_entry *e);

#endif
