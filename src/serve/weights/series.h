/* series.h: a series of updates by tensor or by broadcast, which together are one set of weights. Its tensors are
 * collected in a checkpoint of the server's own; the engine loads it once it is whole, and so does a restarted engine.
 * Until then nothing changes, and a series that is never finished changes nothing.
 *
 * All calls come from one thread at a time: the updates' thread, or the server's while no update is in work. */
#ifndef IV_SERVE_WEIGHTS_SERIES_H
#define IV_SERVE_WEIGHTS_SERIES_H

#include "serve/weights/group.h"

typedef struct iv_series iv_series;

typedef struct iv_series_options {
    const char *model, *load_format; /* of the server; they outlive the series */
    uint64_t dummy_seed;
    const char *parent;  /* of the folder, as iv_folder_open's; NULL: chosen */
    size_t weight_bytes; /* about */
    size_t ranks;        /* of the server, in a trainer's group */
    double seconds;      /* timeout of a trainer's group */
} iv_series_options;

enum { IV_SERIES_GROUPS_MAX = 16 };

/* Makes no files yet. */
iv_status iv_series_open(const iv_series_options *o, iv_series **out, iv_error *err);
void iv_series_close(iv_series *s); /* NULL is fine */
void iv_series_stop(iv_series *s);  /* any thread: a call that waits for a trainer ends */

/* ---- the series --------------------------------------------------------------------------------------- */

bool iv_series_is_open(const iv_series *s);
/* Begins one if none is open. */
iv_status iv_series_begin(iv_series *s, iv_error *err);
void iv_series_drop(iv_series *s);

/* Takes the tensors of message `index`, base64 of a pickle (tensor_message.h). A tensor that an earlier message of the
 * same request has is left out: each rank's message has its own copy. The senders' references are given back. *count is
 * increased by the tensors taken. Errors name the message and the tensor. */
iv_status iv_series_put(iv_series *s, const char *text, size_t bytes, bool flattened, size_t index, size_t *count,
                        iv_error *err);
void iv_series_next_request(iv_series *s); /* forgets what the messages of the request had */

iv_status iv_series_randomize(iv_series *s, iv_error *err); /* all tensors */

/* A tensor that the group's rank 0 broadcasts. It is received even if it is refused, so that the trainer goes on. */
iv_status iv_series_receive(iv_series *s, const char *group, const char *name, const char *dtype, const int64_t *shape,
                            size_t dims, iv_error *err);
iv_status iv_series_join(iv_series *s, const iv_group_options *o, iv_error *err); /* fills what the server knows */
iv_status iv_series_leave(iv_series *s, const char *group, iv_error *err);

/* The number of tensors that are missing, and the first. */
size_t iv_series_missing(const iv_series *s, const char **first);
/* fill: missing tensors are those of the weights in use. *dir: of the whole checkpoint, valid until the next call. */
iv_status iv_series_finish(iv_series *s, bool fill, const char **dir, char digest[65], iv_error *err);

/* ---- the weights in use ------------------------------------------------------------------------------- */

/* The engine took the finished series, or refused it. keep: the weights before may be needed again. */
void iv_series_settle(iv_series *s, bool taken, bool keep);
/* The engine took those of a directory. */
iv_status iv_series_use(iv_series *s, const char *dir, iv_error *err);
void iv_series_revert(iv_series *s); /* to those that were kept */

#endif
