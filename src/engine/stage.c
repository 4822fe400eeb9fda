/* stage.c: invar.h's checkpoint that is filled tensor by tensor. The file has its whole size from the start; a tensor
 * is written at its place and hashed on the way. */
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "format/dummy.h"
#include "format/model_dir.h"
#include "format/model_files.h"
#include "format/safetensors_write.h"
#include "invar_model.h"
#include "model/stored.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 4 << 20, CONFIG_BYTES_MAX = 16 << 20 };

static const char HEAD[] = "lm_head.weight";

typedef struct part {
    const iv_tensor_info *info; /* of the model */
    size_t offset;              /* in the file */
    bool put, hashed;
    uint8_t digest[32];
} part;

/* Where a tensor of the model is in the file. */
typedef struct home {
    size_t stored; /* its part */
    const iv_stored_piece *piece;
    bool put; /* by itself, in another form than the file's */
} home;

struct iv_weights_stage {
    char *path;
    int fd;
    iv_checkpoint *from;   /* the model's own weights */
    iv_model *model;       /* its tables, without weights */
    struct home *homes;    /* [model->tensor_count] */
    const char *embedding; /* its name there */
    part *parts;           /* in byte order of the names */
    size_t count;
    unsigned char *chunk; /* [CHUNK_BYTES] */
    bool tied;
    part head; /* of a head that the model does not list; put: it was given */
};

/* ---- opening ------------------------------------------------------------------------------------------ */

/* The model's table of stored tensors is that of the parts. */
static iv_status find_homes(iv_weights_stage *s, iv_error *err) {
    const iv_model *m = s->model;
    s->homes = calloc(m->tensor_count + 1, sizeof *s->homes);
    if (!s->homes) return iv_fail(err, IV_NO_MEMORY, "weights: no memory for %zu tensors", m->tensor_count);
    IV_ASSERT(m->stored_count == s->count);
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < m->stored[i].count; k++) {
            const iv_stored_piece *p = &m->stored[i].pieces[k];
            s->homes[p->tensor - m->tensors] = (home){.stored = i, .piece = p};
        }
    return IV_OK;
}

static iv_status read_model(iv_weights_stage *s, const char *model, bool dummy, uint64_t seed, iv_error *err) {
    iv_model_options o = {
        .has_dtype = true, .dtype = IV_F32, .expand_as_saved = true, .dummy = dummy, .dummy_seed = seed};
    s->model = calloc(1, sizeof *s->model);
    if (!s->model) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", model);
    IV_TRY(iv_model_plan(model, &o, s->model, &s->from, err));
    s->tied = s->model->config.tie_embeddings;
    const iv_tensor_info *embedding = iv_stored_embedding(s->from);
    s->embedding = embedding ? embedding->name : "";
    s->count = iv_checkpoint_count(s->from);
    s->parts = calloc(s->count ? s->count : 1, sizeof *s->parts);
    s->chunk = malloc(CHUNK_BYTES);
    if (!s->parts || !s->chunk) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", model, s->count);
    for (size_t i = 0; i < s->count; i++) s->parts[i].info = iv_checkpoint_at(s->from, i);
    return find_homes(s, err);
}

static int larger_elements_first(const void *a, const void *b) {
    const part *x = *(part *const *)a, *y = *(part *const *)b;
    size_t m = iv_dtype_bytes(x->info->dtype), n = iv_dtype_bytes(y->info->dtype);
    return m != n ? (m < n ? 1 : -1) : strcmp(x->info->name, y->info->name);
}

/* Gives every tensor its place; *header: the file's beginning, *size: its whole size. */
static iv_status lay_out(iv_weights_stage *s, iv_buf *header, size_t *size, iv_error *err) {
    part **order = malloc((s->count + 1) * sizeof *order);
    iv_tensor_info *infos = calloc(s->count + 1, sizeof *infos);
    size_t data = 0;
    iv_status status = order && infos ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", s->path);
    if (status == IV_OK) {
        for (size_t i = 0; i < s->count; i++) order[i] = &s->parts[i];
        qsort(order, s->count, sizeof *order, larger_elements_first);
        for (size_t i = 0; i < s->count; i++) infos[i] = *order[i]->info;
        status = iv_safetensors_header(s->path, infos, s->count, "pt", header, &data, err);
    }
    if (status == IV_OK) {
        *size = header->len;
        for (size_t i = 0; i < s->count; i++) order[i]->offset = *size, *size += order[i]->info->bytes;
    }
    free(order), free(infos);
    return status;
}

