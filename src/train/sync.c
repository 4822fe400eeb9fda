/* sync.c */
#include "train/sync.h"
#include "base/cpu.h"
#include "engine/replace.h"

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

static iv_status write(iv_trainer *t, iv_model *m, iv_error *err) {
    iv_train_rows rows = iv_train_rows_of(t);
    if (iv_parameters_layout(m) != rows.elements)
        return iv_fail(err, IV_INVALID, "engine's weights: wanted the trainer's layout of %zu elements", rows.elements);
    return iv_parameters_write(m, iv_train_pool(t), rows.master, 0, rows.elements, err);
}

iv_status iv_train_sync(iv_trainer *t, iv_engine *e, bool digest, iv_error *err) {
    static const uint8_t none[32];
    iv_model *m;
    IV_TRY(check_model(iv_train_model(t), e->model, err));
    IV_TRY(iv_replace_begin(e, &m, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = write(t, m, err);
    iv_fp_env_leave(mode);
    return status == IV_OK ? iv_replace_end(e, &(iv_replace_options){.weights_digest = digest ? NULL : none}, err)
                           : status;
}
