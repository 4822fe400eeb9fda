/* series.c: from messages and broadcasts to a stage (invar.h), and what becomes of it. */
#include "serve/weights/series.h"
#include "base/base64.h"
#include "serve/weights/folder.h"
#include "serve/weights/sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_ARENA_BYTES = 256 << 20, NAMES_FIRST = 64 };

struct iv_series {
    iv_series_options o;
    atomic_bool stop;
    iv_folder folder;
    iv_driver *driver;
    iv_group *groups[IV_SERIES_GROUPS_MAX];

    iv_weights_stage *stage; /* NULL: no series */
    char *dir;               /* of the stage, or of a finished series that the engine has not taken yet */
    char *used, *before;     /* directory of the weights in use, of those before; NULL: the server's model; none kept */
    bool used_is_own, before_is_own;

    char **seen; /* names that the messages of this request had, sorted by arrival */
    size_t seen_count, seen_room;
};

iv_status iv_series_open(const iv_series_options *o, iv_series **out, iv_error *err) {
    iv_series *s = *out = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    s->o = *o, s->folder.lock = -1;
    atomic_init(&s->stop, false);
    return IV_OK;
}

void iv_series_close(iv_series *s) {
    if (!s) return;
    iv_series_drop(s);
    iv_series_next_request(s);
    for (size_t i = 0; i < IV_SERIES_GROUPS_MAX; i++) iv_group_close(s->groups[i]);
    iv_driver_close(s->driver);
    iv_folder_close(&s->folder);
    free(s->used), free(s->before), free(s->seen), free(s);
}

void iv_series_stop(iv_series *s) { atomic_store(&s->stop, true); }

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

/* ---- messages ----------------------------------------------------------------------------------------- */

void iv_series_next_request(iv_series *s) {
    for (size_t i = 0; i < s->seen_count; i++) free(s->seen[i]);
    s->seen_count = 0;
}

/* Messages after the first have mostly the same names in the same order: `from` is where the last one was. */
static bool was_seen(const iv_series *s, const char *name, size_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t at = (*from + i) % count;
        if (strcmp(s->seen[at], name) != 0) continue;
        *from = at + 1;
        return true;
    }
    return false;
}

static iv_status note_seen(iv_series *s, const char *name, iv_error *err) {
    if (s->seen_count == s->seen_room) {
        size_t room = s->seen_room ? 2 * s->seen_room : NAMES_FIRST;
        char **more = realloc(s->seen, room * sizeof *more);
        if (!more) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
        s->seen = more, s->seen_room = room;
    }
    char *copy = strdup(name);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    s->seen[s->seen_count++] = copy;
    return IV_OK;
}

typedef struct reading {
    iv_source *source;
    size_t offset;
} reading;

static iv_status read_source(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    const reading *r = user;
    return iv_source_read(r->source, r->offset + offset, n, out, err);
}

static iv_status put_tensor(iv_series *s, const iv_message_tensor *t, iv_source *source, iv_error *err) {
    reading r = {source, t->offset};
    return iv_weights_stage_put(s->stage, t->name, iv_dtype_name(t->dtype), t->shape, (size_t)t->ndim, read_source, &r,
                                err);
}

/* One storage is open at a time; a bucket has one. */
static iv_status put_tensors(iv_series *s, const iv_tensor_message *m, size_t *count, iv_error *err) {
    iv_source source = {.storage = NULL};
    size_t from = 0, known = s->seen_count;
    iv_status status = IV_OK;
    for (size_t i = 0; i < m->count && status == IV_OK; i++) {
        const iv_message_tensor *t = &m->tensors[i];
        const iv_message_storage *storage = &m->storages[t->storage];
        if (was_seen(s, t->name, &from, known)) continue;
        if (source.storage != storage) {
            iv_source_close(&source);
            status = iv_source_open(storage, &s->driver, &source, err);
            if (status != IV_OK) iv_error_prefix(err, "%.200s", t->name);
        }
        if (status == IV_OK) status = put_tensor(s, t, &source, err);
        if (status == IV_OK) status = note_seen(s, t->name, err);
        *count += status == IV_OK;
    }
    iv_source_close(&source);
    return status;
}