static iv_status write_at(const iv_weights_stage *s, const void *bytes, size_t n, size_t offset, iv_error *err) {
    for (size_t at = 0; at < n;) {
        ssize_t wrote = pwrite(s->fd, (const char *)bytes + at, n - at, (off_t)(offset + at));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return iv_fail(err, IV_IO, "%s: write failed: %s", s->path, strerror(errno));
        at += (size_t)wrote;
    }
    return IV_OK;
}

static iv_status make_file(iv_weights_stage *s, iv_error *err) {
    iv_buf header = {0};
    size_t size = 0;
    iv_status status = lay_out(s, &header, &size, err);
    if (status == IV_OK) {
        s->fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        int why = s->fd < 0 ? errno : posix_fallocate(s->fd, 0, (off_t)size);
        if (why) status = iv_fail(err, IV_IO, "%s: no room for %zu bytes: %s", s->path, size, strerror(why));
    }
    if (status == IV_OK) status = write_at(s, header.data, header.len, 0, err);
    iv_buf_free(&header);
    return status;
}

static iv_status copy_config(const char *model, const char *dir, iv_error *err) {
    iv_buf from = {0}, to = {0}, text = {0}, plain = {0};
    iv_status status = iv_path_join(dir, "config.json", &to, err);
    if (status == IV_OK) status = iv_model_file_read(model, "config.json", CONFIG_BYTES_MAX, &from, &text, err);
    if (status == IV_OK) status = iv_config_unpacked(from.data, text.data, text.len, &plain, err);
    if (status == IV_OK) status = iv_file_write(to.data, plain.data, plain.len, err);
    iv_buf_free(&from), iv_buf_free(&to), iv_buf_free(&text), iv_buf_free(&plain);
    return status;
}

static iv_status open_parts(iv_weights_stage *s, const char *model, const char *load_format, uint64_t seed,
                            const char *dir, iv_error *err) {
    iv_buf path = {0};
    bool dummy = load_format && strcmp(load_format, "dummy") == 0;
    iv_status status = iv_path_join(dir, IV_WEIGHTS_NAME, &path, err);
    s->path = path.data; /* owned */
    if (status == IV_OK) status = read_model(s, model, dummy, seed, err);
    if (status == IV_OK) status = copy_config(model, dir, err);
    if (status == IV_OK) status = make_file(s, err);
    return status;
}

iv_status iv_weights_stage_open(const char *model, const char *load_format, uint64_t dummy_seed, const char *dir,
                                iv_weights_stage **out, iv_error *err) {
    iv_weights_stage *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    s->fd = -1;
    iv_status status = open_parts(s, model, load_format, dummy_seed, dir, err);
    if (status == IV_OK)
        *out = s;
    else
        iv_weights_stage_close(s);
    return status;
}

