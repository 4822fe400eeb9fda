/* sync.c */
#include "train/rollout/sync.h"
#include "base/cpu.h"
#include "base/size.h"
#include "engine/adapters.h"
#include "engine/replace.h"
#include "format/config_fields.h"
#include "model/parameters.h"
#include "numerics/floats.h"
#include "train/trainer/adapter.h"

#include <stdlib.h>
#include <string.h>

static iv_status check_tensor(const iv_tensor *want, const iv_tensor *found, iv_error *err) {
    if (strcmp(want->info.name, found->info.name) != 0)
        return iv_fail(err, IV_INVALID, "engine's weights: wanted the tensor %s of the trainer's model, found %s",
                       want->info.name, found->info.name);
    if (want->rows != found->rows || want->columns != found->columns || !want->same_as != !found->same_as)
        return iv_fail(err, IV_INVALID,
                       "engine's weights: %s: wanted %zu x %zu%s as in the trainer's model, found %zu x %zu%s",
                       want->info.name, want->rows, want->columns, want->same_as ? " tied" : "", found->rows,
                       found->columns, found->same_as ? " tied" : "");
    if (want->held != found->held)
        return iv_fail(err, IV_INVALID,
                       "engine's weights: %s: wanted %s as in the trainer, found %s (an engine opened with trainable "
                       "and the trainer's dtype)",
                       want->info.name, iv_dtype_name(want->held), iv_dtype_name(found->held));
    return IV_OK;
}

static iv_status check_model(const iv_model *want, const iv_model *found, iv_error *err) {
    if (want->tensor_count != found->tensor_count)
        return iv_fail(err, IV_INVALID, "engine's weights: wanted the %zu tensors of the trainer's model, found %zu",
                       want->tensor_count, found->tensor_count);
    for (size_t i = 0; i < want->tensor_count; i++) {
        if (want->tensors[i].unused && found->tensors[i].unused) continue;
        IV_TRY(check_tensor(&want->tensors[i], &found->tensors[i], err));
    }
    return IV_OK;
}

/* To nearest, ties to an even last bit; with 0 bits that is the exponent's. */
static float round_mantissa(float x, unsigned bits) {
    unsigned drop = IV_F32_MANTISSA_BITS - bits;
    uint32_t u = iv_bits(x);
    if (drop == 0 || (u & 0x7f800000u) == 0x7f800000u) return x;
    u += (1u << (drop - 1)) - 1 + (u >> drop & 1u);
    return iv_float(u >> drop << drop);
}

/* Writes a copy of the master weights, its matrices rounded. */
static iv_status write_rounded(iv_trainer *t, iv_model *m, size_t elements, unsigned bits, iv_error *err) {
    size_t bytes;
    float *copy = iv_size_mul(elements, sizeof *copy, &bytes) ? malloc(bytes) : NULL;
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "engine's weights: no memory for %zu elements", elements);
    iv_status status = iv_train_read(t, IV_FLAT_MASTER, 0, elements, copy, err);
    for (size_t i = 0; status == IV_OK && i < m->tensor_count; i++) {
        const iv_tensor *x = &m->tensors[i];
        if (!iv_parameter_is_trained(x) || x->info.ndim < 2) continue;
        for (size_t k = 0; k < x->rows * x->columns; k++)
            copy[x->offset + k] = round_mantissa(copy[x->offset + k], bits);
    }
    if (status == IV_OK) status = iv_parameters_write(m, iv_train_pool(t), copy, 0, elements, err);
    free(copy);
    return status;
}

static iv_status write(iv_trainer *t, iv_model *m, unsigned bits, iv_error *err) {
    size_t elements = iv_train_slice_of(t).elements;
    if (iv_parameters_layout(m) != elements)
        return iv_fail(err, IV_INVALID, "engine's weights: wanted the trainer's layout of %zu elements", elements);
    if (bits < IV_F32_MANTISSA_BITS) return write_rounded(t, m, elements, bits, err);
    return m == iv_train_model(t) ? IV_OK : iv_train_write_model(t, m, err); /* one model: it is written */
}

iv_status iv_train_sync(iv_trainer *t, iv_engine *e, bool digest, iv_error *err) {
    return iv_train_sync_rounded(t, e, digest, IV_F32_MANTISSA_BITS, err);
}

/* ---- adapters ---------------------------------------------------------------------------------------------- */

static iv_status check_engine(iv_trainer *t, const iv_engine *e, iv_error *err) {
    const iv_model *ours = iv_train_model(t);
    if (!iv_train_has_adapter(t))
        return iv_fail(err, IV_INVALID, "sync_adapter: wanted a trainer with an adapter (lora_rank, lora), found none");
    if (e->model == ours) return IV_OK;
    if (e->model->gemm_type != ours->gemm_type)
        return iv_fail(err, IV_INVALID, "sync_adapter: wanted an engine of dtype %s as the trainer, found %s",
                       iv_dtype_name(ours->gemm_type), iv_dtype_name(e->model->gemm_type));
    return iv_config_check_same("sync_adapter: the engine's model", &ours->config, &e->model->config, err);
}

iv_status iv_train_sync_adapter(iv_trainer *t, iv_engine *e, const char *name, iv_adapter_info *info, iv_error *err) {
    iv_adapter_files image;
    iv_adapter *made = NULL;
    IV_TRY(check_engine(t, e, err));
    iv_arithmetic arithmetic = iv_train_options_of(t)->arithmetic;
    if (e->arithmetic != arithmetic)
        return iv_fail(err, IV_INVALID, "sync_adapter: wanted an engine of arithmetic %s as the trainer, found %s",
                       iv_arithmetic_name(arithmetic), iv_arithmetic_name(e->arithmetic));
    IV_TRY(iv_replace_take_back(e, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_train_adapter_image(t, e->model->gemm_type, &image, err);
    if (status == IV_OK) {
        status = iv_adapter_make(e->model, &image, IV_ADAPTER_RANK_MAX, &made, err);
        iv_adapter_image_close(&image);
    }
    if (status == IV_OK && (status = iv_adapters_put(e, name, "", made, err)) != IV_OK) iv_adapter_free(made);
    iv_fp_env_leave(mode);
    if (status == IV_OK && info) iv_adapters_info(e, name, info);
    return status;
}

/* ---- weights ----------------------------------------------------------------------------------------------- */

iv_status iv_train_sync_rounded(iv_trainer *t, iv_engine *e, bool digest, unsigned mantissa_bits, iv_error *err) {
    static const uint8_t none[32];
    iv_model *m;
    if (mantissa_bits > IV_F32_MANTISSA_BITS)
        return iv_fail(err, IV_INVALID, "engine's weights: mantissa bits: wanted 0 to %d, found %u",
                       IV_F32_MANTISSA_BITS, mantissa_bits);
    if (iv_train_has_adapter(t))
        return iv_fail(err, IV_INVALID,
                       "sync: the trainer's adapter learns, its weights do not: wanted iv_trainer_sync_adapter "
                       "(in Python sync_adapter)");
    if (e->model != iv_train_model(t)) IV_TRY(check_model(iv_train_model(t), e->model, err));
    IV_TRY(iv_replace_begin(e, &m, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = write(t, m, mantissa_bits, err);
    iv_fp_env_leave(mode);
    return status == IV_OK ? iv_replace_end(e, &(iv_replace_options){.weights_digest = digest ? NULL : none}, err)
                           : status;
}
