/* files.c: a trainer's checkpoints and exported models. */
#include "base/cpu.h"
#include "base/digest.h"
#include "engine/sized.h"
#include "train/public/public.h"
#include "train/trainer/store.h"

#include <stdio.h>
#include <stdlib.h>

enum { SHARD_BYTES = 2000000000 }; /* of a model in a checkpoint */

/* ---- models ----------------------------------------------------------------------------------------------------- */

static iv_training_model model_of(iv_trainer *t) {
    return (iv_training_model){
        .model = t->model, .source = t->public->model, .shard_bytes_max = SHARD_BYTES, .trainer = t};
}

static iv_status export_adapter(iv_trainer *t, const char *dir, const iv_export_options *o, iv_export_info *info,
                                iv_error *err) {
    bool given;
    iv_dtype type;
    uint8_t digest[32];
    char hex[65];
    IV_TRY(iv_gemm_type_parse(o->dtype, &given, &type, err));
    if (!given) type = t->model->gemm_type;
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_training_export_adapter(t, dir, o->overwrite, type, digest, err);
    iv_fp_env_leave(mode);
    if (status != IV_OK || !info) return status;
    iv_digest_hex(digest, hex);
    *info = (iv_export_info){.tensors = t->named->tensor_count, .files = 1};
    for (size_t i = 0; i < t->named->tensor_count; i++)
        info->bytes += t->named->tensors[i].info.elements * iv_dtype_bytes(type);
    snprintf(info->weights_digest, sizeof info->weights_digest, "sha256:%s", hex);
    return IV_OK;
}

iv_status iv_trainer_export(iv_trainer *t, const char *dir, const iv_export_options *given, iv_export_info *info,
                            iv_error *err) {
    iv_export_options o;
    iv_export_options_init(&o);
    IV_TRY(iv_train_public_check(t, err));
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "export: wanted a directory, found nothing");
    if (given) IV_TRY(iv_sized_read("options", given, offsetof(iv_export_options, threads), &o, sizeof o, err));
    if (o.lora) return iv_fail(err, IV_INVALID, "lora: wanted a model's export (iv_export), found a trainer's");
    if (!o.max_shard_bytes) return iv_fail(err, IV_INVALID, "max_shard_bytes: wanted 1 at least, found 0");
    if (t->learned) return export_adapter(t, dir, &o, info, err);
    iv_model_export_options x = {
        .dir = dir, .shard_bytes_max = o.max_shard_bytes, .progress = o.progress, .user = o.user};
    IV_TRY(iv_gemm_type_parse(o.dtype, &x.has_dtype, &x.dtype, err));
    iv_training_model m = model_of(t);
    iv_model_exported written = {0};
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_training_export_to(&m, o.overwrite, &x, &written, err);
    iv_fp_env_leave(mode);
    if (status != IV_OK || !info) return status;
    *info = (iv_export_info){.tensors = written.tensors, .files = written.files, .bytes = written.bytes};
    char hex[65];
    iv_digest_hex(written.weights_digest, hex);
    snprintf(info->weights_digest, sizeof info->weights_digest, "sha256:%s", hex);
    return IV_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

static iv_status check_files(const iv_trainer *t, const char *dir, iv_error *err) {
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "checkpoints: wanted a directory, found nothing");
    if (t->o.no_optimizer)
        return iv_fail(err, IV_INVALID, "trainer: was opened with no_optimizer: it has no state to save");
    return IV_OK;
}

iv_status iv_trainer_save(iv_trainer *t, const char *dir, size_t keep, const char *state, iv_error *err) {
    IV_TRY(iv_train_public_check(t, err));
    IV_TRY(check_files(t, dir, err));
    iv_training_run run = iv_train_run_of(t, &t->public->identity, dir);
    iv_training_shard shard = iv_training_shard_of(t);
    iv_training_progress p = {.step = t->steps, .weight_hash = t->public->metrics.weights_hash, .state = state};
    iv_training_model m = model_of(t);
    iv_training_save_options o = iv_training_save_of(&m, keep);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_training_save(&run, &p, &shard, &o, NULL, err);
    iv_fp_env_leave(mode);
    return status;
}

/* The trainer is broken until the last line. */
static iv_status read_state(iv_trainer *t, const iv_training_checkpoint *c, iv_error *err) {
    iv_train_public *p = t->public;
    uint8_t hash[32];
    t->ready = false, p->broken = true;
    IV_TRY(iv_training_load(c, t, iv_training_get(c)->progress.step, hash, err));
    p->metrics = (iv_trainer_metrics){0};
    iv_digest_hex(hash, p->metrics.weights_hash);
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
    iv_training_run run = iv_train_run_of(t, &t->public->identity, dir);
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