void iv_weights_stage_close(iv_weights_stage *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    iv_checkpoint_close(s->from);
    if (s->model) iv_arena_free(&s->model->arena);
    free(s->model), free(s->homes), free(s->path), free(s->parts), free(s->chunk), free(s);
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

static part *find(iv_weights_stage *s, const char *name) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(s->parts[middle].info->name, name);
        if (order == 0) return &s->parts[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static const char *list_shape(const int64_t *shape, size_t dims, char out[160]) {
    size_t n = (size_t)snprintf(out, 160, "[");
    for (size_t i = 0; i < dims && n < 160; i++)
        n += (size_t)snprintf(out + n, 160 - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < 160) snprintf(out + n, 160 - n, "]");
    return out;
}

static iv_status check(const iv_tensor_info *want, const char *name, const char *dtype, const int64_t *shape,
                       size_t dims, iv_error *err) {
    char wanted[160], found[160];
    if (strcmp(dtype, iv_dtype_name(want->dtype)) != 0)
        return iv_fail(err, IV_INVALID, "%.200s: dtype: wanted %s as in the weights in use, found %.40s", name,
                       iv_dtype_name(want->dtype), dtype);
    if (dims == (size_t)want->ndim && (dims == 0 || memcmp(shape, want->shape, dims * sizeof *shape) == 0))
        return IV_OK;
    return iv_fail(err, IV_INVALID, "%.200s: shape: wanted %s as in the weights in use, found %s", name,
                   list_shape(want->shape, (size_t)want->ndim, wanted), list_shape(shape, dims, found));
}

/* offset 0: the bytes are only hashed. */
static iv_status take(iv_weights_stage *s, part *p, size_t bytes, iv_weights_read *read, void *user, iv_error *err) {
    iv_digest *d = iv_digest_new();
    iv_status status = d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "weights: no memory for a digest");
    p->put = false;
    for (size_t at = 0, n; at < bytes && status == IV_OK; at += n) {
        n = iv_size_min(CHUNK_BYTES, bytes - at);
        status = read(user, at, n, s->chunk, err);
        if (status == IV_OK) iv_digest_add(d, s->chunk, n);
        if (status == IV_OK && p->offset) status = write_at(s, s->chunk, n, p->offset + at, err);
    }
    if (d) iv_digest_finish(d, p->digest);
    p->put = p->hashed = status == IV_OK;
    return status;
}

/* ---- tensors in another form than the file's ------------------------------------------------------------ */

static iv_status read_at(const iv_weights_stage *s, void *bytes, size_t n, size_t offset, iv_error *err) {
    return iv_file_read_at(s->fd, s->path, bytes, n, offset, err);
}

/* One tensor of the model, rows one behind another, to its home. */
static iv_status put_own(iv_weights_stage *s, home *h, const char *own, iv_error *err) {
    const iv_stored *to = &s->model->stored[h->stored];
    const part *p = &s->parts[h->stored];
    size_t width = iv_dtype_bytes(p->info->dtype), row = to->columns * width, first, rows;
    iv_stored_rows_of(to, h->piece, &first, &rows);
    char *stored = malloc(rows * row);
    if (!stored) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", p->info->name);
    iv_status status = read_at(s, stored, rows * row, p->offset + first * row, err);
    if (status == IV_OK) iv_stored_give(to, h->piece, width, own, stored);
    if (status == IV_OK) status = write_at(s, stored, rows * row, p->offset + first * row, err);
    free(stored);
    h->put = status == IV_OK;
    return status;
}

static home *home_of(const iv_weights_stage *s, const iv_tensor *t) { return &s->homes[t - s->model->tensors]; }

/* How many tensors of the model in a part were put by themselves. */
static size_t count_put(const iv_weights_stage *s, size_t index) {
    const iv_stored *of = &s->model->stored[index];
    size_t n = 0;
    for (size_t k = 0; k < of->count; k++) n += home_of(s, of->pieces[k].tensor)->put;
    return n;
}

static iv_status put_pieces(iv_weights_stage *s, const iv_stored *given, const char *bytes, size_t width,
                            iv_error *err) {
    for (size_t i = 0; i < given->count; i++) {
        const iv_stored_piece *p = &given->pieces[i];
        home *h = home_of(s, p->tensor);
        size_t first, rows;
        char *own = malloc(p->tensor->rows * p->tensor->columns * width);
        if (!own) return iv_fail(err, IV_NO_MEMORY, "%.200s: no memory", given->info.name);
        iv_stored_rows_of(given, p, &first, &rows);
        iv_stored_take(given, p, width, bytes + first * given->columns * width, own);
        iv_status status = put_own(s, h, own, err);
        free(own);
        s->parts[h->stored].hashed = false;
        IV_TRY(status);
        if (count_put(s, h->stored) == s->model->stored[h->stored].count) s->parts[h->stored].put = true;
    }
    return IV_OK;
}

/* Of the type of the parts that it goes to. */
static iv_status check_type(const iv_weights_stage *s, const iv_stored *given, const char *dtype, size_t *width,
                            iv_error *err) {
    for (size_t i = 0; i < given->count; i++) {
        const part *p = &s->parts[home_of(s, given->pieces[i].tensor)->stored];
        *width = iv_dtype_bytes(p->info->dtype);
        if (strcmp(dtype, iv_dtype_name(p->info->dtype)) != 0)
            return iv_fail(err, IV_INVALID, "%.200s: dtype: wanted %s as in the weights in use, found %.40s",
                           given->info.name, iv_dtype_name(p->info->dtype), dtype);
    }
    return IV_OK;
}

static iv_status put_form(iv_weights_stage *s, const char *name, const char *dtype, const int64_t *shape, size_t dims,
                          iv_weights_read *read, void *user, iv_error *err) {
    iv_arena arena = {0};
    iv_stored given = {0};
    size_t width = 0, bytes = 0;
    char *data = NULL;
    iv_status status = IV_OK;
    if (dims <= IV_TENSOR_DIMS_MAX) status = iv_stored_recognize(s->model, name, (int)dims, shape, &arena, &given, err);
    if (status == IV_OK && !given.count)
        status = iv_fail(err, IV_INVALID, "%.200s: the weights in use have no tensor of this name", name);
    if (status == IV_OK) status = check_type(s, &given, dtype, &width, err);
    if (status == IV_OK && (!iv_size_mul(given.info.elements, width, &bytes) || !(data = malloc(bytes))))
        status = iv_fail(err, IV_NO_MEMORY, "%.200s: no memory for %zu elements", name, given.info.elements);
    for (size_t at = 0, n; status == IV_OK && at < bytes; at += n) {
        n = iv_size_min(CHUNK_BYTES, bytes - at);
        status = read(user, at, n, data + at, err);
    }
    if (status == IV_OK) status = put_pieces(s, &given, data, width, err);
    free(data);
    iv_arena_free(&arena);
    return status;
}

/* The tensors of a part that were not put by themselves, from the model. */
static iv_status fill_rest(iv_weights_stage *s, size_t index, iv_error *err) {
    const iv_stored *of = &s->model->stored[index];
    part *p = &s->parts[index];
    size_t width = iv_dtype_bytes(p->info->dtype), row = of->columns * width;
    for (size_t k = 0; k < of->count; k++) {
        const iv_stored_piece *q = &of->pieces[k];
        home *h = home_of(s, q->tensor);
        size_t first, rows, n = q->tensor->rows * q->tensor->columns * width;
        if (h->put) continue;
        iv_stored_rows_of(of, q, &first, &rows);
        char *stored = malloc(rows * row), *own = malloc(n);
        iv_status status = stored && own ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", p->info->name);
        if (status == IV_OK) status = iv_checkpoint_read(s->from, p->info, stored, first * row, rows * row, err);
        if (status == IV_OK) iv_stored_take(of, q, width, stored, own);
        if (status == IV_OK) status = put_own(s, h, own, err);
        free(stored), free(own);
        IV_TRY(status);
    }
    p->put = true;
    return IV_OK;
}

/* The digest of what the file holds. */
static iv_status hash_part(iv_weights_stage *s, part *p, iv_error *err) {
    iv_digest *d = iv_digest_new();
    iv_status status = d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "weights: no memory for a digest");
    for (size_t at = 0, n; at < p->info->bytes && status == IV_OK; at += n) {
        n = iv_size_min(CHUNK_BYTES, p->info->bytes - at);
        status = read_at(s, s->chunk, n, p->offset + at, err);
        if (status == IV_OK) iv_digest_add(d, s->chunk, n);
    }
    if (d) iv_digest_finish(d, p->digest);
    p->hashed = status == IV_OK;
    return status;
}

