/* replace.c: the weights of an open engine, replaced in place. */
#include "engine/replace.h"
#include "base/cpu.h"
#include "base/size.h"
#include "engine/info.h"
#include "engine/ranks.h"
#include "model/stored.h"
#include "model/tensor_data.h"
#include "model/widen.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 };

iv_status iv_replace_check_whole(const iv_engine *e, iv_error *err) {
    return e->replacing ? iv_fail(err, IV_BUSY, "the weights are being replaced") : IV_OK;
}

iv_status iv_replace_check_borrowers(const iv_engine *e, iv_error *err) {
    if (!e->borrowers) return IV_OK;
    return iv_fail(err, IV_BUSY, "the weights are the base of %zu trainers: close them first", e->borrowers);
}

static iv_status check_idle(const iv_engine *e, iv_error *err) {
    if (!iv_engine_has_requests(e)) return IV_OK;
    return iv_fail(err, IV_BUSY, "replace weights: %zu requests run and %zu wait", e->running.count,
                   e->waiting.count + e->held.count);
}

iv_status iv_replace_begin(iv_engine *e, iv_model **first, iv_error *err) {
    IV_TRY(iv_replace_check_borrowers(e, err));
    IV_TRY(iv_ranks_check_update(e->ranks, err));
    IV_TRY(check_idle(e, err));
    e->replacing = true;
    iv_kv_evict_idle(&e->kv); /* no request runs, so all cached pages are idle */
    *first = e->model;
    return IV_OK;
}

/* ---- one tensor ----------------------------------------------------------------------------------------- */

/* The bits of the least positive float that a type rounds to infinity, or that is one. */
static uint32_t too_large_for(iv_dtype type) {
    return type == IV_BF16 ? 0x7f7f8000u : type == IV_F16 ? 0x477ff000u : 0x7f800000u;
}

/* Index of the first value whose magnitude has at least these bits, NaN too; n if there is none. */
static size_t find_large(const float *values, size_t n, uint32_t least) {
    for (size_t at = 0; at < n; at += 256) { /* blocks without a branch inside */
        size_t end = iv_size_min(at + 256, n);
        uint32_t found = 0;
        for (size_t i = at; i < end; i++) found |= (iv_bits(values[i]) & 0x7fffffffu) >= least;
        for (size_t i = at; found && i < end; i++)
            if ((iv_bits(values[i]) & 0x7fffffffu) >= least) return i;
    }
    return n;
}

/* Before the first element is written. A value is rounded to the checkpoint's type and to the one held. */
static iv_status check_values(const iv_tensor *t, size_t first, size_t n, const float *values, iv_error *err) {
    uint32_t stored = too_large_for(t->info.dtype), held = too_large_for(t->held);
    size_t bad = find_large(values, n, stored < held ? stored : held);
    if (bad == n) return IV_OK;
    if ((iv_bits(values[bad]) & 0x7f800000u) == 0x7f800000u)
        return iv_fail(err, IV_FORMAT, "%s: element %zu is not a finite number", t->info.name, first + bad);
    return iv_fail(err, IV_FORMAT, "%s: element %zu is too large for %s", t->info.name, first + bad,
                   iv_dtype_name(stored < held ? t->info.dtype : t->held));
}

/* The rows in pieces, rounded to the checkpoint's type. */
static iv_status write_rounded(const iv_tensor *t, size_t row, size_t rows, const float *values, iv_error *err) {
    size_t step = iv_size_max(1, PIECE_BYTES / (t->columns * sizeof(uint16_t)));
    uint16_t *piece = malloc(iv_size_min(step, rows) * t->columns * sizeof *piece);
    iv_status status = piece ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", t->info.name);
    for (size_t at = 0, n; status == IV_OK && at < rows; at += n) {
        n = iv_size_min(step, rows - at);
        const float *from = values + at * t->columns;
        if (t->info.dtype == IV_BF16)
            for (size_t i = 0; i < n * t->columns; i++) piece[i] = iv_bf16_from_f32(from[i]);
        else
            for (size_t i = 0; i < n * t->columns; i++) piece[i] = iv_f16_from_f32(from[i]);
        status = iv_tensor_write_rows(t, row + at, n, t->info.dtype, piece, err);
    }
    free(piece);
    return status;
}

