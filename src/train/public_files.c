/* public_files.c: a trainer's checkpoints and exported models. */
#include "base/cpu.h"
#include "base/digest.h"
#include "engine/sized.h"
#include "format/model_dir.h"
#include "model/export.h"
#include "numerics/version.h"
#include "train/checkpoint_trainer.h"
#include "train/public.h"

#include <stdio.h>
#include <stdlib.h>

enum { SHARD_BYTES = 2000000000 }; /* of a model in a checkpoint */

/* ---- models ----------------------------------------------------------------------------------------------------- */

static iv_status export_model(iv_trainer *t, const char *dir, bool overwrite, iv_model_export_options *x,
                              iv_export_info *info, iv_error *err) {
    iv_model_dir d;
    iv_model_exported written = {0};
    char hex[65];
    x->dir = dir;
    IV_TRY(iv_model_dir_open(dir, t->public->model, overwrite, true, x->has_dtype ? x->dtype : t->model->gemm_type, &d,
                             err));
    iv_status status = iv_model_dir_clear(&d, err);
    if (status == IV_OK) status = iv_model_export(t->model, x, &written, err);
    IV_TRY(iv_model_dir_close(&d, status, err));
    *info = (iv_export_info){.tensors = written.tensors, .files = written.files, .bytes = written.bytes};
    iv_digest_hex(written.weights_digest, hex);
    snprintf(info->weights_digest, sizeof info->weights_digest, "sha256:%s", hex);
    return IV_OK;
}

iv_status iv_trainer_export(iv_trainer *t, const char *dir, const iv_export_options *given, iv_export_info *info,
                            iv_error *err) {
    iv_export_options o;
    iv_export_info unused;
    iv_export_options_init(&o);
    IV_TRY(iv_train_public_check(t, err));
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "export: wanted a directory, found nothing");
    if (given) IV_TRY(iv_sized_read("options", given, offsetof(iv_export_options, threads), &o, sizeof o, err));
    if (!o.max_shard_bytes) return iv_fail(err, IV_INVALID, "max_shard_bytes: wanted 1 at least, found 0");
    iv_model_export_options x = {.shard_bytes_max = o.max_shard_bytes, .progress = o.progress, .user = o.user};
    IV_TRY(iv_gemm_type_parse(o.dtype, &x.has_dtype, &x.dtype, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = export_model(t, dir, o.overwrite, &x, info ? info : &unused, err);
    iv_fp_env_leave(mode);
    return status;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

static iv_training_run run_of(const iv_trainer *t, const char *dir) {
    const iv_train_public *p = t->public;
    return (iv_training_run){.dir = dir,
                             .identity = p->fingerprint,
                             .initial_weights = p->initial,
                             .hyperparameters = p->hyperparameters,
                             .law_version = IV_TRAINING_VERSION,
                             .elements = t->elements};
}

static iv_status check_files(const iv_trainer *t, const char *dir, iv_error *err) {
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "checkpoints: wanted a directory, found nothing");
    if (t->o.no_optimizer)
        return iv_fail(err, IV_INVALID, "trainer: was opened with no_optimizer: it has no state to save");
    return IV_OK;
}

static iv_status export_checkpoint(void *user, const char *dir, iv_error *err) {
    iv_export_info unused;
    return export_model(user, dir, false, &(iv_model_export_options){.shard_bytes_max = SHARD_BYTES}, &unused, err);
}

iv_status iv_trainer_save(iv_trainer *t, const char *dir, size_t keep, const char *state, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_files(t, dir, err));
    iv_training_run run = run_of(t, dir);
    iv_training_shard shard = iv_training_shard_of(t);
    iv_training_progress p = {.step = t->steps, .weight_hash = t->public->metrics.weights_hash, .state = state};
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status =
        iv_training_save(&run, &p, &shard, &(iv_training_save_options){export_checkpoint, t, keep}, NULL, err);
    iv_fp_env_leave(mode);
    return status;
}

/* The trainer is broken until the last line. */
static iv_status read_state(iv_trainer *t, const iv_training_checkpoint *c, iv_error *err) {
    iv_train_public *p = t->public;
    const iv_training_saved *s = iv_training_get(c);
    t->ready = false, p->broken = true;
    IV_TRY(iv_training_load(c, t, err));
    IV_TRY(iv_train_restore(t, s->progress.step, err));
    p->metrics = (iv_trainer_metrics){0};
    IV_TRY(iv_train_public_hash(t, err));
    if (strcmp(p->metrics.weights_hash, s->progress.weight_hash) != 0)
        return iv_fail(err, IV_FORMAT, "%s: weights hash: wanted %s, found %s", s->path, s->progress.weight_hash,
                       p->metrics.weights_hash);
    p->broken = false;
    return IV_OK;
}

static iv_status copy_text(const char *text, size_t n, iv_text *out, iv_error *err) {
    char *data = malloc(n + 1);
    if (!data) return iv_fail(err, IV_NO_MEMORY, "restore: no memory");
    if (n) memcpy(data, text, n);
    data[n] = 0;
    *out = (iv_text){data, n};
    return IV_OK;
}

static iv_status restore(iv_trainer *t, const char *dir, bool *found, iv_text *state, iv_buf *notes, iv_error *err) {
    iv_training_checkpoint *c = NULL;
    iv_training_run run = run_of(t, dir);
    IV_TRY(iv_training_resume(&run, NULL, &c, notes, err));
    *found = c != NULL;
    if (!c) return IV_OK;
    const char *saved = iv_training_get(c)->progress.state;
    if (!saved) saved = "{}";
    iv_status status = state ? copy_text(saved, strlen(saved), state, err) : IV_OK;
    if (status == IV_OK) status = read_state(t, c, err);
    iv_training_close(c);
    return status;
}

iv_status iv_trainer_restore(iv_trainer *t, const char *dir, bool *found, iv_text *state, iv_text *notes,
                             iv_error *err) {
    iv_buf lines = {0};
    if (state) *state = (iv_text){0};
    if (notes) *notes = (iv_text){0};
    if (!t || !found) return iv_fail(err, IV_INVALID, "iv_trainer_restore: wanted a trainer and a place, found NULL");
    *found = false;
    IV_TRY(check_files(t, dir, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = restore(t, dir, found, state, &lines, err);
    iv_fp_env_leave(mode);
    if (status == IV_OK && notes) status = copy_text(lines.data, lines.len, notes, err);
    if (status != IV_OK && state) iv_text_free(state);
    iv_buf_free(&lines);
    return status;
}