static bool is_head(const char *name) { /* with or without a wrapper's prefix */
    size_t n = strlen(name), tail = sizeof HEAD - 1;
    return n >= tail && strcmp(name + n - tail, HEAD) == 0 && (n == tail || name[n - tail - 1] == '.');
}

/* ---- the calls ------------------------------------------------------------------------------------------ */

iv_status iv_weights_stage_put(iv_weights_stage *s, const char *name, const char *dtype, const int64_t *shape,
                               size_t dims, iv_weights_read *read, void *user, iv_error *err) {
    part *p = find(s, name);
    const iv_tensor_info *like = p ? p->info : NULL;
    if (!p && s->tied && is_head(name)) {
        const part *embedding = find(s, s->embedding);
        p = &s->head, like = embedding ? embedding->info : NULL;
    }
    if (!like && (iv_tensor_is_buffer(name) || iv_tensor_is_ignored(&s->model->config, name))) return IV_OK;
    if (!like) return put_form(s, name, dtype, shape, dims, read, user, err);
    IV_TRY(check(like, name, dtype, shape, dims, err));
    return take(s, p, like->bytes, read, user, err);
}

size_t iv_weights_stage_missing(const iv_weights_stage *s, const char **first) {
    size_t n = 0;
    *first = NULL;
    for (size_t i = 0; i < s->count; i++) {
        if (s->parts[i].put || !s->model->stored[i].count) continue; /* what is not read is the model's own */
        if (n++ == 0) *first = s->parts[i].info->name;
    }
    return n;
}

