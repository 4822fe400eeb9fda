/* series.h: a series of files of tensors, which together are one set of weights. They are collected in a checkpoint of
 * the server's own; the engine loads it once it is whole, and so does a restarted engine. Until then nothing changes,
 * and a series that is never finished changes nothing.
 *
 * All calls come from one thread at a time: the updates' thread, or the server's while no update is in work. */
#ifndef IV_SERVE_WEIGHTS_SERIES_H
#define IV_SERVE_WEIGHTS_SERIES_H

#include "base/status.h"

#include <stdint.h>

typedef struct iv_series iv_series;

typedef struct iv_series_options {
    const char *model, *load_format; /* of the server; they outlive the series */
    uint64_t dummy_seed;
    const char *parent;  /* of the folder, as iv_folder_open's; NULL: chosen */
    size_t weight_bytes; /* about */
} iv_series_options;

/* Makes no files yet. */
iv_status iv_series_open(const iv_series_options *o, iv_series **out, iv_error *err);
void iv_series_close(iv_series *s); /* NULL is fine */

/* ---- the series --------------------------------------------------------------------------------------- */

bool iv_series_is_open(const iv_series *s);
/* Begins one if none is open. */
iv_status iv_series_begin(iv_series *s, iv_error *err);
void iv_series_drop(iv_series *s);

/* A new folder, of mode 0700, for files of an open series; iv_series_discard removes it. */
iv_status iv_series_incoming(iv_series *s, char **dir, iv_error *err);
void iv_series_discard(char *dir); /* NULL is fine */
/* Takes the tensors of a safetensors file; *count is increased by each. IV_FORMAT: no such file; IV_INVALID names a
 * tensor that differs from the weights in use. */
iv_status iv_series_add(iv_series *s, const char *path, size_t *count, iv_error *err);

iv_status iv_series_randomize(iv_series *s, iv_error *err); /* all tensors */

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
