/* check.c: digests of the weights as they are held, tensor by tensor. */
#include "base/cpu.h"
#include "base/digest.h"
#include "base/json_out.h"
#include "engine/ranks.h"
#include "model/stored.h"

#include <stdlib.h>
#include <string.h>

typedef struct hashing {
    iv_stored *copies; /* [count]: the model keeps its own digests */
    iv_error *errors;  /* [workers]: of the last tensor that failed */
} hashing;

static void hash_one(void *context, size_t index, size_t worker) {
    hashing *h = context;
    if (iv_stored_is_held(&h->copies[index])) iv_stored_digest(&h->copies[index], &h->errors[worker]);
}

/* A GPU's memory is read by one thread. */
static iv_status hash_all(iv_engine *e, iv_stored *copies, iv_error *err) {
    size_t n = e->model->stored_count, workers = iv_pool_threads(e->pool);
    hashing h = {copies, calloc(workers, sizeof *h.errors)};
    if (!h.errors) return iv_fail(err, IV_NO_MEMORY, "weights: no memory to check them");
    if (e->gpu_model)
        for (size_t i = 0; i < n; i++) hash_one(&h, i, 0);
    else
        iv_pool_run(e->pool, n, hash_one, &h);
    iv_status status = IV_OK;
    for (size_t w = 0; w < workers && status == IV_OK; w++)
        if (h.errors[w].status != IV_OK) *err = h.errors[w], status = err->status;
    free(h.errors);
    return status;
}

/* The place of the tensor's digest: a head next to tied embeddings has their bytes. */
static const iv_stored *hashed(const iv_engine *e, const iv_stored *copies, size_t i) {
    const iv_stored *s = &copies[i];
    const iv_tensor *same = s->count ? s->pieces[0].tensor->same_as : NULL;
    for (size_t k = 0; same && k < e->model->stored_count; k++)
        if (copies[k].count && copies[k].pieces[0].tensor == same) return &copies[k];
    return s;
}

static void digest_all(const iv_engine *e, const iv_stored *copies, iv_digest *d) {
    for (size_t i = 0; i < e->model->stored_count; i++) {
        iv_tensor_info info = iv_stored_info(&copies[i]);
        iv_weights_digest_add(d, &info, hashed(e, copies, i)->digest);
    }
}

static iv_status write_all(const iv_engine *e, const iv_stored *copies, iv_text *out, char digest[65], iv_error *err) {
    iv_buf text = {0};
    iv_json_out o = {.buf = &text};
    uint8_t all[32];
    char hex[65];
    iv_digest *d = iv_weights_digest_new(e->model->stored_count);
    if (!d) return iv_fail(err, IV_NO_MEMORY, "weights: no memory to check them");
    digest_all(e, copies, d);
    iv_digest_finish(d, all);
    iv_digest_hex(all, digest);
    iv_out_open(&o, '{');
    for (size_t i = 0; i < e->model->stored_count; i++) {
        if (!iv_stored_is_held(&copies[i])) continue;
        iv_digest_hex(copies[i].digest, hex);
        iv_out_kv_text(&o, copies[i].info.name, hex);
    }
    iv_out_close(&o, '}');
    *out = (iv_text){.data = text.data, .bytes = text.len};
    if (!o.failed && iv_buf_putc(&text, 0)) {
        out->data = text.data;
        return IV_OK;
    }
    iv_buf_free(&text);
    *out = (iv_text){0};
    return iv_fail(err, IV_NO_MEMORY, "weights: no memory for their digests");
}

iv_status iv_engine_check_weights(iv_engine *e, iv_text *json, char digest[65], iv_error *err) {
    *json = (iv_text){0};
    IV_TRY(iv_ranks_check_update(e->ranks, err));
    if (iv_engine_has_requests(e))
        return iv_fail(err, IV_BUSY, "weights: %zu requests run and %zu wait", e->running.count,
                       e->waiting.count + e->held.count);
    size_t n = e->model->stored_count;
    iv_stored *copies = malloc((n ? n : 1) * sizeof *copies);
    if (!copies) return iv_fail(err, IV_NO_MEMORY, "weights: no memory to check them");
    memcpy(copies, e->model->stored, n * sizeof *copies);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = hash_all(e, copies, err);
    iv_fp_env_leave(mode);
    if (status == IV_OK) status = write_all(e, copies, json, digest, err);
    free(copies);
    return status;
}