static iv_status decode(const char *name, const char *text, size_t bytes, iv_buf *out, iv_error *err) {
    switch (iv_base64_decode(text, bytes, out)) {
    case IV_BASE64_OK: return IV_OK;
    case IV_BASE64_DAMAGED: return iv_fail(err, IV_INVALID, "%s: wanted base64, found something else", name);
    case IV_BASE64_NO_MEMORY: break;
    }
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
}

iv_status iv_series_put(iv_series *s, const char *text, size_t bytes, bool flattened, size_t index, size_t *count,
                        iv_error *err) {
    char name[48];
    iv_buf message = {0};
    iv_arena arena;
    iv_tensor_message m = {0};
    snprintf(name, sizeof name, "serialized_named_tensors[%zu]", index);
    iv_arena_init(&arena, MESSAGE_ARENA_BYTES);
    iv_status status = decode(name, text, bytes, &message, err);
    if (status == IV_OK)
        status = iv_tensor_message_read(name, message.data, message.len, flattened, index, &arena, &m, err);
    if (status == IV_OK) status = put_tensors(s, &m, count, err);
    for (size_t i = 0; i < m.storage_count; i++) iv_source_release(&m.storages[i]);
    iv_arena_free(&arena);
    iv_buf_free(&message);
    return status;
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static iv_group **find_group(iv_series *s, const char *name) {
    for (size_t i = 0; i < IV_SERIES_GROUPS_MAX; i++)
        if (s->groups[i] && strcmp(iv_group_name(s->groups[i]), name) == 0) return &s->groups[i];
    return NULL;
}

iv_status iv_series_join(iv_series *s, const iv_group_options *given, iv_error *err) {
    iv_group_options o = *given;
    o.ranks = s->o.ranks, o.seconds = s->o.seconds, o.stop = &s->stop, o.driver = &s->driver;
    if (find_group(s, o.name))
        return iv_fail(err, IV_INVALID, "group_name: %.200s is in use: destroy it first", o.name);
    for (size_t i = 0; i < IV_SERIES_GROUPS_MAX; i++)
        if (!s->groups[i]) return iv_group_open(&o, &s->groups[i], err);
    return iv_fail(err, IV_LIMIT, "group_name: there are %d groups already", IV_SERIES_GROUPS_MAX);
}

iv_status iv_series_leave(iv_series *s, const char *group, iv_error *err) {
    iv_group **g = find_group(s, group);
    if (!g) return iv_fail(err, IV_INVALID, "group_name: there is no group %.200s", group);
    iv_group_close(*g);
    *g = NULL;
    return IV_OK;
}

static iv_status read_group(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    return iv_group_read(user, offset, n, out, err);
}

/* Of a checkpoint's types; -1: another. */
static int dtype_of(const char *name) {
    for (int t = 0; t < IV_DTYPE_COUNT; t++)
        if (strcmp(name, iv_dtype_name((iv_dtype)t)) == 0) return t;
    return -1;
}

iv_status iv_series_receive(iv_series *s, const char *group, const char *name, const char *dtype, const int64_t *shape,
                            size_t dims, iv_error *err) {
    iv_group **g = find_group(s, group);
    int type = dtype_of(dtype);
    size_t elements, bytes;
    if (!g) return iv_fail(err, IV_INVALID, "group_name: there is no group %.200s", group);
    if (type < 0)
        return iv_fail(err, IV_INVALID, "dtypes: %.200s: wanted a type such as bfloat16, found %.40s", name, dtype);
    if (dims > IV_TENSOR_DIMS_MAX || !iv_safetensors_shape_bytes(shape, (int)dims, 1, &elements, &bytes))
        return iv_fail(err, IV_INVALID, "shapes: %.200s: wanted at most %d sizes", name, IV_TENSOR_DIMS_MAX);
    IV_TRY(iv_group_receive(*g, (iv_dtype)type, elements, err));
    return iv_weights_stage_put(s->stage, name, dtype, shape, dims, read_group, *g, err);
}
