/* replace.c: the weights of an open engine, replaced in place. */
#include "engine/replace.h"
#include "base/cpu.h"
#include "base/size.h"
#include "engine/info.h"
#include "engine/ranks.h"
#include "model/tensor_data.h"
#include "model/widen.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 };

iv_status iv_replace_check_whole(const iv_engine *e, iv_error *err) {
    return e->replacing ? iv_fail(err, IV_BUSY, "the weights are being replaced") : IV_OK;
}

uint64_t iv_replace_version(const iv_engine *e) { return e->weights_version; }

iv_status iv_replace_begin(iv_engine *e, iv_model **first, iv_error *err) {
    IV_TRY(iv_ranks_check_update(e->ranks, err));
    if (iv_engine_has_requests(e))
        return iv_fail(err, IV_BUSY, "replace weights: %zu requests run and %zu wait", e->running.count,
                       e->waiting.count + e->held.count);
    e->replacing = true;
    iv_kv_evict_idle(&e->kv); /* no request runs, so all cached pages are idle */
    *first = e->model;
    return IV_OK;
}

/* ---- one tensor ----------------------------------------------------------------------------------------- */

static bool is_finite(float x) { return (iv_bits(x) & 0x7f800000u) != 0x7f800000u; }

/* In a 16-bit type; an infinity if it is too large. */
static uint16_t rounded(iv_dtype type, float x) { return type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x); }

static bool fits(iv_dtype type, float x) {
    uint16_t mask = type == IV_BF16 ? 0x7f80u : 0x7c00u;
    return is_finite(x) && (type == IV_F32 || (rounded(type, x) & mask) != mask);
}

/* Before the first element is written. Rounding twice, to the checkpoint's type and to the one held, is checked twice.
 */
static iv_status check_values(const iv_tensor *t, size_t first, size_t n, const float *values, iv_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (fits(t->info.dtype, values[i]) && fits(t->held, values[i])) continue;
        if (!is_finite(values[i]))
            return iv_fail(err, IV_FORMAT, "%s: element %zu is not a finite number", t->info.name, first + i);
        return iv_fail(err, IV_FORMAT, "%s: element %zu is too large for %s", t->info.name, first + i,
                       iv_dtype_name(fits(t->info.dtype, values[i]) ? t->held : t->info.dtype));
    }
    return IV_OK;
}

/* The rows in pieces, rounded to the checkpoint's type. */
static iv_status write_rounded(const iv_tensor *t, size_t row, size_t rows, const float *values, iv_error *err) {
    size_t step = iv_size_max(1, PIECE_BYTES / (t->columns * sizeof(uint16_t)));
    uint16_t *piece = malloc(iv_size_min(step, rows) * t->columns * sizeof *piece);
    iv_status status = piece ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to write it", t->info.name);
    for (size_t at = 0, n; status == IV_OK && at < rows; at += n) {
        n = iv_size_min(step, rows - at);
        const float *from = values + at * t->columns;
        for (size_t i = 0; i < n * t->columns; i++) piece[i] = rounded(t->info.dtype, from[i]);
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
    if (rows == 0) return IV_OK;
    IV_TRY(check_values(t, row * t->columns, rows * t->columns, values, err));
    t->changed = true;
    for (size_t i = 0; i < first->tensor_count; i++)
        if (first->tensors[i].same_as == t) first->tensors[i].changed = true;
    if (t->info.dtype == IV_F32) return iv_tensor_write_rows(t, row, rows, IV_F32, values, err);
    return write_rounded(t, row, rows, values, err);
}

/* ---- the end -------------------------------------------------------------------------------------------- */

/* Everything that was derived from the weights. The name is owned by the engine afterwards. */
static iv_status follow(iv_engine *e, const uint8_t *digest, iv_error *err) {
    if (e->gpu_model) IV_TRY(iv_gpu_model_refresh(e->gpu_model, err));
    if (iv_baseline_widens(e->baseline)) {
        iv_baseline_forget(e->baseline, e->model);
        IV_TRY(iv_model_widen(e->model, e->baseline, e->pool, err));
    }
    if (digest)
        for (iv_model *m = e->model; m; m = m->next) memcpy(m->weights_digest, digest, sizeof m->weights_digest);
    else
        IV_TRY(iv_model_digest(e->model, err));
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
