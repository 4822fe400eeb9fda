/* checkpoint_write.c: cuts tensors into shards as transformers does, then writes shard after shard. */
#include "format/checkpoint_write.h"
#include "base/file.h"
#include "base/size.h"
#include "format/json.h"
#include "format/safetensors_write.h"
#include "format/shard_index.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 * 1024 * 1024, SHARD_NAME_BYTES = 64 };

typedef struct writing {
    const iv_checkpoint_write_options *o;
    iv_tensor_info *tensors; /* sizes filled in; shard: the file */
    uint8_t (*digests)[32];
    size_t *order; /* of one shard's tensors */
    iv_tensor_info *listed;
    unsigned char *piece;
    size_t shards, bytes, done;
} writing;

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static iv_status measure(writing *w, iv_error *err) {
    for (size_t i = 0; i < w->o->count; i++) {
        iv_tensor_info *t = &w->tensors[i];
        *t = w->o->tensors[i];
        IV_ASSERT(i == 0 || strcmp(t[-1].name, t->name) < 0);
        if (!iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &t->elements, &t->bytes) ||
            !iv_size_add(w->bytes, t->bytes, &w->bytes))
            return iv_fail(err, IV_LIMIT, "%s: tensor '%.200s' is too large", w->o->dir, t->name);
    }
    return IV_OK;
}

/* A file ends before the tensor that would make it too large. */
static iv_status cut(writing *w, iv_error *err) {
    size_t in_shard = 0, tensors = 0;
    for (size_t i = 0; i < w->o->count; i++) {
        iv_tensor_info *t = &w->tensors[i];
        bool full = in_shard > w->o->shard_bytes_max || t->bytes > w->o->shard_bytes_max - in_shard;
        if (i > 0 && tensors > 0 && full) w->shards++, in_shard = tensors = 0;
        t->shard = (int)w->shards;
        in_shard += t->bytes, tensors++;
        if (w->shards >= IV_INDEX_SHARDS_MAX)
            return iv_fail(err, IV_LIMIT, "%s: more than %d files: wanted a larger size for each", w->o->dir,
                           IV_INDEX_SHARDS_MAX);
    }
    w->shards++;
    return IV_OK;
}

static void shard_name(const writing *w, size_t shard, char out[SHARD_NAME_BYTES]) {
    if (w->shards == 1)
        snprintf(out, SHARD_NAME_BYTES, IV_WEIGHTS_NAME);
    else
        snprintf(out, SHARD_NAME_BYTES, "model-%05zu-of-%05zu.safetensors", shard + 1, w->shards);
}

/* ---- one file ------------------------------------------------------------------------------------------- */

static iv_status write_tensor(writing *w, size_t index, iv_safetensors_writer *out, iv_error *err) {
    const iv_checkpoint_write_options *o = w->o;
    const iv_tensor_info *t = &w->tensors[index];
    size_t rows = t->ndim ? (size_t)t->shape[0] : 1, row = rows ? t->bytes / rows : 0;
    size_t step = row ? iv_size_max(1, PIECE_BYTES / row) : 1;
    unsigned char *piece = row > PIECE_BYTES ? malloc(row) : w->piece;
    iv_digest *d = piece ? iv_digest_new() : NULL;
    iv_status status = d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", t->name);
    for (size_t at = 0, n; status == IV_OK && row && at < rows; at += n) {
        n = iv_size_min(step, rows - at);
        status = o->source(o->source_user, index, at, n, piece, err);
        if (status == IV_OK) status = iv_safetensors_writer_put(out, piece, n * row, err);
        if (status != IV_OK) break;
        iv_digest_add(d, piece, n * row);
        w->done += n * row;
        if (o->progress) o->progress(o->progress_user, w->done, w->bytes);
    }
    if (d) iv_digest_finish(d, w->digests[index]);
    if (piece != w->piece) free(piece);
    return status;
}

/* The order within a file: names are in order already. */
static size_t list_shard(writing *w, size_t shard) {
    static const size_t widths[] = {8, 4, 2, 1};
    size_t n = 0;
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        for (size_t i = 0; i < w->o->count; i++)
            if ((size_t)w->tensors[i].shard == shard && iv_dtype_bytes(w->tensors[i].dtype) == widths[k])
                w->listed[n] = w->tensors[i], w->order[n++] = i;
    return n;
}

