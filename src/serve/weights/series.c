/* series.c: from files of tensors to a stage (invar.h), and what becomes of it. */
#include "serve/weights/series.h"
#include "format/safetensors.h"
#include "invar_model.h"
#include "serve/weights/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_ARENA_BYTES = 256 << 20 };

struct iv_series {
    iv_series_options o;
    iv_folder folder;

    iv_weights_stage *stage; /* NULL: no series */
    char *dir;               /* of the stage, or of a finished series that the engine has not taken yet */
    char *used, *before;     /* directory of the weights in use, of those before; NULL: the server's model; none kept */
    bool used_is_own, before_is_own;
};

iv_status iv_series_open(const iv_series_options *o, iv_series **out, iv_error *err) {
    iv_series *s = *out = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    s->o = *o, s->folder.lock = -1;
    return IV_OK;
}

void iv_series_close(iv_series *s) {
    if (!s) return;
    iv_series_drop(s);
    iv_folder_close(&s->folder);
    free(s->used), free(s->before), free(s);
}

/* ---- the series --------------------------------------------------------------------------------------- */

bool iv_series_is_open(const iv_series *s) { return s->stage != NULL; }

void iv_series_drop(iv_series *s) {
    iv_weights_stage_close(s->stage);
    iv_folder_remove(s->dir);
    free(s->dir);
    s->stage = NULL, s->dir = NULL;
}

iv_status iv_series_begin(iv_series *s, iv_error *err) {
    if (s->stage) return IV_OK;
    if (!s->folder.path) {
        iv_status status = iv_folder_open(&s->folder, s->o.parent, s->o.weight_bytes, err);
        if (status != IV_OK) iv_folder_close(&s->folder);
        IV_TRY(status);
    }
    IV_TRY(iv_folder_add(&s->folder, &s->dir, err));
    iv_status status = iv_weights_stage_open(s->used ? s->used : s->o.model, s->used ? NULL : s->o.load_format,
                                             s->o.dummy_seed, s->dir, &s->stage, err);
    if (status != IV_OK) iv_series_drop(s);
    return status;
}

iv_status iv_series_randomize(iv_series *s, iv_error *err) {
    return iv_weights_stage_randomize(s->stage, s->folder.sets, err);
}

size_t iv_series_missing(const iv_series *s, const char **first) {
    *first = NULL;
    return s->stage ? iv_weights_stage_missing(s->stage, first) : 0;
}

iv_status iv_series_finish(iv_series *s, bool fill, const char **dir, char digest[65], iv_error *err) {
    if (!s->stage) return iv_fail(err, IV_INVALID, "weights: no update has begun");
    if (fill) IV_TRY(iv_weights_stage_fill(s->stage, err));
    IV_TRY(iv_weights_stage_finish(s->stage, digest, err));
    iv_weights_stage_close(s->stage);
    s->stage = NULL;
    *dir = s->dir;
    return IV_OK;
}

/* ---- the weights in use ------------------------------------------------------------------------------- */

static void forget(char **dir, bool own) {
    if (own) iv_folder_remove(*dir);
    free(*dir);
    *dir = NULL;
}

static void use(iv_series *s, char *dir, bool own, bool keep) {
    forget(&s->before, s->before_is_own);
    if (keep)
        s->before = s->used, s->before_is_own = s->used_is_own;
    else
        forget(&s->used, s->used_is_own);
    s->used = dir, s->used_is_own = own;
}

void iv_series_settle(iv_series *s, bool taken, bool keep) {
    if (!taken) {
        iv_series_drop(s);
        return;
    }
    char *dir = s->dir;
    s->dir = NULL;
    use(s, dir, true, keep);
}

iv_status iv_series_use(iv_series *s, const char *dir, iv_error *err) {
    char *copy = strdup(dir);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    iv_series_drop(s);
    use(s, copy, false, true);
    return IV_OK;
}

void iv_series_revert(iv_series *s) {
    forget(&s->used, s->used_is_own);
    s->used = s->before, s->used_is_own = s->before_is_own;
    s->before = NULL, s->before_is_own = false;
}

/* ---- files -------------------------------------------------------------------------------------------- */

iv_status iv_series_incoming(iv_series *s, char **dir, iv_error *err) {
    IV_ASSERT(s->stage);
    return iv_folder_add(&s->folder, dir, err);
}

typedef struct reading {
    const char *path;
    int fd;
    size_t offset; /* of the tensor, in the file */
} reading;

static iv_status read_file(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    const reading *r = user;
    for (size_t at = 0; at < n;) {
        ssize_t got = pread(r->fd, (char *)out + at, n - at, (off_t)(r->offset + offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return iv_fail(err, IV_IO, "%.800s: cannot read it: %s", r->path, got ? strerror(errno) : "it ends");
        at += (size_t)got;
    }
    return IV_OK;
}

static iv_status add_open_file(iv_series *s, reading *r, iv_arena *arena, size_t *count, iv_error *err) {
    struct stat st;
    iv_tensor_info *tensors;
    size_t n;
    if (fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode)) return iv_fail(err, IV_IO, "%.800s: wanted a file", r->path);
    IV_TRY(iv_safetensors_read(r->path, r->fd, (size_t)st.st_size, arena, &tensors, &n, err));
    for (size_t i = 0; i < n; i++) {
        const iv_tensor_info *t = &tensors[i];
        r->offset = t->offset;
        IV_TRY(iv_weights_stage_put(s->stage, t->name, iv_dtype_name(t->dtype), t->shape, (size_t)t->ndim, read_file, r,
                                    err));
        ++*count;
    }
    return IV_OK;
}

iv_status iv_series_add(iv_series *s, const char *path, size_t *count, iv_error *err) {
    iv_arena arena;
    reading r = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (r.fd < 0) return iv_fail(err, IV_IO, "%.800s: cannot open it: %s", path, strerror(errno));
    iv_arena_init(&arena, HEADER_ARENA_BYTES);
    iv_status status = add_open_file(s, &r, &arena, count, err);
    iv_arena_free(&arena);
    close(r.fd);
    return status;
}

void iv_series_discard(char *dir) {
    iv_folder_remove(dir);
    free(dir);
}
