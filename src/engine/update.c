/* update.c: new weights for an open engine. Invariant: the engine does not change until the new model is loaded,
 * checked and hashed. The swap after that fails only if a GPU is lost, and then no further step runs. */
#include "base/cpu.h"
#include "base/digest.h"
#include "engine/device.h"
#include "engine/info.h"
#include "engine/ranks.h"
#include "engine/replace.h"
#include "format/config_fields.h"
#include "model/widen.h"

#include <stdlib.h>
#include <string.h>

static iv_status check_config(const iv_engine *e, const char *dir, const iv_model_config *c, iv_error *err) {
    IV_TRY(iv_config_check_same(dir, &e->model->config, c, err));
    if (c->max_positions >= 0 && (size_t)c->max_positions >= e->max_model_len) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: max_position_embeddings: wanted %zu or more, the max_model_len, found %lld",
                   dir, e->max_model_len, (long long)c->max_positions);
}

/* Checks the configuration alone first, to refuse another model before its weights are read. */
static iv_status check_directory(const iv_engine *e, const char *dir, iv_error *err) {
    iv_model_config *config = malloc(sizeof *config);
    if (!config) return iv_fail(err, IV_NO_MEMORY, "update_weights: no memory");
    iv_status status = iv_model_config_read(dir, config, err);
    if (status == IV_OK) status = check_config(e, dir, config, err);
    free(config);
    return status;
}

/* wanted: NULL, or the digest that the weights must have. */
static iv_status check_digest(const char *dir, const iv_model *m, const char *wanted, iv_error *err) {
    char found[65];
    iv_digest_hex(m->weights_digest, found);
    if (!wanted || strcmp(wanted, found) == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: weights_digest: wanted %.64s, found %s", dir, wanted, found);
}

static iv_status load(const iv_engine *e, const char *dir, const char *digest, iv_pool *pool, iv_model **out,
                      iv_error *err) {
    iv_model_options m = e->model_options;
    m.has_dtype = true, m.dtype = e->model->gemm_type, m.dummy = false, m.progress = NULL;
    iv_device_stage_weights(e, &m);
    IV_TRY(iv_model_open(dir, &m, pool, out, err));
    iv_status status = check_config(e, dir, &(*out)->config, err); /* the file may have changed */
    if (status == IV_OK) status = check_digest(dir, *out, digest, err);
    if (status == IV_OK && iv_baseline_widens(e->baseline)) status = iv_model_widen(*out, e->baseline, pool, err);
    if (status != IV_OK) iv_model_close(*out), *out = NULL;
    return status;
}

/* The engine takes the new model's fingerprint and digests; after an error it has the old ones. */
static iv_status rename_engine(iv_engine *e, iv_model *new, iv_error *err) {
    iv_model *old = e->model;
    iv_identity_parts identity = e->identity;
    char fingerprint[IV_FINGERPRINT_BYTES];
    e->model = new;
    iv_status status = iv_identity_make(e, err);
    if (status == IV_OK) status = iv_fingerprint_make(e, fingerprint, err);
    if (status == IV_OK)
        memcpy(e->fingerprint, fingerprint, sizeof fingerprint);
    else
        e->model = old, e->identity = identity;
    return status;
}

/* All ranks compute with the new model. *out is the model to close: the old one, or after an error the new one. */
static iv_status swap(iv_engine *e, iv_model *new, iv_pool *pool, iv_model **out, iv_error *err) {
    iv_model *old = e->model;
    iv_identity_parts identity = e->identity;
    char fingerprint[IV_FINGERPRINT_BYTES];
    memcpy(fingerprint, e->fingerprint, sizeof fingerprint);
    *out = new;
    IV_TRY(rename_engine(e, new, err));
    iv_status status = iv_ranks_use_model(e, pool, err);
    if (status == IV_OK)
        *out = old;
    else
        e->model = old, e->identity = identity, memcpy(e->fingerprint, fingerprint, sizeof fingerprint);
    return status;
}

/* Uses the threads of all ranks, which are idle. */
static iv_status load_and_swap(iv_engine *e, const char *dir, const char *digest, iv_error *err) {
    iv_pool *pool;
    iv_model *model = NULL;
    IV_TRY(check_directory(e, dir, err));
    IV_TRY(iv_pool_open(iv_ranks_threads(e->ranks), &pool, err));
    iv_status status = load(e, dir, digest, pool, &model, err);
    if (status == IV_OK) status = swap(e, model, pool, &model, err);
    iv_pool_close(pool);
    iv_baseline_forget(e->baseline, model);
    iv_model_close(model);
    return status;
}

static iv_status update(iv_engine *e, const char *dir, const char *digest, iv_error *err) {
    char *name = strdup(dir);
    iv_status status =
        name ? load_and_swap(e, dir, digest, err) : iv_fail(err, IV_NO_MEMORY, "update_weights: no memory");
    if (status != IV_OK) {
        free(name);
        return status;
    }
    free(e->updated_from);
    e->updated_from = name;
    e->weights_version++;
    e->replacing = false;
    iv_kv_evict_idle(&e->kv); /* no request runs, so all cached pages are idle */
    return IV_OK;
}

iv_status iv_engine_update_weights(iv_engine *e, const char *dir, iv_error *err) {
    return iv_engine_update_weights_checked(e, dir, NULL, err);
}

iv_status iv_engine_update_weights_checked(iv_engine *e, const char *dir, const char *digest, iv_error *err) {
    if (!dir || !*dir) return iv_fail(err, IV_INVALID, "update_weights: wanted a model directory, found nothing");
    IV_TRY(iv_ranks_check_update(e->ranks, err));
    IV_TRY(iv_replace_check_borrowers(e, err));
    if (iv_engine_has_requests(e))
        return iv_fail(err, IV_BUSY, "update_weights: %zu requests run and %zu wait", e->running.count,
                       e->waiting.count + e->held.count);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = update(e, dir, digest, err);
    iv_fp_env_leave(mode);
    return status;
}
