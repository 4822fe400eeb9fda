/* export.c: invar.h's copy of a model: load, write the weights, copy the rest. */
#include "base/cpu.h"
#include "base/digest.h"
#include "engine/gguf_copy.h"
#include "engine/sized.h"
#include "format/model_dir.h"
#include "invar_model.h"
#include "model/adapter_merge.h"
#include "model/export.h"
#include "numerics/arithmetic.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define SHARD_BYTES 5000000000u /* transformers' save_pretrained */

void iv_export_options_init_sized(iv_export_options *o, size_t size) {
    iv_export_options defaults = {.dtype = "auto", .max_shard_bytes = SHARD_BYTES};
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

/* Reading and writing as one progress: the total is an estimate until all is read. */
typedef struct progress {
    const iv_export_options *o;
    size_t read;
} progress;

static void step_read(void *user, size_t done, size_t total) {
    progress *p = user;
    p->read = total;
    if (p->o->progress) p->o->progress(p->o->user, done, 2 * total);
}

static void step_write(void *user, size_t done, size_t total) {
    const progress *p = user;
    if (p->o->progress) p->o->progress(p->o->user, p->read + done, p->read + total);
}

/* Held in float32, as that rounds nothing: matrices keep the checkpoint's type. Packed ones
 * become the type of config.json, or, where another is asked for, float32, which is rounded once when written. */
static iv_status load(const char *model, const iv_export_options *o, bool has_dtype, progress *p, iv_model **out,
                      iv_error *err) {
    iv_model_options m = {.has_dtype = true, .dtype = IV_F32, .positions = 1, .progress = step_read, .user = p};
    m.widen = o->lora != NULL; /* the sums are rounded once, when they are written */
    m.expand_as_saved = !has_dtype;
    iv_pool *pool;
    IV_TRY(iv_pool_open(o->threads, &pool, err));
    iv_status status = iv_model_open(model, &m, pool, out, err);
    iv_pool_close(pool);
    return status;
}

static iv_status merge(iv_model *m, const char *dir, iv_error *err) {
    iv_adapter_files *files;
    IV_TRY(iv_adapter_open(dir, &files, err));
    iv_status status = iv_adapter_merge(m, files, err);
    iv_adapter_close(files);
    return status;
}

static iv_status write_model(iv_model_dir *d, const iv_export_options *o, iv_model_export_options *x,
                             iv_export_info *info, iv_error *err) {
    progress p = {.o = o};
    iv_model *m = NULL;
    iv_model_exported written = {0};
    x->progress = step_write, x->user = &p, x->source = d->source;
    iv_status status = load(d->source, o, x->has_dtype, &p, &m, err);
    if (status == IV_OK && o->lora) status = merge(m, o->lora, err);
    if (status == IV_OK) status = iv_model_dir_clear(d, err);
    if (status == IV_OK) status = iv_model_export(m, x, &written, err);
    iv_model_close(m);
    if (status != IV_OK) return status;
    *info = (iv_export_info){.tensors = written.tensors, .files = written.files, .bytes = written.bytes};
    char hex[65];
    iv_digest_hex(written.weights_digest, hex);
    snprintf(info->weights_digest, sizeof info->weights_digest, "sha256:%s", hex);
    return IV_OK;
}

static iv_status export_gguf(const char *model, const char *path, const iv_export_options *o,
                             const iv_model_export_options *x, iv_export_info *info, iv_error *err) {
    const iv_gguf_copy_options c = {.model = model,
                                    .path = path,
                                    .format = (iv_weight_format)x->dtype,
                                    .as_held = !x->has_dtype,
                                    .overwrite = o->overwrite,
                                    .threads = o->threads,
                                    .progress = o->progress,
                                    .user = o->user};
    iv_gguf_exported written;
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_gguf_copy(&c, &written, err);
    iv_fp_env_leave(mode);
    if (status == IV_OK) *info = (iv_export_info){.tensors = written.tensors, .files = 1, .bytes = written.bytes};
    return status;
}

iv_status iv_export(const char *model, const char *dir, const iv_export_options *given, iv_export_info *info,
                    iv_error *err) {
    iv_export_options options, *o = &options;
    iv_export_options_init(o);
    IV_TRY(iv_sized_read("options", given, offsetof(iv_export_options, threads), o, sizeof *o, err));
    iv_model_export_options x = {.dir = dir, .shard_bytes_max = o->max_shard_bytes};
    iv_model_dir d;
    if (!o->max_shard_bytes) return iv_fail(err, IV_INVALID, "max_shard_bytes: wanted 1 at least, found 0");
    IV_TRY(iv_gemm_type_parse(o->dtype, &x.has_dtype, &x.dtype, err));
    if (iv_gguf_is_asked(dir) && o->lora)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: an adapter is merged into a directory, which can be exported as GGUF after that", dir);
    if (iv_gguf_is_asked(dir)) return export_gguf(model, dir, o, &x, info, err);
    IV_TRY(iv_model_dir_open(dir, model, o->overwrite, x.has_dtype, x.dtype, &d, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = write_model(&d, o, &x, info, err);
    iv_fp_env_leave(mode);
    return iv_model_dir_close(&d, status, err);
}