typedef struct copying {
    const iv_checkpoint *from;
    const iv_tensor_info *info;
} copying;

static iv_status read_own(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    const copying *c = user;
    return iv_checkpoint_read(c->from, c->info, out, offset, n, err);
}

iv_status iv_weights_stage_fill(iv_weights_stage *s, iv_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        part *p = &s->parts[i];
        copying c = {s->from, p->info};
        if (!p->put && count_put(s, i)) IV_TRY(fill_rest(s, i, err));
        if (!p->put) IV_TRY(take(s, p, p->info->bytes, read_own, &c, err));
    }
    return IV_OK;
}

typedef struct drawing {
    uint64_t seed;
    const iv_tensor_info *info;
} drawing;

static iv_status draw(void *user, size_t offset, size_t n, void *out, iv_error *err) {
    const drawing *d = user;
    if (d->info->dtype != IV_BF16 && d->info->dtype != IV_F16 && d->info->dtype != IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "%s: no random values of its type", d->info->name);
    iv_dummy_fill(d->seed, d->info, out, offset, n);
    return IV_OK;
}

iv_status iv_weights_stage_randomize(iv_weights_stage *s, uint64_t seed, iv_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        drawing d = {seed, s->parts[i].info};
        IV_TRY(take(s, &s->parts[i], d.info->bytes, draw, &d, err));
    }
    return IV_OK;
}

iv_status iv_weights_stage_finish(iv_weights_stage *s, char digest[65], iv_error *err) {
    const char *first;
    uint8_t all[32];
    size_t missing = iv_weights_stage_missing(s, &first);
    if (missing)
        return iv_fail(err, IV_INVALID, "weights: %zu of %zu tensors are missing; the first is %.200s", missing,
                       s->count, first);
    IV_TRY(iv_weights_stage_fill(s, err));
    for (size_t i = 0; i < s->count; i++)
        if (!s->parts[i].hashed) IV_TRY(hash_part(s, &s->parts[i], err));
    const part *embedding = find(s, s->embedding);
    if (s->head.put && embedding && memcmp(s->head.digest, embedding->digest, sizeof all) != 0)
        return iv_fail(err, IV_INVALID, "%s: wanted the bytes of %s, as tie_word_embeddings is true, found others",
                       HEAD, s->embedding);
    iv_digest *d = iv_weights_digest_new(s->count);
    if (!d) return iv_fail(err, IV_NO_MEMORY, "weights: no memory for a digest");
    for (size_t i = 0; i < s->count; i++) iv_weights_digest_add(d, s->parts[i].info, s->parts[i].digest);
    iv_digest_finish(d, all);
    iv_digest_hex(all, digest);
    return IV_OK;
}