iv_status iv_replace_write(iv_model *first, iv_tensor *t, size_t row, size_t rows, const float *values, iv_error *err) {
    if (t->unused) return iv_fail(err, IV_INVALID, "%s: the model does not use it", t->info.name);
    if (t->same_as)
        return iv_fail(err, IV_INVALID, "%s: is tied to %s: write that one", t->info.name, t->same_as->info.name);
    if (row > t->rows || rows > t->rows - row)
        return iv_fail(err, IV_INVALID, "%s: wanted rows within %zu, found %zu from %zu on", t->info.name, t->rows,
                       rows, row);
    if (t->int8)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: is held as int8: rows can be written to engines of arithmetic fma32 or tc16", t->info.name);
    if (t->packed)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: is held packed: rows can be written where the engine has weights expanded", t->info.name);
    if (rows == 0) return IV_OK;
    IV_TRY(check_values(t, row * t->columns, rows * t->columns, values, err));
    t->changed = true;
    for (size_t i = 0; i < first->tensor_count; i++)
        if (first->tensors[i].same_as == t) first->tensors[i].changed = true;
    if (t->info.dtype == IV_F32) return iv_tensor_write_rows(t, row, rows, IV_F32, values, err);
    return write_rounded(t, row, rows, values, err);
}

/* ---- the end -------------------------------------------------------------------------------------------- */

void *iv_replace_lend(iv_engine *e, size_t *bytes) {
    *bytes = 0;
    e->kv_lent = e->gpu_model != NULL;
    return e->gpu_model ? iv_gpu_model_kv(e->gpu_model, 0, bytes) : NULL;
}

iv_status iv_replace_take_back(iv_engine *e, iv_error *err) {
    if (!e->kv_lent) return IV_OK;
    IV_TRY(check_idle(e, err));
    iv_kv_evict_idle(&e->kv);
    return iv_gpu_model_clear_kv(e->gpu_model, err);
}

/* Everything that was derived from the weights. */
static iv_status follow(iv_engine *e, const uint8_t *digest, iv_error *err) {
    if (e->gpu_model) IV_TRY(iv_gpu_model_refresh(e->gpu_model, err));
    if (e->kv_lent) IV_TRY(iv_gpu_model_clear_kv(e->gpu_model, err));
    if (iv_baseline_widens(e->baseline)) {
        iv_baseline_forget(e->baseline, e->model);
        IV_TRY(iv_model_widen(e->model, e->baseline, e->pool, err));
    }
    if (digest)
        for (iv_model *m = e->model; m; m = m->next) memcpy(m->weights_digest, digest, sizeof m->weights_digest);
    else
        IV_TRY(
            iv_model_digest(e->model, e->gpu_model ? NULL : e->pool, err)); /* a GPU's memory is read by one thread */
    IV_TRY(iv_identity_make(e, err));
    return iv_fingerprint_make(e, e->fingerprint, err);
}

iv_status iv_replace_end(iv_engine *e, const iv_replace_options *o, iv_error *err) {
    static const iv_replace_options none = {0};
    if (!o) o = &none;
    if (!e->replacing) return iv_fail(err, IV_INVALID, "replace weights: wanted iv_replace_begin first");
    char *name = o->name ? strdup(o->name) : NULL;
    if (o->name && !name) return iv_fail(err, IV_NO_MEMORY, "replace weights: no memory");
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = follow(e, o->weights_digest, err);
    iv_fp_env_leave(mode);
    if (status != IV_OK) {
        free(name);
        return status;
    }
    if (name) free(e->updated_from), e->updated_from = name;
    e->weights_version++;
    e->replacing = false;
    return IV_OK;
}