static iv_status write_shard(writing *w, size_t shard, iv_error *err) {
    char name[SHARD_NAME_BYTES];
    iv_buf path = {0};
    iv_safetensors_writer out;
    size_t n = list_shard(w, shard);
    shard_name(w, shard, name);
    iv_status status = iv_path_join(w->o->dir, name, &path, err);
    if (status == IV_OK) status = iv_safetensors_writer_open(path.data, w->listed, n, "pt", &out, err);
    if (status == IV_OK) {
        for (size_t i = 0; status == IV_OK && i < n; i++) status = write_tensor(w, w->order[i], &out, err);
        status = iv_safetensors_writer_close(&out, status, err);
    }
    iv_buf_free(&path);
    return status;
}

/* ---- the index ------------------------------------------------------------------------------------------ */

static json_t *make_index(const writing *w) {
    json_t *root = json_object(), *metadata = json_object(), *map = json_object();
    int failed = json_object_set_new(root, "metadata", metadata) | json_object_set_new(root, "weight_map", map) |
                 json_object_set_new(metadata, "total_size", json_integer((json_int_t)w->bytes));
    for (size_t i = 0; !failed && i < w->o->count; i++) {
        char name[SHARD_NAME_BYTES];
        shard_name(w, (size_t)w->tensors[i].shard, name);
        failed = json_object_set_new(map, w->tensors[i].name, json_string(name));
    }
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

static iv_status write_index(const writing *w, iv_error *err) {
    iv_buf path = {0};
    iv_status status = iv_path_join(w->o->dir, IV_WEIGHTS_INDEX_NAME, &path, err);
    json_t *root = status == IV_OK ? make_index(w) : NULL;
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (status == IV_OK && !text) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for it", path.data);
    if (status == IV_OK) status = iv_file_write(path.data, text, strlen(text), err);
    free(text);
    json_decref(root);
    iv_buf_free(&path);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

static void remove_file(const char *dir, const char *name) {
    iv_buf path = {0};
    iv_error unused;
    if (iv_path_join(dir, name, &path, &unused) == IV_OK) unlink(path.data);
    iv_buf_free(&path);
}

static iv_status write_all(writing *w, size_t *written, iv_error *err) {
    IV_TRY(measure(w, err));
    IV_TRY(cut(w, err));
    for (; *written < w->shards; ++*written) IV_TRY(write_shard(w, *written, err));
    return w->shards > 1 ? write_index(w, err) : IV_OK;
}

iv_status iv_checkpoint_write(const iv_checkpoint_write_options *o, size_t *files, uint8_t digest[32], iv_error *err) {
    writing w = {.o = o};
    size_t written = 0;
    w.tensors = calloc(o->count + 1, sizeof *w.tensors), w.listed = calloc(o->count + 1, sizeof *w.listed);
    w.digests = calloc(o->count + 1, sizeof *w.digests), w.order = calloc(o->count + 1, sizeof *w.order);
    w.piece = malloc(PIECE_BYTES);
    iv_digest *d = NULL;
    iv_status status = IV_OK;
    if (!w.tensors || !w.listed || !w.digests || !w.order || !w.piece || !(d = iv_weights_digest_new(o->count)))
        status = iv_fail(err, IV_NO_MEMORY, "%s: no memory to write %zu tensors", o->dir, o->count);
    if (status == IV_OK) status = write_all(&w, &written, err);
    for (size_t i = 0; status != IV_OK && i < written; i++) {
        char name[SHARD_NAME_BYTES];
        shard_name(&w, i, name);
        remove_file(o->dir, name);
    }
    uint8_t made[32];
    for (size_t i = 0; status == IV_OK && i < o->count; i++) iv_weights_digest_add(d, &w.tensors[i], w.digests[i]);
    if (d) iv_digest_finish(d, made);
    if (status == IV_OK) memcpy(digest, made, sizeof made), *files = w.shards;
    free(w.tensors), free(w.listed), free(w.digests), free(w.order), free(w.piece);
    return status;
}

/* model-N-of-N.safetensors? */
static bool is_shard(const char *name) {
    static const char *const parts[] = {"model-", "-of-", ".safetensors"};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(parts[i]);
        if (strncmp(name, parts[i], n) != 0) return false;
        name += n;
        if (i == 2) break;
        if (!isdigit((unsigned char)*name)) return false;
        while (isdigit((unsigned char)*name)) name++;
    }
    return *name == 0;
}

iv_status iv_checkpoint_remove(const char *dir, iv_error *err) {
    DIR *d = opendir(dir);
    if (!d) return iv_fail(err, IV_IO, "%s: cannot read the directory: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, IV_WEIGHTS_NAME) == 0 || strcmp(e->d_name, IV_WEIGHTS_INDEX_NAME) == 0 ||
            is_shard(e->d_name))
            remove_file(dir, e->d_name);
    closedir(d);
    if (iv_checkpoint_has_safetensors(dir)) return iv_fail(err, IV_IO, "%s: cannot remove the weights there", dir);
    return IV_OK;
}
