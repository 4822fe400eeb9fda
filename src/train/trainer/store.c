/* store.c */
#include "train/trainer/store.h"
#include "base/digest.h"
#include "base/size.h"
#include "format/model_dir.h"
#include "train/trainer/adapter.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const iv_flat_kind row_of[IV_TRAINING_BUFFERS] = {
    [IV_TRAINING_MASTER] = IV_FLAT_MASTER,
    [IV_TRAINING_FIRST_MOMENT] = IV_FLAT_FIRST_MOMENT,
    [IV_TRAINING_SECOND_MOMENT] = IV_FLAT_SECOND_MOMENT,
};

static iv_status read_buffer(void *user, iv_training_buffer buffer, size_t first, size_t count, float *out,
                             iv_error *err) {
    return iv_train_read(user, row_of[buffer], first, count, out, err);
}

iv_training_shard iv_training_shard_of(iv_trainer *t) {
    iv_train_slice s = iv_train_slice_of(t);
    return (iv_training_shard){.first = s.first, .count = s.count, .read = read_buffer, .user = t};
}

static iv_status load_buffer(const iv_training_checkpoint *c, iv_trainer *t, iv_training_buffer buffer, size_t first,
                             size_t count, float *chunk, iv_error *err) {
    for (size_t at = 0, n; at < count; at += n) {
        n = iv_size_min(IV_TRAIN_CHUNK, count - at);
        IV_TRY(iv_training_read(c, buffer, first + at, n, chunk, err));
        IV_TRY(iv_train_write(t, row_of[buffer], first + at, n, chunk, err));
    }
    return IV_OK;
}

static iv_status load_buffers(const iv_training_checkpoint *c, iv_trainer *t, iv_error *err) {
    iv_train_slice s = iv_train_slice_of(t);
    float *chunk = malloc(IV_TRAIN_CHUNK * sizeof *chunk);
    if (!chunk) return iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", iv_training_get(c)->path);
    iv_status status = load_buffer(c, t, IV_TRAINING_MASTER, s.master_first, s.master_count, chunk, err);
    if (status == IV_OK) status = load_buffer(c, t, IV_TRAINING_FIRST_MOMENT, s.first, s.count, chunk, err);
    if (status == IV_OK) status = load_buffer(c, t, IV_TRAINING_SECOND_MOMENT, s.first, s.count, chunk, err);
    free(chunk);
    return status;
}

iv_status iv_training_load(const iv_training_checkpoint *c, iv_trainer *t, uint64_t updates, uint8_t hash[32],
                           iv_error *err) {
    const iv_training_saved *s = iv_training_get(c);
    char hex[65];
    IV_TRY(load_buffers(c, t, err));
    IV_TRY(iv_train_restore(t, updates, err));
    IV_TRY(iv_train_weights_hash(t, hash, err));
    iv_digest_hex(hash, hex);
    if (strcmp(hex, s->progress.weight_hash) == 0) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: weights hash: wanted %s, found %s", s->path, s->progress.weight_hash, hex);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static const size_t shard_bytes = 5000000000u; /* transformers' save_pretrained */

iv_status iv_training_export_to(const iv_training_model *m, bool overwrite, const iv_model_export_options *o,
                                iv_model_exported *written, iv_error *err) {
    iv_model_dir d;
    IV_TRY(
        iv_model_dir_open(o->dir, m->source, overwrite, true, o->has_dtype ? o->dtype : m->model->gemm_type, &d, err));
    iv_model_export_options with = *o;
    with.source = m->source;
    iv_status status = iv_model_dir_clear(&d, err);
    if (status == IV_OK) status = iv_model_export(m->model, &with, written, err);
    return iv_model_dir_close(&d, status, err);
}

static iv_status write_adapter(void *user, const char *dir, iv_error *err) {
    const iv_training_model *m = user;
    return iv_train_adapter_write(m->trainer, dir, m->model->gemm_type, NULL, err);
}

iv_training_save_options iv_training_save_of(iv_training_model *m, size_t keep) {
    bool adapter = iv_train_has_adapter(m->trainer);
    return (iv_training_save_options){.export = adapter ? write_adapter : iv_training_export_model,
                                      .export_user = m,
                                      .model_in_dir = adapter,
                                      .keep = keep};
}

/* There, and empty or to be written over. */
static iv_status make_dir(const char *dir, bool overwrite, iv_error *err) {
    if (mkdir(dir, 0777) == 0) return IV_OK;
    if (errno != EEXIST) return iv_fail(err, IV_IO, "%s: cannot make the directory: %s", dir, strerror(errno));
    DIR *d = opendir(dir);
    if (!d) return iv_fail(err, IV_INVALID, "%s: wanted a directory to write, found a file", dir);
    size_t entries = 0;
    for (const struct dirent *e; (e = readdir(d));) entries += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    if (!entries || overwrite) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted an empty directory (or overwrite), found %zu entries", dir, entries);
}

iv_status iv_training_export_adapter(iv_trainer *t, const char *dir, bool overwrite, iv_dtype type, uint8_t digest[32],
                                     iv_error *err) {
    IV_TRY(make_dir(dir, overwrite, err));
    return iv_train_adapter_write(t, dir, type, digest, err);
}

iv_status iv_training_export_model(void *user, const char *dir, iv_error *err) {
    const iv_training_model *m = user;
    iv_model_exported written;
    iv_model_export_options o = {.dir = dir, .shard_bytes_max = m->shard_bytes_max ? m->shard_bytes_max : shard_bytes};
    return iv_training_export_to(m, false, &o, &written, err);
}
