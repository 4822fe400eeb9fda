/* identity.c */
#include "train/trainer/identity.h"
#include "base/digest.h"
#include "model/stored.h"
#include "numerics/version.h"
#include "train/trainer/adapter.h"
#include "train/trainer/state.h"

#include <stdlib.h>
#include <string.h>

json_t *iv_train_hyperparameters(const iv_trainer *t, const char *kind) {
    const iv_adamw_options *a = &t->o.adamw;
    json_t *h = json_pack("{ss ss ss sI sf sf sf sf sb}", "kind", kind, "dtype", iv_dtype_name(t->model->gemm_type),
                          "arithmetic", iv_arithmetic_name(t->o.arithmetic), "virtual_ranks",
                          (json_int_t)t->o.virtual_ranks, "beta1", a->beta1, "beta2", a->beta2, "eps", a->eps,
                          "weight_decay", a->weight_decay, "decay_all", (int)t->o.decay_all);
    if (!h || !t->learned) return h;
    json_t *adapter = iv_train_adapter_parameters(t);
    if (adapter && json_object_set_new(h, "lora", adapter) == 0) return h;
    json_decref(h);
    return NULL;
}

iv_status iv_train_identify(iv_trainer *t, json_t *hyperparameters, const char *data, iv_train_identity *out,
                            iv_error *err) {
    uint8_t digest[32];
    char hex[65], versions[64];
    free(out->hyperparameters);
    out->hyperparameters = hyperparameters ? json_dumps(hyperparameters, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(hyperparameters);
    if (!out->hyperparameters) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    if (!t->learned) IV_TRY(iv_model_digest(t->model, NULL, err)); /* weights that do not learn have theirs */
    iv_digest_hex(t->model->weights_digest, hex);
    snprintf(out->initial, sizeof out->initial, "sha256:%s", hex);
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    snprintf(versions, sizeof versions, "forward %d training %d\n", IV_NUMERICS_VERSION, IV_TRAINING_VERSION);
    iv_digest_add(d, versions, strlen(versions));
    iv_digest_add(d, out->initial, strlen(out->initial) + 1);
    if (data) iv_digest_add(d, data, strlen(data) + 1);
    iv_digest_add(d, out->hyperparameters, strlen(out->hyperparameters));
    iv_digest_finish(d, digest);
    iv_digest_hex(digest, hex);
    snprintf(out->fingerprint, sizeof out->fingerprint, "ivt%d-%s-%s-%.16s", IV_TRAINING_VERSION,
             iv_arithmetic_name(t->o.arithmetic), iv_dtype_name(t->model->gemm_type), hex);
    return IV_OK;
}

void iv_train_identity_free(iv_train_identity *id) {
    free(id->hyperparameters);
    *id = (iv_train_identity){0};
}

iv_training_run iv_train_run_of(const iv_trainer *t, const iv_train_identity *id, const char *dir) {
    return (iv_training_run){.dir = dir,
                             .identity = id->fingerprint,
                             .initial_weights = id->initial,
                             .hyperparameters = id->hyperparameters,
                             .law_version = IV_TRAINING_VERSION,
                             .elements = t->elements};
}
