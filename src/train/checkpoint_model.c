/* checkpoint_model.c: weights from memory, the other files from the source. */
#include "train/checkpoint_model.h"
#include "format/model_dir.h"
#include "model/export.h"

static const size_t shard_bytes = 5000000000u; /* transformers' save_pretrained */

iv_status iv_training_export_model(void *user, const char *dir, iv_error *err) {
    const iv_training_model *m = user;
    iv_model_export_options o = {.dir = dir, .shard_bytes_max = m->shard_bytes_max ? m->shard_bytes_max : shard_bytes};
    iv_model_exported written;
    iv_model_dir d;
    IV_TRY(iv_model_dir_open(dir, m->source, false, true, m->model->gemm_type, &d, err));
    return iv_model_dir_close(&d, iv_model_export(m->model, &o, &written, err), err);
}
